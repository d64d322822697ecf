// operand.cuh -- what a matrix product reads and writes: views of matrices in any format, and what is done to a sum on
// its way to memory.
//
//   value[o, i, r, c] = data[o * outer + i * inner + r * row + c * col] * 2^-k          o, i: example, head
//
//   sum * 2^-(ka+kb)  ->  + bias[n]  ->  [keep, rounded, and take the GELU of that]  ->  + residual[m, n] or + c[m, n]  ->  c
//
// Shapes   a (M, K), b (K, N), c (M, N), each for outer x inner batches; any strides, so a transpose or one head of a
//          (BT, 3C) buffer is a view and never a copy
// Formats  a, b: FP32, BF16, FP16, E4M3 or E5M2, each with its exponent; c, kept and residual: FP32 or a stored format;
//          the sum and what is added to it in FP32: c is rounded once
// Why      a bias, a GELU or a residual that is added while the sum is still in a register costs no trip to memory
// Tests    tests/test_matmul.cu
#pragma once
#include "gelu.cuh"
#include "recipes.cuh"

struct Operand {
    const void* data;
    Format format;
    int k;
    int64_t row, col, outer, inner;
    Operand transposed() const { return {data, format, k, col, row, outer, inner}; }
};

// Where a product is written: unit stride along a row.
struct Output {
    void* data;
    Format format;
    int64_t row, outer, inner;
};

struct Sizes {
    int M, N, K, outer = 1, inner = 1;
};

// What is added to a sum. `kept` and `residual` lie like c and have its format; null: nothing of the kind.
struct Epilogue {
    const float* bias = nullptr; // (N)
    void* kept = nullptr;        // receives what goes into the GELU, which backward needs; without it there is no GELU
    const void* residual = nullptr;
    bool accumulate = false; // c +=
};

template <class T>
Operand operand(Tensor<T> x) {
    return {x.data, format_of<T>, 0, x.cols, 1, 0, 0};
}
template <class T>
Output output(Tensor<T> c) {
    return {c.data, format_of<T>, c.cols, 0, 0};
}

// 2^-k as two factors: k may be twice what a float's exponent holds. Of one sign, so neither overflows on its own.
struct Factors {
    float first, second;
    explicit Factors(int k) : first(std::ldexp(1.0f, -k / 2)), second(std::ldexp(1.0f, -(k - k / 2))) {}
};

// c[at] = epilogue of a sum; n is its column.
__device__ inline void finish(const Output& c, const Epilogue& e, int64_t at, int n, float sum, Factors scale) {
    float value = sum * scale.first * scale.second;
    if (e.bias) value += e.bias[n];
    if (e.kept) {
        store(e.kept, c.format, at, value);
        value = gelu(load(e.kept, c.format, at));
    }
    if (e.residual) value += load(e.residual, c.format, at);
    if (e.accumulate) value += load(c.data, c.format, at);
    store(c.data, c.format, at, value);
}
