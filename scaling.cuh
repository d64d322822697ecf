// scaling.cuh -- moving numbers into a narrow format's range: a scale for every FP8 tensor, a scale for the loss.
//
//   FP8 tensor      q = saturate_to<E4M3 or E5M2>(x * 2^k)        x ~ q * 2^-k
//                   k = the largest with amax * 2^k <= the format's largest, less a margin;  amax = max |x|
//   loss scale S    backward starts from S * loss; the FP32 gradients are multiplied by 1/S before they are used
//
// Source   arXiv:2209.05433 (amax scaling), arXiv:1710.03740 (loss scaling); the power-of-two rule is exact: no log2
// Units    k in binades (powers of two), windows in optimizer steps
// Formats  x in the stored format or FP32, q in FP8, amax and counters as integers, S in FP32
// Why      a power of two as a scale costs no rounding: quantising is the only one. amax of the step itself would need
//          a second pass over x, so inputs and gradients take it from the last 16 steps; weights have it from AdamW.
//          Statistics are integers, so that neither threads nor the order of micro-batches can change a decision.
// Tests    tests/test_scaling.cu     Times  bench.cu, bench_quantise
#pragma once
#include "pack.cuh"
#include "recipes.cuh"

// ==== which power of two =============================================================================================

// A scale 2^k stays within these, so that every FP8 value times 2^-k is a normal BF16 number: decoding is exact.
constexpr int K_LIMIT = 110;

// The largest k with amax * 2^k <= largest finite number of f, less `margin`, from the bits of amax: with
// amax = 1.m * 2^e and largest = 1.M * 2^E it is E - e, or one less where 1.m > 1.M. amax must be finite and positive.
inline int scale_exponent(Format f, float amax, int margin = 0) {
    ENSURE(amax > 0 && std::isfinite(amax), "amax is %g, expected a finite positive number", amax);
    int e, E;
    float m = std::frexp(amax, &e), M = std::frexp(largest_of(f), &E);
    int k = E - e - (m > M) - margin;
    return std::min(std::max(k, -K_LIMIT), K_LIMIT);
}

// ==== what a cast sees: integers, counted in the kernel that casts ===================================================

struct CastStats {
    unsigned amax_bits;                   // of the finite |x|, as bits: for positive floats the order of bits is the order of values
    unsigned nan, inf;                    // a saturating cast hides an Inf: this count is how the step still learns of it
    unsigned saturated;                   // finite, but past the format's largest after scaling
    unsigned nonzero, flushed, subnormal; // x != 0; of these those whose code is 0, and those whose code is subnormal
    float amax() const { return bits_as<float>(amax_bits); }
};

__device__ inline void count_value(CastStats& s, float x) {
    unsigned magnitude = bits_as<unsigned>(x) & 0x7FFFFFFF;
    unsigned finite = magnitude & -(unsigned)(magnitude < 0x7F800000); // a mask, not a choice: it vectorises
    s.amax_bits = finite > s.amax_bits ? finite : s.amax_bits;
    s.nan += magnitude > 0x7F800000 ? 1u : 0u;
    s.inf += magnitude == 0x7F800000 ? 1u : 0u;
}

// Adds one warp's counts to the tensor's. Integer atomics: any order gives the same result.
__device__ inline void publish(CastStats* total, CastStats s) {
    s.amax_bits = warp_max(s.amax_bits), s.nan = warp_sum(s.nan), s.inf = warp_sum(s.inf), s.saturated = warp_sum(s.saturated);
    s.nonzero = warp_sum(s.nonzero), s.flushed = warp_sum(s.flushed), s.subnormal = warp_sum(s.subnormal);
    if (threadIdx.x % WARP) return;
    atomicMax(&total->amax_bits, s.amax_bits);
    if (s.nan) atomicAdd(&total->nan, s.nan);
    if (s.inf) atomicAdd(&total->inf, s.inf);
    if (s.saturated) atomicAdd(&total->saturated, s.saturated);
    if (s.nonzero) atomicAdd(&total->nonzero, s.nonzero);
    if (s.flushed) atomicAdd(&total->flushed, s.flushed);
    if (s.subnormal) atomicAdd(&total->subnormal, s.subnormal);
}

