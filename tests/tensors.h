// tensors.h -- what the kernel tests share: a tensor filled from the host, read back as doubles, and the unit round-off.
#pragma once
#include "recipes.cuh"
#include "rng.h"

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
    // What the tensor holds, exactly.
    std::vector<double> get() const {
        synchronize();
        std::vector<T> stored((size_t)rows * cols);
        copy_to_host(stored.data(), (const T*)memory.data(), stored.size());
        std::vector<double> values(stored.size());
        for (size_t i = 0; i < stored.size(); i++) values[i] = to_float(stored[i]);
        return values;
    }
};
