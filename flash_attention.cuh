// flash_attention.cuh -- attention.cuh's equations without ever storing S or P: tile by tile, on tensor cores.
//
//   forward    for each tile of keys:  S = Q K^T / sqrt(hs)     m' = max(m, S)     P = e^(S - m')     f = e^(m - m')
//                                      sum = f sum + sum_j P    O = f O + P V      m = m'
//              y = O / sum      lse = m + log sum
//   backward   P = e^(S - lse), computed again      delta = sum_c dy y = sum_j P dP      dP = dy v^T
//              dS = P (dP - delta)      dq = dS k / sqrt(hs)      dk = dS^T q / sqrt(hs)      dv = P^T dy
//
// Source   Dao 2023, "FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2; Milakov and Gimelshein 2018, arXiv:1805.02867
// Shapes   qkv (BT, 3C): q | k | v, heads side by side in each; y (BT, C); lse, delta (B heads, T); hs = C / heads <= 128
// Formats  q, k, v, y, P, dS in the stored format, BF16 or FP16; S, dP, O, the softmax and every sum in FP32; lse in nats
// Why      the memory is that of y, not of S (B heads T T), and S is never written or read. dq and dk, dv are two
//          kernels that each compute S again: in one, several blocks would add to the same dq, in no fixed order.
// Tests    tests/test_flash_attention.cu     Times  bench.cu, bench_flash_attention
#pragma once
#include "attention.cuh"
#if !defined(ON_CPU)
#include "tile.cuh"
#endif

// Is there a kernel for heads of `hs` channels stored as T, on a GPU of this compute capability (80: 8.0)?
template <class T>
bool flash_attention_supports(int hs, int capability) {
#if !defined(ON_CPU)
    return (std::is_same<T, bf16>::value || std::is_same<T, fp16>::value) && hs >= 1 && hs <= 128 && capability >= 80;
#else
    return (void)hs, (void)capability, false; // the CPU has no tensor cores
#endif
}

#if !defined(ON_CPU)

// ==== a block's part of the work =====================================================================================

// A block owns 64 rows (queries, or keys in dk and dv) of one head, each of its 4 warps 16 of them, and walks over the
// others in steps. HS is the head size padded to 16, 32, 64 or 128; the channels from hs on are zeros.
constexpr int FLASH_ROWS = 64, FLASH_THREADS = 128;
template <int HS>
constexpr int FORWARD_STEP = HS <= 64 ? 64 : 32; // smaller where the registers would not suffice
template <int HS>
constexpr int BACKWARD_STEP = HS <= 32 ? 64 : 32;

struct FlashShape {
    int B, length, heads, hs;
    bool aligned;            // every row of a head starts on a 16-byte boundary
    float scale, log2_scale; // 1 / sqrt(hs); that times log2 e, since e^x = 2^(x log2 e) and 2^x is one instruction
    int blocks() const { return B * heads * tiles(); }
    __host__ __device__ int tiles() const { return ceil_div(length, FLASH_ROWS); }
    __host__ __device__ int C() const { return heads * hs; }
};

// One head's rows: element (t, c) of it is data[t * stride + c].
template <class T>
struct HeadRows {
    T* data;
    int64_t stride;
};

// Which rows this block and this warp own, and where their head lies.
struct FlashPlace {
    FlashShape shape;
    int64_t b;            // example
    int h, first, m, row; // head; the block's first row; the warp's first row, counted from that and in the head
    int lane = threadIdx.x % WARP;
    __device__ FlashPlace(FlashShape shape, int tile)
        : shape(shape), b(blockIdx.x / shape.tiles() / shape.heads), h(blockIdx.x / shape.tiles() % shape.heads), first(tile * FLASH_ROWS),
          m(threadIdx.x / WARP * 16), row(first + m) {}
    __device__ int end() const { return first + FLASH_ROWS < shape.length ? first + FLASH_ROWS : shape.length; }

