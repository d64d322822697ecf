// format_oracle.h -- what a number format must do, from its definition alone, and the checks that all formats share.
//
//   value(code) = 2^(e - bias) * (1 + m/2^M)   if e > 0        code = S | e (E bits) | m (M bits)
//               = 2^(1 - bias) *      m/2^M    if e = 0        bias = 2^(E-1) - 1
//   round(x)    = the nearer of x's two neighbours in the list of all values; of two equally near, the even code
//
// Source   IEEE 754-2019 sections 3.4 (values) and 4.3 (rounding); Micikevicius et al. 2022, arXiv:2209.05433 (E4M3)
// Formats  double: all values of these formats and all FP32 are exact in it, and so is every distance that decides
// Why      It shares no line and no idea with bf16.cuh, fp16.cuh and fp8.cuh: those shift bits, this one compares
//          distances. Where CUDA's headers are installed their host conversions are a second, foreign opinion.
// Tests    tests/test_bf16.cu, test_fp16.cu, test_fp8.cu. Include it before every other file of the project.
#pragma once
#if __has_include(<cuda_fp8.h>)
#define FEWBITS_CUDA_HEADERS
#if !defined(__CUDACC__)
#define dim3 cuda_dim3 // a C++ compiler reads CUDA's headers; then gpu.cuh gives these names meanings of its own
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#undef dim3
#undef __global__
#undef __host__
#undef __device__
#undef __shared__
#endif
#endif

#include "bf16.cuh"
#include "rng.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <random>

// The sign as the bit it is, and floats that the compiler knows nothing of: our flags allow it to take -0 for 0
// (-fno-signed-zeros), so that std::signbit of what it knows to be zero, and even the literal -0.0f, may lose the sign.
inline bool is_negative(float x) { return bits_as<uint32_t>(x) >> 31; }
inline float from_bits(uint32_t bits) {
    volatile uint32_t unknown = bits;
    return bits_as<float>((uint32_t)unknown);
}

// ==== the oracle =====================================================================================================

struct FormatOracle {
    int exponent_bits, mantissa_bits;
    uint32_t past;             // the code after the largest finite one: Inf's, or NaN's in a format without Inf
    uint32_t nan_code;         // all ones
    uint32_t sign_code;        // the bit above
    std::vector<double> value; // of the codes 0, 1, ..., past: this last one as if the format went on

    FormatOracle(int exponent_bits, int mantissa_bits, bool has_inf)
        : exponent_bits(exponent_bits), mantissa_bits(mantissa_bits) {
        const int E = exponent_bits, M = mantissa_bits, bias = (1 << (E - 1)) - 1;
        sign_code = 1u << (E + M);
        nan_code = sign_code - 1;
        past = has_inf ? ((1u << E) - 1) << M : nan_code;
        for (uint32_t code = 0; code <= past; code++) {
            int e = (int)(code >> M);
            double fraction = (code & ((1u << M) - 1)) / std::pow(2.0, M);
            value.push_back(e > 0 ? std::pow(2.0, e - bias) * (1 + fraction) : std::pow(2.0, 1 - bias) * fraction);
        }
    }
    uint32_t max_code() const { return past - 1; }
    int codes() const { return (int)(2 * sign_code); }

    double decode(uint32_t code) const {
        uint32_t magnitude = code & nan_code;
        double v = magnitude < past ? value[magnitude] : magnitude == nan_code || magnitude > past ? NAN
                                                                                                   : INFINITY;
        return code & sign_code ? -v : v;
    }
    // The code of the largest value that is not above `magnitude`; `past` stands for everything from there on.
    uint32_t code_below(double magnitude) const {
        return (uint32_t)(std::upper_bound(value.begin(), value.end(), magnitude) - value.begin()) - 1;
    }
    uint32_t encode(float x, bool saturate) const {
        if (std::isnan(x)) return nan_code;
        uint32_t sign = is_negative(x) ? sign_code : 0;
        double magnitude = std::fabs((double)x);
        uint32_t code = code_below(magnitude);
        if (code < past) {
            double down = magnitude - value[code], up = value[code + 1] - magnitude;
            if (up < down || (up == down && code % 2 == 1)) code++;
        }
        return sign | (code == past && saturate ? max_code() : code);
    }
};

