// test_scaling.cu -- scaling.cuh: the power of two that a tensor is scaled by, the statistics it comes from, the casts,
// and the loss scale. Each "known bug" is one that a mixed-precision library had.
#include "scaling.cuh"
#include "tensors.h"
#include <algorithm>
#include <doctest/doctest.h>

namespace {

const float INF = bits_as<float>(0x7F800000u), NOT_A_NUMBER = bits_as<float>(0x7FC00000u);

template <class T>
float largest() {
    return to_float(bits_as<T>((decltype(T::bits))Layout<T>::max_finite));
}

// CastStats on the machine: [0] of a step, [1] of an evaluation.
struct Stats : Owned<CastStats> {
    Stats() : Owned(1, 2) {}
    CastStats* data() const { return view().data; }
    CastStats of(int i) const { return stored()[i]; }
};
bool equal(CastStats a, CastStats b) { return memcmp(&a, &b, sizeof a) == 0; }
std::string text(CastStats s) { return format("amax %g, %u NaN, %u Inf, %u saturated", s.amax(), s.nan, s.inf, s.saturated); }

// The tensor measured, by itself.
template <class T>
CastStats measured(const Owned<T>& x) {
    Stats stats;
    measure(stats.data(), x.view());
    return stats.of(0);
}
// The codes of x * 2^k, and in *stats what the cast saw.
template <class Q, class T>
std::vector<Q> quantised(const Owned<T>& x, int k, CastStats* seen = nullptr) {
    Owned<Q> q(x.rows, x.cols);
    Stats stats;
    quantise(q.view().data, format_of<Q>, k, stats.data(), x.view());
    if (seen) *seen = stats.of(0);
    return q.stored();
}
template <class Q>
double value(Q q, int k) {
    return std::ldexp((double)to_float(q), -k);
}

} // namespace

// ==== which power of two =============================================================================================

TEST_CASE_TEMPLATE("2^k fills the format: amax 2^k <= largest < amax 2^(k+1), for every positive BF16 amax", T, e4m3, e5m2, fp16) {
    const double top = largest<T>();
    for (int margin : {0, 1}) {
        int wrong = 0, clamped = 0;
        uint32_t first_wrong = 0;
        for (uint32_t bits = 1; bits < 0x7F80; bits++) { // subnormal numbers too
            float amax = to_float(bf16{(uint16_t)bits});
            int k = scale_exponent(format_of<T>, amax, margin);
            double scaled = std::ldexp((double)amax, k + margin);
            bool fills = scaled <= top && top < 2 * scaled;
            bool at_limit = (k == K_LIMIT && scaled <= top) || (k == -K_LIMIT && top < 2 * scaled); // as near as the limit lets it
            clamped += !fills && at_limit;
            if (!fills && !at_limit && wrong++ == 0) first_wrong = bits;
        }
        CAPTURE(margin);
        INFO("first at BF16 code ", first_wrong);
        CHECK(wrong == 0);
        CHECK(clamped < 0x7F80 / 4); // 2^110 covers all but the outermost binades
    }
}

TEST_CASE("2^k at its edges: the largest number itself needs no scale, the next float does") {
    CHECK(scale_exponent(E4M3, 448) == 0);
    CHECK(scale_exponent(E4M3, std::nextafterf(448, 500)) == -1);
    CHECK(scale_exponent(E4M3, 224) == 1);
    CHECK(scale_exponent(E5M2, 57344) == 0);
    CHECK(scale_exponent(E5M2, std::nextafterf(57344, 60000)) == -1);
    CHECK(scale_exponent(FP16, 65504) == 0);
    CHECK(scale_exponent(FP16, std::nextafterf(65504, 70000)) == -1);
    CHECK(scale_exponent(E4M3, 448, 1) == -1);
}

TEST_CASE("known bug, the wrong largest: amax 1 has k = 8 in E4M3, whose largest is 448 and not 240") { CHECK(scale_exponent(E4M3, 1) == 8); }

TEST_CASE("known bug, 448 / amax is Inf: 2^k and 2^-k stay normal FP32 and exact BF16 numbers for the tiniest and hugest amax") {
    for (float amax : {0x1p-149f, 1e-38f, 1.3e-36f, 1e-30f, 1e38f, 0x1.fffffep127f})
        for (Format f : {E4M3, E5M2, FP16})
            for (int sign : {1, -1}) {
                float scale = std::ldexp(1.0f, sign * scale_exponent(f, amax, 1));
                CAPTURE(amax);
                CHECK(std::isnormal(scale));
                CHECK(to_float(round_to<bf16>(scale)) == scale);
            }
}

