// adam.cuh -- the optimizer: AdamW on FP32 master weights, which are then rounded to what the products read.
//
//   g = grad * scale                  scale = clip / (loss scale): clipping and unscaling are one multiplication
//   m = b1 m + (1-b1) g               v = b2 v + (1-b2) g^2
//   w = w - lr * weight_decay * w - lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)           decay on matrices only
//   low = round(w * 2^k)              k from the amax of the new w, which the same pass measures: never late. An FP8 copy is
//                                     written in that pass with the old k, and again by itself where the new k is another
//   without a master                  w = round(w + d) to nearest or stochastically, in a 16-bit format f
//   what that would lose              lost = share of d != 0 with round_f(w + d) == w;   realised = sum (w' - w) d / sum d^2
//
// Source   Loshchilov, Hutter 2017, arXiv:1711.05101, algorithm 2; Kingma, Ba 2014, arXiv:1412.6980; arXiv:2010.06192 (swamping)
// Units    t counts applied updates: a skipped step is not one
// Formats  w, m, v, grad, average and every scalar in FP32; low in the recipe's weight format
// Why      near 1.0 BF16 numbers are 2^-7 apart: a weight kept in BF16 rounds an update of 1e-3 away, every time, and
//          beta2 = 0.999 kept in BF16 is 1. So the masters move, and the copy that products read follows.
// Tests    tests/test_adam.cu     Times  bench.cu, bench_adamw
#pragma once
#include "operand.cuh"
#include "policy.cuh"
#include "rng.h"

// One tensor of weights with all that training keeps of it.
struct Parameter {
    std::string name; // "h.0.attn.c_attn.weight"
    int rows = 0, cols = 0;
    bool matrix = false; // matrices decay, biases and layernorm gains do not
    float *master = nullptr, *m = nullptr, *v = nullptr, *grad = nullptr;
    float* average = nullptr; // exponential moving average of the masters, if one is kept
    Format format = FP32;     // of the copy that products read
    void* low = nullptr;      // that copy; in FP32 the products read the master itself
    int k = 0;                // value = low * 2^-k
    CastStats* stats = nullptr;
    void* low_t = nullptr;  // FP8 only, if wanted: the same codes transposed, (cols, rows)
    bool has_master = true; // false: the numbers in `master` are those of a weight kept in `storage`, rounded at every step
    Format storage = BF16;  // 16 bits: what the weight would be kept in without a master

    size_t size() const { return (size_t)rows * cols; }
    Operand operand() const { return {format == FP32 ? master : low, format, k, cols, 1, 0, 0}; }
    Tensor<float> gradient() const { return {grad, rows, cols}; }
    Tensor<float> weight() const { return {master, rows, cols}; }
};

// Its master's numbers, on the host.
inline std::vector<float> master_of(const Parameter& p) {
    std::vector<float> w(p.size());
    copy_to_host(w.data(), (const float*)p.master, w.size());
    return w;
}

struct AdamW {
    float lr, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
    float grad_scale = 1;
    float correction1 = 1, correction2 = 1; // 1 / (1 - beta^t)
    void set_step(int t) {
        correction1 = (float)(1 / (1 - std::pow((double)beta1, t)));
        correction2 = (float)(1 / (1 - std::pow((double)beta2, t)));
    }
};

// N neighbours of w, m and v move one step, w by *d if that is asked for. Traffic per element: reads w, m, v, grad, writes w, m, v: 28 bytes.
template <int N>
__device__ inline Pack<float, N> adamw_pack(float* w, float* m, float* v, const float* grad, const AdamW& a, size_t i, size_t end, Pack<float, N>* d = nullptr) {
    Pack<float, N> w_i = load_pack<N>(w, i, end), m_i = load_pack<N>(m, i, end), v_i = load_pack<N>(v, i, end);
    const Pack<float, N> grad_i = load_pack<N>(grad, i, end);
    for (int j = 0; j < N; j++) {
        float g = grad_i[j] * a.grad_scale;
        m_i[j] += (1 - a.beta1) * (g - m_i[j]);
        v_i[j] += (1 - a.beta2) * (g * g - v_i[j]);
        float update = (m_i[j] * a.correction1) / (sqrtf(v_i[j] * a.correction2) + a.eps) + a.weight_decay * w_i[j];
        w_i[j] = fmaf(-a.lr, update, w_i[j]); // said, not left to the compiler, which would fuse here and not there
        if (d) (*d)[j] = -a.lr * update;
    }
    store_pack(w, i, end, w_i), store_pack(m, i, end, m_i), store_pack(v, i, end, v_i);
    return w_i;
}

