// attention.cuh -- each token looks back at the tokens before it: scores, softmax, values, each step in the open.
//
//   S = q k^T / sqrt(hs)      P = softmax over j <= t of S[t, j], 0 for j > t      y = P v
//   dv = P^T dy      dP = dy v^T      dS = P * (dP - sum_j P dP) / sqrt(hs)      dq = dS k      dk = dS^T q
//
// Source   Vaswani et al. 2017, arXiv:1706.03762, section 3.2
// Shapes   qkv (BT, 3C): q | k | v, heads side by side in each; y (BT, C); S, P (B heads T, T); hs = C / heads
// Formats  q, k, v, y, P, dS in the stored format; S, dP and the softmax in FP32
// Why      four small products and a softmax that a reader can follow. P costs T / hs times the memory of a head's
//          output; flash_attention.cuh never stores it, and is tested against this file.
// Tests    tests/test_attention.cu     Times  bench.cu, bench_attention
#pragma once
#include "exp.cuh"
#include "matmul.cuh"

// P[r, :] = softmax(scale * S[r, 0..t]), then zeros; t = r % T. One warp per row: max, sum, write. S is overwritten by
// e^(scale * (S - max)), so that each e^x is computed once.
template <class T>
__global__ void causal_softmax_forward_kernel(T* p, float* s, float scale, int rows, int length) {
    const int r = row_of_warp(), lane = threadIdx.x;
    if (r >= rows) return;
    const int visible = r % length + 1;
    float* s_r = s + (size_t)r * length;
    T* p_r = p + (size_t)r * length;

    const float largest = warp_largest(s_r, visible);
    float sum = 0;
    for (int j = lane; j < visible; j += WARP) {
        const float e = exp_fp32(scale * (s_r[j] - largest));
        s_r[j] = e;
        sum += e;
    }
    const float inverse = 1.0f / warp_sum(sum);
    for (int j = lane; j < visible; j += WARP) p_r[j] = round_to<T>(s_r[j] * inverse);
    for (int j = visible + lane; j < length; j += WARP) p_r[j] = round_to<T>(0.0f);
}

// dS[r, :] = P * (dP - sum_j P dP) * scale for j <= t, then zeros. One warp per row.
template <class T>
__global__ void causal_softmax_backward_kernel(T* ds, const float* dp, const T* p, float scale, int rows, int length) {
    const int r = row_of_warp(), lane = threadIdx.x;
    if (r >= rows) return;
    const int visible = r % length + 1;
    const float* dp_r = dp + (size_t)r * length;
    const T* p_r = p + (size_t)r * length;
    T* ds_r = ds + (size_t)r * length;

    float sum = 0;
    for (int j = lane; j < visible; j += WARP) sum += to_float(p_r[j]) * dp_r[j];
    sum = warp_sum(sum);
    for (int j = lane; j < visible; j += WARP) ds_r[j] = round_to<T>(to_float(p_r[j]) * (dp_r[j] - sum) * scale);
    for (int j = visible + lane; j < length; j += WARP) ds_r[j] = round_to<T>(0.0f);
}

// The views of one attention: head h of example b lies at column h * hs of row b * T.
template <class T>
struct Heads {
    int B, length, heads, hs, C;
    // Part 0, 1, 2 of a (BT, 3C) buffer, q, k or v, as (B, heads) matrices of (T, hs).
    Operand part(Tensor<T> qkv, int which) const {
        return {qkv.data + which * C, format_of<T>, 0, 3 * C, 1, (int64_t)length * 3 * C, hs};
    }
    Output part_out(Tensor<T> qkv, int which) const { return {qkv.data + which * C, format_of<T>, 3 * C, (int64_t)length * 3 * C, hs}; }
    Operand merged(Tensor<T> y) const { return {y.data, format_of<T>, 0, C, 1, (int64_t)length * C, hs}; }
    Output merged_out(Tensor<T> y) const { return {y.data, format_of<T>, C, (int64_t)length * C, hs}; }
    // (B, heads) matrices of (T, T)
    Operand square(Tensor<T> p) const { return {p.data, format_of<T>, 0, length, 1, (int64_t)heads * length * length, (int64_t)length * length}; }
    Output square_out(Tensor<float> s) const { return {s.data, FP32, length, (int64_t)heads * length * length, (int64_t)length * length}; }
    float scale() const { return 1.0f / std::sqrt((float)hs); }
};

template <class T>
Heads<T> split_heads(Tensor<T> qkv, int length, int heads) {
    const int C = qkv.cols / 3;
    ENSURE(C * 3 == qkv.cols && C % heads == 0, "%d columns of qkv do not split into 3 x %d heads", qkv.cols, heads);
    ENSURE(qkv.rows % length == 0, "%d rows of qkv are not whole examples of %d tokens", qkv.rows, length);
    return {qkv.rows / length, length, heads, C / heads, C};
}

