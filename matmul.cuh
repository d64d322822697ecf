// matmul.cuh -- c = a b, the operation that training spends its time in, as a ladder of three kernels; and one for a single row.
//
//   c[m, n]  =  2^-(ka+kb) sum_k a[m, k] b[k, n]          and the epilogue of operand.cuh
//
//   naive         one thread per c[m, n]: each element of a is read N times, each of b M times
//   tiled         TILE x TILE of c per block: in shared memory each element read is used TILE times; FP32 arithmetic
//   tensor cores  128 x 128 of c per block, 64 x 32 per warp (FP8: half the rows); cp.async fills the next tiles while this one is multiplied
//   matvec        M = 1, one token after the other: a warp per c[n] reads row n of b once, and no kernel can be faster than that
//
//   a Linear's three products, and which index lies contiguous in memory      a      b
//   y  = x w^T       M = BT, N = out, K = in                                  k      k
//   dx = dy w        M = BT, N = in,  K = out                                 k      n     (FP8: k, from a transposed copy)
//   dw = dy^T x      M = out, N = in, K = BT                                  m      n     (FP8: k, k)
//
// Source   the first two: every CUDA book; the third: PTX ISA, tile.cuh. On a CPU oneDNN multiplies (matmul_onednn.cuh)
// Formats  a, b: FP32, BF16, FP16, E4M3 or E5M2; products and sums in FP32
// Why      tensor cores may keep fewer bits than FP32 has while they sum FP8 products: every 128 of K the sum moves to
//          FP32 registers (arXiv:2412.19437, section 3.3.2). dw has few tiles and a long K: its K is split among blocks,
//          whose sums are added in a fixed order.
// Tests    tests/test_matmul.cu     Times  bench.cu, bench_matmul
#pragma once
#include "operand.cuh"
#if defined(ON_CPU)
#include "matmul_onednn.cuh"
#else
#include "tile.cuh"
#endif

// Where example o, head i of a batch begins: block z's.
struct Corner {
    int64_t a, b, c;
    __device__ Corner(const Output& c, const Operand& a, const Operand& b, Sizes s, int batch)
        : a(batch / s.inner * a.outer + batch % s.inner * a.inner), b(batch / s.inner * b.outer + batch % s.inner * b.inner),
          c(batch / s.inner * c.outer + batch % s.inner * c.inner) {}
};

// ==== naive ==========================================================================================================

// One thread per element of c. T is int: kernels are templates, so that a header may hold them.
template <class T>
__global__ void matmul_naive_kernel(Output c, Operand a, Operand b, Sizes s, Epilogue e, Factors scale) {
    const T m = blockIdx.y, n = blockIdx.x * BLOCK + threadIdx.x;
    if (n >= s.N) return;
    const Corner at(c, a, b, s, blockIdx.z);
    float sum = 0;
    for (T k = 0; k < s.K; k++) sum += load(a.data, a.format, at.a + m * a.row + k * a.col) * load(b.data, b.format, at.b + k * b.row + n * b.col);
    finish(c, e, at.c + m * c.row + n, n, s.N, Pack<float, 1>{sum}, scale);
}

inline void matmul_naive(Output c, Operand a, Operand b, Sizes s, Epilogue e) {
    launch(matmul_naive_kernel<int>, dim3(ceil_div(s.N, BLOCK), s.M, s.outer * s.inner), BLOCK, c, a, b, s, e, Factors(a.k + b.k));
}

// ==== tiled ==========================================================================================================

constexpr int TILE = 64, TILE_K = 16;     // of c; of K
constexpr int SIDE = BLOCK == 1 ? 1 : 16; // a block's threads stand in a square of this side
constexpr int PER_THREAD = TILE / SIDE;   // ... and each owns PER_THREAD x PER_THREAD neighbours in c

