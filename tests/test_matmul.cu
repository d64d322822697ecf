// test_matmul.cu -- matmul.cuh, every way it computes a product, against loops in double precision.
#include "matmul.cuh"
#include "tensors.h"
#include <doctest/doctest.h>

namespace {

// Each rung of the ladder by itself, and what the model calls: on a CPU that is oneDNN, with BF16 products and without.
enum class Engine { naive,
                    tiled,
                    tensorcore,          // where it fits
                    tensorcore_in_parts, // K split in three
                    model,
                    model_without_bf16 };
#if defined(ON_CPU)
const std::vector<Engine> ENGINES = {Engine::naive, Engine::tiled, Engine::model, Engine::model_without_bf16};
#else
const std::vector<Engine> ENGINES = {Engine::naive, Engine::tiled, Engine::tensorcore, Engine::tensorcore_in_parts, Engine::model};
#endif
const char* name_of(Engine e) {
    static const char* names[] = {"naive", "tiled", "tensor cores", "tensor cores, K in 3 parts", "model", "model without BF16 products"};
    return names[(int)e];
}

void multiply_by(Engine engine, Output c, Operand a, Operand b, Sizes s, Epilogue e = {}) {
    if (engine == Engine::naive) return matmul_naive(c, a, b, s, e);
    if (engine == Engine::tiled) return matmul_tiled(c, a, b, s, e);
#if defined(ON_CPU)
    OneDnn::allow_native_bf16(engine == Engine::model);
    matmul(c, a, b, s, e);
    OneDnn::allow_native_bf16(true);
#else
    if (engine == Engine::model || !fits_tensorcore(a, b, capability())) return matmul(c, a, b, s, e);
    matmul_tensorcore(c, a, b, s, e, engine == Engine::tensorcore || s.outer * s.inner > 1 ? 1 : 3);
#endif
}

// A (rows, cols) buffer in any format on the machine, with its numbers on the host. Its values, codes times 2^-k, are
// of the order of 1.
struct Source {
    Buffer memory;
    std::vector<double> codes;
    Format format;
    int k, cols;
    Source(Format f, int rows, int cols, int k, const std::vector<float>& values) : format(f), k(k), cols(cols) {
        with_type(f, [&](auto type) {
            Owned<decltype(type)> x(rows, cols, values);
            codes = x.get();
            memory = std::move(x.memory);
        });
    }
    Source(Format f, int rows, int cols, int k, uint32_t seed)
        : Source(f, rows, cols, k, normals((size_t)rows * cols, seed, std::ldexp(1.0f, k))) {}

    Operand operand() const { return part(0, cols, 1, 0, 0); }
    Operand part(size_t first, int64_t row, int64_t col, int64_t outer, int64_t inner) const {
        return {(const char*)memory.data() + first * bytes_of(format), format, k, row, col, outer, inner};
    }
    // Element (o, i, r, c) of a view of this buffer.
    double at(const Operand& x, int64_t o, int64_t i, int64_t r, int64_t c) const {
        size_t first = ((const char*)x.data - (const char*)memory.data()) / bytes_of(format);
        return std::ldexp(codes.at(first + o * x.outer + i * x.inner + r * x.row + c * x.col), -x.k);
    }
};

// sum_k a b and sum_k |a b| of every element, in the order (outer, inner, M, N).
struct Expected {
    std::vector<double> sum, magnitude;
    double sum_roundoff = 0; // beyond FP32's, relative to the sum of magnitudes
};
Expected expected_product(const Source& a_source, Operand a, const Source& b_source, Operand b, Sizes s) {
    Expected e;
#if defined(__CUDACC__)
    // Native FP8 tensor cores (8.9, 12.0) keep 13 bits of a running sum and cut the rest; the kernel takes it over into FP32
    // after 128 of K, four instructions. Products of whole numbers stay below 2^13 there and are exact.
    if (is_fp8(a.format) && is_fp8(b.format)) e.sum_roundoff = 4 * 0x1p-13;
#endif
    std::vector<double> column((size_t)s.K * s.N), row(s.K);
    for (int o = 0; o < s.outer; o++)
        for (int i = 0; i < s.inner; i++) {
            for (int n = 0; n < s.N; n++)
                for (int k = 0; k < s.K; k++) column[(size_t)n * s.K + k] = b_source.at(b, o, i, k, n);
            for (int m = 0; m < s.M; m++) {
                for (int k = 0; k < s.K; k++) row[k] = a_source.at(a, o, i, m, k);
                for (int n = 0; n < s.N; n++) {
                    double sum = 0, magnitude = 0;
                    for (int k = 0; k < s.K; k++) {
                        double term = row[k] * column[(size_t)n * s.K + k];
                        sum += term, magnitude += std::fabs(term);
                    }
                    e.sum.push_back(sum), e.magnitude.push_back(magnitude);
                }
            }
        }
    return e;
}

// Where a test lets a product be written: numbers all over a buffer that has room before c, after c and between its rows.
template <class T>
struct Target {
    Owned<T> memory;
    std::vector<double> before;
    Output c;
    Target(size_t elements, size_t first, int64_t row, int64_t outer, int64_t inner, uint32_t seed = 99)
        : memory(1, (int)elements, normals(elements, seed)), before(memory.get()), c{memory.view().data + first, format_of<T>, row, outer, inner} {}
    explicit Target(Sizes s, uint32_t seed = 99) : Target(7 + (size_t)s.M * (s.N + 3) + 9, 7, s.N + 3, 0, 0, seed) {}
    // On a CPU a GELU and a residual want dense matrices. Where N is a multiple of 8 each row begins on a 16-byte boundary.
    static Target dense(Sizes s, uint32_t seed) { return Target(8 + (size_t)s.M * s.N + 9, 8, s.N, 0, 0, seed); }

