// test_fp8.cu -- fp8.cuh, E4M3 and E5M2, against the definition of the formats and against CUDA.
#include "format_oracle.h" // first: see there
#include "fp8.cuh"

template <class T>
static const FormatOracle& oracle();
template <>
const FormatOracle& oracle<e4m3>() {
    static const FormatOracle f(4, 3, false);
    return f;
}
template <>
const FormatOracle& oracle<e5m2>() {
    static const FormatOracle f(5, 2, true);
    return f;
}
template <class T>
static uint32_t code(float x) {
    return round_to<T>(x).bits;
}
template <class T>
static uint32_t saturated(float x) {
    return saturate_to<T>(x).bits;
}
template <class T>
static float rounded(float x) {
    return to_float(round_to<T>(x));
}
template <class T>
static __global__ void saturate_kernel(uint32_t* code, const float* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) code[i] = saturate_to<T>(x[i]).bits;
}

TEST_CASE_TEMPLATE("FP8: all 256 codes have the textbook's value and survive the way through FP32", T, e4m3, e5m2) {
    check_every_code<T>(oracle<T>());
}

TEST_CASE("E4M3 has 254 finite codes and 2 NaN; E5M2 has 248 finite, 2 Inf and 6 NaN") {
    int finite4 = 0, nan4 = 0, finite5 = 0, inf5 = 0, nan5 = 0;
    for (int c = 0; c < 256; c++) {
        float a = to_float(from_code<e4m3>(c)), b = to_float(from_code<e5m2>(c));
        finite4 += std::isfinite(a), nan4 += std::isnan(a);
        finite5 += std::isfinite(b), nan5 += std::isnan(b), inf5 += std::isinf(b);
    }
    CHECK(finite4 == 254);
    CHECK(nan4 == 2);
    CHECK(finite5 == 248);
    CHECK(inf5 == 2);
    CHECK(nan5 == 6);
}

TEST_CASE("E5M2 is the upper half of an FP16") {
    int wrong = 0;
    for (uint32_t c = 0; c < 256; c++) {
        float half = to_float(from_code<fp16>(c << 8)), x = to_float(from_code<e5m2>(c));
        wrong += std::isnan(half) ? !std::isnan(x) : bits_as<uint32_t>(half) != bits_as<uint32_t>(x);
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("FP8: round_to is to nearest, ties to even; past the largest it is Inf, or NaN", T, e4m3, e5m2) {
    std::vector<float> x = edge_cases_and_random_floats(oracle<T>());
    expect_equal(x, codes_of(x, code<T>), codes_of(x, [](float x) { return oracle<T>().encode(x, false); }));
}
TEST_CASE_TEMPLATE("FP8: saturate_to is to nearest, ties to even; past the largest it is the largest", T, e4m3, e5m2) {
    std::vector<float> x = edge_cases_and_random_floats(oracle<T>());
    expect_equal(x, codes_of(x, saturated<T>), codes_of(x, [](float x) { return oracle<T>().encode(x, true); }));
}

TEST_CASE_TEMPLATE("FP8: kernels give the host's bits", T, e4m3, e5m2) {
    check_kernels<T>(oracle<T>());
    std::vector<float> x = edge_cases_and_random_floats(oracle<T>());
    expect_equal(x, on_the_machine(saturate_kernel<T>, x), codes_of(x, saturated<T>));
}

TEST_CASE("FP8: the numbers of the table in fp8.cuh") {
    CHECK(to_float(e4m3{0x7E}) == 448);
    CHECK(to_float(e4m3{0x08}) == 0x1p-6f);
    CHECK(to_float(e4m3{0x01}) == 0x1p-9f);
    CHECK(to_float(e4m3{0x39}) - to_float(e4m3{0x38}) == 0x1p-3f);
    CHECK(std::log2(448 / 0x1p-9) == doctest::Approx(17.8).epsilon(.001));

    CHECK(to_float(e5m2{0x7B}) == 57344);
    CHECK(to_float(e5m2{0x04}) == 0x1p-14f);
    CHECK(to_float(e5m2{0x01}) == 0x1p-16f);
    CHECK(to_float(e5m2{0x3D}) - to_float(e5m2{0x3C}) == 0x1p-2f);
    CHECK(std::log2(57344 / 0x1p-16) == doctest::Approx(31.8).epsilon(.001));
}

TEST_CASE("E4M3: 464 is the last number that is still 448; beyond, NaN or 448 as the caller chose") {
    for (float x : {449.0f, 456.0f, 463.99997f, 464.0f}) {
        CHECK(code<e4m3>(x) == 0x7E);
        CHECK(code<e4m3>(-x) == 0xFE);
        CHECK(saturated<e4m3>(x) == 0x7E);
        CHECK(saturated<e4m3>(-x) == 0xFE);
    }
    for (float x : {std::nextafterf(464, 465), 464.00009f, 465.0f, 480.0f, 1e9f, 0x1.fffffep127f, INFINITY}) {
        CHECK(code<e4m3>(x) == 0x7F);
        CHECK(code<e4m3>(-x) == 0xFF);
        CHECK(saturated<e4m3>(x) == 0x7E); // Inf too: whoever counts infinities must do so before this cast
        CHECK(saturated<e4m3>(-x) == 0xFE);
    }
}

TEST_CASE("E5M2: 61440 is the first number that is not 57344; from there, Inf or 57344 as the caller chose") {
    for (float x : {57345.0f, 61439.996f}) {
        CHECK(code<e5m2>(x) == 0x7B);
        CHECK(code<e5m2>(-x) == 0xFB);
        CHECK(saturated<e5m2>(x) == 0x7B);
        CHECK(saturated<e5m2>(-x) == 0xFB);
    }
    for (float x : {61440.0f, 65536.0f, 1e9f, 0x1.fffffep127f, INFINITY}) {
        CHECK(code<e5m2>(x) == 0x7C);
        CHECK(code<e5m2>(-x) == 0xFC);
        CHECK(saturated<e5m2>(x) == 0x7B);
        CHECK(saturated<e5m2>(-x) == 0xFB);
    }
}

TEST_CASE("FP8: a NaN survives both casts, and a zero keeps its sign") {
    for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFC00000u, 0xFFFFFFFFu}) {
        float nan = bits_as<float>(bits);
        CHECK(code<e4m3>(nan) == 0x7F);
        CHECK(code<e5m2>(nan) == 0x7F);
        CHECK(saturated<e4m3>(nan) == 0x7F);
        CHECK(saturated<e5m2>(nan) == 0x7F);
    }
    CHECK(code<e4m3>(from_bits(0x80000000u)) == 0x80);
    CHECK(code<e5m2>(from_bits(0x80000000u)) == 0x80);
    CHECK(saturated<e4m3>(from_bits(0x80000000u)) == 0x80);
    CHECK(saturated<e5m2>(from_bits(0x80000000u)) == 0x80);
}

