// residual.cuh -- the residual stream: each branch adds its part to what came in.
//
//   y = a + b            da = dy,  db = dy: backward copies nothing, both branches read the same gradient
//
// Source   He et al. 2015, arXiv:1512.03385
// Shapes   y, a, b (BT, C)
// Formats  all in the stored format, added in FP32 and rounded once
// Why      this sum is where a narrow format first loses small branches: BF16 keeps 8 bits of the larger one
// Tests    tests/test_residual.cu     Times  bench.cu, bench_residual
#pragma once
#include "bf16.cuh"

// One block per CHUNK elements; reads a and b once, writes y once.
template <class T>
__global__ void residual_forward_kernel(T* y, const T* a, const T* b, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) y[i] = round_to<T>(to_float(a[i]) + to_float(b[i]));
}

template <class T>
void residual_forward(Tensor<T> y, Tensor<T> a, Tensor<T> b) {
    ENSURE(y.size() == a.size() && y.size() == b.size(), "y has %zu elements, a %zu, b %zu", y.size(), a.size(), b.size());
    launch(residual_forward_kernel<T>, chunks(y.size()), BLOCK, y.data, (const T*)a.data, (const T*)b.data, y.size());
}