// ==== where to look: every place a rounding could go wrong, then anywhere ============================================

// All values, all ties between neighbours, the FP32 next to each, on both sides; all kinds of special FP32. Both signs.
inline std::vector<float> edge_cases(const FormatOracle& f) {
    std::vector<float> magnitudes;
    for (uint32_t code = 0; code < f.past; code++)
        for (double v : {f.value[code], (f.value[code] + f.value[code + 1]) / 2, f.value[code + 1]})
            for (float toward : {-INFINITY, INFINITY, (float)v})
                magnitudes.push_back(std::fabs(std::nextafterf((float)v, toward)));
    for (uint32_t bits : {0x00000000u, 0x00000001u, 0x00000002u, 0x00007FFFu, 0x00008000u, 0x00008001u, 0x00400000u,
                          0x007FFFFFu, 0x00800000u, 0x00800001u, 0x7F7FFFFFu, 0x7F800000u, // ... FLT_MAX, Inf; NaN:
                          0x7F800001u, 0x7F808000u, 0x7FA00000u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FC00001u, 0x7FFFFFFFu})
        magnitudes.push_back(bits_as<float>(bits));

    std::vector<float> x = magnitudes;
    for (float m : magnitudes) x.push_back(bits_as<float>(bits_as<uint32_t>(m) | 0x80000000u));
    return x;
}

// n random bit patterns; every other one has an exponent from the format's own range and a little beyond.
inline std::vector<float> random_floats(const FormatOracle& f, size_t n) {
    std::mt19937 random(1);
    int lowest = std::max(0, std::ilogb(f.value[1]) - 3 + 127);
    int highest = std::min(255, std::ilogb(f.value[f.past]) + 1 + 127);
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = random();
        if (i % 2) bits = (bits & 0x807FFFFFu) | (lowest + random() % (highest - lowest + 1)) << 23;
        x[i] = bits_as<float>(bits);
    }
    return x;
}

inline std::vector<float> edge_cases_and_random_floats(const FormatOracle& f) {
    std::vector<float> x = edge_cases(f), more = random_floats(f, 1 << 22);
    x.insert(x.end(), more.begin(), more.end());
    return x;
}

template <class F>
std::vector<uint32_t> codes_of(const std::vector<float>& x, F encode) {
    std::vector<uint32_t> codes(x.size());
    for (size_t i = 0; i < x.size(); i++) codes[i] = encode(x[i]);
    return codes;
}

// Two ways to encode x gave the same codes.
inline void expect_equal(const std::vector<float>& x, const std::vector<uint32_t>& got,
                         const std::vector<uint32_t>& expected) {
    long wrong = 0;
    std::string first;
    for (size_t i = 0; i < x.size(); i++)
        if (got[i] != expected[i] && wrong++ == 0)
            first = format("x = %.9g = 0x%08X: 0x%X, not 0x%X", x[i], bits_as<uint32_t>(x[i]), got[i], expected[i]);
    INFO("first of ", wrong, ": ", first);
    CHECK(wrong == 0);
}

// ==== the checks that all formats share ==============================================================================

template <class T>
T from_code(uint32_t code) {
    T x;
    x.bits = (decltype(x.bits))code;
    return x;
}

