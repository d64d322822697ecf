// tensors.h -- what the kernel tests share: tensors filled from the host and read back as doubles, and error bounds.
#pragma once
#include "recipes.cuh"
#include "rng.h"
#if defined(_OPENMP)
#include <omp.h>
#endif

// Half the spacing at 1: the largest relative error of one rounding to a normal T.
template <class T>
constexpr double unit_roundoff() {
    double u = 0.5;
    for (int i = 0; i < Layout<T>::mantissa_bits; i++) u /= 2;
    return u;
}

// n normal numbers of standard deviation `scale`, the same at every call.
inline std::vector<float> normals(size_t n, uint32_t seed, float scale = 1) {
    std::vector<float> x(n);
    const Rng rng(seed, Stream::test);
    for (size_t i = 0; i < n; i++) x[i] = scale * rng.normal(i);
    return x;
}

// A tensor that owns its memory on the machine. Values are rounded to T once, when they are given.
template <class T>
struct Owned {
    int rows, cols;
    Buffer memory;
    Owned(int rows, int cols) : rows(rows), cols(cols), memory((size_t)rows * cols * sizeof(T)) {}
    Owned(int rows, int cols, const std::vector<float>& values) : Owned(rows, cols) { set(values); }

    Tensor<T> view() const { return {(T*)memory.data(), rows, cols}; }
    operator Tensor<T>() const { return view(); }
    void set(const std::vector<float>& values) {
        std::vector<T> rounded(values.size());
        for (size_t i = 0; i < values.size(); i++) rounded[i] = round_to<T>(values[i]);
        copy_to_machine((T*)memory.data(), rounded.data(), rounded.size());
    }
    // What the tensor holds: as it is stored, and as the numbers that these are, exactly.
    std::vector<T> stored() const {
        synchronize();
        std::vector<T> x((size_t)rows * cols);
        copy_to_host(x.data(), (const T*)memory.data(), x.size());
        return x;
    }
    std::vector<double> get() const {
        std::vector<T> x = stored();
        std::vector<double> values(x.size());
        for (size_t i = 0; i < x.size(); i++) values[i] = to_float(x[i]);
        return values;
    }
};

// ==== bounds derived from the formats, and the element that comes closest to breaking one ============================

// n roundings to FP32, wherever they fall in a sum of products, change it by at most this times the sum of the terms'
// magnitudes: gamma_n = n u / (1 - n u), Higham 2002, "Accuracy and Stability of Numerical Algorithms", lemma 3.1.
inline double gamma_fp32(double n) { return n * 0x1p-24 / (1 - n * 0x1p-24); }

// What storing x as T may change: half a spacing, which below the normals is half the smallest subnormal. FP32 already
// is what was computed.
template <class T>
double rounding_error(double x) {
    if (sizeof(T) == sizeof(float)) return 0;
    return std::fmax(std::fabs(x) * unit_roundoff<T>(), std::ldexp(1.0, -Layout<T>::bias - Layout<T>::mantissa_bits));
}

// The element with the largest |got - want| / bound: a test looks at all elements and checks once that ratio <= 1.
struct Worst {
    double ratio = 0, got = 0, want = 0, bound = 0;
    size_t at = 0;
    void see(size_t i, double got_i, double want_i, double bound_i) {
        double off = std::fabs(got_i - want_i), r = off == 0 ? 0 : off / bound_i;
        if (r <= ratio) return; // so a NaN is worse than anything
        if (std::isnan(ratio)) return;
        ratio = r, got = got_i, want = want_i, bound = bound_i, at = i;
    }
    std::string text() const { return format("element %zu: got %.9g, want %.9g, may be off by %.3g", at, got, want, bound); }
};

// body() with n OpenMP threads where blocks run on those.
template <class F>
void with_threads(int n, F body) {
#if defined(_OPENMP)
    const int before = omp_get_max_threads();
    omp_set_num_threads(n);
    body();
    omp_set_num_threads(before);
#else
    (void)n, body();
#endif
}