    // K products and their sum round K times (in whatever order; an exact product does not), adding a bias and what was
    // there, or in `added`, once more each, all in FP32; then one rounding to T. All else in the buffer is as it was.
    void expect(const std::string& what, const Expected& e, Sizes s, const std::vector<double>& bias = {}, const std::vector<double>& added = {}) const {
        std::vector<double> after = memory.get(), untouched = before;
        const size_t first = (T*)c.data - memory.view().data;
        const double gamma = gamma_fp32(s.K + !bias.empty() + !added.empty());
        Worst worst;
        size_t at = 0;
        for (int o = 0; o < s.outer; o++)
            for (int i = 0; i < s.inner; i++)
                for (int m = 0; m < s.M; m++)
                    for (int n = 0; n < s.N; n++, at++) {
                        size_t place = first + o * c.outer + i * c.inner + m * c.row + n;
                        double b = bias.empty() ? 0 : bias[n], old = added.empty() ? 0 : added[place], want = e.sum[at] + b + old;
                        double off = e.sum_roundoff * e.magnitude[at] + gamma * (e.magnitude[at] + std::fabs(b) + std::fabs(old));
                        worst.see(at, after[place], want, off + rounding_error<T>(std::fabs(want) + off));
                        untouched[place] = after[place];
                    }
        INFO(what, " -> ", name_of(format_of<T>));
        INFO("M=", s.M, " N=", s.N, " K=", s.K, " batches=", s.outer, "x", s.inner, ": ", worst.text());
        CHECK(worst.ratio <= 1);
        CHECK((after == untouched));
    }

