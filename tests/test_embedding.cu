// test_embedding.cu -- embedding.cuh: which row goes where, which gradient comes back to which row, and in what order.
#include "bounds.h"
#include "embedding.cuh"

namespace {

std::vector<int> draw(size_t n, int vocab, uint32_t seed) {
    const Rng rng(seed, Stream::test);
    std::vector<int> tokens(n);
    for (size_t i = 0; i < n; i++) tokens[i] = (int)rng.below(i, vocab);
    return tokens;
}

// A batch of host tokens and its copy on the machine.
struct Batch {
    std::vector<int> x, y;
    Buffer memory;
    TokenBatch on_machine;
    Batch(const std::vector<int>& x, int B, int T, int vocab)
        : x(x), y(x.rbegin(), x.rend()), memory((4 * x.size() + 1) * sizeof(int)),
          on_machine(upload_batch((int*)memory.data(), x, y, B, T, vocab)) {}
};

std::vector<int> ints_at(const int* machine, size_t n) {
    std::vector<int> host(n);
    copy_to_host(host.data(), machine, n);
    return host;
}

struct Case {
    int B, T, V;
};
const Case CASES[] = {{1, 1, 1}, {1, 3, 2}, {3, 1, 5}, {3, 17, 7}, {17, 3, 257}, {5, 51, 1000}, {257, 1, 3}, {1, 257, 1000}};

} // namespace

TEST_CASE("embedding: upload_batch groups the positions by token, each group in rising order") {
    for (const Case& c : CASES) {
        const size_t BT = (size_t)c.B * c.T;
        CAPTURE(c.B);
        CAPTURE(c.T);
        Batch batch(draw(BT, c.V, 1), c.B, c.T, c.V);
        const TokenBatch& b = batch.on_machine;
        CHECK(b.B == c.B);
        CHECK(b.T == c.T);
        CHECK((ints_at(b.token, BT) == batch.x));
        CHECK((ints_at(b.target, BT) == batch.y));
        const auto position = ints_at(b.position, BT), start = ints_at(b.start, b.distinct + 1);
        REQUIRE(start.front() == 0);
        REQUIRE(start.back() == (int)BT);
        std::vector<int> groups_of(c.V), seen(BT);
        int mixed = 0, unordered = 0, empty = 0;
        for (int d = 0; d < b.distinct; d++) {
            empty += start[d] >= start[d + 1];
            groups_of[batch.x[position[start[d]]]]++;
            for (int i = start[d]; i < start[d + 1]; i++) {
                seen[position[i]]++;
                mixed += batch.x[position[i]] != batch.x[position[start[d]]];
                unordered += i > start[d] && position[i] <= position[i - 1];
            }
        }
        CHECK(mixed == 0);
        CHECK(unordered == 0);
        CHECK(empty == 0);
        CHECK(*std::max_element(groups_of.begin(), groups_of.end()) == 1); // one group to a token
        CHECK((seen == std::vector<int>(BT, 1)));                          // every position once
    }
}

TEST_CASE_TEMPLATE("embedding: x is the sum of two rows in FP32, rounded once", T, float, bf16, fp16) {
    for (const Case& c : CASES)
        for (int C : {1, 3, 17, 257}) {
            const int BT = c.B * c.T, context = c.T + 2;
            CAPTURE(c.B);
            CAPTURE(c.T);
            CAPTURE(C);
            Batch batch(draw(BT, c.V, 1), c.B, c.T, c.V);
            Owned<T> wte(c.V, C, normals((size_t)c.V * C, 2)), wpe(context, C, normals((size_t)context * C, 3)), x(BT, C);
            embedding_forward<T>(x, batch.on_machine, wte, wpe);
            const auto got = x.get(), te = wte.get(), pe = wpe.get();
            Worst worst;
            for (int bt = 0; bt < BT; bt++)
                for (int i = 0; i < C; i++) {
                    float sum = (float)(te[(size_t)batch.x[bt] * C + i] + pe[(size_t)(bt % c.T) * C + i]);
                    worst.see((size_t)bt * C + i, got[(size_t)bt * C + i], to_float(round_to<T>(sum)), 0);
                }
            check("x", worst, C);
        }
}