    template <class T>
    __device__ HeadRows<T> part(T* qkv, int which) const { // 0, 1, 2: q, k, v
        return {qkv + b * shape.length * 3 * shape.C() + which * shape.C() + h * shape.hs, 3 * shape.C()};
    }
    template <class T>
    __device__ HeadRows<T> merged(T* y) const { return {y + b * shape.length * shape.C() + h * shape.hs, shape.C()}; }
    template <class F>
    __device__ F* statistics(F* x) const { return x + (b * shape.heads + h) * shape.length; } // lse or delta
};

template <class T, int ROWS, int HS>
__device__ inline void load_rows(Tile<T, ROWS, HS> tile, HeadRows<const T> x, int row, FlashShape shape) {
    tile.template load<FLASH_THREADS>(x.data + row * x.stride, x.stride, shape.length - row, shape.hs, shape.aligned, threadIdx.x);
}

// Two matrices of one head, a tile of each at a time: while these are used, the next two are on their way.
template <class T, int HS, int STEP>
struct Walk {
    using Step = Tile<T, STEP, HS>;
    static constexpr int BYTES = 4 * Step::BYTES;
    unsigned char* shared;
    HeadRows<const T> x[2];
    int end;
    FlashShape shape;

    __device__ Step tile(int which, int row) const { return {shared + (row / STEP % 2 * 2 + which) * Step::BYTES}; }
    __device__ void load(int row) const {
        for (int which = 0; which < 2 && row < end; which++) load_rows(tile(which, row), x[which], row, shape);
        commit_copies();
    }
    __device__ void arrive(int row) const {
        wait_copies<0>();
        __syncthreads(); // the tiles at `row` are written by all before any thread reads them, and those before were read by all before load overwrites them
        load(row + STEP);
    }
};

// ==== products of a warp: 16 rows of A, which for the second kind it has in its registers ============================
//
// Element i of s[n]: row lane / 4 + i / 2 * 8, column 8 n + lane % 4 * 2 + i % 2.

// s (16, N) = rows m0 .. m0+15 of a  times  b^T (N, HS)
template <class T, int ROWS, int HS, int N>
__device__ inline void scores(float (&s)[N / 8][4], Tile<T, ROWS, HS> a, int m0, Tile<T, N, HS> b, int lane) {
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) s[n][i] = 0;
    for (int k = 0; k < HS; k += 16) {
        uint32_t a_k[4], b_k[4];
        a.fragment_a(a_k, m0, k, lane);
        for (int n = 0; n < N; n += 16) {
            b.fragment_b(b_k, n, k, lane);
            mma<T, T>(s[n / 8], a_k, b_k);
            mma<T, T>(s[n / 8 + 1], a_k, b_k + 2);
        }
    }
}

// o (16, HS) += p (16, N), rounded to T,  times  b (N, HS).   D's layout of two neighbouring tiles is A's of one.
template <class T, int HS, int N>
__device__ inline void accumulate(float (&o)[HS / 8][4], const float (&p)[N / 8][4], Tile<T, N, HS> b, int lane) {
    for (int k = 0; k < N; k += 16) {
        uint32_t p_k[4], b_k[4];
        for (int r = 0; r < 4; r++) {
            const float* two = &p[k / 8 + r / 2][r % 2 * 2];
            p_k[r] = round_to<T>(two[0]).bits | (uint32_t)round_to<T>(two[1]).bits << 16;
        }
        for (int n = 0; n < HS; n += 16) {
            b.fragment_b_transposed(b_k, n, k, lane);
            mma<T, T>(o[n / 8], p_k, b_k);
            mma<T, T>(o[n / 8 + 1], p_k, b_k + 2);
        }
    }
}