// Layout's constants are the format's; decoding is the textbook's formula; a decoded code is encoded to itself.
template <class T>
void check_every_code(const FormatOracle& f) {
    using L = Layout<T>;
    CHECK((uint32_t)L::max_finite == f.max_code());
    CHECK((uint32_t)L::nan == f.nan_code);
    CHECK(L::bias == (1 << (f.exponent_bits - 1)) - 1);

    int wrong_values = 0, wrong_codes = 0;
    for (int code = 0; code < f.codes(); code++) {
        float x = to_float(from_code<T>(code));
        double truth = f.decode(code);
        bool same = std::isnan(truth) ? std::isnan(x) : x == truth && is_negative(x) == (code >= (int)f.sign_code);
        if (!same && wrong_values++ == 0) MESSAGE("first wrong value: code ", code, " is ", x, ", not ", truth);
        int expected = std::isnan(truth) ? (int)f.nan_code : code;
        int back = round_to<T>(x).bits;
        if (back != expected && wrong_codes++ == 0) MESSAGE("first wrong code: ", code, " comes back as ", back);
    }
    CHECK(wrong_values == 0);
    CHECK(wrong_codes == 0);
}

// Which of its two neighbours a number becomes is chance; that it becomes one of them is not.
template <class T>
void check_stochastic_picks_a_neighbour(const FormatOracle& f) {
    const uint64_t key = Rng(1, Stream::test).key;
    std::vector<float> inputs = edge_cases(f), more = random_floats(f, 1 << 20);
    inputs.insert(inputs.end(), more.begin(), more.end());
    long wrong = 0;
    std::string first;
    for (size_t i = 0; i < inputs.size(); i++) {
        float x = inputs[i];
        uint32_t random = i % 16 == 0 ? 0 : i % 16 == 1 ? 0xFFFFFFFF
                                                        : philox(key, i).word[0];
        uint32_t code = round_stochastic<T>(x, random).bits, magnitude = code & f.nan_code;
        bool right;
        if (std::isnan(x) || std::isinf(x)) {
            right = code == f.encode(x, false);
        } else {
            uint32_t lower = f.code_below(std::fabs((double)x)), upper = lower + 1;
            if (lower < f.past && f.value[lower] == std::fabs((double)x)) upper = lower;  // exact values stay
            lower = std::min(lower, f.max_code()), upper = std::min(upper, f.max_code()); // finite values stay finite
            right = (magnitude == lower || magnitude == upper) && (code >= f.sign_code) == is_negative(x);
            if (random == 0xFFFFFFFF) right = right && magnitude == lower;
        }
        if (!right && wrong++ == 0)
            first = format("x = %.9g = 0x%08X, random 0x%08X: 0x%X", x, bits_as<uint32_t>(x), random, code);
    }
    INFO("first of ", wrong, ": ", first);
    CHECK(wrong == 0);
}

// E[round(x)] = x, in subnormals, at the seam, at 1 and at the largest, to 5 standard errors.
template <class T>
void check_stochastic_mean(const FormatOracle& f) {
    const uint64_t key = Rng(2, Stream::test).key;
    const int draws = 20000;
    const uint32_t first_normal = 1u << f.mantissa_bits, one = f.code_below(1.0);
    for (uint32_t code : {0u, 1u, first_normal - 1, first_normal, one - 1, one, f.max_code() - 1})
        for (double part : {0.02, 0.3, 0.5, 0.9})
            for (double sign : {1.0, -1.0}) {
                double gap = f.value[code + 1] - f.value[code];
                float x = (float)(sign * (f.value[code] + part * gap));
                double p = (std::fabs((double)x) - f.value[code]) / gap, error = 0;
                for (int i = 0; i < draws; i++) {
                    T y = round_stochastic<T>(x, philox(key, i, bits_as<uint32_t>(x)).word[0]);
                    error += ((double)to_float(y) - x) / gap;
                }
                CAPTURE(x);
                CHECK(std::fabs(error / draws) < 5 * std::sqrt(p * (1 - p) / draws));
            }
}

// The odds are the distance, to the last bit: of 2^20 evenly spread `random`, exactly p * 2^20 round up.
template <class T>
void check_stochastic_odds(const FormatOracle& f) {
    for (uint32_t code : {0u, f.code_below(1.0), f.max_code() - 1}) {
        const uint32_t p = 2459; // of 8192: x has at most 13 + 11 significant bits, so it is an FP32
        float x = (float)(f.value[code] + (f.value[code + 1] - f.value[code]) * p / 8192);
        long up = 0;
        for (uint32_t i = 0; i < 1u << 20; i++) up += round_stochastic<T>(x, i << 12).bits == code + 1;
        CAPTURE(x);
        CHECK(up == p * 128);
        CHECK(round_stochastic<T>(x, (p << 19) - 1).bits == code + 1);
        CHECK(round_stochastic<T>(x, p << 19).bits == code);
    }
}

