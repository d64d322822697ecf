// test_pack.cu -- pack.cuh: packs at every offset, and that no kernel which uses them touches anything outside its tensors.
#include "pack.cuh"
#include "adam.cuh"
#include "bounds.h"
#include "crossentropy.cuh"
#include "embedding.cuh"
#include "gelu.cuh"
#include "layernorm.cuh"

namespace {

// y[i] = x[i], i < n, in packs of N; whole[i] = the pack's element even where i is past n.
template <int N, class T>
__global__ void copy_kernel(T* y, T* whole, const T* x, size_t n) {
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T, N> p = load_pack<N>(x, i, chunk.end);
        store_pack(y, i, chunk.end, p);
        for (int j = 0; j < N; j++) whole[i + j] = p[j];
    }
}

constexpr unsigned char POISON = 0xA5;

template <int N, class T>
void check_copies() {
    CAPTURE(N);
    CAPTURE(sizeof(T));
    const int most = CHUNK + 100;
    int wrong = 0, outside = 0, not_zero = 0;
    for (int n : {1, 2, 7, 31, 33, 257, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 33})
        for (int from : {0, 1, 3, 4, 8, 15})
            for (int to : {0, 1, 2, 4, 8, 13}) {
                Buffer x(most * sizeof(T)), y(most * sizeof(T)), whole(most * sizeof(T));
                std::vector<unsigned char> source(x.bytes()), poison(y.bytes(), POISON);
                for (size_t i = 0; i < source.size(); i++) source[i] = (unsigned char)(1 + i % 255); // never 0
                copy_to_machine((unsigned char*)x.data(), source.data(), source.size());
                copy_to_machine((unsigned char*)y.data(), poison.data(), poison.size());
                launch(copy_kernel<N, T>, chunks(n), BLOCK, (T*)y.data() + to, (T*)whole.data(), (const T*)x.data() + from, (size_t)n);
                const std::string got = bytes_at(y.data(), y.bytes()), all = bytes_at(whole.data(), whole.bytes());
                const size_t begin = to * sizeof(T), end = (to + n) * sizeof(T);
                for (size_t i = 0; i < got.size(); i++)
                    if (i < begin || i >= end) outside += (unsigned char)got[i] != POISON;
                    else wrong += (unsigned char)got[i] != source[i - begin + from * sizeof(T)];
                for (size_t i = n * sizeof(T); i < all.size(); i++) not_zero += all[i] != 0;
            }
    CHECK(wrong == 0);
    CHECK(outside == 0);
    CHECK(not_zero == 0);
}

// A tensor with poison before and after it, which begins `off` elements past a 256-byte boundary.
template <class T>
struct Guarded : Owned<T> {
    static constexpr int GUARD = 64;
    int off;
    Guarded(int rows, int cols, int off, const std::vector<float>& values = {}) : Owned<T>(1, rows * cols + 2 * GUARD + off), off(off) {
        std::vector<unsigned char> poison(this->memory.bytes(), POISON);
        copy_to_machine((unsigned char*)this->memory.data(), poison.data(), poison.size());
        this->rows = rows, this->cols = cols;
        if constexpr (sizeof(T) > 1) { // codes are only written
            std::vector<T> rounded;
            for (float v : values) rounded.push_back(round_to<T>(v));
            copy_to_machine(inside().data, rounded.data(), rounded.size());
        }
    }
    Tensor<T> inside() const { return {(T*)this->memory.data() + GUARD + off, this->rows, this->cols}; }
    std::string text() const { return bytes_at(inside().data, inside().size() * sizeof(T)); }
    bool is_intact() const {
        const std::string all = bytes_at(this->memory.data(), this->memory.bytes());
        const size_t begin = (GUARD + off) * sizeof(T), end = begin + inside().size() * sizeof(T);
        for (size_t i = 0; i < all.size(); i++)
            if ((i < begin || i >= end) && (unsigned char)all[i] != POISON) return false;
        return true;
    }
};

