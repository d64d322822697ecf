// exp.cuh -- e^x that a C++ compiler can do sixteen at a time; softmax, cross-entropy and GELU stand on it.
//
//   exp_fp32          e^x            sigmoid        1 / (1 + e^-x)            warp_largest   max of x, for e^(x - max)
//
//   x = n ln 2 + r,  |r| <= ln 2 / 2         e^x = 2^n * (1 + r + r^2/2! + ... + r^7/7!)
//
// Source   Cody and Waite 1980, "Software manual for the elementary functions": ln 2 in two pieces keeps r exact
// Formats  FP32 in and out, within 2 ulp; 0 below -87.33 (no subnormal results), Inf above 88.72, NaN stays NaN
// Why      without -ffast-math (which breaks NaN checks) a compiler calls the library's expf one element at a time:
//          ten times slower. The GPU has its own expf.
// Tests    tests/test_exp.cu
#pragma once
#include "gpu.cuh"

__host__ __device__ inline float exp_fp32(float x) {
#if defined(__CUDA_ARCH__)
    return expf(x);
#else
    float n = rintf(x * 1.44269504f);
    n = n > -126 ? n : -126; // also where n is NaN
    n = n < 128 ? n : 128;
    float r = fmaf(n, -0x1.62e400p-1f, x); // ln 2 = 0x1.62e400p-1 + 0x1.7f7d1cp-20: n times the first piece is exact
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 1.9841270e-4f; // 1/7!
    p = fmaf(p, r, 1.3888889e-3f);
    p = fmaf(p, r, 8.3333333e-3f);
    p = fmaf(p, r, 4.1666668e-2f);
    p = fmaf(p, r, 1.6666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    float y = bits_as<float>(bits_as<uint32_t>(p) + ((uint32_t)(int)n << 23)); // times 2^n: n added to the exponent
    y = x < -87.33f ? 0 : y;
    y = x > 88.72283f ? bits_as<float>(0x7F800000u) : y;
    return x == x ? y : x;
#endif
}

// 1 / (1 + e^-x), without cancellation on either side.
__host__ __device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exp_fp32(-x)); }

// The order of floats as the order of integers: monotone, -NaN < -Inf < ... < Inf < NaN. A maximum of integers
// vectorises, and it keeps a positive NaN, which fmaxf would lose.
__host__ __device__ inline int ordered(float x) {
    int i = bits_as<int>(x);
    return i ^ (i >> 31 & 0x7FFFFFFF);
}
__host__ __device__ inline float from_ordered(int i) { return bits_as<float>(i ^ (i >> 31 & 0x7FFFFFFF)); }

// The largest of x[0 .. n-1], by one warp: what is taken out of an exponent before e^x can overflow.
__device__ inline float warp_largest(const float* x, int n) {
    int top = INT32_MIN;
    for (int i = threadIdx.x; i < n; i += WARP) {
        const int o = ordered(x[i]);
        top = o > top ? o : top;
    }
    return from_ordered(warp_max(top));
}