// dwte and dwpe, with what was in them before, against double loops. A sum of n terms has n - 1 roundings, and one to
// what was there.
template <class T>
static void check_backward(const std::vector<int>& tokens, int B, int length, int V, int C) {
    const int BT = B * length, context = length + 3;
    Batch batch(tokens, B, length, V);
    Owned<T> dx(BT, C, normals((size_t)BT * C, 4));
    Owned<float> dwte(V, C, normals((size_t)V * C, 5)), dwpe(context, C, normals((size_t)context * C, 6));
    auto want_te = dwte.get(), want_pe = dwpe.get(), size_te = want_te, size_pe = want_pe;
    for (double& s : size_te) s = std::fabs(s);
    for (double& s : size_pe) s = std::fabs(s);
    std::vector<int> count(V);
    const auto d = dx.get();
    for (int bt = 0; bt < BT; bt++) {
        count[tokens[bt]]++;
        for (int i = 0; i < C; i++) {
            const double d_i = d[(size_t)bt * C + i];
            const size_t te = (size_t)tokens[bt] * C + i, pe = (size_t)(bt % length) * C + i;
            want_te[te] += d_i, size_te[te] += std::fabs(d_i);
            want_pe[pe] += d_i, size_pe[pe] += std::fabs(d_i);
        }
    }
    embedding_backward<T>(dwte, dwpe, batch.on_machine, dx);
    const auto got_te = dwte.get(), got_pe = dwpe.get();
    Worst worst_te, worst_pe;
    for (size_t i = 0; i < got_te.size(); i++) worst_te.see(i, got_te[i], want_te[i], gamma_fp32(count[i / C]) * size_te[i]);
    for (size_t i = 0; i < got_pe.size(); i++) worst_pe.see(i, got_pe[i], want_pe[i], gamma_fp32((int)i / C < length ? B : 0) * size_pe[i]);
    check("dwte", worst_te, C), check("dwpe", worst_pe, C);
}

TEST_CASE_TEMPLATE("embedding: dwte and dwpe are the derivative, added to what was there, and other rows stay", T, float, bf16, fp16) {
    for (const Case& c : CASES)
        for (int C : {1, 3, 17, 257}) {
            CAPTURE(c.B);
            CAPTURE(c.T);
            CAPTURE(C);
            check_backward<T>(draw((size_t)c.B * c.T, c.V, 1), c.B, c.T, c.V, C);
        }
}

TEST_CASE_TEMPLATE("embedding: all tokens the same, the first or the last of the vocabulary", T, float, bf16, fp16) {
    for (int token : {0, 999}) check_backward<T>(std::vector<int>(7 * 31, token), 7, 31, 1000, 17);
}

TEST_CASE("embedding: the derivative is the slope of the formula, by finite differences") {
    const int B = 3, T = 2, V = 4, C = 3, BT = B * T;
    const std::vector<int> tokens = {2, 0, 2, 2, 3, 0}; // token 1 is absent
    Batch batch(tokens, B, T, V);
    Owned<float> dx(BT, C, normals(BT * C, 1)), dwte(V, C), dwpe(T, C), wte(V, C, normals(V * C, 2)), wpe(T, C, normals(T * C, 3));
    embedding_backward<float>(dwte, dwpe, batch.on_machine, dx);
    auto te = wte.get(), pe = wpe.get();
    const auto d = dx.get(), got_te = dwte.get(), got_pe = dwpe.get();
    double size = 0;
    for (double v : d) size += 4 * std::fabs(v); // |x| < 4
    auto loss = [&] {
        double sum = 0;
        for (int i = 0; i < BT * C; i++) sum += d[i] * (te[tokens[i / C] * C + i % C] + pe[i / C % T * C + i % C]);
        return sum;
    };
    Worst worst_te, worst_pe;
    for (int i = 0; i < V * C; i++) {
        Slope s = slope(loss, te[i], size);
        worst_te.see(i, got_te[i], s.value, s.error + gamma_fp32(BT) * size);
    }
    for (int i = 0; i < T * C; i++) {
        Slope s = slope(loss, pe[i], size);
        worst_pe.see(i, got_pe[i], s.value, s.error + gamma_fp32(BT) * size);
    }
    check("dwte", worst_te, C), check("dwpe", worst_pe, C);
}

TEST_CASE("embedding: 4096 gradients of 1 in BF16 add up to 4096, where a BF16 sum would stop at 256") {
    const int B = 4, T = 1024, C = 3;
    Batch batch(std::vector<int>(B * T, 1), B, T, 2);
    Owned<bf16> dx(B * T, C, std::vector<float>(B * T * C, 1));
    Owned<float> dwte(2, C), dwpe(T, C);
    embedding_backward<bf16>(dwte, dwpe, batch.on_machine, dx);
    CHECK((dwte.get() == std::vector<double>{0, 0, 0, 4096, 4096, 4096}));
    CHECK((dwpe.get() == std::vector<double>(T * C, B)));
    float sum = 0;
    for (int i = 0; i < B * T; i++) sum = to_float(round_to<bf16>(sum + 1));
    CHECK(sum == 256);
}

