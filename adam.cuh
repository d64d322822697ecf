// adam.cuh -- the optimizer: AdamW on FP32 master weights, which are then rounded to what the products read.
//
//   g = grad * scale                  scale = clip / (loss scale): clipping and unscaling are one multiplication
//   m = b1 m + (1-b1) g               v = b2 v + (1-b2) g^2
//   w = w - lr * weight_decay * w - lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)           decay on matrices only
//   low = round(w * 2^k)              k from the amax of the new w, which the same pass measures: never late. An FP8 copy is
//                                     written in that pass with the old k, and again by itself where the new k is another
//
// Source   Loshchilov, Hutter 2017, arXiv:1711.05101, algorithm 2; Kingma, Ba 2014, arXiv:1412.6980
// Units    t counts applied updates: a skipped step is not one
// Formats  w, m, v, grad, average and every scalar in FP32; low in the recipe's weight format
// Why      near 1.0 BF16 numbers are 2^-7 apart: a weight kept in BF16 rounds an update of 1e-3 away, every time, and
//          beta2 = 0.999 kept in BF16 is 1. So the masters move, and the copy that products read follows.
// Tests    tests/test_adam.cu     Times  bench.cu, bench_adamw
#pragma once
#include "operand.cuh"
#include "scaling.cuh"

// One tensor of weights with all that training keeps of it.
struct Parameter {
    std::string name; // "h.0.attn.c_attn.weight"
    int rows = 0, cols = 0;
    bool matrix = false; // matrices decay, biases and layernorm gains do not
    float *master = nullptr, *m = nullptr, *v = nullptr, *grad = nullptr;
    float* average = nullptr; // exponential moving average of the masters, if one is kept
    Format format = FP32;     // of the copy that products read
    void* low = nullptr;      // that copy; the master itself where the format is FP32
    int k = 0;                // value = low * 2^-k
    CastStats* stats = nullptr;
    void* low_t = nullptr; // FP8 only, if wanted: the same codes transposed, (cols, rows)

    size_t size() const { return (size_t)rows * cols; }
    Operand operand() const { return {low, format, k, cols, 1, 0, 0}; }
    Tensor<float> gradient() const { return {grad, rows, cols}; }
    Tensor<float> weight() const { return {master, rows, cols}; }
};

struct AdamW {
    float lr, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0;
    float grad_scale = 1;
    float correction1 = 1, correction2 = 1; // 1 / (1 - beta^t)
    void set_step(int t) {
        correction1 = (float)(1 / (1 - std::pow((double)beta1, t)));
        correction2 = (float)(1 / (1 - std::pow((double)beta2, t)));
    }
};

// A pack of w, m and v moves one step. Traffic per element: reads w, m, v, grad, writes w, m, v: 28 bytes.
__device__ inline Pack<float> adamw_pack(float* w, float* m, float* v, const float* grad, const AdamW& a, size_t i, size_t end) {
    constexpr int N = PACK<float>;
    Pack<float> w_i = load_pack<N>(w, i, end), m_i = load_pack<N>(m, i, end), v_i = load_pack<N>(v, i, end);
    const Pack<float> grad_i = load_pack<N>(grad, i, end);
    for (int j = 0; j < N; j++) {
        float g = grad_i[j] * a.grad_scale;
        m_i[j] += (1 - a.beta1) * (g - m_i[j]);
        v_i[j] += (1 - a.beta2) * (g * g - v_i[j]);
        float update = (m_i[j] * a.correction1) / (sqrtf(v_i[j] * a.correction2) + a.eps) + a.weight_decay * w_i[j];
        w_i[j] -= a.lr * update;
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
        const Pack<float> w_i = adamw_pack(w, m, v, grad, a, i, chunk.end);
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
    quantise_each<PACK<float>>(low, low_t, stats, scale, rows, cols, [=](size_t i, size_t end) { return adamw_pack(w, m, v, grad, a, i, end); });
}

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

// Round every master to its copy: after initialisation, or after the masters were replaced.
inline void round_weights(std::vector<Parameter>& parameters, CastStats* stats) {
    fill_zero(stats, parameters.size() * sizeof(CastStats));
    for (Parameter& p : parameters) {
        if (is_fp8(p.format)) quantise(p.low, p.format, p.k, p.stats, p.weight(), p.low_t);
        else measure(p.stats, p.weight());
        if (p.format == BF16) launch(round_kernel<bf16>, chunks(p.size()), BLOCK, (bf16*)p.low, (const float*)p.master, p.size());
        if (p.format == FP16) launch(round_kernel<fp16>, chunks(p.size()), BLOCK, (fp16*)p.low, (const float*)p.master, p.size());
    }
    quantise_weights(parameters, stats);
}

// One AdamW step on every tensor and its copy. Gradients must be finite: the caller has checked.
inline void adamw_update(std::vector<Parameter>& parameters, CastStats* stats, AdamW step) {
    fill_zero(stats, parameters.size() * sizeof(CastStats));
    for (Parameter& p : parameters) {
        AdamW a = step;
        if (!p.matrix) a.weight_decay = 0;
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