// One block per CHUNK elements. Low is the format of a 16-bit copy, 2 bytes more to write; float: no copy.
template <class Low>
__global__ void adamw_kernel(float* w, float* m, float* v, Low* low, CastStats* stats, const float* grad, AdamW a, size_t n) {
    constexpr int N = PACK<float>;
    CastStats s = {};
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<float> w_i = adamw_pack<N>(w, m, v, grad, a, i, chunk.end);
        if constexpr (sizeof(Low) == 2) {
            Pack<Low, N> low_i;
            for (int j = 0; j < N; j++) low_i[j] = round_to<Low>(w_i[j]);
            store_pack(low, i, chunk.end, low_i);
        }
        for (int j = 0; j < N; j++) count_value(s, w_i[j]);
    }
    publish(stats, s);
}

// An FP8 copy with a scale that was right before this step: 1 byte more to write, and 1 for its transpose.
template <class Q>
__global__ void adamw_quantise_kernel(float* w, float* m, float* v, Q* low, Q* low_t, CastStats* stats, const float* grad, AdamW a,
                                      float scale, int rows, int cols) {
    quantise_each<PACK<float>>(low, low_t, stats, scale, rows, cols, [=](size_t i, size_t end) { return adamw_pack<PACK<float>>(w, m, v, grad, a, i, end); });
}

// ==== a weight without a master: what it loses ========================================================================

struct UpdateCounts {
    unsigned lost, bins[UpdateEvidence::BINS]; // as in UpdateEvidence
};

// What looks at the updates on the machine; and the random numbers of stochastic rounding.
struct UpdateWatch {
    UpdateCounts* counts = nullptr; // one per parameter
    float* partial = nullptr;       // two per block of all parameters: sum (w' - w) d and sum d^2
    bool stochastic = false;
    Rng rng{0, Stream::rounding};
    static size_t partial_floats(const std::vector<Parameter>& all) {
        size_t n = 0;
        for (const Parameter& p : all) n += 2 * (size_t)chunks(p.size());
        return n;
    }
};

// floor(log2(|d| / (spacing of S at w))), as a bin of UpdateEvidence.
template <class S>
__device__ inline int update_bin(float d, float w) {
    constexpr int M = Layout<S>::mantissa_bits, smallest = 128 - Layout<S>::bias; // the exponent field of S's smallest normal number
    const int d_exponent = bits_as<unsigned>(d) >> 23 & 255, w_exponent = bits_as<unsigned>(w) >> 23 & 255;
    const int bin = d_exponent - ((w_exponent > smallest ? w_exponent : smallest) - M) + UpdateEvidence::ZERO;
    return bin < 0 ? 0 : bin < UpdateEvidence::BINS ? bin
                                                    : UpdateEvidence::BINS - 1;
}

// The same step of a weight that is, or would be, kept in S. One block per CHUNK elements, random numbers from `first` on.
template <class S>
__global__ void adamw_watched_kernel(float* w, float* m, float* v, UpdateCounts* total, float* partial, const float* grad, AdamW a, bool has_master,
                                     bool stochastic, Rng rng, uint64_t first, uint64_t t, size_t n) {
    constexpr int N = WIDE<float>;
    __shared__ unsigned bins[UpdateEvidence::BINS];
    for (int b = threadIdx.x; b < UpdateEvidence::BINS; b += BLOCK) bins[b] = 0;
    __syncthreads(); // all bins are zero before any thread counts
    float moved = 0, meant = 0;
    unsigned lost = 0;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<float, N> before = load_pack<N>((const float*)w, i, chunk.end);
        Pack<float, N> d, kept, next; // past the end d is 0
        Pack<int, N> bin;
        adamw_pack<N>(w, m, v, grad, a, i, chunk.end, &d);
        for (int j = 0; j < N; j++) kept[j] = to_float(round_to<S>(before[j])), next[j] = kept[j] + d[j]; // without a master `before` is an S already
        if (stochastic)
            for (int j = 0; j < N; j++) next[j] = to_float(round_stochastic<S>(next[j], philox(rng.key, first + i + j, t).word[0]));
        else
            for (int j = 0; j < N; j++) next[j] = to_float(round_to<S>(next[j]));
        for (int j = 0; j < N; j++) {
            moved += (next[j] - kept[j]) * d[j], meant += d[j] * d[j];
            lost += ((d[j] != 0) & (next[j] == kept[j])) ? 1u : 0u;
            bin[j] = update_bin<S>(d[j], kept[j]);
        }
        for (int j = 0; j < N; j++)
            if (d[j] != 0) count_in(&bins[bin[j]]);
        if (!has_master) store_pack(w, i, chunk.end, next);
    }
    moved = block_sum(moved), meant = block_sum(meant), lost = warp_sum(lost); // with barriers: now all have counted
    if (threadIdx.x == 0) partial[2 * blockIdx.x] = moved, partial[2 * blockIdx.x + 1] = meant;
    if (threadIdx.x % WARP == 0) atomicAdd(&total->lost, lost);
    for (int b = threadIdx.x; b < UpdateEvidence::BINS; b += BLOCK)
        if (bins[b]) atomicAdd(&total->bins[b], bins[b]);
}

