// test_rng.cu -- rng.h: the published answers of Philox, and that uniform, below and normal are what they say.
//
// Units    a bound of 5 sigma is five standard errors of the tested mean; the chi-square bounds are their 1 - 10^-6
//          quantiles. The seeds are fixed: a test that passes once passes always.
#include "rng.h"
#include <algorithm>
#include <doctest/doctest.h>

static bool is(Random4 r, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return r.word[0] == a && r.word[1] == b && r.word[2] == c && r.word[3] == d;
}
static const Rng rng(1337, Stream::test);

TEST_CASE("Philox4x32-10 gives the known answers of the Random123 distribution") {
    CHECK(is(philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
    const uint64_t ones = ~0ull;
    CHECK(is(philox(ones, ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
    // counter and key are digits of pi: 243f6a88 85a308d3 13198a2e 03707344, a4093822 299f31d0, the first word lowest
    Random4 pi = philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e);
    CHECK(is(pi, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST_CASE("the upper half of the counter is 0 unless given") {
    Random4 r = philox(5, 6, 0);
    CHECK(is(philox(5, 6), r.word[0], r.word[1], r.word[2], r.word[3]));
}

static __global__ void philox_kernel(Random4* r, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) r[i] = philox(i << 32 | 7, i * i * i, ~(uint64_t)i);
}
TEST_CASE("kernels draw the host's numbers") {
    const size_t n = 10000;
    Buffer buffer(n * sizeof(Random4));
    launch(philox_kernel, chunks(n), BLOCK, (Random4*)buffer.data(), n);
    std::vector<Random4> r(n);
    copy_to_host(r.data(), (const Random4*)buffer.data(), n);
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        Random4 host = philox(i << 32 | 7, i * i * i, ~(uint64_t)i);
        wrong += memcmp(&host, &r[i], sizeof(host)) != 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE("a number depends on its index alone, not on what was drawn before") {
    uint32_t late = rng.bits(900), early = rng.bits(3);
    CHECK(rng.bits(3) == early);
    CHECK(rng.bits(900) == late);
    CHECK(Rng(1337, Stream::test).bits(900) == late);
}

TEST_CASE("every seed and every stream has numbers of its own") {
    std::vector<Rng> rngs;
    for (uint32_t seed : {0u, 1u, 2u, 1337u, 0xFFFFFFFFu})
        for (Stream stream : {Stream::weights, Stream::batches, Stream::stories, Stream::sampling, Stream::rounding,
                              Stream::test})
            rngs.emplace_back(seed, stream);
    int equal_keys = 0, equal_numbers = 0;
    for (size_t i = 0; i < rngs.size(); i++)
        for (size_t j = 0; j < i; j++) {
            equal_keys += rngs[i].key == rngs[j].key;
            for (uint64_t n = 0; n < 20; n++) equal_numbers += rngs[i].bits(n) == rngs[j].bits(n);
        }
    CHECK(equal_keys == 0);
    CHECK(equal_numbers == 0); // 8700 pairs of 32 bits: chance would make one in 500000 runs
}

TEST_CASE("bits: each of the 32 is 1 half of the time, and neighbours share none of it") {
    const int n = 100000;
    const double five_sigma = 5 * std::sqrt((double)n);
    for (int bit = 0; bit < 32; bit++) {
        int sum = 0, with_next = 0;
        for (int i = 0; i < n; i++) {
            int a = rng.bits(i) >> bit & 1 ? 1 : -1, b = rng.bits(i + 1) >> bit & 1 ? 1 : -1;
            sum += a, with_next += a * b;
        }
        CAPTURE(bit);
        CHECK(std::abs(sum) < five_sigma);
        CHECK(std::abs(with_next) < five_sigma);
    }
}

TEST_CASE("uniform: multiples of 2^-24 in [0, 1), of mean 1/2 and variance 1/12") {
    const int n = 1000000;
    double sum = 0, squares = 0, low = 1, high = 0;
    int not_a_multiple = 0;
    for (int i = 0; i < n; i++) {
        double u = rng.uniform(i);
        sum += u - .5, squares += (u - .5) * (u - .5);
        low = std::min(low, u), high = std::max(high, u);
        not_a_multiple += u * 0x1p24 != std::floor(u * 0x1p24);
    }
    CHECK(low >= 0);
    CHECK(low < 1e-4);
    CHECK(high < 1);
    CHECK(high > 1 - 1e-4);
    CHECK(not_a_multiple == 0);
    CHECK(std::fabs(sum / n) < 5 * std::sqrt(1. / 12 / n));
    CHECK(std::fabs(squares / n - 1. / 12) < 5 * std::sqrt(1. / 180 / n));
}

TEST_CASE("below: every number under the bound, equally often") {
    struct {
        uint64_t bound;
        double chi_square;
    } const cases[] = {{7, 38.26}, {10, 44.81}, {16, 56.49}, {256, 377.1}};
    for (auto c : cases) {
        const int n = 200000;
        std::vector<int> count(c.bound);
        int outside = 0;
        for (int i = 0; i < n; i++) {
            uint64_t k = rng.below(i, c.bound);
            k < c.bound ? count[k]++ : outside++;
        }
        double expected = (double)n / c.bound, chi_square = 0;
        for (int k : count) chi_square += (k - expected) * (k - expected) / expected;
        CAPTURE(c.bound);
        CHECK(outside == 0);
        CHECK(chi_square < c.chi_square);
    }
}

TEST_CASE("below: bounds of 1 and of nearly 2^64") {
    const uint64_t huge = ~0ull;
    double sum = 0;
    int wrong = 0;
    for (int i = 0; i < 10000; i++) {
        wrong += rng.below(i, 1) != 0;
        wrong += rng.below(i, huge) >= huge;
        sum += (double)rng.below(i, huge) * 0x1p-64 - .5;
    }
    CHECK(wrong == 0);
    CHECK(std::fabs(sum / 10000) < 5 * std::sqrt(1. / 12 / 10000));
}

TEST_CASE("normal: the moments and the tails of a standard normal") {
    const int n = 1000000;
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, with_next = 0, largest = 0, before = 0;
    int beyond_3 = 0;
    for (int i = 0; i < n; i++) {
        double z = rng.normal(i);
        m1 += z, m2 += z * z, m3 += z * z * z, m4 += z * z * z * z;
        with_next += z * before, before = z;
        largest = std::max(largest, std::fabs(z));
        beyond_3 += std::fabs(z) > 3;
    }
    const double sigma = 1 / std::sqrt((double)n), tail = .0026998;
    CHECK(std::fabs(m1 / n) < 5 * sigma);
    CHECK(std::fabs(m2 / n - 1) < 5 * sigma * std::sqrt(2.));
    CHECK(std::fabs(m3 / n) < 5 * sigma * std::sqrt(15.));
    CHECK(std::fabs(m4 / n - 3) < 5 * sigma * std::sqrt(96.));
    CHECK(std::fabs(with_next / n) < 5 * sigma);
    CHECK(std::fabs((double)beyond_3 / n - tail) < 5 * sigma * std::sqrt(tail * (1 - tail)));
    CHECK(largest > 4.2);
    CHECK(largest < 6.67);
}

TEST_CASE("normal: a draw of 32 zero bits is the far end of the curve, sqrt(2 * 32 ln 2), and not infinite") {
    const uint64_t n = 1376499337; // found by trying them all
    CHECK(rng.bits(n) == 0);
    double radius = std::sqrt(2 * 32 * std::log(2.)), angle = philox(rng.key, n).word[1] * 0x1p-32 * 6.283185307179586;
    CHECK(rng.normal(n) == doctest::Approx(radius * std::cos(angle)));
}