TEST_CASE_TEMPLATE("every finite FP8 code times 2^-k is a BF16 number, up to the limits of k", T, e4m3, e5m2) {
    int inexact = 0;
    for (int k : {-K_LIMIT, -1, 0, 1, K_LIMIT})
        for (uint32_t code = 0; code <= Layout<T>::max_finite; code++) {
            float x = to_float(T{(uint8_t)code}) * std::ldexp(1.0f, -k);
            inexact += to_float(round_to<bf16>(x)) != x || (code > 0 && !std::isnormal(x));
        }
    CHECK(inexact == 0);
}

TEST_CASE("an amax that is no finite positive number is an error, not a scale") {
    for (float amax : {0.0f, -1.0f, INF, NOT_A_NUMBER}) CHECK_THROWS_AS(scale_exponent(E4M3, amax), Error);
}

// ==== the casts ======================================================================================================

// Numbers of many magnitudes, with NaN, Inf and what FP8 cannot hold: at the ends of chunks, on both sides, and inside.
static std::vector<float> awkward(size_t n) {
    std::vector<float> x = normals(n, 7);
    const Rng rng(8, Stream::test);
    for (size_t i = 0; i < n; i++) x[i] = std::ldexp(x[i], (int)rng.below(i, 44) - 24);
    std::vector<size_t> places = {0, 1, n / 2, n - 2, n - 1};
    for (size_t edge = CHUNK; edge < n; edge += CHUNK) places.insert(places.end(), {edge - 1, edge});
    const float special[] = {NOT_A_NUMBER, INF, -INF, 60000, -60000, 448, 464, 465, 0, 0x1p-10f, 1.0625001f};
    for (size_t i = 0; i < places.size(); i++) x[places[i]] = special[i % 11];
    x[n / 3] = bits_as<float>(0xFFC00000u);
    return x;
}

// One element at a time, in double: what quantise and its counters are to give.
template <class Q, class T>
static void expect_quantised(const Owned<T>& x, int k) {
    std::vector<T> stored = x.stored();
    size_t wrong = 0, first_wrong = 0;
    CastStats want = {}, seen;
    std::vector<Q> q = quantised<Q>(x, k, &seen);
    for (size_t i = 0; i < stored.size(); i++) {
        float x_i = to_float(stored[i]);
        if (std::isnan(x_i))
            want.nan++;
        else if (std::isinf(x_i))
            want.inf++;
        else {
            want.amax_bits = std::max(want.amax_bits, bits_as<uint32_t>(std::fabs(x_i)));
            want.saturated += std::fabs(std::ldexp((double)x_i, k)) > largest<Q>();
        }
        const unsigned code = q[i].bits & 0x7F;
        want.nonzero += x_i != 0, want.flushed += x_i != 0 && code == 0;
        want.subnormal += code > 0 && code < 1u << Layout<Q>::mantissa_bits;
        if (q[i].bits != saturate_to<Q>(std::ldexp(x_i, k)).bits && wrong++ == 0) first_wrong = i;
    }
    INFO(name_of(format_of<T>), " to ", name_of(format_of<Q>), ", ", stored.size(), " elements, k = ", k, ", first at ", first_wrong);
    CHECK(wrong == 0);
    INFO("seen: ", text(seen), "; want: ", text(want));
    CHECK(equal(seen, want));
}

TEST_CASE_TEMPLATE("quantise is saturate_to(x 2^k), and counts what it sees, over every edge of a chunk", T, float, bf16, fp16) {
    for (int n : {1, 2, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 37}) {
        Owned<T> x(1, n, n < 20 ? normals(n, 3, 100) : awkward(n));
        for (int k : {0, 5, -3, K_LIMIT, -K_LIMIT}) {
            expect_quantised<e4m3>(x, k);
            expect_quantised<e5m2>(x, k);
        }
        CastStats alone = measured(x), seen;
        quantised<e4m3>(x, 0, &seen);
        seen.saturated = seen.nonzero = seen.flushed = seen.subnormal = 0; // these are of codes
        CHECK(equal(alone, seen));                                         // measuring sees what casting sees
    }
}

TEST_CASE("rows and columns are one run of elements") {
    Owned<float> x(37, 300, awkward(37 * 300));
    expect_quantised<e4m3>(x, 2);
}

TEST_CASE("a finite number that becomes Inf when it is scaled has saturated, and is counted") {
    CastStats seen;
    std::vector<e4m3> q = quantised<e4m3>(Owned<float>(1, 1, {3e38f}), 20, &seen);
    CHECK(q[0].bits == Layout<e4m3>::max_finite);
    CHECK(seen.saturated == 1);
    CHECK(seen.inf == 0);
}