// w = round(w): the weight loses its master. One block per CHUNK elements.
template <class S>
__global__ void keep_kernel(float* w, size_t n) {
    for (Chunk chunk(n); chunk.begin < chunk.end; chunk.begin += BLOCK) w[chunk.begin] = to_float(round_to<S>(w[chunk.begin]));
}

// ==== all parameters =================================================================================================

// low = round(w). One block per CHUNK elements.
template <class Low>
__global__ void round_kernel(Low* low, const float* w, size_t n) {
    constexpr int N = PACK<float>;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<float> w_i = load_pack<N>(w, i, chunk.end);
        Pack<Low, N> low_i;
        for (int j = 0; j < N; j++) low_i[j] = round_to<Low>(w_i[j]);
        store_pack(low, i, chunk.end, low_i);
    }
}

// average += (1 - decay) * (w - average). One block per CHUNK elements.
template <class T>
__global__ void average_kernel(T* average, const T* w, T decay, size_t n) {
    constexpr int N = PACK<T>;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        Pack<T> average_i = load_pack<N>(average, i, chunk.end);
        const Pack<T> w_i = load_pack<N>(w, i, chunk.end);
        for (int j = 0; j < N; j++) average_i[j] += (1 - decay) * (w_i[j] - average_i[j]);
        store_pack(average, i, chunk.end, average_i);
    }
}

// FP8 copies were cast with the k that their weights had before; now the amax of the new ones is known: one read-back for
// all tensors. The few whose amax has left its binade get their new k and are cast again. `stats` are all tensors' statistics.
inline void quantise_weights(std::vector<Parameter>& parameters, CastStats* stats) {
    if (std::none_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return is_fp8(p.format); })) return;
    std::vector<CastStats> seen(parameters.size());
    copy_to_host(seen.data(), stats, seen.size());
    for (Parameter& p : parameters) {
        const float amax = seen[p.stats - stats].amax();
        if (!is_fp8(p.format) || !(amax > 0) || scale_exponent(p.format, amax) == p.k) continue;
        p.k = scale_exponent(p.format, amax);
        fill_zero(p.stats, sizeof(CastStats)); // counted anew, so that a wrong guess leaves no trace
        quantise(p.low, p.format, p.k, p.stats, p.weight(), p.low_t);
    }
}

inline void round_weight(Parameter& p) {
    if (is_fp8(p.format)) quantise(p.low, p.format, p.k, p.stats, p.weight(), p.low_t);
    else measure(p.stats, p.weight());
    if (p.format == BF16) launch(round_kernel<bf16>, chunks(p.size()), BLOCK, (bf16*)p.low, (const float*)p.master, p.size());
    if (p.format == FP16) launch(round_kernel<fp16>, chunks(p.size()), BLOCK, (fp16*)p.low, (const float*)p.master, p.size());
}

// Round every master to its copy: after initialisation, or after the masters were replaced.
inline void round_weights(std::vector<Parameter>& parameters, CastStats* stats) {
    fill_zero(stats, parameters.size() * sizeof(CastStats));
    for (Parameter& p : parameters) round_weight(p);
    quantise_weights(parameters, stats);
}

// body(S()) for the type of a 16-bit storage format.
template <class F>
void with_storage(Format f, F body) {
    ENSURE(f == BF16 || f == FP16, "a weight without a master is kept in 16 bits, not in %s", name_of(f));
    if (f == BF16) body(bf16());
    else body(fp16());
}

inline void drop_master(Parameter& p) {
    p.has_master = false;
    for (float* w : {p.master, p.average})
        if (w) with_storage(p.storage, [&](auto zero) { launch(keep_kernel<decltype(zero)>, chunks(p.size()), BLOCK, w, p.size()); });
}

