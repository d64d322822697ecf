// test_bf16.cu -- bf16.cuh against the definition of the format, against CUDA, and against what the README says of it.
#include "format_oracle.h" // first: see there
#include "bf16.cuh"

static const FormatOracle& oracle() {
    static const FormatOracle f(8, 7, true);
    return f;
}
static uint32_t code(float x) { return round_to<bf16>(x).bits; }
static float rounded(float x) { return to_float(round_to<bf16>(x)); }

TEST_CASE("BF16: all 65536 codes have the textbook's value and survive the way through FP32") {
    check_every_code<bf16>(oracle());
    CHECK(Layout<bf16>::inf == oracle().past);
}

TEST_CASE("BF16: rounding is to nearest, ties to even: all values, all ties, their neighbours, 4 million others") {
    std::vector<float> x = edge_cases_and_random_floats(oracle());
    expect_equal(x, codes_of(x, code), codes_of(x, [](float x) { return oracle().encode(x, false); }));
}

TEST_CASE("BF16: kernels give the host's bits") { check_kernels<bf16>(oracle()); }

TEST_CASE("BF16: the numbers of the table in bf16.cuh") {
    CHECK(to_float(bf16{0x7F7F}) == 0x1.FEp127f);
    CHECK(to_float(bf16{0x7F7F}) == doctest::Approx(3.38953139e38));
    CHECK(to_float(bf16{0x0080}) == 0x1p-126f);
    CHECK(to_float(bf16{0x0001}) == 0x1p-133f);
    CHECK(to_float(bf16{0x3F81}) - to_float(bf16{0x3F80}) == 0x1p-7f);

    CHECK(code(0x1p-134f) == 0x0000); // half the smallest is a tie, and 0 is even
    CHECK(code(std::nextafterf(0x1p-134f, 1)) == 0x0001);
    CHECK(code(-0x1p-134f) == 0x8000);
    CHECK(code(bits_as<float>(0x7F7F7FFFu)) == 0x7F7F);
    CHECK(code(bits_as<float>(0x7F7F8000u)) == 0x7F80); // 3.3961775e38: overflow starts at the tie
    CHECK(code(0x1.fffffep127f) == 0x7F80);             // so the largest FP32 is Inf in BF16
    CHECK(code(-0x1.fffffep127f) == 0xFF80);
    CHECK(code(from_bits(0x80000000u)) == 0x8000);
    CHECK(code(bits_as<float>(0x7F800001u)) == 0x7FFF); // cutting this NaN's low bits would leave Inf
    CHECK(code(bits_as<float>(0xFFFFFFFFu)) == 0x7FFF); // adding to this one's would leave +0
}

TEST_CASE("BF16: a tie goes to the even code") {
    CHECK(rounded(1.00390625f) == 1.0f);
    CHECK(rounded(1.01171875f) == 1.015625f);
    CHECK(rounded(257) == 256); // a position past 256 needs more digits than BF16 has
    CHECK(rounded(259) == 260);
}

TEST_CASE("BF16: next to 1, a decrease must exceed 2^-9 and an increase 2^-8 to be seen") {
    CHECK(rounded(1 - 0x1p-9f) == 1);
    CHECK(rounded(std::nextafterf(1 - 0x1p-9f, 0)) == 1 - 0x1p-8f);
    CHECK(rounded(1 + 0x1p-8f) == 1);
    CHECK(rounded(std::nextafterf(1 + 0x1p-8f, 2)) == 1 + 0x1p-7f);
}

TEST_CASE("BF16: weight decay, Adam's beta2 and small updates vanish") {
    CHECK(rounded(1 - 1e-4f) == 1);
    CHECK(rounded(.999f) == 1); // beta2 = 1: the second moment never decays
    CHECK(rounded(.95f) == .94921875f);

    float decayed = 1, decayed_fp32 = 1;
    for (int step = 0; step < 1000; step++) decayed = rounded(decayed * (1 - 1e-4f)), decayed_fp32 *= 1 - 1e-4f;
    CHECK(decayed == 1);
    CHECK(decayed_fp32 == doctest::Approx(.904818).epsilon(1e-4));
}

TEST_CASE("BF16: a running sum of BF16 stops growing or drifts; in FP32 it does neither") {
    float sum = 0, sum_fp32 = 0, ones = 1, ones_fp32 = 1;
    for (int i = 0; i < 64; i++) sum = rounded(sum + rounded(.01f)), sum_fp32 += rounded(.01f);
    for (int i = 0; i < 1024; i++) ones = rounded(ones + 0x1p-10f), ones_fp32 += 0x1p-10f;
    CHECK(sum == .65234375f);
    CHECK(sum_fp32 == doctest::Approx(.640625).epsilon(1e-3));
    CHECK(ones == 1);
    CHECK(ones_fp32 == 2);
}

