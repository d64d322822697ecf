// layernorm.cuh -- normalise each token's C channels, then scale and shift them.
//
//   mean = 1/C sum_c x             rstd = 1 / sqrt(1/C sum_c (x - mean)^2 + eps)
//   xhat = (x - mean) * rstd       y = xhat * gamma + beta
//
//   g = dy * gamma                 dx += rstd * (g - 1/C sum_c g - xhat * 1/C sum_c g * xhat)
//   dgamma += sum_bt dy * xhat     dbeta += sum_bt dy
//
// Source   Ba, Kiros, Hinton 2016, "Layer Normalization", arXiv:1607.06450, eq. 4
// Shapes   x, y, dx, dy (BT, C)    mean, rstd (BT)    gamma, beta (C)      BT = B*T tokens
// Formats  x, y, dx, dy in the stored format; gamma, beta, mean, rstd and every sum in FP32
// Why      a BF16 running sum of equal terms stops growing at 256 terms: sum in FP32, store in BF16
// Tests    tests/test_layernorm.cu     Times  bench.cu, bench_layernorm
#pragma once
#include "bf16.cuh"
#include "column_sum.cuh"

constexpr float LAYERNORM_EPS = 1e-5f;

struct LayerNorm {
    Tensor<float> gamma, beta;   // (1, C) each
    Tensor<float> dgamma, dbeta; // their gradients
};

// One warp per token. Lane l owns channels l, l+WARP, ...: neighbouring lanes read neighbouring addresses.
template <class T>
__global__ void layernorm_forward_kernel(T* y, float* mean, float* rstd, const T* x, const float* gamma, const float* beta,
                                         int BT, int C) {
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const T* x_bt = x + (size_t)bt * C; // x[bt, :]
    T* y_bt = y + (size_t)bt * C;

    float sum = 0;
    for (int c = lane; c < C; c += WARP) sum += to_float(x_bt[c]);
    const float mu = warp_sum(sum) / C;

    // A second pass over x: E[x^2] - E[x]^2 in one pass cancels badly when |mean| >> std.
    float square = 0;
    for (int c = lane; c < C; c += WARP) {
        float centred = to_float(x_bt[c]) - mu;
        square += centred * centred;
    }
    const float rs = 1.0f / sqrtf(warp_sum(square) / C + LAYERNORM_EPS);

    for (int c = lane; c < C; c += WARP) y_bt[c] = round_to<T>((to_float(x_bt[c]) - mu) * rs * gamma[c] + beta[c]);
    if (lane == 0) mean[bt] = mu, rstd[bt] = rs; // backward reuses them
}

// y = layernorm(x).  Writes y (BT, C) and mean, rstd (BT, 1).  Aborts if the shapes disagree.
template <class T>
void layernorm_forward(Tensor<T> y, Tensor<float> mean, Tensor<float> rstd, Tensor<T> x, const LayerNorm& w) {
    ENSURE(y.rows == x.rows && y.cols == x.cols, "y is (%d,%d), x is (%d,%d)", y.rows, y.cols, x.rows, x.cols);
    ENSURE(w.gamma.cols == x.cols, "gamma has %d channels, x has %d", w.gamma.cols, x.cols);
    ENSURE(mean.rows == x.rows && rstd.rows == x.rows, "%d means and %d rstds for %d rows of x", mean.rows, rstd.rows, x.rows);
    launch(layernorm_forward_kernel<T>, row_blocks(x.rows), row_threads(), y.data, mean.data, rstd.data, (const T*)x.data,
           (const float*)w.gamma.data, (const float*)w.beta.data, x.rows, x.cols);
}

