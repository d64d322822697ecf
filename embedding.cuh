// embedding.cuh -- a token and its position become a vector.
//
//   x[b, t, :] = wte[token[b, t], :] + wpe[t, :]
//   dwte[v, :] += sum over (b, t) with token[b, t] = v of dx[b, t, :]        dwpe[t, :] += sum_b dx[b, t, :]
//
// Source   Radford et al. 2019 (GPT-2): learned positions
// Shapes   x, dx (BT, C)    wte (V, C)    wpe (context, C)    token (B, T)
// Formats  x, dx, wte, wpe in the stored format; dwte, dwpe and the sums in FP32
// Why      many tokens of a batch are the same: adding their gradients with float atomics gives another order, and
//          another sum, at every run. The host sorts the positions by token, keeping their order, and one warp adds
//          the positions of one token in that order.
// Tests    tests/test_embedding.cu     Times  bench.cu, bench_embedding
#pragma once
#include <algorithm>
#include "bf16.cuh"
#include "pack.cuh"

// The tokens of a batch on the machine, and their positions grouped by token: those of the d-th distinct token are
// position[start[d]] .. position[start[d+1] - 1], in rising order.
struct TokenBatch {
    int B = 0, T = 0, distinct = 0;
    const int *token = nullptr, *target = nullptr, *position = nullptr, *start = nullptr; // on the machine
};

// Fills a TokenBatch from host tokens x and targets y (B, T). `memory` holds 4 B T + 1 ints on the machine.
inline TokenBatch upload_batch(int* memory, const std::vector<int>& x, const std::vector<int>& y, int B, int T, int vocab) {
    const int BT = B * T;
    ENSURE((int)x.size() == BT && (int)y.size() == BT, "%zu tokens and %zu targets for B=%d T=%d", x.size(), y.size(), B, T);
    for (int bt = 0; bt < BT; bt++)
        ENSURE(x[bt] >= 0 && x[bt] < vocab && y[bt] >= 0 && y[bt] < vocab, "token %d or target %d at %d is outside a vocabulary of %d",
               x[bt], y[bt], bt, vocab);
    std::vector<int> all(4 * (size_t)BT + 1);
    int *token = all.data(), *target = token + BT, *position = target + BT, *start = position + BT;
    std::copy(x.begin(), x.end(), token);
    std::copy(y.begin(), y.end(), target);
    for (int bt = 0; bt < BT; bt++) position[bt] = bt;
    std::stable_sort(position, position + BT, [&](int a, int b) { return x[a] < x[b]; });
    int distinct = 0;
    for (int i = 0; i < BT; i++)
        if (i == 0 || x[position[i]] != x[position[i - 1]]) start[distinct++] = i;
    start[distinct] = BT;
    copy_to_machine(memory, all.data(), all.size());
    return {B, T, distinct, memory, memory + BT, memory + 2 * BT, memory + 3 * BT};
}

// One warp per token of the batch; lane l owns packs of channels l, l+WARP, ... Reads two rows, writes one.
template <class T>
__global__ void embedding_forward_kernel(T* x, const int* token, const T* wte, const T* wpe, int BT, int length, int C) {
    constexpr int N = PACK<T>;
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const T *wte_v = wte + (size_t)token[bt] * C, *wpe_t = wpe + (size_t)(bt % length) * C;
    T* x_bt = x + (size_t)bt * C;
    for (int c = lane * N; c < C; c += WARP * N) {
        const Pack<T> token_c = load_pack<N>(wte_v, c, C), position_c = load_pack<N>(wpe_t, c, C);
        Pack<T> x_c;
        for (int j = 0; j < N; j++) x_c[j] = round_to<T>(to_float(token_c[j]) + to_float(position_c[j]));
        store_pack(x_bt, c, C, x_c);
    }
}