// Every kernel on packs, on tensors that begin `off` elements past a boundary: the bytes of all that they wrote.
template <class T>
std::string run_all(int rows, int C, int off) {
    std::string result;
    int broken = 0;
    auto see = [&](const auto&... x) { ((result += x.text(), broken += !x.is_intact()), ...); };
    const size_t n = (size_t)rows * C;
    const Guarded<T> x(rows, C, off, normals(n, 1)), dy(rows, C, off, normals(n, 2));
    const Guarded<float> gamma(1, C, off, normals(C, 3)), beta(1, C, off, normals(C, 4));
    const LayerNorm w = {gamma.inside(), beta.inside(), {}, {}};
    Owned<CastStats> stats(1, 1);
    CastStats* seen = stats.view().data;

    Guarded<T> y(rows, C, off), dx(rows, C, off, normals(n, 5));
    Guarded<uint8_t> q(rows, C, off), qt(C, rows, off), qt2(C, rows, off);
    Guarded<float> mean(rows, 1, off), rstd(rows, 1, off);
    gelu_forward(y.inside(), x.inside()), see(y);
    gelu_backward(y.inside(), dy.inside(), x.inside(), q.inside().data, E5M2, 3, seen, qt.inside().data), see(y, q, qt);
    layernorm_forward(Tensor<T>(), mean.inside(), rstd.inside(), x.inside(), w, q.inside().data, E4M3, 3, seen), see(q);
    quantise(q.inside().data, E4M3, 3, seen, x.inside(), qt.inside().data), see(q, qt);
    transpose_codes(qt2.inside().data, q.inside().data, rows, C), see(qt2);
    const Guarded<T> x2(rows, C, off, normals(n, 1)); // dx += needs its own partial sums: only the kernel on packs is run
    launch(layernorm_backward_input_kernel<T>, row_blocks(rows), row_threads(), dx.inside().data, (const T*)dy.inside().data, (const T*)x2.inside().data,
           (const float*)mean.inside().data, (const float*)rstd.inside().data, (const float*)gamma.inside().data, rows, C);
    see(dx);

    const Guarded<float> logits(rows, C, off, normals(n, 6));
    Guarded<float> loss(rows, 1, off);
    std::vector<int> tokens(rows, C / 2);
    Buffer memory((4 * rows + 1) * sizeof(int));
    const TokenBatch batch = upload_batch((int*)memory.data(), tokens, tokens, 1, rows, C);
    crossentropy(loss.inside(), y.inside(), logits.inside(), batch.target, 1, C / 2 + 1), see(loss, y);

    const Guarded<T> wte(C, C, off, normals((size_t)C * C, 7)), wpe(rows, C, off, normals(n, 8));
    Guarded<float> dwte(C, C, off, normals((size_t)C * C, 9)), dwpe(rows, C, off, normals(n, 10));
    embedding_forward(y.inside(), batch, wte.inside(), wpe.inside()), see(y);
    embedding_backward(dwte.inside(), dwpe.inside(), batch, x.inside()), see(dwte, dwpe);

    for (Format f : {BF16, E4M3}) {
        Guarded<float> master(rows, C, off, normals(n, 11)), m(rows, C, off, normals(n, 12)), v(rows, C, off, std::vector<float>(n, 2)),
            grad(rows, C, off, normals(n, 13)), average(rows, C, off, normals(n, 14));
        Guarded<bf16> low(rows, C, off);
        Parameter p;
        p.rows = rows, p.cols = C, p.format = f, p.stats = seen, p.average = average.inside().data;
        p.master = master.inside().data, p.m = m.inside().data, p.v = v.inside().data, p.grad = grad.inside().data;
        p.low = f == BF16 ? (void*)low.inside().data : q.inside().data, p.low_t = f == BF16 ? nullptr : qt.inside().data;
        std::vector<Parameter> one = {p};
        AdamW step = {};
        step.lr = 0.1f, step.eps = 1e-8f;
        adamw_update(one, seen, step), update_average(one, 0.9f), see(master, m, v, average);
        if (f == BF16) see(low);
        else see(q, qt);
        launch(swap_kernel<float>, chunks(n), BLOCK, p.master, p.average, n), see(master, average);
    }
    see(x, dy, gamma, beta, logits, wte, wpe); // what is only read stays what it was
    CHECK(broken == 0);
    return result;
}

} // namespace

TEST_CASE("a pack is its elements, at every offset; past the end it is 0, and nothing is written there") {
    check_copies<PACK<float>, float>(), check_copies<PACK<bf16>, bf16>(), check_copies<PACK<uint8_t>, uint8_t>();
    check_copies<4, float>(), check_copies<8, bf16>(), check_copies<16, uint8_t>(), check_copies<4, uint8_t>(); // on a CPU too
    check_copies<8, float>(), check_copies<4, bf16>(), check_copies<8, uint8_t>();                              // more or less than 16 bytes
}

TEST_CASE("the packs of a GPU are 16 bytes, and fill a chunk") {
    if (WARP == 1) return;
    CHECK(sizeof(Pack<float>) == 16);
    CHECK(sizeof(Pack<bf16>) == 16);
    CHECK(sizeof(Pack<e4m3>) == 16);
    CHECK(alignof(Pack<e4m3>) == 16);
    CHECK(alignof(Pack<bf16, 4>) == 8);
    CHECK(CHUNK % (BLOCK * PACK<e4m3>) == 0);
}

TEST_CASE_TEMPLATE("every kernel on packs gives the same bytes wherever its tensors begin, and writes nothing outside them", T, float, bf16, fp16) {
    for (int rows : {1, 3, 17, 130})
        for (int C : {1, 5, 7, 20, 31, 33, 64, 257}) {
            CAPTURE(rows);
            CAPTURE(C);
            const std::string aligned = run_all<T>(rows, C, 0);
            for (int off : {1, 2, 4}) CHECK((run_all<T>(rows, C, off) == aligned));
        }
}
