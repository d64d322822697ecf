// crossentropy.cuh -- how surprised the model is by the next token, and the gradient of that surprise, in one kernel.
//
//   lse = log sum_v e^logit[v]          loss[bt] = lse - logit[target]
//   dlogit[v] = (e^(logit[v] - lse) - [v = target]) * dloss          dloss = loss scale / number of tokens
//
// Shapes   logits, dlogits (BT, cols), cols >= V    loss (BT)    Units  nats per token
// Formats  logits and loss in FP32, dlogits in the stored format
// Why      log-sum-exp with the largest logit taken out: e^12 already overflows FP16, and 4096 equal logits summed in
//          FP16 would make probabilities that add up to 2. The probabilities themselves are never stored.
// Tests    tests/test_crossentropy.cu     Times  bench.cu, bench_crossentropy
#pragma once
#include "bf16.cuh"
#include "exp.cuh"
#include "pack.cuh"

// One warp per token; lane l owns packs l, l+WARP, ... Reads its row of logits three times (from cache where it fits),
// writes dlogits once, unless that is null. dlogits[bt, :] begins `stride` elements after the row before.
template <class T, int W>
__global__ void crossentropy_kernel(float* loss, T* dlogits, const float* logits, const int* target, float dloss, int BT, int V, int cols, size_t stride) {
    constexpr int N = PACK<float>;
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const float* logits_bt = logits + (size_t)bt * cols;
    const int right = target[bt];

    const float largest = warp_largest(logits_bt, V);
    float sum = 0;
    for (int v = lane * N; v < V; v += WARP * N) {
        const Pack<float> l = load_pack<N>(logits_bt, v, V);
        for (int j = 0; j < N; j++) sum += N == 1 || v + j < V ? exp_fp32(l[j] - largest) : 0;
    }
    sum = warp_sum(sum);
    if (lane == 0) loss[bt] = logf(sum) - (logits_bt[right] - largest);

    if (!dlogits) return;
    T* dlogits_bt = dlogits + bt * stride;
    const float scale = dloss / sum;
    for (int first = 0; first < V; first += WARP * W) {
        const int v = first + lane * W;
        const Pack<float, W> l = load_pack<W>(logits_bt, v, V);
        Pack<T, W> d;
        for (int j = 0; j < W; j++) d[j] = round_to<T>(exp_fp32(l[j] - largest) * scale - (v + j == right ? dloss : 0));
        __syncwarp(); // in place: the warp has read these logits, and lane 0 the target's, before dlogits take their place
        store_pack(dlogits_bt, v, V, d);
    }
    for (int v = V + lane; v < cols; v += WARP) dlogits_bt[v] = round_to<T>(0);
}

// loss (BT) = -log softmax(logits)[target];  dlogits (BT, cols) = dloss * d loss/d logits, unless dlogits.data is null.
// The vocabulary is the first `vocab` columns, by default all: the others are padding, whose dlogits are 0.
// dlogits may lie where the logits lie: each row of it then begins where the row of logits did, so that rows of a 16-bit T
// are 2 * cols elements apart.
template <class T>
void crossentropy(Tensor<float> loss, Tensor<T> dlogits, Tensor<float> logits, const int* target, float dloss, int vocab = -1) {
    const int V = vocab < 0 ? logits.cols : vocab;
    const bool in_place = (void*)dlogits.data == (void*)logits.data;
    ENSURE((int)loss.size() == logits.rows, "%zu losses for %d rows of logits", loss.size(), logits.rows);
    ENSURE(!dlogits.data || dlogits.size() == logits.size(), "dlogits has %zu elements, logits %zu", dlogits.size(), logits.size());
    ENSURE(V <= logits.cols, "a vocabulary of %d in %d columns", V, logits.cols);
    constexpr int N = PACK<float>, W = sizeof(T) < sizeof(float) ? WIDE<float> : N; // in place a CPU too reads ahead of what it writes
    launch(in_place ? crossentropy_kernel<T, W> : crossentropy_kernel<T, N>, row_blocks(logits.rows), row_threads(), loss.data, dlogits.data, (const float*)logits.data, target,
           dloss, logits.rows, V, logits.cols, (in_place ? sizeof(float) / sizeof(T) : 1) * (size_t)logits.cols);
}