// One block per TILE x TILE of c. For each k a thread reads two packs of PER_THREAD numbers from shared memory for
// PER_THREAD^2 multiplications, so that arithmetic and not shared memory is the limit.
template <class T> // float, of the arithmetic
__global__ void matmul_tiled_kernel(Output c, Operand a, Operand b, Sizes s, Epilogue e, Factors scale) {
    constexpr int P = PER_THREAD;
    __shared__ Pack<T, P> a_tile[TILE_K][SIDE + 1], b_tile[TILE_K][SIDE + 1]; // + 1: a column lies in 8 banks, not in one
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, row = threadIdx.x / SIDE, col = threadIdx.x % SIDE;
    const Corner at(c, a, b, s, blockIdx.z);
    Pack<T, P> sum[P] = {};

    for (int k0 = 0; k0 < s.K; k0 += TILE_K) {
        for (int i = threadIdx.x; i < TILE * TILE_K; i += BLOCK) { // neighbouring threads read neighbouring addresses
            const int am = a.col == 1 ? i / TILE_K : i % TILE, ak = a.col == 1 ? i % TILE_K : i / TILE;
            const bool a_inside = m0 + am < s.M && k0 + ak < s.K;
            a_tile[ak][am / P][am % P] = a_inside ? load(a.data, a.format, at.a + (m0 + am) * a.row + (k0 + ak) * a.col) : 0;
            const int bn = b.col == 1 ? i % TILE : i / TILE_K, bk = b.col == 1 ? i / TILE : i % TILE_K;
            const bool b_inside = k0 + bk < s.K && n0 + bn < s.N;
            b_tile[bk][bn / P][bn % P] = b_inside ? load(b.data, b.format, at.b + (k0 + bk) * b.row + (n0 + bn) * b.col) : 0;
        }
        __syncthreads(); // both tiles are written before any thread reads them
        for (int k = 0; k < TILE_K; k++) {
            const Pack<T, P>&a_k = a_tile[k][row], &b_k = b_tile[k][col];
            for (int i = 0; i < P; i++)
                for (int j = 0; j < P; j++) sum[i][j] += a_k[i] * b_k[j];
        }
        __syncthreads(); // ... and read by all before the next step overwrites them
    }

    UNROLL for (int i = 0; i < P; i++) {
        const int m = m0 + row * P + i, n = n0 + col * P;
        if (m < s.M && n < s.N) finish(c, e, at.c + m * c.row + n, n, s.N, sum[i], scale);
    }
}

inline void matmul_tiled(Output c, Operand a, Operand b, Sizes s, Epilogue e) {
    launch(matmul_tiled_kernel<float>, dim3(ceil_div(s.N, TILE), ceil_div(s.M, TILE), s.outer * s.inner), BLOCK, c, a, b, s, e, Factors(a.k + b.k));
}

// ==== tensor cores ===================================================================================================

#if !defined(ON_CPU)

constexpr int BLOCK_N = 128, WARP_N = 32;                                              // columns of c per block and per warp: 4 warps
__host__ __device__ constexpr int block_m(int bytes) { return bytes == 1 ? 64 : 128; } // rows per block, 2 warps; FP8 keeps two sums of each
constexpr int STAGES = 3, BLOCK_K_BYTES = 64;                                          // tiles in flight; their K: two tensor-core steps
constexpr int OUT_STRIDE = WARP_N + 8;                                                 // of sums on their way out: no bank conflicts