// s = -Inf where the key comes after the query. Rows are queries and columns keys, or the other way round. A hidden key's
// P is 0: a NaN among the values still reaches the queries before it in its tile, as 0 * NaN does in attention.cuh.
template <bool KEYS_ARE_ROWS, int N>
__device__ inline void hide_future(float (&s)[N][4], int first_row, int first_column, int lane) {
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++) {
            const int row = first_row + lane / 4 + i / 2 * 8, column = first_column + 8 * n + lane % 4 * 2 + i % 2;
            if (KEYS_ARE_ROWS ? row > column : column > row) s[n][i] = -INFINITY;
        }
}

// Rows of a head = o times factor[0] (rows g) or factor[1] (rows g + 8), rounded to T.
template <class T, int N>
__device__ inline void store_rows(HeadRows<T> y, const float (&o)[N][4], const float (&factor)[2], int row, FlashShape shape, int lane) {
    for (int half = 0; half < 2; half++) {
        const int t = row + lane / 4 + half * 8;
        if (t >= shape.length) continue;
        T* y_t = y.data + t * y.stride;
        for (int n = 0; n < N; n++) {
            const int c = 8 * n + lane % 4 * 2;
            const T two[2] = {round_to<T>(o[n][half * 2] * factor[half]), round_to<T>(o[n][half * 2 + 1] * factor[half])};
            if (shape.aligned && c < shape.hs) *(uint32_t*)(y_t + c) = two[0].bits | (uint32_t)two[1].bits << 16;
            else
                for (int e = 0; e < 2; e++)
                    if (c + e < shape.hs) y_t[c + e] = two[e];
        }
    }
}

// ==== forward ========================================================================================================

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// One block per 64 queries of one head, those with most keys first. It reads k and v up to its own tokens.
template <class T, int HS>
__global__ void __launch_bounds__(FLASH_THREADS) flash_forward_kernel(T* y, float* lse, const T* qkv, FlashShape shape) {
    DYNAMIC_SHARED(shared);
    constexpr int STEP = FORWARD_STEP<HS>;
    const FlashPlace at(shape, shape.tiles() - 1 - blockIdx.x % shape.tiles());
    const Tile<T, FLASH_ROWS, HS> q = {shared};
    const Walk<T, HS, STEP> walk = {shared + q.BYTES, {at.part(qkv, 1), at.part(qkv, 2)}, at.end(), shape};
    load_rows(q, at.part(qkv, 0), at.first, shape);
    walk.load(0);

    // Row g in [0], row g + 8 in [1]. `largest` is log2_scale max S; a lane's `sum` is of its own columns.
    float o[HS / 8][4] = {}, s[STEP / 8][4], largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int k0 = 0; k0 < at.end(); k0 += STEP) {
        walk.arrive(k0);
        if (k0 > at.row + 15) continue; // all of these keys come after the warp's queries

        scores(s, q, at.m, walk.tile(0, k0), at.lane); // S = Q K^T
        if (k0 + STEP > at.row) hide_future<false>(s, at.row, k0, at.lane);

        for (int half = 0; half < 2; half++) {
            float top = -INFINITY;
            for (int n = 0; n < STEP / 8; n++) top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
            for (int lanes : {1, 2}) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes)); // 4 lanes hold a row
            top = fmaxf(largest[half], top * shape.log2_scale);
            const float f = exp2f(largest[half] - top); // 0 at the first tile
            largest[half] = top, sum[half] *= f;
            for (int n = 0; n < STEP / 8; n++)
                for (int i = half * 2; i < half * 2 + 2; i++) sum[half] += s[n][i] = exp2f(fmaf(s[n][i], shape.log2_scale, -top)); // P
            for (int n = 0; n < HS / 8; n++) o[n][half * 2] *= f, o[n][half * 2 + 1] *= f;
        }
        accumulate(o, s, walk.tile(1, k0), at.lane); // O += P V
    }

    float inverse[2];
    for (int half = 0; half < 2; half++) {
        const int t = at.row + at.lane / 4 + half * 8;
        for (int lanes : {1, 2}) sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], lanes);
        inverse[half] = 1 / sum[half];
        if (at.lane % 4 == 0 && t < shape.length) at.statistics(lse)[t] = largest[half] * LN_2 + logf(sum[half]);
    }
    store_rows(at.merged(y), o, inverse, at.row, shape, at.lane); // y = O / sum
}

