// test_shadow.cu -- shadow.cuh: what a look counts, against plain double loops, and what it says of numbers whose answer is known.
#include "shadow.cuh"
#include "bounds.h"

namespace {

// The SNR in double, and by how much the counted one may differ: its squares are summed in FP32 by chunks of CHUNK, each term
// within gamma(CHUNK + 3) of itself, and it is an integer.
struct Decibels {
    double value, error;
};
Decibels snr_of(const std::vector<double>& x, const std::vector<double>& q) {
    double signal = 0, noise = 0;
    for (size_t i = 0; i < x.size(); i++) signal += x[i] * x[i], noise += (x[i] - q[i]) * (x[i] - q[i]);
    const double relative = 2 * (CHUNK + 3) * U / (1 - (CHUNK + 3) * U);
    return {1000 * std::log10(signal / noise), 1000 * relative / std::log(10.0) + 0.5};
}
double cast_in_double(double x, Format f, int k) {
    return std::ldexp(with_type(f, [&](auto zero) -> double {
                          using Q = decltype(zero);
                          if constexpr (sizeof(Q) == 1) return to_float(saturate_to<Q>(std::ldexp((float)x, k)));
                          else return to_float(round_to<Q>((float)x));
                      }),
                      -k);
}
template <class T>
void check_noise(const Noise& n, const std::vector<double>& x) {
    CAPTURE(std::string(name_of(n.format)));
    std::vector<double> q;
    int64_t nonzero = 0, flushed = 0;
    for (double v : x) q.push_back(cast_in_double(v, n.format, n.k)), nonzero += v != 0, flushed += v != 0 && q.back() == 0;
    if (q == x) {
        CHECK(n.snr == EXACT);
        return;
    }
    const Decibels want = snr_of(x, q);
    CHECK(std::fabs(n.snr - std::min<double>(want.value, EXACT)) <= want.error);
    CHECK(n.nonzero == nonzero);
    CHECK(n.flushed == flushed);
}

} // namespace

TEST_CASE_TEMPLATE("a look is what double loops count, over every edge of a chunk, in each format that x may be read in", T, float, bf16, fp16) {
    for (int n : {1, 3, 257, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17}) {
        CAPTURE(n);
        Owned<T> x(1, n, normals(n, 1, 0.01f)); // with numbers that E4M3 flushes, if its scale is 1
        ShadowPass pass(n);
        for (Format f : {format_of<T>, E4M3, E5M2})
            for (int k : {0, 9}) {
                if (!is_fp8(f) && k) continue;
                const Shadow s = look_at(pass, x.view(), f, k, Role::gradient, 1);
                const std::vector<double> values = x.get();
                std::vector<unsigned> exponents(EXPONENTS, 0);
                float amax = 0;
                for (double v : values) {
                    exponents[bits_as<unsigned>((float)v) << 1 >> 24]++;
                    amax = std::max(amax, std::fabs((float)v));
                }
                CHECK((s.exponents == exponents));
                CHECK(s.amax_bits == bits_as<unsigned>(amax));
                CHECK(s.own.format == f);
                CHECK(s.own.k == k);
                check_noise<T>(s.own, values);
                if (f == format_of<T>) {
                    CHECK(s.own.snr == EXACT);
                    CHECK(s.narrower.format == (f == FP32 ? BF16 : E5M2));
                    if (f != FP32) CHECK(s.narrower.k == scale_exponent(E5M2, amax, 1));
                    check_noise<T>(s.narrower, values);
                } else {
                    CHECK(s.narrower.snr == NOT_MEASURED); // FP8 is the narrowest
                    if (f != FP32 && format_of<T> != FP16) check_noise<T>(s.wider, values);
                }
            }
    }
}

