// test_exp.cu -- exp.cuh against the C library in double precision.
#include "exp.cuh"
#include "tensors.h"
#include <doctest/doctest.h>

template <class T>
static __global__ void exp_kernel(T* y, const T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) y[i] = exp_fp32(x[i]);
}
template <class T>
static __global__ void sigmoid_kernel(T* y, const T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) y[i] = sigmoid(x[i]);
}

// Every 997th float of [low, high], either sign. 997 is prime: all endings of the bits occur.
static std::vector<float> sweep(float low, float high) {
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0x7F800000; bits += 997)
        for (float value : {bits_as<float>(bits), -bits_as<float>(bits)})
            if (value >= low && value <= high) x.push_back(value);
    return x;
}
// The kernel's results for all x, computed on the machine.
static std::vector<double> run(void (*kernel)(float*, const float*, size_t), const std::vector<float>& x) {
    Owned<float> in(1, (int)x.size(), x), out(1, (int)x.size());
    launch(kernel, chunks(x.size()), BLOCK, out.view().data, (const float*)in.view().data, x.size());
    return out.get();
}

TEST_CASE("e^x is within 2 ulp over two million floats from the smallest to the largest result") {
    std::vector<float> x = sweep(-87.33f, 88.72f);
    std::vector<double> y = run(exp_kernel<float>, x);
    Worst worst;
    for (size_t i = 0; i < x.size(); i++) {
        double exact = std::exp((double)x[i]);
        worst.see(i, y[i], exact, std::ldexp(1.0, std::ilogb(exact) - 23)); // one ulp: results here are normal numbers
    }
    REQUIRE(x.size() > 2000000);
    INFO("x = ", x[worst.at], ", ", worst.text());
    CHECK(worst.ratio <= 2); // what exp.cuh promises
}

TEST_CASE("e^x at its ends: exactly 1 at 0, Inf above, 0 below, NaN for NaN") {
    const float inf = bits_as<float>(0x7F800000u), nan = bits_as<float>(0x7FC00000u);
    const float minus_0 = bits_as<float>(0x80000000u), minus_nan = bits_as<float>(0xFFC00001u);
    std::vector<double> y = run(exp_kernel<float>, {0.0f, minus_0, inf, -inf, nan, minus_nan, 88.72f, 88.73f, 1e30f, -1e30f});
    CHECK(y[0] == 1);
    CHECK(y[1] == 1);
    CHECK(std::isinf(y[2]));
    CHECK(y[2] > 0);
    CHECK(y[3] == 0);
    CHECK(std::isnan(y[4]));
    CHECK(std::isnan(y[5]));
    CHECK(std::isfinite(y[6])); // ln of the largest float is 88.7228
    CHECK(std::isinf(y[7]));
    CHECK(std::isinf(y[8]));
    CHECK(y[9] == 0);
}

TEST_CASE("e^x on the host: the last finite result and the last that is not 0 are normal numbers, and stay in order") {
    const float highest = 88.72283f, lowest = -87.33f; // the host's limits; a GPU's expf goes on into the subnormals
    CHECK(std::isfinite(exp_fp32(highest)));
    CHECK(std::isinf(exp_fp32(std::nextafterf(highest, 100))));
    CHECK(exp_fp32(lowest) >= 0x1p-126f);
    CHECK(exp_fp32(std::nextafterf(lowest, -100)) == 0);
    CHECK(exp_fp32(bits_as<float>(1u)) == 1); // the smallest subnormal
    CHECK(exp_fp32(bits_as<float>(0x80000001u)) == 1);
}