// ==== backward =======================================================================================================

// delta[b, h, t] = sum_c dy y. One warp per token and head.
template <class T>
__global__ void flash_delta_kernel(float* delta, const T* dy, const T* y, FlashShape shape) {
    const int r = row_of_warp(), lane = threadIdx.x; // row r of a (BT heads, hs) matrix is one head's part of y
    if (r >= shape.B * shape.length * shape.heads) return;
    const int bt = r / shape.heads, h = r % shape.heads;
    float sum = 0;
    for (int c = lane; c < shape.hs; c += WARP) sum += to_float(dy[(int64_t)r * shape.hs + c]) * to_float(y[(int64_t)r * shape.hs + c]);
    sum = warp_sum(sum);
    if (lane == 0) delta[((int64_t)(bt / shape.length) * shape.heads + h) * shape.length + bt % shape.length] = sum;
}

// One block per 64 queries of one head, as in forward. The second launch bound is how many blocks are to fit on a
// multiprocessor: for 3 the compiler has 168 registers a thread, for 2 255.
template <class T, int HS>
__global__ void __launch_bounds__(FLASH_THREADS, HS <= 64 ? 3 : 2) flash_backward_q_kernel(T* dqkv, const T* dy, const float* lse, const float* delta, const T* qkv, FlashShape shape) {
    DYNAMIC_SHARED(shared);
    constexpr int STEP = BACKWARD_STEP<HS>;
    const FlashPlace at(shape, shape.tiles() - 1 - blockIdx.x % shape.tiles());
    const Tile<T, FLASH_ROWS, HS> q = {shared}, dy_tile = {shared + q.BYTES};
    const Walk<T, HS, STEP> walk = {shared + 2 * q.BYTES, {at.part(qkv, 1), at.part(qkv, 2)}, at.end(), shape};
    load_rows(q, at.part(qkv, 0), at.first, shape);
    load_rows(dy_tile, at.merged(dy), at.first, shape);
    walk.load(0);

    float lse_t[2] = {}, delta_t[2] = {}; // of rows g and g + 8; zeros after the last token
    for (int half = 0; half < 2; half++) {
        const int t = at.row + at.lane / 4 + half * 8;
        if (t < shape.length) lse_t[half] = at.statistics(lse)[t] * LOG2_E, delta_t[half] = at.statistics(delta)[t];
    }
    float dq[HS / 8][4] = {}, s[STEP / 8][4], dp[STEP / 8][4];
    for (int k0 = 0; k0 < at.end(); k0 += STEP) {
        walk.arrive(k0);
        if (k0 > at.row + 15) continue; // all of these keys come after the warp's queries

        const auto k = walk.tile(0, k0), v = walk.tile(1, k0);
        scores(s, q, at.m, k, at.lane);        // S = Q K^T
        scores(dp, dy_tile, at.m, v, at.lane); // dP = dY V^T
        if (k0 + STEP > at.row) hide_future<false>(s, at.row, k0, at.lane);
        // dS = P (dP - delta)
        for (int n = 0; n < STEP / 8; n++)
            for (int i = 0; i < 4; i++) s[n][i] = exp2f(fmaf(s[n][i], shape.log2_scale, -lse_t[i / 2])) * (dp[n][i] - delta_t[i / 2]);
        accumulate(dq, s, k, at.lane); // dQ += dS K
    }
    store_rows(at.part(dqkv, 0), dq, {shape.scale, shape.scale}, at.row, shape, at.lane);
}

