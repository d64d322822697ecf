// test_tensorcore.cu -- tensorcore.cuh: where each element of a fragment lies, by PTX's own words; every FP8 product.
#include "tensors.h"
#include <doctest/doctest.h>
#if !defined(ON_CPU)
#include "tensorcore.cuh"

namespace {

// ==== fragments as the PTX ISA states them (sections "Matrix Fragments for mma.m16n8k8, .m16n8k16, .m16n8k32") =======
//
// Element i of a lane's fragment, counted through its registers from the low bits up.
struct Position {
    int row, col;
};
Position a_position(int K, int element_bytes, int lane, int i) {
    const int group = lane >> 2, thread = lane % 4;
    if (element_bytes == 1) // .m16n8k32, 8-bit types: a0 .. a15
        return {(i >= 0 && i < 4) || (i >= 8 && i < 12) ? group : group + 8, i < 8 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16};
    if (K == 16) // .f16, .bf16: a0 .. a7
        return {(i >= 0 && i < 2) || (i >= 4 && i < 6) ? group : group + 8, i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8};
    return {i < 2 ? group : group + 8, thread * 2 + (i & 1)}; // .m16n8k8, .f16: a0 .. a3
}
Position b_position(int K, int element_bytes, int lane, int i) {
    const int group = lane >> 2, thread = lane % 4;
    if (element_bytes == 1) return {i < 4 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16, group}; // b0 .. b7
    if (K == 16) return {i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8, group};             // b0 .. b3
    return {thread * 2 + i, group};                                                                   // b0, b1
}
Position d_position(int lane, int i) {
    return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

// ==== running instructions ===========================================================================================

enum class Via { mma,
                 decoded,
                 k8 }; // what kernels call; FP8 as FP16 whatever the GPU is; FP16's shorter instruction

// One warp per case: a (cases, 32, 4), b (cases, 32, 2), d (cases, 32, 4), d += a b.
template <class A, class B, Via VIA>
__global__ void mma_kernel(float* d, const uint32_t* a, const uint32_t* b) {
    const size_t at = (size_t)blockIdx.x * WARP + threadIdx.x;
    uint32_t a_[4], b_[2];
    float d_[4];
    for (int i = 0; i < 4; i++) a_[i] = a[at * 4 + i], d_[i] = d[at * 4 + i];
    for (int i = 0; i < 2; i++) b_[i] = b[at * 2 + i];
    if constexpr (VIA == Via::mma) mma<A, B>(d_, a_, b_);
    else if constexpr (VIA == Via::k8) mma_m16n8k8_fp16(d_, a_, b_);
    else mma_decoded<A, B>(d_, a_, b_), mma_decoded<A, B>(d_, a_ + 2, b_ + 1);
    for (int i = 0; i < 4; i++) d[at * 4 + i] = d_[i];
}

// Many products A B + D of small matrices, given and read by row and column.
template <class A, class B, Via VIA = Via::mma>
struct Products {
    static constexpr int K = VIA == Via::k8 ? 8 : MMA_K<A>, A_ELEMENTS = 16 * K / 32, B_ELEMENTS = 8 * K / 32;
    int cases;
    std::vector<uint32_t> a, b;
    std::vector<float> d;
    explicit Products(int cases) : cases(cases), a((size_t)cases * 32 * 4), b((size_t)cases * 32 * 2), d((size_t)cases * 32 * 4) {}

    void put_a(int n, int lane, int i, A x) { memcpy((char*)&a[((size_t)n * 32 + lane) * 4] + i * sizeof(A), &x, sizeof(A)); }
    void put_b(int n, int lane, int i, B x) { memcpy((char*)&b[((size_t)n * 32 + lane) * 2] + i * sizeof(B), &x, sizeof(B)); }
    template <class F>
    void fill_a(int n, F f) { // a[m, k] = f(m, k)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < A_ELEMENTS; i++) {
                const Position p = a_position(K, sizeof(A), lane, i);
                put_a(n, lane, i, f(p.row, p.col));
            }
    }
    template <class F>
    void fill_b(int n, F f) { // b[k, n] = f(k, n)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < B_ELEMENTS; i++) {
                const Position p = b_position(K, sizeof(B), lane, i);
                put_b(n, lane, i, f(p.row, p.col));
            }
    }
    float& at(int n, int lane, int i) { return d[((size_t)n * 32 + lane) * 4 + i]; }
    void run() {
        Buffer a_(a.size() * 4), b_(b.size() * 4), d_(d.size() * 4);
        copy_to_machine((uint32_t*)a_.data(), a.data(), a.size()), copy_to_machine((uint32_t*)b_.data(), b.data(), b.size());
        copy_to_machine((float*)d_.data(), d.data(), d.size());
        launch(mma_kernel<A, B, VIA>, cases, WARP, (float*)d_.data(), (const uint32_t*)a_.data(), (const uint32_t*)b_.data());
        synchronize();
        copy_to_host(d.data(), (const float*)d_.data(), d.size());
    }
};

