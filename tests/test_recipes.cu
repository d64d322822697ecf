// test_recipes.cu -- recipes.cuh: the recipes, the ways between a format's name, value and type, and the table of facts.
#include "recipes.cuh"
#include "tensors.h"
#include <algorithm>
#include <doctest/doctest.h>

TEST_CASE("the recipes are what the README's table says") {
    auto is = [](Recipe r, const char* name, Format stored, Format weight, Format input, Format gradient, bool loss_scaling) {
        return std::string(r.name) == name && r.stored == stored && r.weight == weight && r.input == input && r.gradient == gradient &&
            r.loss_scaling == loss_scaling;
    };
    CHECK(is(recipe_fp32, "fp32", FP32, FP32, FP32, FP32, false));
    CHECK(is(recipe_bf16, "bf16", BF16, BF16, BF16, BF16, false));
    CHECK(is(recipe_fp16, "fp16", FP16, FP16, FP16, FP16, true));
    CHECK(is(recipe_fp8, "fp8", BF16, E4M3, E4M3, E5M2, false));
}

TEST_CASE("a recipe is found by its name") {
    for (const Recipe& r : RECIPES) CHECK(std::string(recipe_named(r.name).name) == r.name);
}

TEST_CASE("an unknown recipe is refused as the user's error, with the option, its value and all that would do") {
    for (const char* name : {"int8", "", "FP8", "fp8 "}) {
        try {
            recipe_named(name);
            FAIL("accepted: ", name);
        } catch (const Error& e) {
            std::string text = e.what();
            INFO(text);
            CHECK(e.status == 2);
            CHECK(text.find(std::string("--recipe ") + name + ":") == 0);
            for (const Recipe& r : RECIPES) CHECK(text.find(r.name, strlen("--recipe ") + strlen(name)) != std::string::npos);
        }
    }
}

TEST_CASE("from a format to its type and back") {
    for (Format f : {FP32, BF16, FP16, E4M3, E5M2}) {
        CHECK(with_type(f, [](auto x) { return format_of<decltype(x)>; }) == f);
        CHECK(with_type(f, [](auto x) { return sizeof(x); }) == bytes_of(f));
    }
}

TEST_CASE("every format has its name, its bytes, and is FP8 or not") {
    CHECK(std::string(name_of(FP32)) == "FP32");
    CHECK(std::string(name_of(BF16)) == "BF16");
    CHECK(std::string(name_of(FP16)) == "FP16");
    CHECK(std::string(name_of(E4M3)) == "E4M3");
    CHECK(std::string(name_of(E5M2)) == "E5M2");
    CHECK(bytes_of(FP32) == 4);
    CHECK(bytes_of(BF16) == 2);
    CHECK(bytes_of(FP16) == 2);
    CHECK(bytes_of(E4M3) == 1);
    CHECK(bytes_of(E5M2) == 1);
    for (Format f : {FP32, BF16, FP16}) CHECK(!is_fp8(f));
    for (Format f : {E4M3, E5M2}) CHECK(is_fp8(f));
}

template <class T>
static __global__ void load_kernel(float* y, const T* x, Format f, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) y[i] = load(x, f, i);
}

TEST_CASE_TEMPLATE("load() reads every format, on the machine", T, float, bf16, fp16, e4m3, e5m2) {
    const int n = 5000;
    Owned<T> x(1, n, normals(n, 1, 100));
    Owned<float> y(1, n);
    launch(load_kernel<T>, chunks(n), BLOCK, y.view().data, (const T*)x.view().data, format_of<T>, (size_t)n);
    CHECK(x.get() == y.get());
}

static bool facts_are(FormatFacts f, int bits, int exponent_bits, int mantissa_bits, int bias, double largest, double smallest_normal,
                      double smallest_subnormal, double spacing_at_1, int64_t inf, int64_t first_nan, int64_t last_nan, float becomes_zero,
                      float overflow_starts) {
    return f.bits == bits && f.exponent_bits == exponent_bits && f.mantissa_bits == mantissa_bits && f.bias == bias && f.largest == largest &&
        f.smallest_normal == smallest_normal && f.smallest_subnormal == smallest_subnormal && f.spacing_at_1 == spacing_at_1 &&
        f.inf == inf && f.first_nan == first_nan && f.last_nan == last_nan && f.becomes_zero == becomes_zero &&
        f.overflow_starts == overflow_starts;
}

