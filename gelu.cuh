// gelu.cuh -- the nonlinearity of the MLP: x times the probability that a normal variable is below x, by its tanh form.
//
//   u = sqrt(2/pi) (x + 0.044715 x^3)       y = 0.5 x (1 + tanh u) = x s,     s = 1 / (1 + e^-2u)
//   dx = dy * (s + x s (1 - s) 2 u'),       u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// Source   Hendrycks, Gimpel 2016, arXiv:1606.08415, section 2; GPT-2 uses the tanh form
// Shapes   x, y, dx, dy (BT, 4C)
// Formats  all four in the stored format, computed in FP32; FP8 codes of dx on request
// Why      0.5 (1 + tanh u) is the logistic function of 2u: one e^x, and nothing cancels where tanh u is near -1
// Tests    tests/test_gelu.cu     Times  bench.cu, bench_gelu
#pragma once
#include "exp.cuh"
#include "scaling.cuh"

constexpr float GELU_A = 0.797884561f, GELU_B = 0.044715f; // sqrt(2/pi)

__host__ __device__ inline float gelu_sigmoid(float x) { return sigmoid(2 * GELU_A * (x + GELU_B * x * x * x)); } // s
__host__ __device__ inline float gelu(float x) { return x * gelu_sigmoid(x); }

// One block per CHUNK elements; reads x once, writes y once.
template <class T>
__global__ void gelu_forward_kernel(T* y, const T* x, size_t n) {
    constexpr int N = PACK<T>;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> x_i = load_pack<N>(x, i, chunk.end);
        Pack<T> y_i;
        for (int j = 0; j < N; j++) y_i[j] = round_to<T>(gelu(to_float(x_i[j])));
        store_pack(y, i, chunk.end, y_i);
    }
}

// A pack of dx, computed and stored.
template <class T>
__device__ inline Pack<T> gelu_backward_pack(T* dx, const T* dy, const T* x, size_t i, size_t end) {
    constexpr int N = PACK<T>;
    const Pack<T> dy_i = load_pack<N>(dy, i, end), x_i = load_pack<N>(x, i, end);
    Pack<T> dx_i;
    for (int j = 0; j < N; j++) {
        float v = to_float(x_i[j]), s = gelu_sigmoid(v);
        float slope = GELU_A * (1 + 3 * GELU_B * v * v);
        dx_i[j] = round_to<T>(to_float(dy_i[j]) * (s + v * s * (1 - s) * 2 * slope));
    }
    store_pack(dx, i, end, dx_i);
    return dx_i;
}

// One block per CHUNK elements; reads dy and x once, writes dx once.
template <class T>
__global__ void gelu_backward_kernel(T* dx, const T* dy, const T* x, size_t n) {
    PackChunk<PACK<T>> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * PACK<T>) gelu_backward_pack(dx, dy, x, i, chunk.end);
}

// The same, and one byte more to write for q, and for qt: the codes of dx, by quantise_each.
template <class T, class Q>
__global__ void gelu_backward_quantise_kernel(T* dx, Q* q, Q* qt, CastStats* stats, const T* dy, const T* x, float scale, int rows, int cols) {
    quantise_each<PACK<T>>(q, qt, stats, scale, rows, cols, [=](size_t i, size_t end) { return gelu_backward_pack(dx, dy, x, i, end); });
}

// y = gelu(x)
template <class T>
void gelu_forward(Tensor<T> y, Tensor<T> x) {
    ENSURE(y.size() == x.size(), "y has %zu elements, x has %zu", y.size(), x.size());
    launch(gelu_forward_kernel<T>, chunks(x.size()), BLOCK, y.data, (const T*)x.data, x.size());
}

// dx = dy * gelu'(x); dx may be dy
template <class T>
void gelu_backward(Tensor<T> dx, Tensor<T> dy, Tensor<T> x) {
    ENSURE(dx.size() == x.size() && dy.size() == x.size(), "dx has %zu elements, dy %zu, x %zu", dx.size(), dy.size(), x.size());
    launch(gelu_backward_kernel<T>, chunks(x.size()), BLOCK, dx.data, (const T*)dy.data, (const T*)x.data, x.size());
}

// dx = dy * gelu'(x), and its codes as quantise(q, f, k, stats, dx, qt) makes them, without reading dx again.
template <class T>
void gelu_backward(Tensor<T> dx, Tensor<T> dy, Tensor<T> x, void* q, Format f, int k, CastStats* stats, void* qt = nullptr) {
    ENSURE(dx.size() == x.size() && dy.size() == x.size(), "dx has %zu elements, dy %zu, x %zu", dx.size(), dy.size(), x.size());
    if constexpr (WARP == 1) return gelu_backward(dx, dy, x), quantise(q, f, k, stats, dx, qt); // arithmetic is the limit: apart they vectorise
    with_fp8(f, [&](auto zero) {
        using Q = decltype(zero);
        launch(gelu_backward_quantise_kernel<T, Q>, quantise_blocks(qt, x.rows, x.cols), BLOCK, dx.data, (Q*)q, (Q*)qt, stats,
               (const T*)dy.data, (const T*)x.data, std::ldexp(1.0f, k), x.rows, x.cols);
    });
}