// y (BT, C) = softmax(q k^T / sqrt(hs)) v, causal. Keeps p (B heads T, T) for backward; s of that size is scratch.
template <class T>
void attention_forward(Tensor<T> y, Tensor<T> p, Tensor<float> s, Tensor<T> qkv, int length, int heads) {
    Heads<T> h = split_heads(qkv, length, heads);
    ENSURE(p.size() == (size_t)h.B * heads * length * length && s.size() == p.size(), "p has %zu elements, s %zu", p.size(), s.size());
    ENSURE(y.rows == qkv.rows && y.cols == h.C, "y is (%d,%d), qkv is (%d,%d)", y.rows, y.cols, qkv.rows, qkv.cols);
    matmul(h.square_out(s), h.part(qkv, 0), h.part(qkv, 1).transposed(), {length, length, h.hs, h.B, heads}); // S = q k^T
    launch(causal_softmax_forward_kernel<T>, row_blocks(p.rows), row_threads(), p.data, s.data, h.scale(), p.rows, length);
    matmul(h.merged_out(y), h.square(p), h.part(qkv, 2), {length, h.hs, length, h.B, heads}); // y = P v
}

// y_h = softmax(q k^T / sqrt(hs)) v for the last row's q. One warp per head: its lanes share out the keys, then the channels. On the way p (heads, length) is s.
template <class T>
__global__ void attention_of_last_kernel(T* y, float* s, const T* qkv, float scale, int length, int C, int hs) {
    constexpr int N = WIDE<T>;
    const int h = blockIdx.x, lane = threadIdx.x;
    const T *k = qkv + C + h * hs, *v = k + C, *q = qkv + (size_t)(length - 1) * 3 * C + h * hs;
    float *s_h = s + (size_t)h * length, sum = 0;
    for (int j = lane; j < length; j += WARP) {
        float dot = 0;
        for (int c = 0; c < hs; c++) dot += to_float(q[c]) * to_float(k[(size_t)j * 3 * C + c]);
        s_h[j] = dot;
    }
    const float largest = warp_largest(s_h, length);
    for (int j = lane; j < length; j += WARP) sum += s_h[j] = exp_fp32(scale * (s_h[j] - largest));
    const float inverse = 1.0f / warp_sum(sum);
    __syncwarp(); // each lane has written its e^s before all lanes read all
    for (int c = lane * N; c < hs; c += WARP * N) {
        Pack<float, N> total = {};
        for (int j = 0; j < length; j++) {
            const Pack<T, N> v_j = load_pack<N>(v + (size_t)j * 3 * C, c, hs);
            for (int i = 0; i < N; i++) total[i] += s_h[j] * to_float(v_j[i]);
        }
        Pack<T, N> y_c;
        for (int i = 0; i < N; i++) y_c[i] = round_to<T>(total[i] * inverse);
        store_pack(y + h * hs, c, hs, y_c);
    }
}

// y (1, C) = row length - 1 of what attention_forward gives for qkv (length, 3C): of a token that was just read, after all others.
template <class T>
void attention_of_last(Tensor<T> y, Tensor<float> s, Tensor<T> qkv, int heads) {
    const Heads<T> h = split_heads(qkv, qkv.rows, heads);
    ENSURE(y.rows == 1 && y.cols == h.C && s.size() >= (size_t)heads * qkv.rows, "y is (%d,%d), qkv is (%d,%d), s has %zu elements", y.rows, y.cols, qkv.rows, qkv.cols, s.size());
    launch(attention_of_last_kernel<T>, heads, WARP, y.data, s.data, (const T*)qkv.data, h.scale(), qkv.rows, h.C, h.hs);
}

// dqkv (BT, 3C) = d loss/d qkv from dy (BT, C) and forward's p. dp (FP32) and ds, of p's size, are scratch.
template <class T>
void attention_backward(Tensor<T> dqkv, Tensor<T> dy, Tensor<T> p, Tensor<T> qkv, Tensor<float> dp, Tensor<T> ds, int length, int heads) {
    Heads<T> h = split_heads(qkv, length, heads);
    ENSURE(dqkv.size() == qkv.size(), "dqkv has %zu elements, qkv %zu", dqkv.size(), qkv.size());
    ENSURE(dy.rows == qkv.rows && dy.cols == h.C, "dy is (%d,%d), qkv is (%d,%d)", dy.rows, dy.cols, qkv.rows, qkv.cols);
    ENSURE(p.size() == (size_t)h.B * heads * length * length && dp.size() == p.size() && ds.size() == p.size(),
           "p has %zu elements, dp %zu, ds %zu", p.size(), dp.size(), ds.size());
    matmul(h.part_out(dqkv, 2), h.square(p).transposed(), h.merged(dy), {length, h.hs, length, h.B, heads}); // dv = P^T dy
    matmul(h.square_out(dp), h.merged(dy), h.part(qkv, 2).transposed(), {length, length, h.hs, h.B, heads}); // dP = dy v^T
    launch(causal_softmax_backward_kernel<T>, row_blocks(p.rows), row_threads(), ds.data, (const float*)dp.data, (const T*)p.data,
           h.scale(), p.rows, length);
    matmul(h.part_out(dqkv, 0), h.square(ds), h.part(qkv, 1), {length, h.hs, length, h.B, heads});              // dq = dS k
    matmul(h.part_out(dqkv, 1), h.square(ds).transposed(), h.part(qkv, 0), {length, h.hs, length, h.B, heads}); // dk = dS^T q
}