// One block per 128 (FP8: 64) x 128 of c and per part of K: partial sums of part p go to c + p * c.outer. Dynamic shared memory:
// STAGES x (tile of a, tile of b). Traffic: a is read N / 128 times, b M / 128 times. Two blocks are to fit on a
// multiprocessor, with 128 registers a thread (FP8's do unasked; asked, they spill).
template <class A, class B, bool A_HAS_K, bool B_HAS_K> // which operands' rows run along k: the others' along m, n
__global__ void __launch_bounds__(256, sizeof(A) == 1 ? 0 : 2) matmul_tensorcore_kernel(Output c, Operand a, Operand b, Sizes s, Epilogue e, Factors scale, int parts, bool a_aligned, bool b_aligned) {
    constexpr int K = BLOCK_K_BYTES / sizeof(A), BLOCK_M = block_m(sizeof(A)), WARP_M = BLOCK_M / 2;
    constexpr bool FP8 = sizeof(A) == 1;
    using ATile = std::conditional_t<A_HAS_K, Tile<A, BLOCK_M, K>, Tile<A, K, BLOCK_M>>;
    using BTile = std::conditional_t<B_HAS_K, Tile<B, BLOCK_N, K>, Tile<B, K, BLOCK_N>>;
    DYNAMIC_SHARED(shared);
    const int thread = threadIdx.x, lane = thread % WARP, warp_m = thread / WARP / 4 * WARP_M, warp_n = thread / WARP % 4 * WARP_N;
    const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N, part = blockIdx.z % parts;
    const Corner at(c, a, b, s, blockIdx.z / parts);
    const int part_K = ceil_div(ceil_div(s.K, K), parts) * K, k_begin = part * part_K; // a part may be empty
    const int k_end = s.K < k_begin + part_K ? s.K : k_begin + part_K, steps = k_end > k_begin ? ceil_div(k_end - k_begin, K) : 0;

    auto a_tile = [&](int step) { return ATile{shared + step % STAGES * (ATile::BYTES + BTile::BYTES)}; };
    auto b_tile = [&](int step) { return BTile{shared + step % STAGES * (ATile::BYTES + BTile::BYTES) + ATile::BYTES}; };
    auto load_step = [&](int step) { // starts copying; a step past the end is an empty group
        const int k0 = k_begin + step * K;
        if (k0 < k_end) {
            const A* a_corner = (const A*)a.data + at.a + (int64_t)m0 * a.row + k0 * a.col;
            const B* b_corner = (const B*)b.data + at.b + k0 * b.row + (int64_t)n0 * b.col;
            if constexpr (A_HAS_K) a_tile(step).template load<256>(a_corner, a.row, s.M - m0, k_end - k0, a_aligned, thread);
            else a_tile(step).template load<256>(a_corner, a.col, k_end - k0, s.M - m0, a_aligned, thread);
            if constexpr (B_HAS_K) b_tile(step).template load<256>(b_corner, b.col, s.N - n0, k_end - k0, b_aligned, thread);
            else b_tile(step).template load<256>(b_corner, b.row, k_end - k0, s.N - n0, b_aligned, thread);
        }
        commit_copies();
    };

    float sum[WARP_M / 16][WARP_N / 8][4] = {}, wide[FP8 ? WARP_M / 16 : 1][WARP_N / 8][4] = {};
    for (int step = 0; step < STAGES - 1; step++) load_step(step);
    for (int step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        __syncthreads();              // this step's tiles have arrived from all threads, and all have finished with the last step's,
        load_step(step + STAGES - 1); // whose place this overwrites
        for (int k = 0; k < K; k += MMA_K<A>) {
            uint32_t a_part[WARP_M / 16][4], b_part[WARP_N / 16][4]; // b_part: two products' worth
            for (int i = 0; i < WARP_M / 16; i++) {
                if constexpr (A_HAS_K) a_tile(step).fragment_a(a_part[i], warp_m + i * 16, k, lane);
                else a_tile(step).fragment_a_transposed(a_part[i], warp_m + i * 16, k, lane);
            }
            for (int j = 0; j < WARP_N / 16; j++) {
                if constexpr (B_HAS_K) b_tile(step).fragment_b(b_part[j], warp_n + j * 16, k, lane);
                else b_tile(step).fragment_b_transposed(b_part[j], warp_n + j * 16, k, lane);
            }
            UNROLL for (int i = 0; i < WARP_M / 16; i++)
                UNROLL for (int j = 0; j < WARP_N / 8; j++) mma<A, B>(sum[i][j], a_part[i], b_part[j / 2] + j % 2 * 2);
        }
        if constexpr (FP8) // every 128 of K
            if (step % 2 == 1 || step == steps - 1)
                for (int i = 0; i < WARP_M / 16; i++)
                    for (int j = 0; j < WARP_N / 8; j++)
                        for (int r = 0; r < 4; r++) wide[i][j][r] += sum[i][j][r], sum[i][j][r] = 0;
    }
    wait_copies<0>();
    __syncthreads(); // all warps have read their last tiles: their place now takes sums, 16 x WARP_N of each warp at a time

    constexpr int N = PACK<float>, LANES = WARP_N / N; // per row
    float* stage = (float*)shared + thread / WARP * 16 * OUT_STRIDE;
    UNROLL for (int i = 0; i < WARP_M / 16; i++) {
        for (int j = 0; j < WARP_N / 8; j++)
            for (int r = 0; r < 4; r++) {
                const float value = FP8 ? wide[FP8 ? i : 0][j][r] : sum[i][j][r];
                stage[(lane / 4 + r / 2 * 8) * OUT_STRIDE + j * 8 + lane % 4 * 2 + r % 2] = value;
            }
        __syncwarp(); // the warp's sums are written before its lanes read rows of them, a pack each: neighbours in c
        for (int row = lane / LANES; row < 16; row += WARP / LANES) {
            const int m = m0 + warp_m + i * 16 + row, col = lane % LANES * N, n = n0 + warp_n + col;
            if (m >= s.M || n >= s.N) continue;
            Pack<float> sums;
            copy_in(sums, stage + row * OUT_STRIDE + col);
            finish(c, e, at.c + part * c.outer + m * c.row + n, n, s.N, sums, scale);
        }
        __syncwarp(); // ... and read before the next 16 rows overwrite them
    }
}