    // c = gelu(x), x the numbers that were kept: test_gelu.cu counts its roundings.
    void expect_gelu_of(const std::vector<double>& x, const std::string& what, Sizes s) const {
        const std::vector<double> after = memory.get();
        Worst worst;
        for (size_t i = 8; i < 8 + (size_t)s.M * s.N; i++) {
            const double z = 2 * std::sqrt(2 / M_PI) * (x[i] + 0.044715 * x[i] * x[i] * x[i]), sigmoid = 1 / (1 + std::exp(-z));
            const double exp_error = std::expm1(gamma_fp32(7) * std::fabs(z)) + 4 * 0x1p-24; // of e^-z, relative
            const double sigmoid_error = std::fabs(z) > 80 ? 0x1p-24 : sigmoid * ((1 - sigmoid) * exp_error / (1 - exp_error) + gamma_fp32(2)) + 0x1p-126;
            const double off = std::fabs(x[i]) * (sigmoid_error + 0x1p-24 * (sigmoid + sigmoid_error));
            worst.see(i, after[i], x[i] * sigmoid, off + rounding_error<T>(std::fabs(x[i] * sigmoid) + off));
        }
        INFO(what, " -> gelu in ", name_of(format_of<T>), ": ", worst.text());
        CHECK(worst.ratio <= 1);
    }
};
std::string text(Engine e, Format a, Format b) {
    return std::string(name_of(e)) + ", " + name_of(a) + " x " + name_of(b);
}

// Most divide no tile, no warp and no vector; sides of 1, and longer than all of these; one that all divide, and one that vectors do.
const std::vector<Sizes> SIZES = {{3, 17, 33}, {17, 3, 257}, {1, 1, 1}, {1, 17, 33}, {33, 1, 17}, {33, 257, 17}, {257, 33, 3}, {5, 7, 1000}, {64, 32, 96}, {17, 168, 40}, {1, 40, 1000}};

// One product in every way: into every output format, plain, with a bias, and added to what is there.
void check_product(const Source& a_source, Operand a, const Source& b_source, Operand b, Sizes s) {
    const Expected e = expected_product(a_source, a, b_source, b, s);
    Owned<float> bias(1, s.N, normals(s.N, 5));
    const float* bias_data = bias.view().data;
    for (Engine engine : ENGINES) {
        const std::string what = text(engine, a.format, b.format);
        auto check = [&](auto type) {
            using T = decltype(type);
            Target<T> plain(s), biased(s);
            multiply_by(engine, plain.c, a, b, s);
            plain.expect(what, e, s);
            multiply_by(engine, biased.c, a, b, s, {bias_data});
            biased.expect(what + " + bias", e, s, bias.get());

            Target<T> sum = Target<T>::dense(s, 1), residual = Target<T>::dense(s, 2);
            multiply_by(engine, sum.c, a, b, s, {bias_data, nullptr, residual.c.data});
            sum.expect(what + " + bias + residual", e, s, bias.get(), residual.before);

            Target<T> kept = Target<T>::dense(s, 3), y = Target<T>::dense(s, 4);
            multiply_by(engine, y.c, a, b, s, {bias_data, kept.c.data});
            kept.expect(what + " + bias, kept", e, s, bias.get());
            y.expect_gelu_of(kept.memory.get(), what, s);
        };
        check(float()), check(bf16()), check(fp16());
        Target<float> sum(s);
        multiply_by(engine, sum.c, a, b, s, {nullptr, nullptr, nullptr, true});
        sum.expect(what + ", added", e, s, {}, sum.before);
    }
}

// All sizes, with a and b each stored as it is read or transposed: at two sizes in all four ways, at the others by turns.
void check_formats(Format a_format, int ka, Format b_format, int kb) {
    for (int size = 0; size < (int)SIZES.size(); size++)
        for (int transposes = 0; transposes < 4; transposes++) {
            const Sizes s = SIZES[size];
            if (size > 1 && transposes != size % 4) continue;
            bool a_turned = transposes & 1, b_turned = transposes & 2;
            Source a(a_format, a_turned ? s.K : s.M, a_turned ? s.M : s.K, ka, 1);
            Source b(b_format, b_turned ? s.N : s.K, b_turned ? s.K : s.N, kb, 2);
            check_product(a, a_turned ? a.operand().transposed() : a.operand(), b, b_turned ? b.operand().transposed() : b.operand(), s);
        }
}

} // namespace

TEST_CASE("FP32 x FP32") { check_formats(FP32, 0, FP32, 0); }
TEST_CASE("BF16 x BF16") { check_formats(BF16, 0, BF16, 0); }
TEST_CASE("FP16 x FP16") { check_formats(FP16, 0, FP16, 0); }
TEST_CASE("E4M3 x E4M3, as forward multiplies: each with its own exponent") { check_formats(E4M3, 5, E4M3, 3); }
TEST_CASE("E5M2 x E4M3, as backward multiplies") { check_formats(E5M2, 12, E4M3, -2); }
TEST_CASE("BF16 x E4M3") { check_formats(BF16, 0, E4M3, 4); }
TEST_CASE("FP32 x BF16") { check_formats(FP32, 0, BF16, 0); }
TEST_CASE("BF16 x BF16 with exponents") { check_formats(BF16, 7, BF16, -9); }

