// test_fp16.cu -- fp16.cuh against the definition of the format and against CUDA.
#include "format_oracle.h" // first: see there
#include "fp16.cuh"

static const FormatOracle& oracle() {
    static const FormatOracle f(5, 10, true);
    return f;
}
static uint32_t code(float x) { return round_to<fp16>(x).bits; }
static float rounded(float x) { return to_float(round_to<fp16>(x)); }

TEST_CASE("FP16: all 65536 codes have the textbook's value and survive the way through FP32") {
    check_every_code<fp16>(oracle());
    CHECK(Layout<fp16>::inf == oracle().past);
}

TEST_CASE("FP16: rounding is to nearest, ties to even: all values, all ties, their neighbours, 4 million others") {
    std::vector<float> x = edge_cases_and_random_floats(oracle());
    expect_equal(x, codes_of(x, code), codes_of(x, [](float x) { return oracle().encode(x, false); }));
}

TEST_CASE("FP16: kernels give the host's bits") { check_kernels<fp16>(oracle()); }

TEST_CASE("FP16: the numbers of the table in fp16.cuh") {
    CHECK(to_float(fp16{0x7BFF}) == 65504);
    CHECK(to_float(fp16{0x0400}) == 0x1p-14f);
    CHECK(to_float(fp16{0x0001}) == 0x1p-24f);
    CHECK(to_float(fp16{0x3C01}) - to_float(fp16{0x3C00}) == 0x1p-10f);

    CHECK(code(0x1p-25f) == 0x0000); // half the smallest is a tie, and 0 is even
    CHECK(code(std::nextafterf(0x1p-25f, 1)) == 0x0001);
    CHECK(code(-0x1p-25f) == 0x8000);
    CHECK(code(65519.996f) == 0x7BFF);
    CHECK(code(65520) == 0x7C00); // overflow starts at the tie
    CHECK(code(-65520) == 0xFC00);
    CHECK(code(INFINITY) == 0x7C00);
    CHECK(code(from_bits(0x80000000u)) == 0x8000);
    CHECK(code(bits_as<float>(0x7F800001u)) == 0x7FFF);
    CHECK(code(bits_as<float>(0xFFC00000u)) == 0x7FFF);
    CHECK(code(std::nextafterf(0x1p-14f, 0)) == 0x0400); // a subnormal that rounds up becomes the smallest normal
}

TEST_CASE("FP16: a tie goes to the even code") {
    CHECK(rounded(2049) == 2048);
    CHECK(rounded(2051) == 2052);
    CHECK(rounded(1 + 0x1p-11f) == 1); // 1.00048828
    CHECK(rounded(1 + 0x3p-11f) == 1 + 0x1p-9f);
}

TEST_CASE("FP16: Adam's epsilon and small gradients are 0, until a loss scale lifts them") {
    CHECK(rounded(1e-8f) == 0); // sqrt(v) + eps is then 0 where v is: 0/0
    CHECK(rounded(1e-8f * 65536) / 65536 == doctest::Approx(1e-8).epsilon(0x1p-11));
    CHECK(std::isinf(rounded(10.0f * 65536)));
}

#if defined(FEWBITS_CUDA_HEADERS)
TEST_CASE("FP16: rounding and value are CUDA's, bit for bit") {
    std::vector<float> x = edge_cases_and_random_floats(oracle());
    auto cuda = [](float x) { return __half_as_ushort(__float2half_rn(x)); };
    expect_equal(x, codes_of(x, code), codes_of(x, cuda));
    int wrong = 0;
    for (int c = 0; c < 65536; c++) {
        float ours = to_float(from_code<fp16>(c)), theirs = __half2float(__ushort_as_half((unsigned short)c));
        wrong += std::isnan(theirs) ? !std::isnan(ours) : bits_as<uint32_t>(ours) != bits_as<uint32_t>(theirs);
    }
    CHECK(wrong == 0);
}
#endif

TEST_CASE("FP16: stochastic rounding gives one of the two neighbours, and what is exact stays") {
    check_stochastic_picks_a_neighbour<fp16>(oracle());
}
TEST_CASE("FP16: stochastic rounding is right in the mean") { check_stochastic_mean<fp16>(oracle()); }
TEST_CASE("FP16: the odds of stochastic rounding are the distance, exactly") { check_stochastic_odds<fp16>(oracle()); }
TEST_CASE("FP16: stochastic rounding keeps NaN, Inf and sign, and never makes an Inf") {
    check_stochastic_specials<fp16>(oracle());
}