// IEEE 754-2019 for FP16, the OCP FP8 specification 1.0 for E4M3 and E5M2. Half the smallest subnormal is a tie with 0,
// which is even. Overflow starts at the middle between the largest and what would follow: where the largest code is odd
// (FP16, BF16, E5M2) this tie itself overflows; 448 is even in E4M3 and gets the tie at 464.
TEST_CASE("the facts of the formats, as measured, are those of the standards") {
    CHECK(facts_are(format_facts<fp16>(), 16, 5, 10, 15, 65504, 0x1p-14, 0x1p-24, 0x1p-10, 0x7C00, 0x7C01, 0x7FFF, 0x1p-25f, 65520));
    CHECK(facts_are(format_facts<bf16>(), 16, 8, 7, 127, 0x1.FEp127, 0x1p-126, 0x1p-133, 0x1p-7, 0x7F80, 0x7F81, 0x7FFF, 0x1p-134f, 0x1.FFp127f));
    CHECK(facts_are(format_facts<e4m3>(), 8, 4, 3, 7, 448, 0x1p-6, 0x1p-9, 0x1p-3, -1, 0x7F, 0x7F, 0x1p-10f, std::nextafterf(464, 500)));
    CHECK(facts_are(format_facts<e5m2>(), 8, 5, 2, 15, 57344, 0x1p-14, 0x1p-16, 0x1p-2, 0x7C, 0x7D, 0x7F, 0x1p-17f, 61440));
}

TEST_CASE("from the largest to the smallest: E4M3 spans 2^17.8, E5M2 2^31.8, FP16 2^40") {
    auto span = [](FormatFacts f) { return std::log2(f.largest / f.smallest_subnormal); };
    CHECK(span(format_facts<e4m3>()) == doctest::Approx(17.8).epsilon(.005));
    CHECK(span(format_facts<e5m2>()) == doctest::Approx(31.8).epsilon(.005));
    CHECK(span(format_facts<fp16>()) == doctest::Approx(40).epsilon(.005));
}

TEST_CASE("a power of two is printed as one, where that says more") {
    CHECK(number(0x1p-14) == "2^-14");
    CHECK(number(0x1p-133) == "2^-133");
    CHECK(number(0.125) == "0.125");
    CHECK(number(1) == "1");
    CHECK(number(448) == "448");
    CHECK(number(65504) == "65504");
    CHECK(number(0x1.FEp127) == "3.38953139e+38");
}

TEST_CASE("the table has a row per format with the measured numbers in order") {
    const std::string table = formats_table();
    std::vector<std::vector<std::string>> rows = {
        {"FP16", "16", "1/5/10", "15", "65504", "2^-14", "2^-24", "2^-10", "7C00", "7C01-7FFF", "2^-25", "65520"},
        {"BF16", "16", "1/8/7", "127", "3.38953139e+38", "2^-126", "2^-133", "2^-7", "7F80", "7F81-7FFF", "2^-134", "3.39617753e+38"},
        {"E4M3", "8", "1/4/3", "7", "448", "2^-6", "2^-9", "0.125", "none", "7F", "2^-10", "464.0000305"},
        {"E5M2", "8", "1/5/2", "15", "57344", "2^-14", "2^-16", "0.25", "7C", "7D-7F", "2^-17", "61440"}};
    INFO(table);
    for (const auto& row : rows) {
        size_t at = table.find("\n" + row[0]);
        REQUIRE(at != std::string::npos);
        const size_t end = table.find('\n', at + 1);
        for (const std::string& word : row) {
            CAPTURE(word);
            size_t found = table.find(word, at);
            REQUIRE(found < end);
            at = found + word.size();
        }
    }
}