#if !defined(ON_CPU)
TEST_CASE("tensor cores around every edge of their tiles, K whole and in parts, as the three products of a Linear lie in memory") {
    const int edges[] = {1, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200}, n = 14;
    for (Format f : {BF16, FP16, E4M3})
        for (int i = 0; i < n; i++)
            for (int product = 0; product < 3; product++) {
                const bool a_turned = product == 2 && !is_fp8(f), b_turned = product == 0 || is_fp8(f); // y; dx; dw
                const Sizes s = {edges[i], edges[(i + 5 + product) % n], edges[(i + 9 - product) % n]};
                const Format a_format = is_fp8(f) && product ? E5M2 : f;
                Source a(a_format, a_turned ? s.K : s.M, a_turned ? s.M : s.K, is_fp8(f) ? 3 : 0, i + 1), b(f, b_turned ? s.N : s.K, b_turned ? s.K : s.N, 0, i + 2);
                const Operand a_read = a_turned ? a.operand().transposed() : a.operand(), b_read = b_turned ? b.operand().transposed() : b.operand();
                REQUIRE(fits_tensorcore(a_read, b_read, capability()));
                const Expected e = expected_product(a, a_read, b, b_read, s);
                for (int parts : {1, 2, 5}) {
                    Target<float> c(s);
                    matmul_tensorcore(c.c, a_read, b_read, s, {}, parts);
                    c.expect(std::string(name_of(a_format)) + " x " + name_of(f) + ", " + std::to_string(parts) + " parts", e, s);
                }
            }
}
#endif

#if defined(FEWBITS_SIMULATOR)
TEST_CASE("no bank conflicts in the inner loops of any format and layout") {
    simulator::ldmatrix_banks.reset(), simulator::copy_banks.reset();
    const Sizes s = {128, 128, 256};
    for (Format f : {BF16, FP16, E4M3, E5M2})
        for (int transposes = 0; transposes < (is_fp8(f) ? 1 : 4); transposes++) {
            Source a(f, 256, 256, 0, 1), b(f, 256, 256, 0, 2);
            Owned<float> c(s.M, s.N);
            matmul_tensorcore(output(c.view()), transposes & 1 ? a.operand().transposed() : a.operand(), transposes & 2 ? b.operand() : b.operand().transposed(), s, {}, 1);
        }
    CHECK(simulator::ldmatrix_banks.accesses > 1000);
    CHECK(simulator::copy_banks.accesses > 1000);
    CHECK(simulator::ldmatrix_banks.conflicts == 0);
    CHECK(simulator::copy_banks.conflicts == 0);
}

TEST_CASE("which GPU does which product with tensor cores") {
    auto fits = [](Format a, Format b, int capability) {
        const Operand x = {nullptr, a, 0, 64, 1, 0, 0}, y = {nullptr, b, 0, 1, 64, 0, 0};
        return fits_tensorcore(x, y, capability);
    };
    for (int capability : {75, 80, 89, 90, 120}) {
        CHECK(fits(FP16, FP16, capability));
        CHECK(fits(E5M2, E4M3, capability));
        CHECK(fits(BF16, BF16, capability) == (capability >= 80));
        CHECK(!fits(FP32, FP32, capability));
        CHECK(!fits(BF16, E4M3, capability));
    }
    const Operand x = {nullptr, E4M3, 0, 1, 64, 0, 0}; // k does not lie contiguous
    CHECK(!fits_tensorcore(x, x, 90));
    CHECK(!fits(FP16, FP16, 70));
}

TEST_CASE("older GPUs, whose products take other instructions, get the same numbers") {
    const int before = simulator::capability();
    for (int capability : {75, 80, 89}) {
        simulator::capability() = capability;
        for (Format f : {BF16, FP16, E4M3, E5M2}) {
            const Sizes s = {33, 40, 96};
            Source a(f, s.M, s.K, 0, 1), b(f, s.N, s.K, 0, 2);
            const Operand b_read = b.operand().transposed();
            Target<float> c(s);
            matmul(c.c, a.operand(), b_read, s);
            c.expect(format("capability %d, %s", capability, name_of(f)), expected_product(a, a.operand(), b, b_read, s), s);
        }
    }
    simulator::capability() = before;
}
#endif

TEST_CASE("a single row goes to matvec where k lies contiguous in both") {
    const Operand row = {nullptr, BF16, 0, 64, 1, 0, 0}, turned = row.transposed();
    CHECK(fits_matvec(row, turned, {1, 8, 64}));
    CHECK(!fits_matvec(row, turned, {2, 8, 64}));
    CHECK(!fits_matvec(row, turned, {1, 8, 64, 1, 2}));
    CHECK(!fits_matvec(row, row, {1, 8, 64}));
    CHECK(!fits_matvec(turned, turned, {1, 8, 64}));
}