TEST_CASE("a Gaussian has 31.5 dB in E4M3 and 25.6 dB in E5M2, and the scale has no part in it") {
    Owned<float> x(100, 1000, normals(100000, 1));
    ShadowPass pass(100000);
    for (int k : {0, 4, 6}) CHECK(std::fabs(look_at(pass, x.view(), E4M3, k, Role::input, 0).own.snr - 3150) < 20);
    for (int k : {0, 7, 13}) CHECK(std::fabs(look_at(pass, x.view(), E5M2, k, Role::gradient, 0).own.snr - 2560) < 20);
    // ... as long as it neither flushes nor saturates
    CHECK(look_at(pass, x.view(), E4M3, -10, Role::input, 0).own.flushed > 40000);
    CHECK(look_at(pass, x.view(), E4M3, -10, Role::input, 0).own.snr < 1000);
    CHECK(look_at(pass, x.view(), E4M3, 9, Role::input, 0).own.snr < 1000);
}

TEST_CASE("the next narrower format is BF16, then the FP8 format of the role, then none") {
    CHECK(narrower_than(FP32, Role::gradient) == BF16);
    for (Format f : {BF16, FP16}) {
        CHECK(narrower_than(f, Role::input) == E4M3);
        CHECK(narrower_than(f, Role::weight) == E4M3);
        CHECK(narrower_than(f, Role::gradient) == E5M2);
    }
    CHECK(narrower_than(E4M3, Role::input) == E4M3);
    CHECK(narrower_than(E5M2, Role::gradient) == E5M2);
}

TEST_CASE("zeros have no SNR; powers of two are exact; an Inf is counted at the end, and no amax") {
    ShadowPass pass(4);
    Owned<bf16> zeros(1, 4), exact(1, 4, {1, -0.5f, 0, 448}), hurt(1, 4, {1, -INFINITY, 2, 0});
    const Shadow none = look_at(pass, zeros.view(), E4M3, 3, Role::input, 1);
    CHECK(none.own.snr == NOT_MEASURED);
    CHECK(none.exponents[0] == 4);
    CHECK(none.amax_bits == 0);
    Evidence e;
    add_shadow(e, none);
    CHECK(e.snr == NOT_MEASURED);
    CHECK(look_at(pass, exact.view(), E4M3, 0, Role::input, 1).own.snr == EXACT);
    const Shadow bad = look_at(pass, hurt.view(), E4M3, 0, Role::input, 1);
    CHECK(bad.exponents[255] == 1);
    CHECK(bits_as<float>(bad.amax_bits) == 2);
    Owned<bf16> large(1, 2 * CHUNK);
    CHECK_THROWS_AS(look_at(pass, large.view(), E4M3, 0, Role::input, 1), Error);
}

TEST_CASE("what a look adds to the evidence: each SNR in its place, and what the narrower format would flush") {
    Shadow s;
    s.own = {E4M3, 1, 100, 10, 1}, s.narrower = {E5M2, 2, 200, 20, 2}, s.wider = {BF16, 0, 300, 30, 3};
    Evidence e;
    add_shadow(e, s);
    CHECK(e.snr == 100);
    CHECK(e.snr_narrower == 200);
    CHECK(e.snr_wider == 300);
    CHECK(e.nonzero_narrower == 20);
    CHECK(e.flushed_narrower == 2);
    CHECK(e.amax_bits + e.nonzero + e.flushed == 0);
}

TEST_CASE("a look at a tensor of its own; what it costs is counted") {
    ShadowPass pass(1000);
    Owned<bf16> x(1, 1000, normals(1000, 1));
    const Shadow s = look_at(pass, x.view(), BF16, 0, Role::gradient, 1);
    Evidence e;
    add_shadow(e, s);
    CHECK(e.snr == EXACT);
    CHECK(e.snr_narrower == s.narrower.snr);
    CHECK(e.snr_wider == EXACT); // FP32
    CHECK(e.nonzero_narrower == 1000);
    CHECK(e.flushed_narrower == s.narrower.flushed);
    CHECK(pass.bytes_read == 2 * 1000 * sizeof(bf16)); // exponents, E5M2
    CHECK(pass.seconds > 0);
}