// One block per 64 keys of one head: it walks over the queries, from its own tokens to the last. S and dP are computed
// transposed, so that P^T and dS^T lie in the registers as the next products want them.
template <class T, int HS>
__global__ void __launch_bounds__(FLASH_THREADS, HS <= 64 ? 3 : 2) flash_backward_kv_kernel(T* dqkv, const T* dy, const float* lse, const float* delta, const T* qkv, FlashShape shape) {
    DYNAMIC_SHARED(shared);
    constexpr int STEP = BACKWARD_STEP<HS>;
    const FlashPlace at(shape, blockIdx.x % shape.tiles());
    const Tile<T, FLASH_ROWS, HS> k = {shared}, v = {shared + k.BYTES};
    const Walk<T, HS, STEP> walk = {shared + 2 * k.BYTES, {at.part(qkv, 0), at.merged(dy)}, shape.length, shape};
    load_rows(k, at.part(qkv, 1), at.first, shape);
    load_rows(v, at.part(qkv, 2), at.first, shape);
    walk.load(at.first);

    float dk[HS / 8][4] = {}, dv[HS / 8][4] = {}, s[STEP / 8][4], dp[STEP / 8][4];
    for (int q0 = at.first; q0 < shape.length; q0 += STEP) {
        float lse_t[STEP / 8][2], delta_t[STEP / 8][2]; // of the lane's columns; zeros after the last token
        for (int n = 0; n < STEP / 8; n++)
            for (int e = 0; e < 2; e++) {
                const int t = q0 + 8 * n + at.lane % 4 * 2 + e;
                lse_t[n][e] = t < shape.length ? at.statistics(lse)[t] * LOG2_E : 0;
                delta_t[n][e] = t < shape.length ? at.statistics(delta)[t] : 0;
            }
        walk.arrive(q0); // what was asked for above arrives meanwhile

        if (q0 + STEP <= at.row) continue; // all of these queries come before the warp's keys
        const auto q = walk.tile(0, q0), dy_tile = walk.tile(1, q0);
        scores(s, k, at.m, q, at.lane); // S^T = K Q^T
        if (q0 < at.row + 15) hide_future<true>(s, at.row, q0, at.lane);
        for (int n = 0; n < STEP / 8; n++)
            for (int i = 0; i < 4; i++) s[n][i] = exp2f(fmaf(s[n][i], shape.log2_scale, -lse_t[n][i % 2])); // P^T

        accumulate(dv, s, dy_tile, at.lane);   // dV += P^T dY
        scores(dp, v, at.m, dy_tile, at.lane); // dP^T = V dY^T
        for (int n = 0; n < STEP / 8; n++)
            for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i] - delta_t[n][i % 2]; // dS^T

        accumulate(dk, s, q, at.lane); // dK += dS^T Q
    }
    store_rows(at.part(dqkv, 1), dk, {shape.scale, shape.scale}, at.row, shape, at.lane);
    store_rows(at.part(dqkv, 2), dv, {1, 1}, at.row, shape, at.lane);
}

// ==== what the model calls ===========================================================================================

// f(std::integral_constant<int, HS>()) for the padded head size.
template <class T, class F>
void with_padded_head(int hs, F f) {
    if constexpr (sizeof(T) == 2) {
        if (hs <= 16) f(std::integral_constant<int, 16>());
        else if (hs <= 32) f(std::integral_constant<int, 32>());
        else if (hs <= 64) f(std::integral_constant<int, 64>());
        else f(std::integral_constant<int, 128>());
    }
}
template <class T>
void ensure_shape(const char* name, Tensor<T> x, int rows, int cols) {
    ENSURE(x.rows == rows && x.cols == cols, "%s is (%d,%d), not (%d,%d)", name, x.rows, x.cols, rows, cols);
}
inline void ensure_statistics(const char* name, Tensor<float> x, FlashShape s) {
    ENSURE(x.size() == (size_t)s.B * s.heads * s.length, "%s has %zu elements, not %d x %d x %d", name, x.size(), s.B, s.heads, s.length);
}
template <class T>
FlashShape flash_shape(Tensor<T> qkv, int length, int heads, bool aligned) {
    const Heads<T> h = split_heads(qkv, length, heads);
    ENSURE(flash_attention_supports<T>(h.hs, capability()), "no kernel for heads of %d channels in %s on compute capability %d.%d", h.hs, name_of(format_of<T>),
           capability() / 10, capability() % 10);
    return {h.B, length, heads, h.hs, aligned && h.hs % 8 == 0, (float)(1 / std::sqrt((double)h.hs)), (float)(1.4426950408889634 / std::sqrt((double)h.hs))};
}
inline bool on_16_bytes(const void* p) { return (uintptr_t)p % 16 == 0; }

