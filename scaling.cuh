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
#include "recipes.cuh"

// ==== which power of two =============================================================================================

// A scale 2^k stays within these, so that every FP8 value times 2^-k is a normal BF16 number: decoding is exact.
constexpr int K_LIMIT = 110;
// One binade is left free above an amax of past steps, because the next one may be larger.
constexpr int MARGIN = 1;

// The largest k with amax * 2^k <= largest finite number of f, less `margin`, from the bits of amax: with
// amax = 1.m * 2^e and largest = 1.M * 2^E it is E - e, or one less where 1.m > 1.M. amax must be finite and positive.
inline int scale_exponent(Format f, float amax, int margin = 0) {
    ENSURE(amax > 0 && std::isfinite(amax), "amax is %g, expected a finite positive number", amax);
    int e, E;
    float m = std::frexp(amax, &e), M = std::frexp(largest_of(f), &E);
    int k = E - e - (m > M) - margin;
    return std::min(std::max(k, -K_LIMIT), K_LIMIT);
}

// The amax of the last 16 steps. Only finite positive values enter: a step that did not run or met only zeros says
// nothing, and one Inf must not decide 16 scales.
struct AmaxWindow {
    static constexpr int LENGTH = 16;
    float amax[LENGTH] = {};
    int head = 0;

    void push(float value) {
        if (!(value > 0) || !std::isfinite(value)) return;
        amax[head] = value;
        head = (head + 1) % LENGTH;
    }
    float max() const {
        float m = 0;
        for (float a : amax) m = a > m ? a : m;
        return m;
    }
};

// ==== what a cast sees: integers, counted in the kernel that casts ===================================================

struct CastStats {
    unsigned amax_bits; // of the finite |x|, as bits: for positive floats the order of bits is the order of values
    unsigned nan, inf;  // a saturating cast hides an Inf: this count is how the step still learns of it
    unsigned saturated; // finite, but past the format's largest after scaling
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
    if (threadIdx.x % WARP) return;
    atomicMax(&total->amax_bits, s.amax_bits);
    if (s.nan) atomicAdd(&total->nan, s.nan);
    if (s.inf) atomicAdd(&total->inf, s.inf);
    if (s.saturated) atomicAdd(&total->saturated, s.saturated);
}

// amax, NaN and Inf of x. One block per CHUNK elements; reads x once.
template <class T>
__global__ void measure_kernel(CastStats* stats, const T* x, size_t n) {
    CastStats s = {};
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) count_value(s, to_float(x[i]));
    publish(stats, s);
}

template <class T>
void measure(CastStats* stats, Tensor<T> x) {
    launch(measure_kernel<T>, chunks(x.size()), BLOCK, stats, (const T*)x.data, x.size());
}

// q = saturate_to<Q>(x * scale), counting what it sees. One block per CHUNK elements; reads x once, writes q once.
template <class T, class Q>
__global__ void quantise_kernel(Q* q, CastStats* stats, const T* x, float scale, float largest, size_t n) {
    CastStats s = {};
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) {
        float value = to_float(x[i]), scaled = value * scale;
        q[i] = saturate_to<Q>(scaled);
        count_value(s, value);
        s.saturated += (fabsf(scaled) > largest) & (fabsf(value) < HUGE_VALF) ? 1u : 0u;
    }
    publish(stats, s);
}

// q (rows, cols) in E4M3 or E5M2 = x (rows, cols) * 2^k, rounded to nearest-even, saturating; *stats += what was seen.
template <class T>
void quantise(void* q, Format f, int k, CastStats* stats, Tensor<T> x) {
    ENSURE(is_fp8(f), "cannot quantise to %s", name_of(f));
    const float scale = std::ldexp(1.0f, k), largest = largest_of(f);
    if (f == E4M3) launch(quantise_kernel<T, e4m3>, chunks(x.size()), BLOCK, (e4m3*)q, stats, (const T*)x.data, scale, largest, x.size());
    else launch(quantise_kernel<T, e5m2>, chunks(x.size()), BLOCK, (e5m2*)q, stats, (const T*)x.data, scale, largest, x.size());
}

// ==== an operand that is cast at every step ==========================================================================

// clang-format off
enum class Pass { train, evaluate };
// clang-format on

// The input or the output gradient of one Linear: its format, its scale, and the evidence for the next step's scale.
struct CastSite {
    Format format = FP32;
    int k = 0;             // of this optimizer step: the same for all of its micro-batches
    bool measured = false; // false until the first non-zero tensor came by
    AmaxWindow window;
    CastStats* stats = nullptr; // on the machine: [0] of this step, [1] of whatever an evaluation casts

    // The exponent to cast x with. The first use is measured, not guessed: a scale of 1 would flush a gradient of 1e-6.
    template <class T>
    int exponent_for(Tensor<T> x, Pass pass) {
        if (measured) return k;
        CastStats* scratch = stats + 1;
        fill_zero(scratch, sizeof(CastStats));
        measure(scratch, x);
        CastStats seen;
        copy_to_host(&seen, scratch, 1);
        int first = seen.amax() > 0 ? scale_exponent(format, seen.amax(), MARGIN) : 0;
        if (pass == Pass::train && seen.amax() > 0) k = first, measured = true;
        return first;
    }

    // A step that was dropped decides nothing: a scale that only it has seen is measured again.
    void drop_step() { measured = window.max() > 0; }

    // At the end of a step that was applied, with the statistics of all its micro-batches.
    void end_step(const CastStats& seen) {
        window.push(seen.amax());
        if (window.max() > 0) k = scale_exponent(format, window.max(), MARGIN);
    }
};

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
