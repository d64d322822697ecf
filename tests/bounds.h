// bounds.h -- how far a computed number may be from the true one, and which element of a tensor comes closest to that.
//
//   one operation       fl(a op b) = (a op b)(1 + d), |d| <= u                 u = 2^-24 in FP32
//   n of them           (1 + d)^n is within 1 +- gamma(n),                     gamma(n) = n u / (1 - n u)
//   a sum of n terms    |error| <= gamma(n - 1) sum |terms|, in any order of adding
//   stored as T         |error| <= u_T |x|, or half of T's smallest subnormal
//
// Source   Higham 2002, "Accuracy and stability of numerical algorithms", lemma 3.1 and section 4.2
// Why      a tolerance that was found by trying hides the next mistake; one that counts roundings cannot be argued with
#pragma once
#include "tensors.h"
#include <doctest/doctest.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

constexpr double U = 0x1p-24; // FP32's unit round-off
constexpr double gamma(double n) { return n * U / (1 - n * U); }

// e^x and log x in FP32 are within 2 units in the last place: 4 u. A result below 2^-126 may be 0.
constexpr double EXP_ERROR = 4 * U, LOG_ERROR = 4 * U, SMALLEST_NORMAL = 0x1p-126;

// The error of rounding x to T; none for the FP32 that it was computed in.
template <class T>
double stored(double x) {
    if (sizeof(T) == 4) return 0;
    return std::fmax(unit_roundoff<T>() * std::fabs(x), std::ldexp(0.5, 1 - Layout<T>::bias - Layout<T>::mantissa_bits));
}

// The element of a tensor that uses most of its bound.
struct Worst {
    const char* name;
    int cols;
    double share = -1, got = 0, expected = 0, bound = 0;
    size_t at = 0;
    Worst(const char* name, int cols) : name(name), cols(cols) {}

    void add(size_t i, double got_, double expected_, double bound_) {
        double s = got_ == expected_ ? 0 : std::fabs(got_ - expected_) / bound_;
        if (!(s < HUGE_VAL)) s = HUGE_VAL; // a NaN is the worst of all
        if (s > share) share = s, at = i, got = got_, expected = expected_, bound = bound_;
    }
    void check() const {
        INFO(format("%s[%zu, %zu] is %.9g, expected %.9g within %.3g", name, at / cols, at % cols, got, expected, bound));
        CHECK(share <= 1);
    }
};

// d loss / d x by central differences in double, at h and h/2, and how far that may be off: what is left of h^2 is less
// than what the halving changed; the loss is a sum of up to 1000 terms, rounded at 2^-53, of total size `size`.
struct Slope {
    double value, error;
};
template <class F>
Slope slope(F loss, double& x, double size) {
    const double h = 1e-4, at = x;
    auto difference = [&](double step) {
        x = at + step;
        double above = loss();
        x = at - step;
        double below = loss();
        x = at;
        return (above - below) / (2 * step);
    };
    const double whole = difference(h), half = difference(h / 2);
    return {half, std::fabs(whole - half) + 1000 * 0x1p-53 * size / h};
}

// Sizes that divide nothing: every count of rows with every count of columns.
template <class F>
void for_each_size(F f) {
    for (int rows : {1, 3, 17, 257})
        for (int cols : {1, 3, 17, 257, 1000}) {
            CAPTURE(rows);
            CAPTURE(cols);
            f(rows, cols);
        }
}

// The bytes of a tensor: equal is equal in every bit.
inline std::string bytes_at(const void* machine, size_t n) {
    synchronize();
    std::string bytes(n, '\0');
    copy_to_host(&bytes[0], (const char*)machine, n);
    return bytes;
}
template <class T>
std::string bytes(const Owned<T>& x) {
    return bytes_at(x.memory.data(), x.memory.bytes());
}

// run() returns the bytes of what it computed: the same with 1 OpenMP thread and with 2 (on a GPU: the same twice).
template <class F>
void check_any_number_of_threads(F run) {
    std::string results[2];
#if defined(_OPENMP)
    const int before = omp_get_max_threads();
#endif
    for (int i = 0; i < 2; i++) {
#if defined(_OPENMP)
        omp_set_num_threads(i + 1);
#endif
        results[i] = run();
    }
#if defined(_OPENMP)
    omp_set_num_threads(before);
#endif
    CHECK(results[0].size() > 0);
    CHECK((results[0] == results[1]));
}