// amax, NaN and Inf of x. One block per CHUNK elements; reads x once.
template <class T>
__global__ void measure_kernel(CastStats* stats, const T* x, size_t n) {
    constexpr int N = PACK<T>;
    CastStats s = {};
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> x_i = load_pack<N>(x, i, chunk.end); // what is past the end is a 0, which changes no count
        for (int j = 0; j < N; j++) count_value(s, to_float(x_i[j]));
    }
    publish(stats, s);
}

template <class T>
void measure(CastStats* stats, Tensor<T> x) {
    launch(measure_kernel<T>, chunks(x.size()), BLOCK, stats, (const T*)x.data, x.size());
}

// ==== codes, and codes transposed ====================================================================================

// saturate_to<Q>(value * scale), counted.
template <class Q>
__device__ inline Q code_of(CastStats& s, float value, float scale) {
    const float scaled = value * scale, largest = decode<Q>(Layout<Q>::max_finite);
    // Spacing of Q's subnormals: half of it still rounds to 0, and half of it below the first normal number to that.
    constexpr uint32_t spacing = (127u + 1 - Layout<Q>::bias - Layout<Q>::mantissa_bits) << 23;
    const unsigned zero_to = bits_as<unsigned>(bits_as<float>(spacing) * 0.5f);
    const unsigned normal_from = bits_as<unsigned>(bits_as<float>(spacing) * ((1 << Layout<Q>::mantissa_bits) - 0.5f));
    const unsigned magnitude = bits_as<unsigned>(value) & 0x7FFFFFFF, size = bits_as<unsigned>(scaled) & 0x7FFFFFFF;
    count_value(s, value);
    s.saturated += ((fabsf(scaled) > largest) & (fabsf(value) < HUGE_VALF)) ? 1u : 0u;
    // Comparisons as sign bits of differences: as conditions that share parts they become branches, and nothing vectorises.
    const unsigned nonzero = (magnitude + 0x7FFFFFFF) >> 31, rounds_to_0 = (size - zero_to - 1) >> 31, below_normal = (size - normal_from) >> 31;
    s.nonzero += nonzero, s.flushed += nonzero & rounds_to_0, s.subnormal += below_normal - rounds_to_0;
    return saturate_to<Q>(scaled);
}

// A block turns a tile of 128 rows and 32 columns of codes: codes_at(s, i, end) gives N neighbours in a row, which ends at
// element `end`, and counts in s, which is returned. In shared memory a column lies in 33 words of 4 codes, so that neither
// the lanes that write N columns next to each other nor the 32 that read along one column meet in a bank.
constexpr int TURN_ROWS = 128, TURN_COLUMNS = 32, TURN_PACK = WARP == 1 ? 1 : 4;
inline dim3 turn_blocks(int rows, int cols) { return dim3(ceil_div(cols, TURN_COLUMNS), ceil_div(rows, TURN_ROWS)); }

template <int N, class Q, class F>
__device__ CastStats turn_tile(Q* qt, int rows, int cols, F codes_at) {
    __shared__ Pack<Q, TURN_PACK> tile[TURN_COLUMNS][TURN_ROWS / TURN_PACK + 1];
    const int row = blockIdx.y * TURN_ROWS, col = blockIdx.x * TURN_COLUMNS;
    CastStats s = {};
    for (int e = threadIdx.x * N; e < TURN_ROWS * TURN_COLUMNS; e += BLOCK * N) {
        const int r = e / TURN_COLUMNS, c = e % TURN_COLUMNS;
        if (row + r >= rows || col + c >= cols) continue;
        const Pack<Q, N> codes = codes_at(s, (size_t)(row + r) * cols + col + c, (size_t)(row + r + 1) * cols);
        for (int j = 0; j < N; j++) tile[c + j][r / TURN_PACK][r % TURN_PACK] = codes[j];
    }
    __syncthreads(); // the tile is written by all before any thread reads it
    for (int e = threadIdx.x * TURN_PACK; e < TURN_ROWS * TURN_COLUMNS; e += BLOCK * TURN_PACK) {
        const int c = e / TURN_ROWS, r = e % TURN_ROWS;
        if (row + r < rows && col + c < cols) store_pack(qt + (size_t)(col + c) * rows, row + r, rows, tile[c][r / TURN_PACK]);
    }
    return s;
}

