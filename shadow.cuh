// shadow.cuh -- a look at a tensor, with which nothing is computed: where its numbers lie, and what a format makes of them.
//
//   exponents    how many |x| have floor(log2 |x|) = e
//   SNR          10 log10( sum x^2 / sum (x - q 2^-k)^2 ) dB,  q = round(x * 2^k)
//                in the format that x is read in, in the next narrower and in the next wider one
//
// Source   this project's own. Of a Gaussian the SNR is 31.5 dB in E4M3 and 25.6 dB in E5M2, whatever its variance
// Units    exponents in binades, SNRs in 1/100 dB
// Formats  x in the stored format or FP32; counts as integers; squares are summed in FP32 by chunks, in double over them
// Why      an amax says what a format must reach up to, not what is left below: a tensor may never saturate and be all
//          subnormal. A look costs two or three passes over the tensor, so one step in sixteen has one.
// Tests    tests/test_shadow.cu     Times  bench.cu, bench_step
#pragma once
#include "policy.cuh"

// ==== what is counted on the machine =================================================================================

constexpr int EXPONENTS = 256; // of FP32: the exponent field, 0 for 0 and what is below 2^-126, 255 for Inf and NaN

struct ShadowCounts {
    unsigned exponents[EXPONENTS];
    unsigned amax_bits;        // of the finite |x|
    unsigned nonzero, flushed; // x != 0; of these q == 0
};

// One block per CHUNK elements; reads x once.
template <class T>
__global__ void exponents_kernel(ShadowCounts* total, const T* x, size_t n) {
    constexpr int N = PACK<T>;
    __shared__ unsigned exponents[EXPONENTS];
    for (int e = threadIdx.x; e < EXPONENTS; e += BLOCK) exponents[e] = 0;
    __syncthreads(); // all bins are zero before any thread counts
    unsigned amax = 0;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> x_i = load_pack<N>(x, i, chunk.end);
        for (int j = 0; j < N && i + j < chunk.end; j++) {
            const unsigned magnitude = bits_as<unsigned>(to_float(x_i[j])) & 0x7FFFFFFF;
            if (magnitude < 0x7F800000 && magnitude > amax) amax = magnitude;
            count_in(&exponents[magnitude >> 23]);
        }
    }
    __syncthreads(); // ... and all have counted before the bins are read
    for (int e = threadIdx.x; e < EXPONENTS; e += BLOCK)
        if (exponents[e]) atomicAdd(&total->exponents[e], exponents[e]);
    amax = warp_max(amax);
    if (threadIdx.x % WARP == 0) atomicMax(&total->amax_bits, amax);
}

// partial[2b] = sum of (x s)^2, partial[2b + 1] = sum of (x s - q)^2 over block b's CHUNK elements; q = round(x s). Reads x once.
template <class T, class Q>
__global__ void noise_kernel(float* partial, ShadowCounts* total, const T* x, float s, size_t n) {
    constexpr int N = PACK<T>;
    float signal = 0, noise = 0;
    unsigned nonzero = 0, flushed = 0;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> x_i = load_pack<N>(x, i, chunk.end); // 0 past the end, which adds nothing
        for (int j = 0; j < N; j++) {
            const float value = to_float(x_i[j]) * s;
            float q;
            if constexpr (sizeof(Q) == 1) q = to_float(saturate_to<Q>(value));
            else q = to_float(round_to<Q>(value));
            signal += value * value, noise += (value - q) * (value - q);
            const unsigned x_is = (bits_as<unsigned>(value) & 0x7FFFFFFF) != 0 ? 1u : 0u, q_is = (bits_as<unsigned>(q) & 0x7FFFFFFF) != 0 ? 1u : 0u;
            nonzero += x_is, flushed += x_is & ~q_is;
        }
    }
    signal = block_sum(signal), noise = block_sum(noise);
    nonzero = warp_sum(nonzero), flushed = warp_sum(flushed);
    if (threadIdx.x == 0) partial[2 * blockIdx.x] = signal, partial[2 * blockIdx.x + 1] = noise;
    if (threadIdx.x % WARP == 0) atomicAdd(&total->nonzero, nonzero), atomicAdd(&total->flushed, flushed);
}

// ==== a look =========================================================================================================

constexpr int EXACT = 20000; // an SNR: no noise at all, or less than -200 dB

// What one format makes of a tensor.
struct Noise {
    Format format = FP32;
    int k = 0, snr = NOT_MEASURED;
    int64_t nonzero = 0, flushed = 0;
};