// f() on every compute capability from `least` on; a real GPU has one.
template <class F>
void on_capabilities(int least, F f) {
#if defined(FEWBITS_SIMULATOR)
    const int before = simulator::capability();
    for (int c : {75, 80, 89, 90}) {
        if (c < least) continue;
        CAPTURE(c);
        simulator::capability() = c;
        f();
    }
    simulator::capability() = before;
#else
    if (capability() >= least) f();
#endif
}

// One element is 1, the others 0; the other operand spells each element's place, a bit per product: D then says which
// row or column the 1 was in, and which k. D starts as 1000 + its own place.
template <class A, class B, Via VIA = Via::mma>
void check_positions() {
    using P = Products<A, B, VIA>;
    constexpr int K = P::K, BITS = 9;
    auto bit = [](int number, int which) { return (float)(number >> which & 1); };
    std::string wrong;
    for (const bool one_in_a : {true, false}) {
        const int elements = one_in_a ? P::A_ELEMENTS : P::B_ELEMENTS;
        P p(32 * elements * BITS);
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < elements; i++)
                for (int w = 0; w < BITS; w++) {
                    const int n = (lane * elements + i) * BITS + w;
                    if (one_in_a) p.put_a(n, lane, i, round_to<A>(1)), p.fill_b(n, [&](int k, int col) { return round_to<B>(bit(k * 8 + col, w)); });
                    else p.put_b(n, lane, i, round_to<B>(1)), p.fill_a(n, [&](int row, int k) { return round_to<A>(bit(row * K + k, w)); });
                    for (int l = 0; l < 32; l++)
                        for (int e = 0; e < 4; e++) p.at(n, l, e) = 1000.0f + l * 4 + e;
                }
        p.run();
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < elements; i++) {
                const Position one = one_in_a ? a_position(K, sizeof(A), lane, i) : b_position(K, sizeof(B), lane, i);
                for (int l = 0; l < 32; l++)
                    for (int e = 0; e < 4; e++) {
                        const Position at = d_position(l, e);
                        int got = 0, want = 0;
                        for (int w = 0; w < BITS; w++) {
                            const float x = p.at((lane * elements + i) * BITS + w, l, e) - (1000.0f + l * 4 + e);
                            got += x == 1 ? 1 << w : x == 0 ? 0
                                                            : 100000;
                        }
                        if (one_in_a && at.row == one.row) want = one.col * 8 + at.col;
                        if (!one_in_a && at.col == one.col) want = at.row * K + one.row;
                        if (got != want && wrong.empty())
                            wrong = format("the 1 in lane %d, element %d of %s, PTX's row %d, column %d: D at row %d, column %d (lane %d, element %d) spells %d, not %d", lane, i,
                                           one_in_a ? "A" : "B", one.row, one.col, at.row, at.col, l, e, got, want);
                    }
            }
    }
    CHECK(wrong == "");
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Every code times every code, each alone in its row and its column, at a k that goes round: exact in FP32.
template <class A, class B, Via VIA = Via::mma>
void check_code_pairs() {
    using P = Products<A, B, VIA>;
    P p(16 * 32); // 16 rows of codes x 8 columns of codes each
    auto a_code = [](int n, int row) { return A{(uint8_t)(n / 32 * 16 + row)}; };
    auto b_code = [](int n, int col) { return B{(uint8_t)(n % 32 * 8 + col)}; };
    for (int n = 0; n < p.cases; n++) {
        p.fill_a(n, [&](int row, int k) { return k == n * 5 % P::K ? a_code(n, row) : A{0}; });
        p.fill_b(n, [&](int k, int col) { return k == n * 5 % P::K ? b_code(n, col) : B{0}; });
    }
    p.run();
    std::string wrong;
    for (int n = 0; n < p.cases; n++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const Position at = d_position(lane, i);
                const A a = a_code(n, at.row);
                const B b = b_code(n, at.col);
                const float want = to_float(a) * to_float(b);
                if (!same(p.at(n, lane, i), want) && wrong.empty()) wrong = format("codes %02x and %02x: %g, not %g", a.bits, b.bits, p.at(n, lane, i), want);
            }
    CHECK(wrong == "");
}