// dx += ...: one warp per token, two passes: the two means, then the gradient.
template <class T>
__global__ void layernorm_backward_input_kernel(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
                                                const float* gamma, int BT, int C) {
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const T *dy_bt = dy + (size_t)bt * C, *x_bt = x + (size_t)bt * C;
    T* dx_bt = dx + (size_t)bt * C;
    const float mu = mean[bt], rs = rstd[bt];

    float sum_g = 0, sum_g_xhat = 0;
    for (int c = lane; c < C; c += WARP) {
        float g = to_float(dy_bt[c]) * gamma[c];
        sum_g += g;
        sum_g_xhat += g * (to_float(x_bt[c]) - mu) * rs;
    }
    const float mean_g = warp_sum(sum_g) / C, mean_g_xhat = warp_sum(sum_g_xhat) / C;

    for (int c = lane; c < C; c += WARP) {
        float g = to_float(dy_bt[c]) * gamma[c], xhat = (to_float(x_bt[c]) - mu) * rs;
        dx_bt[c] = round_to<T>(to_float(dx_bt[c]) + rs * (g - mean_g - xhat * mean_g_xhat));
    }
}

// partial sums of dgamma and dbeta over a strip of tokens; the layout is column_sum.cuh's, dgamma's first.
template <class T>
__global__ void layernorm_backward_params_kernel(float* partial_dgamma, float* partial_dbeta, const T* dy, const T* x,
                                                 const float* mean, const float* rstd, int BT, int C) {
    Strip strip(BT, C);
    float dgamma[COLUMNS_PER_THREAD], dbeta[COLUMNS_PER_THREAD];
    for (int j = 0; j < strip.count; j++) dgamma[j] = dbeta[j] = 0;
    for (int bt = strip.row_begin; bt < strip.row_end; bt++) {
        const T *dy_bt = dy + (size_t)bt * C, *x_bt = x + (size_t)bt * C;
        const float mu = mean[bt], rs = rstd[bt];
        for (int j = 0; j < strip.count; j++) {
            float g = to_float(dy_bt[strip.column(j)]);
            dgamma[j] += g * (to_float(x_bt[strip.column(j)]) - mu) * rs;
            dbeta[j] += g;
        }
    }
    for (int j = 0; j < strip.count; j++) {
        partial_dgamma[(size_t)blockIdx.y * C + strip.column(j)] = dgamma[j];
        partial_dbeta[(size_t)blockIdx.y * C + strip.column(j)] = dbeta[j];
    }
}

// dx += d loss/d x,  w.dgamma +=,  w.dbeta +=.  `partial` is scratch of 2 * partial_floats(BT, C).
template <class T>
void layernorm_backward(Tensor<T> dx, const LayerNorm& w, Tensor<T> dy, Tensor<T> x, Tensor<float> mean, Tensor<float> rstd,
                        Tensor<float> partial) {
    ENSURE(dx.rows == x.rows && dx.cols == x.cols, "dx is (%d,%d), x is (%d,%d)", dx.rows, dx.cols, x.rows, x.cols);
    ENSURE(dy.rows == x.rows && dy.cols == x.cols, "dy is (%d,%d), x is (%d,%d)", dy.rows, dy.cols, x.rows, x.cols);
    ENSURE(w.gamma.cols == x.cols, "gamma has %d channels, x has %d", w.gamma.cols, x.cols);
    ENSURE(mean.rows == x.rows && rstd.rows == x.rows, "%d means and %d rstds for %d rows of x", mean.rows, rstd.rows, x.rows);
    const size_t half = partial_floats(x.rows, x.cols);
    ENSURE(partial.size() >= 2 * half, "scratch of %zu floats, %zu needed", partial.size(), 2 * half);
    launch(layernorm_backward_input_kernel<T>, row_blocks(x.rows), row_threads(), dx.data, (const T*)dy.data, (const T*)x.data,
           (const float*)mean.data, (const float*)rstd.data, (const float*)w.gamma.data, x.rows, x.cols);
    launch(layernorm_backward_params_kernel<T>, strip_blocks(x.rows, x.cols), BLOCK, partial.data, partial.data + half,
           (const T*)dy.data, (const T*)x.data, (const float*)mean.data, (const float*)rstd.data, x.rows, x.cols);
    add_partials(w.dgamma.data, partial.data, x.rows, x.cols);
    add_partials(w.dbeta.data, partial.data + half, x.rows, x.cols);
}
