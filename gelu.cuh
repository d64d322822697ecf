// gelu.cuh -- the nonlinearity of the MLP: x times the probability that a normal variable is below x, by its tanh form.
//
//   u = sqrt(2/pi) (x + 0.044715 x^3)       y = 0.5 x (1 + tanh u) = x s,     s = 1 / (1 + e^-2u)
//   dx = dy * (s + x s (1 - s) 2 u'),       u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// Source   Hendrycks, Gimpel 2016, arXiv:1606.08415, section 2; GPT-2 uses the tanh form
// Shapes   x, y, dx, dy (BT, 4C)
// Formats  all four in the stored format, computed in FP32
// Why      0.5 (1 + tanh u) is the logistic function of 2u: one e^x, and nothing cancels where tanh u is near -1
// Tests    tests/test_gelu.cu     Times  bench.cu, bench_gelu
#pragma once
#include "bf16.cuh"
#include "exp.cuh"

constexpr float GELU_A = 0.797884561f, GELU_B = 0.044715f; // sqrt(2/pi)

// One block per CHUNK elements; reads x once, writes y once.
template <class T>
__global__ void gelu_forward_kernel(T* y, const T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) {
        float v = to_float(x[i]);
        float s = sigmoid(2 * GELU_A * (v + GELU_B * v * v * v));
        y[i] = round_to<T>(v * s);
    }
}

// One block per CHUNK elements; reads dy and x once, writes dx once.
template <class T>
__global__ void gelu_backward_kernel(T* dx, const T* dy, const T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) {
        float v = to_float(x[i]);
        float s = sigmoid(2 * GELU_A * (v + GELU_B * v * v * v));
        float slope = GELU_A * (1 + 3 * GELU_B * v * v);
        dx[i] = round_to<T>(to_float(dy[i]) * (s + v * s * (1 - s) * 2 * slope));
    }
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