TEST_CASE_TEMPLATE("embedding: NaN and Inf are not hidden, and stay in their rows", T, float, bf16, fp16) {
    const int B = 2, length = 3, V = 5, C = 4;
    const std::vector<int> tokens = {0, 1, 2, 3, 4, 1};
    Batch batch(tokens, B, length, V);
    auto values = normals(V * C, 1);
    values[1 * C + 2] = NAN, values[3 * C + 0] = INFINITY;
    Owned<T> wte(V, C, values), wpe(length, C), x(B * length, C), dx(B * length, C);
    embedding_forward<T>(x, batch.on_machine, wte, wpe);
    const auto got = x.get();
    int bad = 0;
    for (double v : got) bad += !std::isfinite(v);
    CHECK(bad == 3);
    CHECK(std::isnan(got[1 * C + 2]));
    CHECK(std::isnan(got[5 * C + 2]));
    CHECK(got[3 * C + 0] == INFINITY);

    Owned<float> dwte(V, C), dwpe(length, C);
    embedding_backward<T>(dwte, dwpe, batch.on_machine, x);
    CHECK(std::isnan(dwte.get()[1 * C + 2]));
    CHECK(dwte.get()[3 * C + 0] == INFINITY);
    CHECK(std::isnan(dwpe.get()[2 * C + 2]));
    CHECK(dwpe.get()[0] == INFINITY);
}

TEST_CASE_TEMPLATE("embedding: any number of threads gives the same bytes", T, float, bf16, fp16) {
    const int B = 13, length = 37, V = 11, C = 257;
    Batch batch(draw(B * length, V, 1), B, length, V);
    Owned<T> wte(V, C, normals(V * C, 2)), wpe(length, C, normals(length * C, 3)), dx(B * length, C, normals(B * length * C, 4));
    check_any_number_of_threads([&] {
        Owned<T> x(B * length, C);
        Owned<float> dwte(V, C), dwpe(length, C);
        embedding_forward<T>(x, batch.on_machine, wte, wpe);
        embedding_backward<T>(dwte, dwpe, batch.on_machine, dx);
        return bytes(x) + bytes(dwte) + bytes(dwpe);
    });
}

TEST_CASE("embedding: tokens, lengths and shapes that do not fit are refused, with their values") {
    Buffer memory(100 * sizeof(int));
    int* m = (int*)memory.data();
    auto contains = [](const char* text) { return doctest::Contains(text); };
    CHECK_THROWS_WITH_AS(upload_batch(m, {0, 5, 1}, {0, 0, 0}, 1, 3, 5), contains("token 5 or target 0 at 1 is outside a vocabulary of 5"), Error);
    CHECK_THROWS_WITH_AS(upload_batch(m, {0, -1, 1}, {0, 0, 0}, 1, 3, 5), contains("token -1 or target 0 at 1"), Error);
    CHECK_THROWS_WITH_AS(upload_batch(m, {0, 0, 0}, {0, 0, 5}, 1, 3, 5), contains("token 0 or target 5 at 2"), Error);
    CHECK_THROWS_WITH_AS(upload_batch(m, {0, 0, 0}, {0, 0, -7}, 1, 3, 5), contains("target -7 at 2"), Error);
    CHECK_THROWS_WITH_AS(upload_batch(m, {0, 0, 0}, {0, 0}, 1, 3, 5), contains("3 tokens and 2 targets for B=1 T=3"), Error);

    TokenBatch batch = upload_batch(m, {0, 1, 2, 3, 4, 0}, {0, 0, 0, 0, 0, 0}, 2, 3, 5);
    Owned<float> x(6, 4), x_rows(5, 4), x_cols(6, 3), wte(5, 4), wpe(3, 4), wpe_short(2, 4), wpe_cols(3, 5);
    CHECK_NOTHROW(embedding_forward<float>(x, batch, wte, wpe));
    CHECK_THROWS_WITH_AS(embedding_forward<float>(x_rows, batch, wte, wpe), contains("x is (5,4), expected (6,4)"), Error);
    CHECK_THROWS_WITH_AS(embedding_forward<float>(x_cols, batch, wte, wpe), contains("x is (6,3), expected (6,4)"), Error);
    CHECK_THROWS_WITH_AS(embedding_forward<float>(x, batch, wte, wpe_short), contains("3 positions in the batch, wpe is (2,4)"), Error);
    CHECK_THROWS_WITH_AS(embedding_forward<float>(x, batch, wte, wpe_cols), contains("wpe is (3,5)"), Error);
    CHECK_THROWS_WITH_AS(embedding_backward<float>(wte, wpe, batch, x_cols), contains("dx is (6,3), expected (6,4)"), Error);
    CHECK_THROWS_WITH_AS(embedding_backward<float>(wte, wpe_short, batch, x), contains("3 positions in the batch, dwpe is (2,4)"), Error);
}