TEST_CASE("whole numbers in FP8 are multiplied exactly, whatever the scales") {
    const Sizes s = {17, 33, 1000}; // 1000 products of at most 64 stay below 2^24
    const Rng rng(3, Stream::test);
    std::vector<float> a_values((size_t)s.M * s.K), b_values((size_t)s.K * s.N);
    for (size_t i = 0; i < a_values.size(); i++) a_values[i] = (float)rng.below(i, 17) - 8;
    for (size_t i = 0; i < b_values.size(); i++) b_values[i] = (float)rng.below(i + 1000000, 17) - 8;
    for (Format a_format : {E4M3, E5M2})
        for (Format b_format : {E4M3, E5M2}) {
            Source a(a_format, s.M, s.K, 3, a_values), b(b_format, s.K, s.N, -5, b_values);
            const Expected e = expected_product(a, a.operand(), b, b.operand(), s);
            for (Engine engine : ENGINES) {
                INFO(text(engine, a_format, b_format));
                Owned<float> c(s.M, s.N);
                multiply_by(engine, output(c.view()), a.operand(), b.operand(), s);
                CHECK((c.get() == e.sum));
            }
        }
}

TEST_CASE("every FP8 code times the identity is itself, with scales at their limits") {
    for (Format f : {E4M3, E5M2})
        for (int k : {-110, 0, 110}) {
            std::vector<float> codes, identity(256 * 256);
            for (int i = 0; i < 256; i++) {
                float x = with_type(f, [&](auto type) -> float {
                    if constexpr (sizeof(type) == 1)
                        return to_float(decltype(type){(uint8_t)i});
                    else
                        return 0;
                });
                codes.push_back(std::isfinite(x) ? x : 0);
                identity[i * 256 + i] = 1;
            }
            const Sizes s = {1, 256, 256};
            Source a(f, 1, 256, k, codes), b(E4M3, 256, 256, 0, identity);
            const Expected e = expected_product(a, a.operand(), b, b.operand(), s);
            for (Engine engine : ENGINES) {
                INFO(text(engine, f, E4M3), ", k = ", k);
                Owned<float> c(1, 256);
                multiply_by(engine, output(c.view()), a.operand(), b.operand(), s);
                CHECK((c.get() == e.sum));
            }
        }
}

TEST_CASE("a NaN or an Inf in an operand reaches its row, and no other") {
    const float inf = bits_as<float>(0x7F800000u), nan = bits_as<float>(0x7FC00000u);
    const Sizes s = {3, 5, 40};
    std::vector<float> values = normals((size_t)s.M * s.K, 1);
    values[7] = inf, values[s.K + 8] = nan;
    for (Format f : {FP32, BF16, FP16, E5M2}) {
        Source a(f, s.M, s.K, 0, values), b(f, s.K, s.N, 0, std::vector<float>((size_t)s.K * s.N, 1));
        for (Engine engine : ENGINES) {
            INFO(text(engine, f, f));
            Owned<float> c(s.M, s.N);
            multiply_by(engine, output(c.view()), a.operand(), b.operand(), s);
            std::vector<double> y = c.get();
            for (int n = 0; n < s.N; n++) {
                CHECK(std::isinf(y[n]));
                CHECK(std::isnan(y[s.N + n]));
                CHECK(std::isfinite(y[2 * s.N + n]));
            }
        }
    }
}

// ==== batches of strided views: the heads of attention ===============================================================