TEST_CASE("known bug, NaN is not seen: amax of (1, NaN, 2) is 2, and one NaN is counted") {
    CastStats seen = measured(Owned<float>(1, 3, {1, NOT_A_NUMBER, 2}));
    CHECK(seen.amax() == 2);
    CHECK(seen.nan == 1);
    CHECK(seen.inf == 0);
}

TEST_CASE("known bug, saturating hides an Inf: the codes are finite, the count is not zero") {
    CastStats seen;
    std::vector<e4m3> q = quantised<e4m3>(Owned<float>(1, 2, {INF, -INF}), 0, &seen);
    CHECK(q[0].bits == 0x7E);
    CHECK(q[1].bits == 0xFE);
    CHECK(seen.inf == 2);
    CHECK(seen.saturated == 0);
}

TEST_CASE("known bug, amax 0 makes a NaN: zeros are cast to zeros and say nothing about a scale") {
    CastStats seen;
    Owned<float> zeros(2, 50);
    int nonzero = 0;
    for (e4m3 q : quantised<e4m3>(zeros, 0, &seen)) nonzero += q.bits != 0;
    CHECK(nonzero == 0);
    CHECK(equal(seen, CastStats{}));
}

TEST_CASE("known bug, only the last micro-batch counts: amaxes 10 and 1 make 10, in either order") {
    Owned<float> ten(1, 3, {1, -10, 2}), one(1, 3, {1, .5f, -.25f});
    for (bool ten_first : {true, false}) {
        Stats stats;
        Owned<e4m3> q(1, 3);
        for (bool is_ten : {ten_first, !ten_first}) quantise(q.view().data, E4M3, 0, stats.data(), (is_ten ? ten : one).view());
        CHECK(stats.of(0).amax() == 10);
    }
}

TEST_CASE_TEMPLATE("with codes transposed: the same codes, the same statistics, and each code in its place", T, float, bf16, fp16) {
    for (int rows : {1, 7, 31, 33, 127, 128, 129, 257})
        for (int cols : {1, 5, 20, 31, 32, 33, 257}) {
            CAPTURE(rows);
            CAPTURE(cols);
            const int n = rows * cols;
            Owned<T> x(rows, cols, n < 20 ? normals(n, 3, 100) : awkward(n));
            for (Format f : {E4M3, E5M2}) {
                Owned<uint8_t> q(rows, cols), q2(rows, cols), qt(cols, rows), qt2(cols, rows);
                Stats stats, stats2;
                quantise(q.view().data, f, 4, stats.data(), x.view());
                quantise(q2.view().data, f, 4, stats2.data(), x.view(), qt.view().data);
                transpose_codes(qt2.view().data, q.view().data, rows, cols);
                const std::vector<uint8_t> codes = q.stored(), turned = qt.stored();
                int misplaced = 0;
                for (int r = 0; r < rows; r++)
                    for (int c = 0; c < cols; c++) misplaced += turned[c * rows + r] != codes[r * cols + c];
                CHECK(misplaced == 0);
                CHECK((q2.stored() == codes));
                CHECK((qt2.stored() == turned));
                CHECK(equal(stats.of(0), stats2.of(0)));
            }
        }
}

TEST_CASE("one thread and two give the same codes and the same statistics") {
    Owned<float> x(1, 10 * CHUNK + 5, awkward(10 * CHUNK + 5));
    std::vector<e4m3> q[2];
    CastStats seen[2];
    for (int threads : {1, 2}) with_threads(threads, [&] { q[threads - 1] = quantised<e4m3>(x, 3, &seen[threads - 1]); });
    CHECK(memcmp(q[0].data(), q[1].data(), q[0].size()) == 0);
    CHECK(equal(seen[0], seen[1]));
}

TEST_CASE("quantising to a format that is no FP8 is an error") {
    Owned<float> x(1, 4);
    Owned<bf16> q(1, 4);
    Stats stats;
    for (Format f : {FP32, BF16, FP16}) CHECK_THROWS_AS(quantise(q.view().data, f, 0, stats.data(), x.view()), Error);
}

// ==== scales, and what they lose =====================================================================================