template <class T>
void check_stochastic_specials(const FormatOracle& f) {
    for (uint32_t random : {0u, 1u, 0x80000000u, 0xFFFFFFFFu}) {
        CHECK(round_stochastic<T>(NAN, random).bits == f.nan_code);
        CHECK(round_stochastic<T>(-NAN, random).bits == f.nan_code);
        CHECK(round_stochastic<T>(INFINITY, random).bits == f.past);
        CHECK(round_stochastic<T>(-INFINITY, random).bits == (f.past | f.sign_code));
        CHECK(round_stochastic<T>(from_bits(0), random).bits == 0);
        CHECK(round_stochastic<T>(from_bits(0x80000000u), random).bits == f.sign_code);
        CHECK(round_stochastic<T>(0x1.fffffep127f, random).bits == f.max_code()); // FLT_MAX
        CHECK(round_stochastic<T>(-0x1.fffffep127f, random).bits == (f.max_code() | f.sign_code));
        CHECK(round_stochastic<T>(-1e-45f, random).bits >= f.sign_code); // below all, and still negative
    }
}

// ==== the same on the machine the kernels run on =====================================================================

template <class T>
__global__ void round_kernel(uint32_t* code, const float* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) code[i] = round_to<T>(x[i]).bits;
}
template <class T>
__global__ void round_stochastic_kernel(uint32_t* code, const float* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK)
        code[i] = round_stochastic<T>(x[i], philox(1, i).word[0]).bits;
}
template <class T>
__global__ void to_float_kernel(float* x, const uint32_t* code, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) {
        T y;
        y.bits = code[i];
        x[i] = to_float(y);
    }
}

// y[i] = f(x[i]) by a kernel.
template <class Y, class X>
std::vector<Y> on_the_machine(void (*kernel)(Y*, const X*, size_t), const std::vector<X>& x) {
    const size_t n = x.size();
    Buffer in(n * sizeof(X)), out(n * sizeof(Y));
    std::vector<Y> y(n);
    copy_to_machine((X*)in.data(), x.data(), n);
    launch(kernel, chunks(n), BLOCK, (Y*)out.data(), (const X*)in.data(), n);
    copy_to_host(y.data(), (const Y*)out.data(), n);
    return y;
}

// Kernel and host agree in every bit of every code, and in every value; a NaN's bits are the machine's own.
template <class T>
void check_kernels(const FormatOracle& f) {
    std::vector<float> x = edge_cases(f), more = random_floats(f, 1 << 20);
    x.insert(x.end(), more.begin(), more.end());
    expect_equal(x, on_the_machine(round_kernel<T>, x), codes_of(x, [](float x) { return round_to<T>(x).bits; }));
    std::vector<uint32_t> stochastic(x.size());
    for (size_t i = 0; i < x.size(); i++) stochastic[i] = round_stochastic<T>(x[i], philox(1, i).word[0]).bits;
    expect_equal(x, on_the_machine(round_stochastic_kernel<T>, x), stochastic);

    std::vector<uint32_t> codes(f.codes());
    for (size_t c = 0; c < codes.size(); c++) codes[c] = (uint32_t)c;
    std::vector<float> values = on_the_machine(to_float_kernel<T>, codes);
    int wrong = 0;
    for (size_t c = 0; c < codes.size(); c++) {
        float host = to_float(from_code<T>(codes[c]));
        bool same = std::isnan(host) ? std::isnan(values[c]) : bits_as<uint32_t>(host) == bits_as<uint32_t>(values[c]);
        if (!same && wrong++ == 0) MESSAGE("first: code ", c, " is ", values[c], " in a kernel, on the host ", host);
    }
    CHECK(wrong == 0);
}
