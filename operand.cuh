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

// c[at] .. c[at+N-1], neighbours in a row, = the epilogue of N sums; n is the first one's column, and from column `columns` on there is
// nothing. T is the format of c, kept and residual.
template <class T, int N>
__device__ inline void finish_as(const Output& c, const Epilogue& e, int64_t at, int n, int columns, const Pack<float, N>& sum, Factors scale) {
    const size_t end = at + (columns - n); // of the row
    Pack<float, N> value;
    auto add = [&](const auto& x) { for (int j = 0; j < N; j++) value[j] += to_float(x[j]); };
    auto rounded = [&] {
        Pack<T, N> y;
        for (int j = 0; j < N; j++) y[j] = round_to<T>(value[j]);
        return y;
    };
    for (int j = 0; j < N; j++) value[j] = sum[j] * scale.first * scale.second;
    if (e.bias) add(load_pack<N>(e.bias, n, columns));
    if (e.kept) {
        const Pack<T, N> kept = rounded();
        store_pack((T*)e.kept, at, end, kept);
        for (int j = 0; j < N; j++) value[j] = gelu(to_float(kept[j]));
    }
    if (e.residual) add(load_pack<N>((const T*)e.residual, at, end));
    if (e.accumulate) add(load_pack<N>((const T*)c.data, at, end));
    store_pack((T*)c.data, at, end, rounded());
}
// The same for the format that c has: asked once for N elements.
template <int N>
__device__ inline void finish(const Output& c, const Epilogue& e, int64_t at, int n, int columns, const Pack<float, N>& sum, Factors scale) {
    if (c.format == FP32) finish_as<float>(c, e, at, n, columns, sum, scale);
    else if (c.format == BF16) finish_as<bf16>(c, e, at, n, columns, sum, scale);
    else finish_as<fp16>(c, e, at, n, columns, sum, scale);
}
