// fp8.cuh -- FP8: E4M3 for what goes forward (weights, inputs), E5M2 for what comes back (gradients).
//
//   FP16   S EEEEE MMMMMMMMMM
//   E5M2   S EEEEE MM               the upper half of an FP16: all of its range, 3 significant bits of 11
//   E4M3   S  EEEE MMM              half the range, one bit more; no Inf, and only S.1111.111 is NaN, which buys 448
//
//          bits   bias   largest   smallest normal   smallest subnormal   spacing at 1   Inf    NaN
//   E4M3    8      7       448         2^-6               2^-9               2^-3        none   0x7F
//   E5M2    8     15      57344        2^-14              2^-16              2^-2        0x7C   0x7D-0x7F
//
//   saturate_to<T>(x)   past the largest: the largest (Inf too); the cast of a training step, which counts these
//   round_to<T>(x)      past the largest: Inf (E5M2) or NaN (E4M3)
//   In both, 464 is a tie between 448 and 480 and goes to the even code, 448.
//
// Source   Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv:2209.05433; OCP 8-bit floating point 1.0
// Formats  computing is in FP32; always coded straight from FP32: by way of BF16, 1.0625001 would round twice, to 1.0
//          and not to 1.125
// Why      E4M3 spans only 2^17.8 from its largest to its smallest number, so every FP8 tensor carries a power-of-two
//          scale that moves its values into that span: scaling.cuh
// Tests    tests/test_fp8.cu
#pragma once
#include "fp16.cuh"
#if defined(__CUDACC__)
#include <cuda_fp8.h>
#endif

struct e4m3 {
    uint8_t bits;
};
struct e5m2 {
    uint8_t bits;
};

template <>
struct Layout<e4m3> {
    static constexpr int exponent_bits = 4, mantissa_bits = 3, bias = 7;
    static constexpr uint32_t max_finite = 0x7E, inf = 0xFFFFFFFF, nan = 0x7F; // no Inf
};
template <>
struct Layout<e5m2> {
    static constexpr int exponent_bits = 5, mantissa_bits = 2, bias = 15;
    static constexpr uint32_t max_finite = 0x7B, inf = 0x7C, nan = 0x7F;
};

__host__ __device__ inline float to_float(e4m3 x) { return decode<e4m3>(x.bits); }
__host__ __device__ inline float to_float(e5m2 x) { return decode<e5m2>(x.bits); }

template <>
__host__ __device__ inline e4m3 round_to<e4m3>(float x) {
    return {(uint8_t)encode<e4m3>(x, Layout<e4m3>::nan)};
}
template <>
__host__ __device__ inline e5m2 round_to<e5m2>(float x) {
    return {(uint8_t)encode<e5m2>(x, Layout<e5m2>::inf)};
}

template <class T>
__host__ __device__ T saturate_to(float x);
template <>
__host__ __device__ inline e4m3 saturate_to<e4m3>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
#else
    return {(uint8_t)encode<e4m3>(x, Layout<e4m3>::max_finite)};
#endif
}
template <>
__host__ __device__ inline e5m2 saturate_to<e5m2>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)};
#else
    return {(uint8_t)encode<e5m2>(x, Layout<e5m2>::max_finite)};
#endif
}