// c = the epilogue of sum_p partial[p, m, n], from the first part to the last. One warp per row; lane l owns packs l, l+WARP, ...
template <class T> // float
__global__ void add_parts_kernel(Output c, const T* partial, int parts, Sizes s, Epilogue e, Factors scale) {
    constexpr int N = PACK<T>;
    const int m = row_of_warp();
    if (m >= s.M) return;
    for (int n = threadIdx.x * N; n < s.N; n += WARP * N) {
        Pack<T> sum = {};
        for (int p = 0; p < parts; p++) {
            const Pack<T> part = load_pack<N>(partial + ((size_t)p * s.M + m) * s.N, n, s.N);
            for (int j = 0; j < N; j++) sum[j] += part[j];
        }
        finish(c, e, m * c.row + n, n, s.N, sum, scale);
    }
}

// Which products tensor cores can do: two operands of one 16-bit format, or two of FP8 whose k lies contiguous.
inline bool fits_tensorcore(Operand a, Operand b, int capability) {
    if (is_fp8(a.format) && is_fp8(b.format)) return a.col == 1 && b.row == 1 && capability >= 75;
    return a.format == b.format && ((a.format == BF16 && capability >= 80) || (a.format == FP16 && capability >= 75)) &&
        (a.col == 1 || a.row == 1) && (b.col == 1 || b.row == 1);
}

// K in so many parts that every multiprocessor has a block, but none less than 512 of K.
inline int parts_for(Sizes s) {
    const int tiles = ceil_div(s.M, 128) * ceil_div(s.N, BLOCK_N);
    return s.outer * s.inner > 1 ? 1 : std::max(1, std::min({processors() / tiles, s.K / 512, 16}));
}

inline void matmul_tensorcore(Output c, Operand a, Operand b, Sizes s, Epilogue e, int parts) {
    const bool a_has_k = a.col == 1, b_has_k = b.row == 1;
    auto aligned = [](Operand x, int64_t stride) {
        const int n = 16 / bytes_of(x.format);
        return (uintptr_t)x.data % 16 == 0 && stride % n == 0 && x.outer % n == 0 && x.inner % n == 0;
    };
    const int64_t a_stride = a_has_k ? a.row : a.col, b_stride = b_has_k ? b.col : b.row;
    ENSURE(a_stride < 1 << 24 && b_stride < 1 << 24, "rows of %lld and %lld elements: a tile's are less than 2^24 apart", (long long)a_stride, (long long)b_stride);
    const bool a_aligned = aligned(a, a_stride), b_aligned = aligned(b, b_stride);
    const int block_rows = block_m(bytes_of(a.format));
    const dim3 grid(ceil_div(s.N, BLOCK_N), ceil_div(s.M, block_rows), s.outer * s.inner * parts);
    const Factors scale(a.k + b.k);
    static Buffer partial; // grows to the largest that was ever needed
    Output to = c;
    if (parts > 1) {
        const size_t elements = (size_t)s.M * s.N;
        if (partial.bytes() < parts * elements * 4) partial = Buffer(parts * elements * 4);
        to = {partial.data(), FP32, s.N, (int64_t)elements, 0};
    }
    auto run = [&](auto a_type, auto b_type, auto a_k, auto b_k) {
        launch_shared(matmul_tensorcore_kernel<decltype(a_type), decltype(b_type), a_k.value, b_k.value>, grid, 256, STAGES * (block_rows + BLOCK_N) * BLOCK_K_BYTES, to, a, b, s,
                      parts > 1 ? Epilogue() : e, parts > 1 ? Factors(0) : scale, parts, a_aligned, b_aligned);
    };
    auto run_any_layout = [&](auto type) {
        const std::true_type k;
        const std::false_type mn;
        if (a_has_k && b_has_k) run(type, type, k, k);
        else if (a_has_k) run(type, type, k, mn);
        else if (b_has_k) run(type, type, mn, k);
        else run(type, type, mn, mn);
    };
    auto run_fp8 = [&](auto a_type) {
        if (b.format == E4M3) run(a_type, e4m3(), std::true_type(), std::true_type());
        else run(a_type, e5m2(), std::true_type(), std::true_type());
    };
    if (a.format == BF16) run_any_layout(bf16());
    else if (a.format == FP16) run_any_layout(fp16());
    else if (a.format == E4M3) run_fp8(e4m3());
    else run_fp8(e5m2());
    if (parts > 1) launch(add_parts_kernel<float>, row_blocks(s.M), row_threads(), c, (const float*)partial.data(), parts, s, e, scale);
}
#endif