// y (BT, C) = softmax(q k^T / sqrt(hs)) v, causal. Keeps lse (B heads, T), in nats, for backward.
template <class T>
void flash_attention_forward(Tensor<T> y, Tensor<float> lse, Tensor<T> qkv, int length, int heads) {
    const FlashShape shape = flash_shape(qkv, length, heads, on_16_bytes(y.data) && on_16_bytes(qkv.data));
    ensure_shape("y", y, qkv.rows, shape.C());
    ensure_statistics("lse", lse, shape);
    with_padded_head<T>(shape.hs, [&](auto size) {
        constexpr int HS = decltype(size)::value, bytes = Tile<T, FLASH_ROWS, HS>::BYTES + Walk<T, HS, FORWARD_STEP<HS>>::BYTES;
        launch_shared(flash_forward_kernel<T, HS>, shape.blocks(), FLASH_THREADS, bytes, y.data, lse.data, (const T*)qkv.data, shape);
    });
}

// dqkv (BT, 3C) = d loss/d qkv from dy (BT, C) and forward's y and lse. delta, of lse's shape, is scratch.
template <class T>
void flash_attention_backward(Tensor<T> dqkv, Tensor<T> dy, Tensor<T> y, Tensor<float> lse, Tensor<float> delta, Tensor<T> qkv, int length, int heads) {
    const FlashShape shape = flash_shape(qkv, length, heads, on_16_bytes(dqkv.data) && on_16_bytes(dy.data) && on_16_bytes(qkv.data));
    ensure_shape("dqkv", dqkv, qkv.rows, qkv.cols);
    ensure_shape("dy", dy, qkv.rows, shape.C());
    ensure_shape("y", y, qkv.rows, shape.C());
    ensure_statistics("lse", lse, shape);
    ensure_statistics("delta", delta, shape);
    launch(flash_delta_kernel<T>, row_blocks(qkv.rows * heads), row_threads(), delta.data, (const T*)dy.data, (const T*)y.data, shape);
    with_padded_head<T>(shape.hs, [&](auto size) {
        constexpr int HS = decltype(size)::value, bytes = 2 * Tile<T, FLASH_ROWS, HS>::BYTES + Walk<T, HS, BACKWARD_STEP<HS>>::BYTES;
        launch_shared(flash_backward_q_kernel<T, HS>, shape.blocks(), FLASH_THREADS, bytes, dqkv.data, (const T*)dy.data, (const float*)lse.data, (const float*)delta.data,
                      (const T*)qkv.data, shape);
        launch_shared(flash_backward_kv_kernel<T, HS>, shape.blocks(), FLASH_THREADS, bytes, dqkv.data, (const T*)dy.data, (const float*)lse.data, (const float*)delta.data,
                      (const T*)qkv.data, shape);
    });
}

#else
template <class T>
void flash_attention_forward(Tensor<T>, Tensor<float>, Tensor<T>, int, int) { ENSURE(false, "the CPU has no tensor cores"); }
template <class T>
void flash_attention_backward(Tensor<T>, Tensor<T>, Tensor<T>, Tensor<float>, Tensor<float>, Tensor<T>, int, int) { ENSURE(false, "the CPU has no tensor cores"); }
#endif