struct Shadow {
    Noise own, narrower, wider; // own: with the k that the cast had. Where there is no such format nothing is measured
    unsigned amax_bits = 0;
    std::vector<unsigned> exponents; // EXPONENTS; empty: not looked at yet
};

// The memory that looks need on the machine, for tensors of up to `largest` elements; and what they cost.
struct ShadowPass {
    Buffer counts{sizeof(ShadowCounts)}, partial;
    double seconds = 0;
    size_t bytes_read = 0;
    explicit ShadowPass(size_t largest) : partial(2 * (size_t)chunks(largest) * sizeof(float)) {}
};

// The next narrower format: of FP32 BF16, of these two the FP8 format of the role, of that itself.
inline Format narrower_than(Format f, Role role) {
    if (is_fp8(f)) return f;
    return f == FP32 ? BF16 : role == Role::gradient ? recipe_fp8.gradient
                                                     : recipe_fp8.input;
}

// x in format f with scale 2^k. A format that holds every T is exact.
template <class T>
Noise noise_of(ShadowPass& pass, Tensor<T> x, Format f, int k) {
    Noise r = {f, k};
    if (f == format_of<T> || f == FP32) return r.snr = EXACT, r;
    if (bytes_of(f) >= sizeof(T)) return r; // FP16 in BF16, or the other way round: nobody casts so
    ShadowCounts* counts = (ShadowCounts*)pass.counts.data();
    fill_zero(counts, sizeof *counts);
    with_type(f, [&](auto zero) {
        using Q = decltype(zero);
        if constexpr (sizeof(Q) < sizeof(T))
            launch(noise_kernel<T, Q>, chunks(x.size()), BLOCK, (float*)pass.partial.data(), counts, (const T*)x.data, std::ldexp(1.0f, k), x.size());
    });
    ShadowCounts seen;
    copy_to_host(&seen, counts, 1);
    std::vector<float> sums(2 * chunks(x.size()));
    copy_to_host(sums.data(), (float*)pass.partial.data(), sums.size());
    double signal = 0, noise = 0;
    for (size_t b = 0; b < sums.size(); b += 2) signal += sums[b], noise += sums[b + 1];
    r.nonzero = seen.nonzero, r.flushed = seen.flushed;
    if (std::isfinite(signal) && signal > 0) r.snr = (int)std::lround(std::min<double>(EXACT, 1000 * std::log10(signal / noise)));
    pass.bytes_read += x.size() * sizeof(T);
    return r;
}

// x, which is read in format f with scale 2^k. To the next narrower one it would be cast with the scale that fits it now.
template <class T>
Shadow look_at(ShadowPass& pass, Tensor<T> x, Format f, int k, Role role, int margin) {
    synchronize();
    const double start = seconds_now();
    ENSURE(2 * (size_t)chunks(x.size()) * sizeof(float) <= pass.partial.bytes(), "a tensor of %zu elements is larger than any to be looked at", x.size());
    ShadowCounts* counts = (ShadowCounts*)pass.counts.data();
    fill_zero(counts, sizeof *counts);
    launch(exponents_kernel<T>, chunks(x.size()), BLOCK, counts, (const T*)x.data, x.size());
    ShadowCounts seen;
    copy_to_host(&seen, counts, 1);
    pass.bytes_read += x.size() * sizeof(T);

    Shadow s;
    s.exponents.assign(seen.exponents, seen.exponents + EXPONENTS), s.amax_bits = seen.amax_bits;
    if (seen.amax_bits) {
        const float amax = bits_as<float>(seen.amax_bits);
        const Format narrow = narrower_than(f, role), wide = wider_than(f);
        s.own = noise_of(pass, x, f, k);
        if (narrow != f) s.narrower = noise_of(pass, x, narrow, is_fp8(narrow) ? scale_exponent(narrow, amax, margin) : 0);
        if (wide != f) s.wider = noise_of(pass, x, wide, 0);
    } else s.own = {f, k};
    pass.seconds += seconds_now() - start;
    return s;
}

// What a look adds to the evidence on which formats are decided.
inline void add_shadow(Evidence& e, const Shadow& s) {
    e.snr = s.own.snr, e.snr_narrower = s.narrower.snr, e.snr_wider = s.wider.snr;
    e.flushed_narrower = s.narrower.flushed, e.nonzero_narrower = s.narrower.nonzero;
}
