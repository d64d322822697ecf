// fp16.cuh -- FP16 (IEEE half): three more digits than BF16, paid for with range. And how any narrow format is coded.
//
//   FP32   S EEEEEEEE MMMMMMMMMMMMMMMMMMMMMMM      value = (-1)^S * 2^(E-127) * 1.M
//   FP16   S    EEEEE MMMMMMMMMM                   value = (-1)^S * 2^(E-15)  * 1.M         (E = 0: 2^-14 * 0.M)
//
//   bits 16   bias 15   largest 65504   smallest normal 2^-14   smallest subnormal 2^-24   spacing at 1: 2^-10
//
// Source   IEEE 754-2019, binary16
// Formats  computing is in FP32; a NaN is stored as 0x7FFF, as CUDA's conversions do
// Why      gradients of 1e-8 are common and are 0 in FP16 (below 2^-25): the FP16 recipe multiplies the loss by a loss
//          scale so that they are not, and watches for the Inf that too large a scale makes
// Tests    tests/test_fp16.cu
#pragma once
#include "bf16.cuh"
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

struct fp16 {
    uint16_t bits;
};

template <>
struct Layout<fp16> {
    static constexpr int exponent_bits = 5, mantissa_bits = 10, bias = 15;
    static constexpr uint16_t max_finite = 0x7BFF, inf = 0x7C00, nan = 0x7FFF;
};

// ==== coding a format with fewer exponent bits than FP32, straight from FP32: one rounding ============================
//
//   normal      move the exponent's bias, round M to nearest-even in the integer, as bf16.cuh does
//   subnormal   |x| + magic, where magic is the power of two whose spacing in FP32 is T's smallest subnormal: the adder
//               rounds |x| to a multiple of it (nearest-even, in hardware), and the multiple is in the low bits of the sum
//   overflow    a code past the largest finite one becomes `overflow`: Inf or NaN, or the largest itself to saturate
//
// Both ways are computed and one is chosen: no branch, so that a compiler can do 16 at once.
template <class T>
__host__ __device__ inline uint32_t encode(float x, uint32_t overflow) {
    using L = Layout<T>;
    constexpr int M = L::mantissa_bits, cut = 23 - M;
    constexpr uint32_t smallest_normal = (uint32_t)(127 + 1 - L::bias) << 23;
    constexpr uint32_t magic = (uint32_t)(127 + 1 - L::bias - M + 23) << 23;

    uint32_t u = bits_as<uint32_t>(x), magnitude = u & 0x7FFFFFFF;
    uint32_t normal = ((magnitude + (1u << (cut - 1)) - 1 + (magnitude >> cut & 1)) >> cut) - ((127u - L::bias) << M);
    uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(magic)) - magic;

    uint32_t code = magnitude < smallest_normal ? subnormal : normal;
    code = code > L::max_finite ? overflow : code;
    code |= u >> 31 << (L::exponent_bits + M);
    return magnitude > 0x7F800000 ? L::nan : code;
}

template <class T>
__host__ __device__ inline float decode(uint32_t code) {
    using L = Layout<T>;
    constexpr int M = L::mantissa_bits;
    uint32_t sign = code >> (L::exponent_bits + M) << 31, magnitude = code & ((1u << (L::exponent_bits + M)) - 1);
    float subnormal = (float)(int)magnitude * bits_as<float>((uint32_t)(127 + 1 - L::bias - M) << 23);
    float normal = bits_as<float>((magnitude << (23 - M)) + ((127u - L::bias) << 23));
    float value = magnitude < (1u << M) ? subnormal : normal;
    uint32_t special = magnitude == L::inf ? 0x7F800000 : 0x7FFFFFFF;
    return bits_as<float>(sign | (magnitude > L::max_finite ? special : bits_as<uint32_t>(value)));
}

// ==== FP16's own doors ================================================================================================

__host__ __device__ inline float to_float(fp16 x) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(x.bits));
#else
    return decode<fp16>(x.bits);
#endif
}

template <>
__host__ __device__ inline fp16 round_to<fp16>(float x) {
#if defined(__CUDA_ARCH__)
    return {__half_as_ushort(__float2half_rn(x))};
#else
    return {(uint16_t)encode<fp16>(x, Layout<fp16>::inf)};
#endif
}