TEST_CASE("FP8: half the smallest number is 0, the next FP32 is the smallest number") {
    CHECK(code<e4m3>(0x1p-10f) == 0x00);
    CHECK(code<e4m3>(std::nextafterf(0x1p-10f, 1)) == 0x01);
    CHECK(code<e4m3>(-0x1p-10f) == 0x80);
    CHECK(code<e5m2>(0x1p-17f) == 0x00);
    CHECK(code<e5m2>(std::nextafterf(0x1p-17f, 1)) == 0x01);
    CHECK(code<e5m2>(-0x1p-17f) == 0x80);
}

TEST_CASE("FP8: a tie goes to the even code") {
    CHECK(rounded<e4m3>(1.0625f) == 1);
    CHECK(rounded<e4m3>(1.1875f) == 1.25f);
    CHECK(rounded<e4m3>(17) == 16);
    CHECK(rounded<e4m3>(19) == 20);
    CHECK(rounded<e5m2>(1.125f) == 1);
    CHECK(rounded<e5m2>(1.375f) == 1.5f);
}

TEST_CASE("E4M3 by way of BF16 or FP16 rounds twice, and wrongly for 3.1 % and 0.4 % of the FP32 in [1, 2)") {
    float x = bits_as<float>(0x3F880001u); // 1.06250012, just above a tie
    CHECK(rounded<e4m3>(x) == 1.125f);
    CHECK(rounded<e4m3>(to_float(round_to<bf16>(x))) == 1);
    CHECK(rounded<e4m3>(to_float(round_to<fp16>(x))) == 1);

    int by_bf16 = 0, by_fp16 = 0;
    const int all = 1 << 23;
    for (uint32_t m = 0; m < all; m++) {
        float x = bits_as<float>(0x3F800000u | m);
        by_bf16 += code<e4m3>(x) != code<e4m3>(to_float(round_to<bf16>(x)));
        by_fp16 += code<e4m3>(x) != code<e4m3>(to_float(round_to<fp16>(x)));
    }
    // 8 ties in [1, 2); on one side of each, what is nearer than half a spacing of the format between is pulled onto it
    CHECK(by_bf16 == all / 32);
    CHECK(by_fp16 == all / 256);
}

#if defined(FEWBITS_CUDA_HEADERS)
TEST_CASE_TEMPLATE("FP8: both casts and the value are CUDA's, bit for bit", T, e4m3, e5m2) {
    const __nv_fp8_interpretation_t kind = std::is_same<T, e4m3>::value ? __NV_E4M3 : __NV_E5M2;
    std::vector<float> x = edge_cases_and_random_floats(oracle<T>());
    auto cuda_saturated = [&](float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind); };
    auto cuda_code = [&](float x) { return __nv_cvt_float_to_fp8(x, __NV_NOSAT, kind); };
    expect_equal(x, codes_of(x, saturated<T>), codes_of(x, cuda_saturated));
    expect_equal(x, codes_of(x, code<T>), codes_of(x, cuda_code));
    int wrong = 0;
    for (int c = 0; c < 256; c++) {
        float ours = to_float(from_code<T>(c));
        float theirs = __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)c, kind)));
        wrong += std::isnan(theirs) ? !std::isnan(ours) : bits_as<uint32_t>(ours) != bits_as<uint32_t>(theirs);
    }
    CHECK(wrong == 0);
}
#endif

TEST_CASE_TEMPLATE("FP8: stochastic rounding gives one of the two neighbours, and what is exact stays", T, e4m3, e5m2) {
    check_stochastic_picks_a_neighbour<T>(oracle<T>());
}
TEST_CASE_TEMPLATE("FP8: stochastic rounding is right in the mean", T, e4m3, e5m2) {
    check_stochastic_mean<T>(oracle<T>());
}
TEST_CASE_TEMPLATE("FP8: the odds of stochastic rounding are the distance, exactly", T, e4m3, e5m2) {
    check_stochastic_odds<T>(oracle<T>());
}
TEST_CASE_TEMPLATE("FP8: stochastic rounding keeps NaN, Inf and sign, and never makes an Inf", T, e4m3, e5m2) {
    check_stochastic_specials<T>(oracle<T>());
}
