// bf16.cuh -- BF16: the upper half of an FP32. All of its range, a third of its digits. Also the doors between formats.
//
//   FP32   S EEEEEEEE MMMMMMMMMMMMMMMMMMMMMMM      value = (-1)^S * 2^(E-127) * 1.M         (E = 0: 2^-126 * 0.M)
//   BF16   S EEEEEEEE MMMMMMM                      the same fields, 16 bits fewer of M
//
//   bits 16   bias 127   largest 3.39e38   smallest normal 2^-126   smallest subnormal 2^-133   spacing at 1: 2^-7
//
//   to_float(x)            exact, always                               the only two doors between a stored
//   round_to<T>(x)         to nearest, ties to even (RNE)              number and the FP32 that we compute in
//   round_stochastic<T>    up or down, with the odds of the distance:  E[round(x)] = x
//
// Source   IEEE 754-2019 section 4.3 (RNE); Gupta et al. 2015, arXiv:1502.02551 (stochastic rounding)
// Formats  computing is in FP32; a NaN is stored as 0x7FFF, as CUDA's conversions do
// Why      2^-7 at 1 means that 1 - 0.001 rounds back to 1: BF16 can hold a weight, it cannot train one (FP32 masters)
// Tests    tests/test_bf16.cu
#pragma once
#include "gpu.cuh"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

struct bf16 {
    uint16_t bits;
};

// What a format is, as constants. `inf` and `nan` are codes without the sign; an inf of -1: the format has none.
template <class T>
struct Layout;
template <>
struct Layout<float> {
    static constexpr int exponent_bits = 8, mantissa_bits = 23, bias = 127;
    static constexpr uint32_t max_finite = 0x7F7FFFFF, inf = 0x7F800000, nan = 0x7FFFFFFF;
};
template <>
struct Layout<bf16> {
    static constexpr int exponent_bits = 8, mantissa_bits = 7, bias = 127;
    static constexpr uint16_t max_finite = 0x7F7F, inf = 0x7F80, nan = 0x7FFF;
};

// FP32 is a stored format too: its doors are open.
__host__ __device__ inline float to_float(float x) { return x; }

__host__ __device__ inline float to_float(bf16 x) { return bits_as<float>((uint32_t)x.bits << 16); }

// The nearest T; of two equally near, the one whose last bit is 0. Overflows to Inf, or to NaN where T has no Inf.
template <class T>
__host__ __device__ T round_to(float x);

template <>
__host__ __device__ inline float round_to<float>(float x) {
    return x;
}

//   0 10000000 0011010|1000000000000000    add 0111111111111111 and the last kept bit, then cut: a tie is carried
//   S EEEEEEEE MMMMMMM|thrown away         upwards only when that bit is 1, and a full M carries into E, as it should
template <>
__host__ __device__ inline bf16 round_to<bf16>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
    uint32_t u = bits_as<uint32_t>(x);
    uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    bool is_nan = (u & 0x7FFFFFFF) > 0x7F800000; // adding to a NaN's bits could make it an Inf
    return {(uint16_t)(is_nan ? 0x7FFF : rounded)};
#endif
}

// One of the two T that enclose x: the upper with probability (x - lower) / (upper - lower). `random` is 32 fresh bits:
// from philox(key of the run, step, element), never twice the same (llm.c and LLM.Q each reused a seed once).
// A finite x stays finite, Inf and NaN stay what they are. In T's subnormal range the spacing is T's smallest subnormal.
template <class T>
__host__ __device__ inline T round_stochastic(float x, uint32_t random) {
    constexpr int M = Layout<T>::mantissa_bits, smallest_exponent = 1 - Layout<T>::bias;
    uint32_t magnitude = bits_as<uint32_t>(x) & 0x7FFFFFFF;
    if (magnitude >= 0x7F800000) return round_to<T>(x);
    int exponent = (int)(magnitude >> 23) - 127;
    if (exponent < smallest_exponent) exponent = smallest_exponent;

    float steps = ldexpf(bits_as<float>(magnitude), M - exponent); // |x| in units of the spacing, exact
    float lower = floorf(steps);
    bool up = random < (uint32_t)ldexpf(steps - lower, 32);
    float neighbour = ldexpf(lower + (up ? 1.0f : 0.0f), exponent - M);

    T result;
    result.bits = Layout<T>::max_finite;
    result = round_to<T>(fminf(neighbour, to_float(result))); // exact: a neighbour is a T
    // The sign goes on as a bit: our compilers may take -0.0f for 0.0f (-fno-signed-zeros).
    result.bits |= bits_as<uint32_t>(x) >> 31 << (Layout<T>::exponent_bits + M);
    return result;
}