// q (rows, cols) and, unless it is null, qt (cols, rows) = the codes of a matrix that values_at(i, end) loads or computes,
// N neighbours at a time. One block per CHUNK elements, or per tile; q and qt are written once.
template <int N, class Q, class F>
__device__ inline void quantise_each(Q* q, Q* qt, CastStats* stats, float scale, int rows, int cols, F values_at) {
    auto codes_at = [=](CastStats& s, size_t i, size_t end) {
        const auto x_i = values_at(i, end); // 0 past the end, which changes no count
        Pack<Q, N> q_i;
        for (int j = 0; j < N; j++) q_i[j] = code_of<Q>(s, to_float(x_i[j]), scale);
        store_pack(q, i, end, q_i);
        return q_i;
    };
    if (qt) return publish(stats, turn_tile<N>(qt, rows, cols, codes_at));
    CastStats s = {};
    PackChunk<N> chunk((size_t)rows * cols);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) codes_at(s, i, chunk.end);
    publish(stats, s);
}
// The grid that quantise_each wants.
inline dim3 quantise_blocks(const void* qt, int rows, int cols) { return qt ? turn_blocks(rows, cols) : chunks((size_t)rows * cols); }

template <class T, class Q>
__global__ void quantise_kernel(Q* q, Q* qt, CastStats* stats, const T* x, float scale, int rows, int cols) {
    quantise_each<PACK<T>>(q, qt, stats, scale, rows, cols, [=](size_t i, size_t end) { return load_pack<PACK<T>>(x, i, end); });
}

// body(Q()) for the type Q of an FP8 format.
template <class F>
void with_fp8(Format f, F body) {
    ENSURE(is_fp8(f), "cannot quantise to %s", name_of(f));
    if (f == E4M3) body(e4m3());
    else body(e5m2());
}

// q (rows, cols) in E4M3 or E5M2 = x (rows, cols) * 2^k, rounded to nearest-even, saturating; *stats += what was seen.
// qt (cols, rows), unless it is null: the same codes transposed. Reads x once.
template <class T>
void quantise(void* q, Format f, int k, CastStats* stats, Tensor<T> x, void* qt = nullptr) {
    with_fp8(f, [&](auto zero) {
        using Q = decltype(zero);
        launch(quantise_kernel<T, Q>, quantise_blocks(qt, x.rows, x.cols), BLOCK, (Q*)q, (Q*)qt, stats, (const T*)x.data, std::ldexp(1.0f, k), x.rows, x.cols);
    });
}

template <class Q>
__global__ void transpose_codes_kernel(Q* qt, const Q* q, int rows, int cols) {
    constexpr int N = PACK<Q>;
    turn_tile<N>(qt, rows, cols, [=](CastStats&, size_t i, size_t end) { return load_pack<N>(q, i, end); });
}

// qt (cols, rows) = q (rows, cols) transposed: bytes, whatever their format.
inline void transpose_codes(void* qt, const void* q, int rows, int cols) {
    launch(transpose_codes_kernel<uint8_t>, turn_blocks(rows, cols), BLOCK, (uint8_t*)qt, (const uint8_t*)q, rows, cols);
}

// ==== loss scale =====================================================================================================

// Dynamic: halve on Inf or NaN, double after `interval` good steps in a row; between 1 and 2^24, always a power of two,
// so that dividing by it is exact. Static (interval 0): never changes.
// Source: arXiv:1710.03740 section 3.2; the floor and the cap are what PyTorch's GradScaler lacks.
struct LossScale {
    float value = 1;
    int interval = 0, good_steps = 0;

    static LossScale fixed(float value) { return {value, 0, 0}; }
    static LossScale dynamic(int interval) { return {65536, interval, 0}; }

    void overflowed() {
        if (interval) value = value > 2 ? value / 2 : 1;
        good_steps = 0;
    }
    void succeeded() {
        if (!interval || ++good_steps < interval) return;
        value = value < 0x1p23f ? value * 2 : 0x1p24f;
        good_steps = 0;
    }
};