// q, k and v are thirds of the columns of one (B T, 3C) buffer; a head is hs neighbouring columns of each.
template <class T>
static void check_heads(int B, int length, int heads, int hs) {
    const int C = heads * hs, BT = B * length;
    const Format f = format_of<T>;
    Source qkv(f, BT, 3 * C, 0, 11), square(f, B * heads * length, length, 0, 12), dy(f, BT, C, 0, 13);
    auto part = [&](int which) { return qkv.part((size_t)which * C, 3 * C, 1, (int64_t)length * 3 * C, hs); };
    const Operand p = square.part(0, length, 1, (int64_t)heads * length * length, (int64_t)length * length);
    const Operand merged = dy.part(0, C, 1, (int64_t)length * C, hs);

    for (Engine engine : ENGINES) {
        const std::string what = text(engine, f, f);
        Sizes to_square = {length, length, hs, B, heads}, to_head = {length, hs, length, B, heads};
        Target<float> scores(square.codes.size() + 16, 8, length, p.outer, p.inner); // S = q k^T
        multiply_by(engine, scores.c, part(0), part(1).transposed(), to_square);
        scores.expect(what + ", q k^T", expected_product(qkv, part(0), qkv, part(1).transposed(), to_square), to_square);

        Target<T> y((size_t)BT * C + 16, 8, C, merged.outer, merged.inner); // y = P v
        multiply_by(engine, y.c, p, part(2), to_head);
        y.expect(what + ", P v", expected_product(square, p, qkv, part(2), to_head), to_head);

        Target<T> dqkv((size_t)BT * 3 * C, 2 * C, 3 * C, part(2).outer, hs); // dv = P^T dy: dq and dk stay as they are
        multiply_by(engine, dqkv.c, p.transposed(), merged, to_head);
        dqkv.expect(what + ", P^T dy", expected_product(square, p.transposed(), dy, merged, to_head), to_head);
    }
}
TEST_CASE_TEMPLATE("heads are views: q k^T, P v and P^T dy, read and written in place among their neighbours", T, float, bf16, fp16) {
    check_heads<T>(2, 5, 3, 4);
    check_heads<T>(1, 33, 2, 17);
    check_heads<T>(3, 1, 1, 8);
    check_heads<T>(2, 17, 2, 1);
    check_heads<T>(1, 40, 1, 16);
}

// ==== the same bytes =================================================================================================

TEST_CASE("one thread and two, and one run after another, give the same bytes") {
    const std::vector<Sizes> sizes = {{3, 5, 4096}, {64, 64, 4096}, {257, 33, 129}, {256, 384, 128}, {128, 1, 1000}};
    for (Format f : {FP32, BF16, FP16, E4M3})
        for (const Sizes& s : sizes) {
            Source a(f, s.M, s.K, 0, 1), b(f, s.N, s.K, 0, 2);
            for (Engine engine : ENGINES) {
                std::vector<double> results[3];
                int run = 0;
                for (int threads : {1, 2, 2}) {
                    with_threads(threads, [&] {
#if defined(ON_CPU)
                        if (run < 2) OneDnn::library() = OneDnn(); // what it has kept was made for another number of threads
#endif
                        Owned<float> c(s.M, s.N);
                        multiply_by(engine, output(c.view()), a.operand(), b.operand().transposed(), s);
                        results[run++] = c.get();
                    });
                }
                INFO(text(engine, f, f), ", M=", s.M, " N=", s.N, " K=", s.K);
                CHECK((results[0] == results[1]));
                CHECK((results[1] == results[2]));
            }
        }
}

// ==== errors =========================================================================================================

TEST_CASE("a product without rows, columns, terms or batches is an error that names the sizes") {
    Owned<float> x(4, 4);
    for (Sizes s : {Sizes{0, 4, 4}, Sizes{4, 0, 4}, Sizes{4, 4, 0}, Sizes{4, 4, -1}, Sizes{4, 4, 4, 0, 1}, Sizes{4, 4, 4, 1, 0}}) {
        CHECK_THROWS_WITH_AS(matmul(output(x.view()), operand(x.view()), operand(x.view()), s),
                             format("matmul: M=%d N=%d K=%d outer=%d inner=%d", s.M, s.N, s.K, s.outer, s.inner).c_str(), Error);
        CHECK_THROWS_AS(matmul_add(output(x.view()), operand(x.view()), operand(x.view()), s), Error);
    }
}

TEST_CASE("operands and outputs made from a tensor are the whole of it, row by row") {
    Owned<bf16> x(3, 5);
    Operand a = operand(x.view()), t = a.transposed();
    CHECK(a.data == x.view().data);
    CHECK(a.format == BF16);
    CHECK(a.k == 0);
    CHECK(a.row == 5);
    CHECK(a.col == 1);
    CHECK(t.row == 1);
    CHECK(t.col == 5);
    CHECK(t.transposed().row == 5);
    CHECK(output(x.view()).row == 5);
}
