// bounds.h -- what the tests of the model's operations share: sizes, comparisons, finite differences, bytes.
//
//   one operation       fl(a op b) = (a op b)(1 + d), |d| <= u                 u = 2^-24 in FP32
//   n of them           (1 + d)^n is within 1 +- gamma(n),                     gamma(n) = n u / (1 - n u)
//   a sum of n terms    |error| <= gamma(n - 1) sum |terms|, in any order of adding
//
// Source   Higham 2002, "Accuracy and Stability of Numerical Algorithms", lemma 3.1 and section 4.2
// Why      a tolerance that was found by trying hides the next mistake; one that counts roundings cannot be argued with
#pragma once
#include "tensors.h"
#include <doctest/doctest.h>

constexpr double U = 0x1p-24; // FP32's unit round-off

// e^x and log x in FP32 are within 2 units in the last place: 4 u. An e^x below 2^-126 may be 0.
constexpr double EXP_ERROR = 4 * U, LOG_ERROR = 4 * U, SMALLEST_NORMAL = 0x1p-126;

// One CHECK for a whole tensor of `cols` columns.
inline void check(const char* name, const Worst& worst, int cols) {
    INFO(std::string(name) << ", row " << worst.at / cols << ", column " << worst.at % cols << ": " << worst.text());
    CHECK(worst.ratio <= 1);
}

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
    std::string one, two;
    with_threads(1, [&] { one = run(); });
    with_threads(2, [&] { two = run(); });
    CHECK(one.size() > 0);
    CHECK((one == two));
}