// Small integers: every partial sum is exact, in whatever order.
template <class A, class B, Via VIA = Via::mma>
void check_full_product() {
    using P = Products<A, B, VIA>;
    P p(20);
    auto value = [](int n, int i, int j) { return (float)((n * 7 + i * 5 + j * 3 + i * j) % 9 - 4); };
    for (int n = 0; n < p.cases; n++) {
        p.fill_a(n, [&](int row, int k) { return round_to<A>(value(n, row, k)); });
        p.fill_b(n, [&](int k, int col) { return round_to<B>(value(n + 3, k, col)); });
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) p.at(n, lane, i) = (float)(lane - i);
    }
    p.run();
    int wrong = 0;
    for (int n = 0; n < p.cases; n++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const Position at = d_position(lane, i);
                float want = (float)(lane - i);
                for (int k = 0; k < P::K; k++) want += value(n, at.row, k) * value(n + 3, k, at.col);
                wrong += p.at(n, lane, i) != want;
            }
    CHECK(wrong == 0);
}

template <class A_, class B_>
struct Mix {
    using A = A_;
    using B = B_;
};

template <class Q>
__global__ void two_fp16_kernel(uint32_t* halves, const uint32_t* codes) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    halves[i] = two_fp16<Q>(codes[i]);
}

// Lane l brings row[l] of a (64, 24) matrix of 16-bit elements, 48 bytes from row to row.
template <bool TRANSPOSED>
__global__ void ldmatrix_kernel(uint32_t* r, const uint16_t* elements, const int* row) {
    DYNAMIC_SHARED(shared);
    uint16_t* matrix = (uint16_t*)shared;
    for (int i = threadIdx.x; i < 64 * 24; i += WARP) matrix[i] = elements[i];
    __syncthreads(); // all elements are written before any is read
    ldmatrix<TRANSPOSED>(r + threadIdx.x * 4, matrix + row[threadIdx.x] * 24);
}

// Copy i moves `valid[i]` bytes of granule i. Two groups: the first is waited for alone, then both.
__global__ void copy_kernel(unsigned char* first, unsigned char* all, const unsigned char* from, const int* valid, int copies) {
    DYNAMIC_SHARED(shared);
    for (int i = threadIdx.x; i < copies * 16; i += WARP) shared[i] = 0xEE;
    __syncthreads(); // the pattern is written before the copies overwrite it
    const int half = copies / 2;
    for (int i = threadIdx.x; i < half; i += WARP) copy_async(shared + 16 * i, from + 16 * i, valid[i]);
    commit_copies();
    for (int i = half + threadIdx.x; i < copies; i += WARP) copy_async(shared + 16 * i, from + 16 * i, valid[i]);
    commit_copies();
    wait_copies<1>();
    __syncthreads(); // the first half is there for all to read
    for (int i = threadIdx.x; i < half * 16; i += WARP) first[i] = shared[i];
    wait_copies<0>();
    __syncthreads(); // ... and the second
    for (int i = threadIdx.x; i < copies * 16; i += WARP) all[i] = shared[i];
}

template <class T>
Buffer machine_copy(const std::vector<T>& x) {
    Buffer b(x.size() * sizeof(T));
    copy_to_machine((T*)b.data(), x.data(), x.size());
    return b;
}
template <class T>
std::vector<T> host_copy(const Buffer& b) {
    synchronize();
    std::vector<T> x(b.bytes() / sizeof(T));
    copy_to_host(x.data(), (const T*)b.data(), x.size());
    return x;
}

} // namespace

TEST_CASE("tensorcore: BF16 and FP16, 16 along k: every element of A, B and D is where PTX says") {
    on_capabilities(80, [] { check_positions<bf16, bf16>(), check_full_product<bf16, bf16>(); });
    on_capabilities(75, [] { check_positions<fp16, fp16>(), check_full_product<fp16, fp16>(); }); // in two steps on 7.5
}

#if defined(FEWBITS_SIMULATOR)
TEST_CASE("tensorcore: BF16 in code that was compiled for 7.5 is an error, not zeros") {
    const int before = simulator::capability();
    simulator::capability() = 75;
    Products<bf16, bf16> p(1);
    CHECK_THROWS_AS(p.run(), Error);
    simulator::capability() = before;
}
#endif

TEST_CASE("tensorcore: FP16, 8 along k: every element of A, B and D is where PTX says") {
    check_positions<fp16, fp16, Via::k8>(), check_full_product<fp16, fp16, Via::k8>();
}

TEST_CASE_TEMPLATE("tensorcore: FP8, 32 along k, natively and decoded: every element is where PTX says, every product of two codes is exact", M, Mix<e4m3, e4m3>,
                   Mix<e4m3, e5m2>, Mix<e5m2, e4m3>, Mix<e5m2, e5m2>) {
    using A = typename M::A;
    using B = typename M::B;
    on_capabilities(75, [] { check_positions<A, B>(), check_full_product<A, B>(), check_code_pairs<A, B>(); });
    check_positions<A, B, Via::decoded>(), check_full_product<A, B, Via::decoded>(), check_code_pairs<A, B, Via::decoded>();
}

