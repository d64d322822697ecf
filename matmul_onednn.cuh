// matmul_onednn.cuh -- the CPU's matrix product: decode where the library cannot read the format, then one library call.
//
// Formats  FP8 is decoded to BF16, which holds it exactly (4 and 3 significant bits of 8); FP16 and its 11 bits to FP32.
//          On a processor without BF16 products everything is decoded to FP32
// Source   onednn.h
// Tests    tests/test_matmul.cu     Times  bench.cu, bench_matmul
#pragma once
#include "onednn.h"
#include "operand.cuh"

// out (batch, rows, cols), dense = x, in FP32 or BF16. One block per row: out[batch, r, :] = x[o, i, r, :] * 2^-k.
template <class Wide, class Narrow>
__global__ void decode_kernel(Wide* out, Operand x, int rows, int cols, int inner, float scale) {
    const int64_t batch = blockIdx.x / rows, r = blockIdx.x % rows;
    const Narrow* x_r = (const Narrow*)x.data + batch / inner * x.outer + batch % inner * x.inner + r * x.row;
    Wide* out_r = out + (int64_t)blockIdx.x * cols;
    for (int c = threadIdx.x; c < cols; c += BLOCK) out_r[c] = round_to<Wide>(to_float(x_r[c]) * scale);
}

// c[o, i, m, :] = round(sum[o, i, m, :] [+ residual]). One block per row.
template <class T>
__global__ void store_kernel(T* c, const float* sum, const T* residual, Output where, Sizes s) {
    const int64_t batch = blockIdx.x / s.M, m = blockIdx.x % s.M;
    const int64_t at = batch / s.inner * where.outer + batch % s.inner * where.inner + m * where.row;
    const float* sum_m = sum + (int64_t)blockIdx.x * s.N;
    if (residual)
        for (int n = threadIdx.x; n < s.N; n += BLOCK) c[at + n] = round_to<T>(sum_m[n] + to_float(residual[at + n]));
    else
        for (int n = threadIdx.x; n < s.N; n += BLOCK) c[at + n] = round_to<T>(sum_m[n]);
}

// Memory for decoded operands; it grows to the largest that was ever needed.
inline void* workspace(int which, size_t bytes) {
    static Buffer buffers[3];
    if (buffers[which].bytes() < bytes) buffers[which] = Buffer(bytes);
    return buffers[which].data();
}

// x in `wide` format with exponent 0: x itself where it has it, else decoded, keeping the dimension that has unit stride.
inline Operand widened(Operand x, Format wide, int rows, int cols, Sizes s, int which) {
    if (x.format == wide && x.k == 0) return x;
    if (x.col != 1) return widened(x.transposed(), wide, cols, rows, s, which).transposed();
    const int64_t batches = (int64_t)s.outer * s.inner;
    Operand y = {workspace(which, batches * rows * cols * bytes_of(wide)), wide, 0, cols, 1, (int64_t)s.inner * rows * cols, (int64_t)rows * cols};
    with_type(x.format, [&](auto narrow) {
        using Narrow = decltype(narrow);
        float scale = std::ldexp(1.0f, -x.k);
        if (wide == BF16) launch(decode_kernel<bf16, Narrow>, batches * rows, BLOCK, (bf16*)y.data, x, rows, cols, s.inner, scale);
        else launch(decode_kernel<float, Narrow>, batches * rows, BLOCK, (float*)y.data, x, rows, cols, s.inner, scale);
    });
    return y;
}

inline void matmul_onednn(Output c, Operand a, Operand b, Sizes s, Epilogue e) {
    auto fits_bf16 = [](Format f) { return f == BF16 || is_fp8(f); };
    Format wide = fits_bf16(a.format) && fits_bf16(b.format) && OneDnn::native_bf16() ? BF16 : FP32;
    a = widened(a, wide, s.M, s.K, s, 0);
    b = widened(b, wide, s.K, s.N, s, 1);

    const size_t elements = (size_t)s.M * s.N;
    ENSURE(!(e.kept || e.residual) || (s.outer * s.inner == 1 && c.row == s.N), "a GELU or a residual in a batch of views");
    Output product = c; // what the library writes: the GELU's argument, or c
    if (e.kept) product.data = e.kept;
    const bool direct = c.format == FP32 || c.format == wide; // can the library write that format?
    ENSURE(direct || !e.accumulate, "a product can only be added to FP32, not to %s", name_of(c.format));
    if (!direct) product = {workspace(2, s.outer * s.inner * elements * 4), FP32, s.N, (int64_t)(s.inner * elements), (int64_t)elements};
    const bool residual_first = direct && e.residual; // the library adds to what is there
    if (residual_first && e.residual != c.data) memcpy(c.data, e.residual, elements * bytes_of(c.format));

    ProductShape shape = {s.outer, s.inner, s.M, s.N, s.K};
    shape.a = {a.outer, a.inner, a.row, a.col}, shape.b = {b.outer, b.inner, b.row, b.col};
    shape.c = {product.outer, product.inner, product.row, 1};
    shape.ab_format = wide, shape.c_format = product.format;
    shape.has_bias = e.bias != nullptr, shape.accumulate = e.accumulate || residual_first;
    OneDnn::library().multiply(product.data, a.data, b.data, e.bias, shape);

    with_stored(c.format, [&](auto zero) {
        using T = decltype(zero);
        T* stored = (T*)(e.kept ? e.kept : c.data);
        if (!direct) launch(store_kernel<T>, s.outer * s.inner * s.M, BLOCK, stored, (const float*)product.data, (const T*)e.residual, c, s);
        if (e.kept) gelu_forward(Tensor<T>((T*)c.data, s.M, s.N), Tensor<T>(stored, s.M, s.N));
    });
}