// One AdamW step on every tensor and its copy. Gradients must be finite: the caller has checked. What of the updates each
// storage format loses is measured if `measured`, and counted in `watch`; a weight without a master is rounded always.
inline void adamw_update(std::vector<Parameter>& parameters, CastStats* stats, AdamW step, const UpdateWatch& watch = {}, bool measured = false, int t = 0) {
    fill_zero(stats, parameters.size() * sizeof(CastStats));
    if (measured) fill_zero(watch.counts, parameters.size() * sizeof(UpdateCounts));
    float* partial = watch.partial;
    for (Parameter& p : parameters) {
        AdamW a = step;
        if (!p.matrix) a.weight_decay = 0;
        const uint64_t index = &p - parameters.data();
        if (measured || !p.has_master) {
            with_storage(p.storage, [&](auto zero) {
                launch(adamw_watched_kernel<decltype(zero)>, chunks(p.size()), BLOCK, p.master, p.m, p.v, watch.counts + index, partial, (const float*)p.grad, a,
                       p.has_master, watch.stochastic && !p.has_master, watch.rng, index << 40, (uint64_t)t, p.size());
            });
            partial += 2 * chunks(p.size());
            round_weight(p);
            continue;
        }
        with_type(p.format, [&](auto low) {
            using Low = decltype(low);
            if constexpr (sizeof(Low) == 1)
                launch(adamw_quantise_kernel<Low>, quantise_blocks(p.low_t, p.rows, p.cols), BLOCK, p.master, p.m, p.v, (Low*)p.low, (Low*)p.low_t,
                       p.stats, (const float*)p.grad, a, std::ldexp(1.0f, p.k), p.rows, p.cols);
            else
                launch(adamw_kernel<Low>, chunks(p.size()), BLOCK, p.master, p.m, p.v, (Low*)p.low, p.stats, (const float*)p.grad, a, p.size());
        });
    }
    quantise_weights(parameters, stats);
}

// What `measured` steps counted, of all parameters.
inline std::vector<UpdateEvidence> updates_seen(const std::vector<Parameter>& parameters, const UpdateWatch& watch) {
    std::vector<UpdateCounts> counts(parameters.size());
    std::vector<float> sums(UpdateWatch::partial_floats(parameters));
    copy_to_host(counts.data(), watch.counts, counts.size());
    copy_to_host(sums.data(), watch.partial, sums.size());
    std::vector<UpdateEvidence> all(parameters.size());
    const float* partial = sums.data();
    for (size_t i = 0; i < all.size(); i++) {
        all[i].lost = counts[i].lost;
        for (int b = 0; b < UpdateEvidence::BINS; b++) all[i].updates += all[i].bins[b] = counts[i].bins[b];
        double moved = 0, meant = 0;
        for (unsigned b = 0; b < chunks(parameters[i].size()); b++, partial += 2) moved += partial[0], meant += partial[1];
        all[i].realised = meant > 0 ? (int)std::lround(std::clamp(1000 * moved / meant, -1e6, 1e6)) : 0;
    }
    return all;
}

inline void update_average(std::vector<Parameter>& parameters, float decay) {
    for (Parameter& p : parameters)
        launch(average_kernel<float>, chunks(p.size()), BLOCK, p.average, (const float*)p.master, decay, p.size());
}

// a and b change places. One block per CHUNK elements.
template <class T>
__global__ void swap_kernel(T* a, T* b, size_t n) {
    constexpr int N = PACK<T>;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> a_i = load_pack<N>(a, i, chunk.end), b_i = load_pack<N>(b, i, chunk.end);
        store_pack(a, i, chunk.end, b_i), store_pack(b, i, chunk.end, a_i);
    }
}

// ==== the norm of all gradients ======================================================================================

// partial[block] = sum over CHUNK elements of (g * scale)^2
template <class T>
__global__ void square_sum_kernel(float* partial, const T* g, float scale, size_t n) {
    constexpr int N = PACK<T>;
    float sum = 0;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> g_i = load_pack<N>(g, i, chunk.end);
        for (int j = 0; j < N; j++) sum += (g_i[j] * scale) * (g_i[j] * scale);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// |scale * g| over n gradients; Inf or NaN if any of them is. `partial` is scratch of chunks(n) floats on the machine.
inline double global_norm(const float* g, size_t n, float scale, float* partial) {
    launch(square_sum_kernel<float>, chunks(n), BLOCK, partial, g, scale, n);
    std::vector<float> sums(chunks(n));
    copy_to_host(sums.data(), partial, sums.size());
    double total = 0;
    for (float s : sums) total += s;
    return std::sqrt(total);
}