TEST_CASE("FP32 is a stored format whose doors change nothing") {
    for (float x : {0.0f, 1.1f, -3e-42f, 3.4e38f, -INFINITY}) {
        CHECK(round_to<float>(x) == x);
        CHECK(to_float(x) == x);
    }
    CHECK(std::isnan(round_to<float>(NAN)));
    CHECK(bits_as<uint32_t>(to_float(from_bits(0x80000000u))) == 0x80000000u);
    CHECK(bits_as<uint32_t>(3.402823466e38f) == Layout<float>::max_finite);
    CHECK(bits_as<uint32_t>(INFINITY) == Layout<float>::inf);
}

#if defined(FEWBITS_CUDA_HEADERS)
TEST_CASE("BF16: rounding and value are CUDA's, bit for bit") {
    std::vector<float> x = edge_cases_and_random_floats(oracle());
    auto cuda = [](float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); };
    expect_equal(x, codes_of(x, code), codes_of(x, cuda));
    int wrong = 0;
    for (int c = 0; c < 65536; c++) {
        float theirs = __bfloat162float(__ushort_as_bfloat16((unsigned short)c));
        wrong += bits_as<uint32_t>(to_float(from_code<bf16>(c))) != bits_as<uint32_t>(theirs);
    }
    CHECK(wrong == 0);
}
#endif

// ==== stochastic rounding ============================================================================================

TEST_CASE("BF16: stochastic rounding gives one of the two neighbours, and what is exact stays") {
    check_stochastic_picks_a_neighbour<bf16>(oracle());
}
TEST_CASE("BF16: stochastic rounding is right in the mean") { check_stochastic_mean<bf16>(oracle()); }
TEST_CASE("BF16: the odds of stochastic rounding are the distance, exactly") { check_stochastic_odds<bf16>(oracle()); }
TEST_CASE("BF16: stochastic rounding keeps NaN, Inf and sign, and never makes an Inf") {
    check_stochastic_specials<bf16>(oracle());
}

TEST_CASE("stochastic rounding of two elements, or in two steps, is uncorrelated") {
    const uint64_t key = Rng(3, Stream::rounding).key;
    const int n = 100000;
    const float x = 1 + 0x1p-8f; // halfway: up or down, a fair coin
    auto coin = [&](int step, int element) {
        return round_stochastic<bf16>(x, philox(key, step, element).word[0]).bits == 0x3F81 ? 1 : -1;
    };
    long elements = 0, steps = 0, far = 0;
    for (int i = 0; i < n; i++) {
        elements += coin(i, 0) * coin(i, 1);
        steps += coin(0, i) * coin(1, i);
        far += coin(i, i) * coin(i + 1, i + 1);
    }
    const double five_sigma = 5 * std::sqrt((double)n);
    CHECK(std::abs(elements) < five_sigma);
    CHECK(std::abs(steps) < five_sigma);
    CHECK(std::abs(far) < five_sigma);
}

TEST_CASE("1000 updates of -0.001 move a BF16 weight from 1 to 0 with stochastic rounding, and nowhere without") {
    const uint64_t key = Rng(4, Stream::rounding).key;
    const int weights = 1000, steps = 1000;
    double sum = 0, sum_of_squares = 0;
    for (int element = 0; element < weights; element++) {
        bf16 w = {0x3F80};
        for (int step = 0; step < steps; step++)
            w = round_stochastic<bf16>(to_float(w) - 1e-3f, philox(key, step, element).word[0]);
        sum += to_float(w), sum_of_squares += (double)to_float(w) * to_float(w);
    }
    double mean = sum / weights, deviation = std::sqrt(sum_of_squares / weights - mean * mean);
    CHECK(std::fabs(mean) < 5 * deviation / std::sqrt((double)weights));
    CHECK(deviation == doctest::Approx(.039).epsilon(.15));

    float nearest = 1;
    bf16 reused = {0x3F80}; // one random number for all steps is not random: this one always rounds up
    for (int step = 0; step < steps; step++) {
        nearest = rounded(nearest - 1e-3f);
        reused = round_stochastic<bf16>(to_float(reused) - 1e-3f, 0x40000000);
    }
    CHECK(nearest == 1);
    CHECK(to_float(reused) == 1);
}