TEST_CASE_TEMPLATE("tensorcore: two FP8 codes as FP16: every code in either place, NaN, Inf and both zeros included", Q, e4m3, e5m2) {
    std::vector<uint32_t> codes(65536); // bytes 1 and 3 must not matter
    for (uint32_t i = 0; i < 65536; i++) codes[i] = (i & 255) | (i * 37 & 255) << 8 | i >> 8 << 16 | (i * 91 & 255) << 24;
    Buffer in = machine_copy(codes), out(codes.size() * 4);
    launch(two_fp16_kernel<Q>, 65536 / BLOCK, BLOCK, (uint32_t*)out.data(), (const uint32_t*)in.data());
    const auto halves = host_copy<uint32_t>(out);
    std::string wrong;
    for (uint32_t i = 0; i < 65536; i++)
        for (int place = 0; place < 2; place++) {
            const Q code{(uint8_t)(i >> 8 * place)};
            const fp16 got{(uint16_t)(halves[i] >> 16 * place)};
            const float want = to_float(code);
            const bool right = std::isnan(want) ? std::isnan(to_float(got)) : got.bits == round_to<fp16>(want).bits && to_float(got) == want;
            const bool sign = got.bits >> 15 == code.bits >> 7;
            if (!(right && sign) && wrong.empty()) wrong = format("code %02x in place %d: %04x, %g, not %g", code.bits, place, got.bits, to_float(got), want);
        }
    CHECK(wrong == "");
}

TEST_CASE("tensorcore: ldmatrix, as it is and transposed: every element of four matrices, rows anywhere in shared memory") {
    std::vector<uint16_t> elements(64 * 24);
    for (size_t i = 0; i < elements.size(); i++) elements[i] = (uint16_t)(i * 40503u); // an odd factor: all different
    std::vector<int> row(32);
    for (int l = 0; l < 32; l++) row[l] = (l * 27 + 11) % 64;
    Buffer in = machine_copy(elements), rows = machine_copy(row), out(32 * 4 * 4);
    for (const bool transposed : {false, true}) {
        CAPTURE(transposed);
        launch_shared(transposed ? ldmatrix_kernel<true> : ldmatrix_kernel<false>, 1, WARP, 64 * 24 * 2, (uint32_t*)out.data(), (const uint16_t*)in.data(), (const int*)rows.data());
        const auto r = host_copy<uint32_t>(out);
        std::string wrong;
        for (int lane = 0; lane < 32; lane++)
            for (int matrix = 0; matrix < 4; matrix++)
                for (int e = 0; e < 2; e++) {
                    const int i = transposed ? lane % 4 * 2 + e : lane / 4, j = transposed ? lane / 4 : lane % 4 * 2 + e; // row and column in the matrix
                    const uint16_t want = elements[row[matrix * 8 + i] * 24 + j], got = (uint16_t)(r[lane * 4 + matrix] >> 16 * e);
                    if (got != want && wrong.empty()) wrong = format("matrix %d, row %d, column %d, in lane %d: %04x, not %04x", matrix, i, j, lane, got, want);
                }
        CHECK(wrong == "");
    }
}

TEST_CASE("tensorcore: asynchronous copies of 0 to 16 bytes: the rest is zero, and a group has arrived when it was waited for") {
    const int copies = 17 * 2 * 6; // each count from both halves, by several lanes
    std::vector<unsigned char> bytes(copies * 16);
    std::vector<int> valid(copies);
    for (int i = 0; i < copies * 16; i++) bytes[i] = (unsigned char)(i % 251 + 1);
    for (int i = 0; i < copies; i++) valid[i] = i % 17;
    Buffer from = machine_copy(bytes), counts = machine_copy(valid), first(copies / 2 * 16), all(copies * 16);
    launch_shared(copy_kernel, 1, WARP, copies * 16, (unsigned char*)first.data(), (unsigned char*)all.data(), (const unsigned char*)from.data(), (const int*)counts.data(), copies);
    const auto got_first = host_copy<unsigned char>(first), got = host_copy<unsigned char>(all);
    int wrong = 0, wrong_first = 0;
    for (int i = 0; i < copies * 16; i++) {
        const unsigned char want = i % 16 < valid[i / 16] ? bytes[i] : 0;
        wrong += got[i] != want;
        if (i < copies / 2 * 16) wrong_first += got_first[i] != want;
    }
    CHECK(wrong_first == 0);
    CHECK(wrong == 0);
}
#endif