TEST_CASE("sigmoid keeps its digits on both sides") {
    // e^-x within 2 ulp is within 4u; it is at most the whole of 1 + e^-x, whose sum and quotient round once more each.
    constexpr double u = unit_roundoff<float>(), bound = 4 * u + 2 * u;
    std::vector<float> x = sweep(-87, 87);
    std::vector<double> y = run(sigmoid_kernel<float>, x);
    Worst worst;
    for (size_t i = 0; i < x.size(); i++) {
        double e = std::exp(-std::fabs((double)x[i])), exact = x[i] < 0 ? e / (1 + e) : 1 / (1 + e);
        worst.see(i, y[i], exact, bound * (1 + bound) * exact);
    }
    INFO("x = ", x[worst.at], ", ", worst.text());
    CHECK(worst.ratio <= 1);
}

TEST_CASE("sigmoid is symmetric: sigmoid(x) + sigmoid(-x) = 1") {
    constexpr double u = unit_roundoff<float>(), bound = 6 * u * (1 + 6 * u); // each of the two relatively, and they sum to 1
    std::vector<float> x = sweep(0, 87), minus_x = x;
    for (float& value : minus_x) value = -value;
    std::vector<double> right = run(sigmoid_kernel<float>, x), left = run(sigmoid_kernel<float>, minus_x);
    Worst worst;
    for (size_t i = 0; i < x.size(); i++) worst.see(i, right[i] + left[i], 1, bound);
    INFO("x = ", x[worst.at], ", ", worst.text());
    CHECK(worst.ratio <= 1);
    CHECK(right[0] == 0.5);
}

TEST_CASE("sigmoid of Inf is 1, of -Inf 0, of NaN NaN") {
    const float inf = bits_as<float>(0x7F800000u);
    std::vector<double> y = run(sigmoid_kernel<float>, {inf, -inf, bits_as<float>(0x7FC00000u), 100, -100});
    CHECK(y[0] == 1);
    CHECK(y[1] == 0);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 1);
    CHECK(y[4] < 0x1p-126); // 3.7e-44: 0, or a GPU's subnormal
}

TEST_CASE("ordered() puts integers in the order of the floats") {
    const Rng rng(1, Stream::test);
    int wrong_order = 0, wrong_inverse = 0, compared = 0;
    for (int i = 0; i < 1000000; i++) {
        uint32_t a = rng.bits(2 * i), b = i % 2 ? rng.bits(2 * i + 1) : a + 1; // any two floats, or two neighbours
        float x = bits_as<float>(a), y = bits_as<float>(b);
        wrong_inverse += bits_as<uint32_t>(from_ordered(ordered(x))) != a;
        if (!(x < y) && !(y < x)) continue; // a NaN among them, or two zeros
        compared++;
        wrong_order += (x < y) != (ordered(x) < ordered(y));
    }
    CHECK(compared > 900000);
    CHECK(wrong_order == 0);
    CHECK(wrong_inverse == 0);
}

TEST_CASE("ordered() at the ends: -NaN < -Inf < the most negative < -0 < 0 < ... < Inf < NaN") {
    std::vector<uint32_t> rising = {0xFFC00000, 0xFF800000, 0xFF7FFFFF, 0x80000001, 0x80000000, 0, 1, 0x7F7FFFFF, 0x7F800000, 0x7FC00000};
    for (size_t i = 0; i < rising.size(); i++) {
        int o = ordered(bits_as<float>(rising[i]));
        CHECK(bits_as<uint32_t>(from_ordered(o)) == rising[i]);
        if (i > 0) CHECK(ordered(bits_as<float>(rising[i - 1])) < o);
    }
}

TEST_CASE("the largest by ordered() of values with a NaN among them is NaN; by fmaxf it is not") {
    int top = INT32_MIN;
    float by_fmaxf = -HUGE_VALF;
    for (uint32_t bits : {0x3F800000u, 0x7F800000u, 0x7FC00000u, 0xC0000000u}) { // 1, Inf, NaN, -2
        int o = ordered(bits_as<float>(bits));
        top = o > top ? o : top;
        by_fmaxf = std::fmax(by_fmaxf, bits_as<float>(bits));
    }
    CHECK(std::isnan(from_ordered(top)));
    CHECK(std::isinf(by_fmaxf));
}