TEST_CASE("one scale for all tensors loses the small ones; a scale for each loses nothing but digits") {
    std::vector<float> small, large;
    for (int i = 1; i <= 1000; i++) small.push_back(1e-4f * i / 1000), large.push_back(100.0f * i / 1000);
    Owned<float> a(1, 1000, small), b(1, 1000, large);
    const int k_all = scale_exponent(E4M3, 100), k_a = scale_exponent(E4M3, 1e-4f);
    CHECK(k_all == 2);
    CHECK(k_a == 22);
    auto zeros = [](const std::vector<e4m3>& q) {
        int n = 0;
        for (e4m3 code : q) n += code.bits == 0;
        return n;
    };
    CHECK(zeros(quantised<e4m3>(a, k_all)) == 1000);
    CHECK(zeros(quantised<e4m3>(b, k_all)) == 0);
    std::vector<e4m3> own_scale = quantised<e4m3>(a, k_a);
    CHECK(zeros(own_scale) == 0);
    // All scaled values are above 2^-6, normal: half a spacing over the value is at most u / (1 + u), just above a power of two.
    constexpr double u = unit_roundoff<e4m3>();
    double worst = 0;
    for (int i = 0; i < 1000; i++) worst = std::max(worst, std::fabs(value(own_scale[i], k_a) - small[i]) / small[i]);
    CHECK(worst <= u / (1 + u));
    CHECK(worst == doctest::Approx(.0581).epsilon(.001));
}

TEST_CASE("a power of two costs no rounding; 448 / amax costs one of its own") {
    std::vector<float> x = {1, 1.125f, 1.25f, 1.375f, 1.5f, 1.625f, 1.75f, 1.875f, 3}; // all of them E4M3 numbers
    std::vector<e4m3> q = quantised<e4m3>(Owned<float>(1, (int)x.size(), x), scale_exponent(E4M3, 3));
    double worst = 0, worst_without = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const float scale = 448.0f / 3;
        worst = std::max(worst, std::fabs(value(q[i], 7) - x[i]) / x[i]);
        worst_without = std::max(worst_without, std::fabs((double)to_float(saturate_to<e4m3>(x[i] * scale)) / scale - x[i]) / x[i]);
    }
    CHECK(worst == 0);
    CHECK(worst_without == doctest::Approx(.0476).epsilon(.01));
}

// ==== loss scale =====================================================================================================

TEST_CASE("the loss scale starts at 65536, halves on overflow and doubles after exactly `interval` good steps in a row") {
    LossScale s = LossScale::dynamic(3);
    CHECK(s.value == 65536);
    s.overflowed();
    CHECK(s.value == 32768);
    s.succeeded(), s.succeeded();
    CHECK(s.value == 32768);
    s.succeeded();
    CHECK(s.value == 65536);
    s.succeeded(), s.succeeded();
    CHECK(s.value == 65536); // the count began again
    s.overflowed();          // ... and begins again here
    s.succeeded(), s.succeeded();
    CHECK(s.value == 32768);
    s.succeeded();
    CHECK(s.value == 65536);
}

TEST_CASE("known bug, the scale decays to 0: its floor is 1, and it comes back from there") {
    LossScale s = LossScale::dynamic(1);
    for (int i = 0; i < 16; i++) s.overflowed();
    CHECK(s.value == 1);
    for (int i = 0; i < 200; i++) s.overflowed();
    CHECK(s.value == 1);
    s.succeeded();
    CHECK(s.value == 2);
}

TEST_CASE("known bug, the scale grows to Inf: its cap is 2^24") {
    LossScale s = LossScale::dynamic(1);
    for (int i = 0; i < 8; i++) s.succeeded();
    CHECK(s.value == 0x1p24f);
    for (int i = 0; i < 200; i++) s.succeeded();
    CHECK(s.value == 0x1p24f);
    s.overflowed();
    CHECK(s.value == 0x1p23f);
}

TEST_CASE("a static loss scale never moves") {
    LossScale s = LossScale::fixed(1024);
    for (int i = 0; i < 5000; i++) i % 7 ? s.succeeded() : s.overflowed();
    CHECK(s.value == 1024);
}

TEST_CASE("gradients up to 10 cost the first four steps in FP16: 65536 comes down to 4096") {
    LossScale s = LossScale::dynamic(2000);
    int skipped = 0;
    for (; std::isinf(to_float(round_to<fp16>(10 * s.value))); skipped++) s.overflowed();
    CHECK(skipped == 4);
    CHECK(s.value == 4096);
}

TEST_CASE("without a loss scale FP16 loses gradients below 2^-25; with 2^10 none here, and dividing by it is exact") {
    int lost = 0, lost_scaled = 0, inexact = 0;
    for (int e = -14; e >= -33; e--) {
        float g = std::ldexp(1.0f, e), scaled = to_float(round_to<fp16>(g * 1024));
        lost += to_float(round_to<fp16>(g)) == 0;
        lost_scaled += scaled == 0;
        inexact += scaled * (1 / 1024.0f) != g;
    }
    CHECK(lost == 9);
    CHECK(lost_scaled == 0);
    CHECK(inexact == 0);
}
