// crossentropy.cuh -- how surprised the model is by the next token, and the gradient of that surprise, in one kernel.
//
//   lse = log sum_v e^logit[v]          loss[bt] = lse - logit[target]
//   dlogit[v] = (e^(logit[v] - lse) - [v = target]) * dloss          dloss = loss scale / number of tokens
//
// Shapes   logits, dlogits (BT, V)    loss (BT)            Units  nats per token
// Formats  logits and loss in FP32, dlogits in the stored format
// Why      log-sum-exp with the largest logit taken out: e^12 already overflows FP16, and 4096 equal logits summed in
//          FP16 would make probabilities that add up to 2. The probabilities themselves are never stored.
// Tests    tests/test_crossentropy.cu     Times  bench.cu, bench_crossentropy
#pragma once
#include "bf16.cuh"
#include "exp.cuh"

// One warp per token. Reads its row of logits three times (from cache), writes dlogits once; dlogits may be null.
template <class T>
__global__ void crossentropy_kernel(float* loss, T* dlogits, const float* logits, const int* target, float dloss, int BT, int V) {
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const float* logits_bt = logits + (size_t)bt * V;

    const float largest = warp_largest(logits_bt, V);
    float sum = 0;
    for (int v = lane; v < V; v += WARP) sum += exp_fp32(logits_bt[v] - largest);
    sum = warp_sum(sum);
    if (lane == 0) loss[bt] = logf(sum) - (logits_bt[target[bt]] - largest);

    if (!dlogits) return;
    T* dlogits_bt = dlogits + (size_t)bt * V;
    const float scale = dloss / sum;
    for (int v = lane; v < V; v += WARP) dlogits_bt[v] = round_to<T>(exp_fp32(logits_bt[v] - largest) * scale);
    if (lane == target[bt] % WARP) {
        int v = target[bt];
        dlogits_bt[v] = round_to<T>(exp_fp32(logits_bt[v] - largest) * scale - dloss);
    }
}

// loss (BT) = -log softmax(logits)[target];  dlogits (BT, V) = dloss * d loss/d logits, unless dlogits.data is null.
template <class T>
void crossentropy(Tensor<float> loss, Tensor<T> dlogits, Tensor<float> logits, const int* target, float dloss) {
    ENSURE((int)loss.size() == logits.rows, "%zu losses for %d rows of logits", loss.size(), logits.rows);
    ENSURE(!dlogits.data || dlogits.size() == logits.size(), "dlogits has %zu elements, logits %zu", dlogits.size(), logits.size());
    launch(crossentropy_kernel<T>, row_blocks(logits.rows), row_threads(), loss.data, dlogits.data, (const float*)logits.data, target,
           dloss, logits.rows, logits.cols);
}
