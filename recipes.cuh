// recipes.cuh -- which number format each kind of tensor is kept in: the project on one page.
//
//   A recipe is four formats. `stored` is the format of activations and their gradients in memory; the other three are
//   what the matrix products of a Linear read. They are values, not types: each operand of each Linear carries its own
//   format and its own scale.
//
//   Always FP32, in every recipe: master weights, AdamW's m and v, weight gradients and their sum over micro-batches,
//   layernorm statistics, softmax, logits and loss, biases and layernorm gains, every accumulator, every reduction.
//
// Source   Micikevicius et al. 2018, "Mixed precision training", arXiv:1710.03740; arXiv:2209.05433 for FP8
// Why      what is rounded on the way is lost once and averages out; what is summed (a weight over 10,000 small
//          updates, a gradient over a batch) loses every time, so sums are kept wide
// Tests    tests/test_recipes.cu
#pragma once
#include <algorithm>
#include <type_traits>
#include "fp8.cuh"

// clang-format off
enum Format : int { FP32, BF16, FP16, E4M3, E5M2 };
// clang-format on

struct Recipe {
    const char* name;
    Format stored, weight, input, gradient;
    bool loss_scaling; // by default: multiply the loss so that small gradients do not become 0
};

// clang-format off
//                                    stored   weight   input    gradient   loss scaling
constexpr Recipe recipe_fp32 = {"fp32", FP32,    FP32,    FP32,    FP32,      false};
constexpr Recipe recipe_bf16 = {"bf16", BF16,    BF16,    BF16,    BF16,      false};
constexpr Recipe recipe_fp16 = {"fp16", FP16,    FP16,    FP16,    FP16,      true };  // 1e-8 is 0 in FP16
constexpr Recipe recipe_fp8  = {"fp8",  BF16,    E4M3,    E4M3,    E5M2,      false};  // + a scale per FP8 tensor
// clang-format on
constexpr Recipe RECIPES[] = {recipe_fp32, recipe_bf16, recipe_fp16, recipe_fp8};

inline Recipe recipe_named(const std::string& name) {
    for (const Recipe& r : RECIPES)
        if (name == r.name) return r;
    refuse("--recipe %s: expected fp32, bf16, fp16 or fp8", name.c_str());
}

// ==== from a type to its value and back ==============================================================================

// clang-format off
template <class T> constexpr Format format_of = FP32;
template <> inline constexpr Format format_of<bf16> = BF16;
template <> inline constexpr Format format_of<fp16> = FP16;
template <> inline constexpr Format format_of<e4m3> = E4M3;
template <> inline constexpr Format format_of<e5m2> = E5M2;
// clang-format on

constexpr bool is_fp8(Format f) { return f == E4M3 || f == E5M2; }
constexpr size_t bytes_of(Format f) { return is_fp8(f) ? 1 : (f == FP32 ? 4 : 2); }
inline const char* name_of(Format f) {
    static const char* names[] = {"FP32", "BF16", "FP16", "E4M3", "E5M2"};
    return names[f];
}

// body(T()) for the type T of a format: the one place where a value becomes a type.
template <class F>
auto with_type(Format f, F body) {
    switch (f) {
    case FP32: return body(float());
    case BF16: return body(bf16());
    case FP16: return body(fp16());
    case E4M3: return body(e4m3());
    default: return body(e5m2());
    }
}

// The same for the formats that activations may be stored in: a model is compiled for each of these three.
template <class F>
auto with_stored(Format f, F body) {
    if (f == FP32) return body(float());
    if (f == BF16) return body(bf16());
    ENSURE(f == FP16, "activations are not stored in %s", name_of(f));
    return body(fp16());
}

// The largest finite number of a format.
inline float largest_of(Format f) {
    return with_type(f, [](auto zero) {
        using T = decltype(zero);
        using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
        return to_float(bits_as<T>((Bits)Layout<T>::max_finite));
    });
}

// One element of a buffer whose format is a value.
__host__ __device__ inline float load(const void* data, Format f, size_t i) {
    switch (f) {
    case FP32: return ((const float*)data)[i];
    case BF16: return to_float(((const bf16*)data)[i]);
    case FP16: return to_float(((const fp16*)data)[i]);
    case E4M3: return to_float(((const e4m3*)data)[i]);
    default: return to_float(((const e5m2*)data)[i]);
    }
}