// ==== one row ========================================================================================================

// One warp per c[n]; lane l owns packs l, l+WARP, ... of row n of b.
template <class A, class B>
__global__ void matvec_kernel(Output c, const A* a, const B* b, int64_t b_col, Sizes s, Epilogue e, Factors scale) {
    constexpr int N = sizeof(B) == 1 ? WIDE<B> : PACK<B>; // FP8 is decoded on the way
    const int n = row_of_warp();
    if (n >= s.N) return;
    const B* b_n = b + n * b_col;
    float sum = 0;
    for (int k = threadIdx.x * N; k < s.K; k += WARP * N) {
        const Pack<A, N> a_k = load_pack<N>(a, k, s.K);
        const Pack<B, N> b_k = load_pack<N>(b_n, k, s.K);
        float wide[N]; // decoded in a loop of its own, which compilers vectorise
        for (int j = 0; j < N; j++) wide[j] = to_float(b_k[j]);
        for (int j = 0; j < N; j++) sum += to_float(a_k[j]) * wide[j];
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) finish(c, e, n, n, s.N, Pack<float, 1>{sum}, scale);
}

// Two operands whose k lies contiguous; on a GPU, of one format.
inline bool fits_matvec(Operand a, Operand b, Sizes s) {
    return s.M == 1 && s.outer * s.inner == 1 && (WARP == 1 || a.format == b.format) && a.col == 1 && b.row == 1;
}
inline void matvec(Output c, Operand a, Operand b, Sizes s, Epilogue e) {
    with_type(b.format, [&](auto zero) {
        using B = decltype(zero);
#if defined(ON_CPU)
        using A = float;
        a = widened(a, FP32, 1, s.K, s, 0);
#else
        using A = B;
#endif
        launch(matvec_kernel<A, B>, row_blocks(s.N), row_threads(), c, (const A*)a.data, (const B*)b.data, b.col, s, e, Factors(a.k + b.k));
    });
}

// ==== what the model calls ===========================================================================================

// c = a b, and the epilogue
inline void matmul(Output c, Operand a, Operand b, Sizes s, Epilogue e = {}) {
    ENSURE(s.M > 0 && s.N > 0 && s.K > 0 && s.outer > 0 && s.inner > 0, "M=%d N=%d K=%d outer=%d inner=%d", s.M, s.N, s.K, s.outer, s.inner);
    ENSURE(!e.kept || !(e.residual || e.accumulate), "a GELU is the last step of a product: nothing is added to it");
    if (fits_matvec(a, b, s)) return matvec(c, a, b, s, e);
#if defined(ON_CPU)
    matmul_onednn(c, a, b, s, e);
#else
    if (fits_tensorcore(a, b, capability())) matmul_tensorcore(c, a, b, s, e, parts_for(s));
    else matmul_tiled(c, a, b, s, e);
#endif
}
// c += a b, for weight gradients: c is FP32
inline void matmul_add(Output c, Operand a, Operand b, Sizes s) {
    Epilogue e;
    e.accumulate = true;
    matmul(c, a, b, s, e);
}

// The machine, its matrix products, and which formats they read natively.
inline std::string describe_machine() {
#if defined(ON_CPU)
    return machine_name() + "; products by " + OneDnn::version() +
        (OneDnn::native_bf16() ? ": BF16 natively, FP8 decoded to BF16 (exact), FP16 decoded to FP32"
                               : ": this processor has no BF16 dot product: all formats decoded to FP32");
#else
    const int c = capability();
    return machine_name() + "; products by our kernels: " +
        (c < 75                   ? "no tensor cores that they know: FP32 arithmetic in all formats"
             : c < 80             ? "FP16 on tensor cores, FP8 decoded to FP16 (exact: as fast as FP16 at most), BF16 with FP32 arithmetic (slow)"
             : c < 89             ? "BF16 and FP16 on tensor cores, FP8 decoded to FP16 (exact: as fast as FP16 at most)"
             : c >= 90 && c < 120 ? "BF16 and FP16 on tensor cores; FP8 too, but this GPU makes mma.sync's FP8 of FP16 instructions: no faster than BF16"
                                  : "BF16, FP16 and FP8 on tensor cores") +
        "; FP32 with FP32 arithmetic";
#endif
}