// x (BT, C) = wte[token] + wpe[position].  Aborts if the batch is longer than wpe.
template <class T>
void embedding_forward(Tensor<T> x, const TokenBatch& batch, Tensor<T> wte, Tensor<T> wpe) {
    ENSURE(x.rows == batch.B * batch.T && x.cols == wte.cols, "x is (%d,%d), expected (%d,%d)", x.rows, x.cols, batch.B * batch.T, wte.cols);
    ENSURE(batch.T <= wpe.rows && wpe.cols == wte.cols, "%d positions in the batch, wpe is (%d,%d)", batch.T, wpe.rows, wpe.cols);
    launch(embedding_forward_kernel<T>, row_blocks(x.rows), row_threads(), x.data, batch.token, (const T*)wte.data,
           (const T*)wpe.data, x.rows, batch.T, x.cols);
}

// sum[c] += sum_i dx[row(i), c], i < n, in this order. On a GPU a pack of sums stays in registers; one lane alone goes row
// by row, with unit stride.
template <class T, class F>
__device__ void add_rows(float* sum, const T* dx, int n, int C, F row) {
    constexpr int N = PACK<float>;
    if constexpr (WARP == 1) {
        for (int i = 0; i < n; i++) {
            const T* dx_i = dx + (size_t)row(i) * C;
            for (int c = 0; c < C; c++) sum[c] += to_float(dx_i[c]);
        }
        return;
    }
    const int c = (blockIdx.y * WARP + threadIdx.x) * N;
    if (c >= C) return;
    Pack<float, N> total = load_pack<N>(sum, c, C);
    for (int i = 0; i < n; i++) {
        const Pack<T, N> dx_c = load_pack<N>(dx + (size_t)row(i) * C, c, C);
        for (int j = 0; j < N; j++) total[j] += to_float(dx_c[j]);
    }
    store_pack(sum, c, C, total);
}
// Warps that one row of sums takes.
inline unsigned add_rows_blocks(int C) { return WARP == 1 ? 1 : ceil_div(C, WARP * PACK<float>); }

// One warp per distinct token and WARP packs of its channels: it walks that token's positions in order. Reads dx once.
template <class T>
__global__ void embedding_backward_tokens_kernel(float* dwte, const int* token, const int* position, const int* start, const T* dx,
                                                 int distinct, int C) {
    const int d = row_of_warp();
    if (d >= distinct) return;
    const int* position_d = position + start[d];
    add_rows(dwte + (size_t)token[position_d[0]] * C, dx, start[d + 1] - start[d], C, [=](int i) { return position_d[i]; });
}

// One warp per position t and WARP packs of its channels: it walks the examples in order. Reads dx once.
template <class T>
__global__ void embedding_backward_positions_kernel(float* dwpe, const T* dx, int B, int length, int C) {
    const int t = row_of_warp();
    if (t < length) add_rows(dwpe + (size_t)t * C, dx, B, C, [=](int b) { return b * length + t; });
}

// dwte (V, C) += and dwpe (context, C) +=
template <class T>
void embedding_backward(Tensor<float> dwte, Tensor<float> dwpe, const TokenBatch& batch, Tensor<T> dx) {
    ENSURE(dx.rows == batch.B * batch.T && dx.cols == dwte.cols, "dx is (%d,%d), expected (%d,%d)", dx.rows, dx.cols, batch.B * batch.T, dwte.cols);
    ENSURE(batch.T <= dwpe.rows && dwpe.cols == dwte.cols, "%d positions in the batch, dwpe is (%d,%d)", batch.T, dwpe.rows, dwpe.cols);
    launch(embedding_backward_tokens_kernel<T>, dim3(row_blocks(batch.distinct), add_rows_blocks(dx.cols)), row_threads(), dwte.data, batch.token, batch.position,
           batch.start, (const T*)dx.data, batch.distinct, dx.cols);
    launch(embedding_backward_positions_kernel<T>, dim3(row_blocks(batch.T), add_rows_blocks(dx.cols)), row_threads(), dwpe.data, (const T*)dx.data, batch.B, batch.T, dx.cols);
}
