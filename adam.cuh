// adam.cuh -- the optimizer: AdamW on FP32 master weights, which are then rounded to what the products read.
//
//   g = grad * scale                  scale = clip / (loss scale): clipping and unscaling are one multiplication
//   m = b1 m + (1-b1) g               v = b2 v + (1-b2) g^2
//   w = w - lr * weight_decay * w - lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)           decay on matrices only
//   low = round(w * 2^k)              k from the amax of the new w, measured in the same pass: never late
//
// Source   Loshchilov, Hutter 2017, arXiv:1711.05101, algorithm 2; Kingma, Ba 2014, arXiv:1412.6980
// Units    t counts applied updates: a skipped step is not one
// Formats  w, m, v, grad, average and every scalar in FP32; low in the recipe's weight format
// Why      near 1.0 BF16 numbers are 2^-7 apart: a weight kept in BF16 rounds an update of 1e-3 away, every time, and
//          beta2 = 0.999 kept in BF16 is 1. So the masters move, and the copy that products read follows.
// Tests    tests/test_adam.cu     Times  bench.cu, bench_adamw
#pragma once
#include "matmul.cuh"
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

// One block per CHUNK elements. Traffic per element: reads w, m, v, grad, writes w, m, v: 28 bytes, and the copy.
// Low is the format of a 16-bit copy; float: no copy here (FP32 needs none, FP8 must know amax first).
template <class Low>
__global__ void adamw_kernel(float* w, float* m, float* v, Low* low, CastStats* stats, const float* grad, AdamW a, size_t n) {
    CastStats s = {};
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) {
        float g = grad[i] * a.grad_scale;
        float m_i = m[i] + (1 - a.beta1) * (g - m[i]);
        float v_i = v[i] + (1 - a.beta2) * (g * g - v[i]);
        float update = (m_i * a.correction1) / (sqrtf(v_i * a.correction2) + a.eps) + a.weight_decay * w[i];
        float w_i = w[i] - a.lr * update;
        m[i] = m_i, v[i] = v_i, w[i] = w_i;
        if constexpr (sizeof(Low) == 2) low[i].bits = round_to<Low>(w_i).bits; // a store of the whole struct would not vectorise
        count_value(s, w_i);
    }
    publish(stats, s);
}

// low = round(w). One block per CHUNK elements.
template <class Low>
__global__ void round_kernel(Low* low, const float* w, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) low[i] = round_to<Low>(w[i]);
}

// average += (1 - decay) * (w - average). One block per CHUNK elements.
template <class T>
__global__ void average_kernel(T* average, const T* w, T decay, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) average[i] += (1 - decay) * (w[i] - average[i]);
}

// FP8 copies, once the amax of every new weight is known: one read-back for all tensors. `stats` are all tensors' statistics.
inline void quantise_weights(std::vector<Parameter>& parameters, CastStats* stats) {
    if (std::none_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return is_fp8(p.format); })) return;
    std::vector<CastStats> seen(parameters.size());
    copy_to_host(seen.data(), stats, seen.size());
    for (Parameter& p : parameters) {
        if (!is_fp8(p.format)) continue;
        float amax = seen[p.stats - stats].amax();
        if (amax > 0) p.k = scale_exponent(p.format, amax);
        quantise(p.low, p.format, p.k, p.stats, p.weight());
    }
}

// Round every master to its copy: after initialisation, or after the masters were replaced.
inline void round_weights(std::vector<Parameter>& parameters, CastStats* stats) {
    fill_zero(stats, parameters.size() * sizeof(CastStats));
    for (Parameter& p : parameters) {
        measure(p.stats, p.weight());
        if (p.format == BF16) launch(round_kernel<bf16>, chunks(p.size()), BLOCK, (bf16*)p.low, (const float*)p.master, p.size());
        if (p.format == FP16) launch(round_kernel<fp16>, chunks(p.size()), BLOCK, (fp16*)p.low, (const float*)p.master, p.size());
    }
    quantise_weights(parameters, stats);
}

// One AdamW step on every tensor, then the copies. Gradients must be finite: the caller has checked.
inline void adamw_update(std::vector<Parameter>& parameters, CastStats* stats, AdamW step) {
    fill_zero(stats, parameters.size() * sizeof(CastStats));
    for (Parameter& p : parameters) {
        AdamW a = step;
        if (!p.matrix) a.weight_decay = 0;
        auto run = [&](auto low) {
            launch(adamw_kernel<decltype(low)>, chunks(p.size()), BLOCK, p.master, p.m, p.v, (decltype(low)*)p.low, p.stats,
                   (const float*)p.grad, a, p.size());
        };
        if (p.format == BF16) run(bf16());
        else if (p.format == FP16) run(fp16());
        else run(float());
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
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) {
        T a_i = a[i];
        a[i] = b[i], b[i] = a_i;
    }
}

// ==== the norm of all gradients ======================================================================================

// partial[block] = sum over CHUNK elements of (g * scale)^2
template <class T>
__global__ void square_sum_kernel(float* partial, const T* g, float scale, size_t n) {
    float sum = 0;
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) sum += (g[i] * scale) * (g[i] * scale);
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