// ==== the table of facts, computed from the code =====================================================================

struct FormatFacts {
    int bits, exponent_bits, mantissa_bits, bias;
    double largest, smallest_normal, smallest_subnormal, spacing_at_1;
    int64_t inf, first_nan, last_nan;    // codes without the sign; -1: none
    float becomes_zero, overflow_starts; // the largest float that rounds to 0; the smallest that is no longer finite
};

// Measured: every code is decoded, and the two thresholds are found by bisection over all floats.
template <class T>
FormatFacts format_facts() {
    constexpr int M = Layout<T>::mantissa_bits;
    FormatFacts f = {int(8 * sizeof(T)), Layout<T>::exponent_bits, M, Layout<T>::bias, 0, 0, 0, 0, -1, -1, -1, 0, 0};
    auto value = [](uint32_t code) { return (double)to_float(bits_as<T>((decltype(T::bits))code)); };
    const uint32_t codes = 1u << (f.bits - 1);
    for (uint32_t code = 0; code < codes; code++) {
        if (std::isinf(value(code))) f.inf = code;
        else if (std::isnan(value(code))) f.last_nan = code, f.first_nan = f.first_nan < 0 ? code : f.first_nan;
        else f.largest = std::max(f.largest, value(code));
    }
    f.smallest_subnormal = value(1);
    f.smallest_normal = value(1u << M);
    uint32_t one = round_to<T>(1.0f).bits;
    f.spacing_at_1 = value(one + 1) - value(one);
    auto first = [](auto is_past) { // the smallest positive float with a property that all larger ones share
        uint32_t low = 0, high = 0x7F800000;
        while (high - low > 1) (is_past(bits_as<float>((low + high) / 2)) ? high : low) = (low + high) / 2;
        return high;
    };
    f.becomes_zero = bits_as<float>(first([](float x) { return to_float(round_to<T>(x)) > 0 || x > 1; }) - 1);
    f.overflow_starts = bits_as<float>(first([](float x) { return !std::isfinite(to_float(round_to<T>(x))); }));
    return f;
}

// Powers of two as such: 2^-14 says more than 6.10352e-05.
inline std::string number(double x) {
    int e;
    double m = std::frexp(x, &e);
    if (m == 0.5 && std::abs(e - 1) > 3) return format("2^%d", e - 1);
    return format(x > 1e6 ? "%.9g" : "%.10g", x);
}

inline std::string formats_table() {
    std::string text = format("%-6s %4s  %-7s %4s %14s %12s %12s %10s %8s %11s %13s %14s\n", "format", "bits", "S/E/M", "bias",
                              "largest", "min normal", "min subnorm.", "ulp at 1", "Inf", "NaN", "0 up to", "overflow from");
    auto row = [&](const char* name, FormatFacts f) {
        std::string nan = f.first_nan == f.last_nan ? format("%llX", (long long)f.first_nan)
                                                    : format("%llX-%llX", (long long)f.first_nan, (long long)f.last_nan);
        text += format("%-6s %4d  1/%d/%-3d %4d %14s %12s %12s %10s %8s %11s %13s %14s\n", name, f.bits, f.exponent_bits,
                       f.mantissa_bits, f.bias, number(f.largest).c_str(), number(f.smallest_normal).c_str(),
                       number(f.smallest_subnormal).c_str(), number(f.spacing_at_1).c_str(),
                       f.inf < 0 ? "none" : format("%llX", (long long)f.inf).c_str(), nan.c_str(),
                       number(f.becomes_zero).c_str(), number(f.overflow_starts).c_str());
    };
    row("FP16", format_facts<fp16>());
    row("BF16", format_facts<bf16>());
    row("E4M3", format_facts<e4m3>());
    row("E5M2", format_facts<e5m2>());
    return text + "\nCodes are hexadecimal, without the sign. `0 up to`: the largest magnitude that rounds to 0. `overflow from`: the\n"
                  "smallest that no longer rounds to a finite number (the saturating FP8 cast gives the largest instead).\n";
}
