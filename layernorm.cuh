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
// Formats  x, y, dx, dy in the stored format, FP8 codes of y on request; gamma, beta, mean, rstd and every sum in FP32
// Why      a BF16 running sum of equal terms stops growing at 256 terms: sum in FP32, store in BF16
// Tests    tests/test_layernorm.cu     Times  bench.cu, bench_layernorm
#pragma once
#include "column_sum.cuh"
#include "scaling.cuh"

constexpr float LAYERNORM_EPS = 1e-5f;

struct LayerNorm {
    Tensor<float> gamma, beta;   // (1, C) each
    Tensor<float> dgamma, dbeta; // their gradients
};

// One warp per token; lane l owns packs l, l+WARP, ... Reads x once from memory (then from cache), writes y.
// Y is T, or void where only codes of y are wanted; Q is the format of these codes, a byte more to write, or void: none.
template <class T, class Y, class Q>
__global__ void layernorm_forward_kernel(Y* y, float* mean, float* rstd, const T* x, const float* gamma,
                                         const float* beta, Q* codes, CastStats* stats, float scale, int BT, int C) {
    constexpr int N = PACK<T>;
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const T* x_bt = x + (size_t)bt * C; // x[bt, :]

    float sum = 0;
    for (int c = lane * N; c < C; c += WARP * N) {
        const Pack<T> x_c = load_pack<N>(x_bt, c, C);
        for (int j = 0; j < N; j++) sum += to_float(x_c[j]);
    }
    const float mu = warp_sum(sum) / C;

    // A second pass over x: E[x^2] - E[x]^2 in one pass cancels badly when |mean| >> std.
    float square = 0;
    for (int c = lane * N; c < C; c += WARP * N) {
        const Pack<T> x_c = load_pack<N>(x_bt, c, C);
        for (int j = 0; j < N; j++) {
            float centred = c + j < C ? to_float(x_c[j]) - mu : 0;
            square += centred * centred;
        }
    }
    const float rs = 1.0f / sqrtf(warp_sum(square) / C + LAYERNORM_EPS);
    if (lane == 0) mean[bt] = mu, rstd[bt] = rs; // backward reuses them

    constexpr int W = std::is_void_v<Q> ? PACK<T> : WIDE<T>;
    CastStats s = {};
    for (int c = lane * W; c < C; c += WARP * W) {
        const Pack<T, W> x_c = load_pack<W>(x_bt, c, C);
        const Pack<float, W> gamma_c = load_pack<W>(gamma, c, C), beta_c = load_pack<W>(beta, c, C);
        Pack<T, W> y_c;
        for (int j = 0; j < W; j++) y_c[j] = round_to<T>(W == 1 || c + j < C ? (to_float(x_c[j]) - mu) * rs * gamma_c[j] + beta_c[j] : 0);
        if constexpr (!std::is_void_v<Y>) store_pack(y + (size_t)bt * C, c, C, y_c);
        if constexpr (!std::is_void_v<Q>) {
            Pack<Q, W> codes_c;
            for (int j = 0; j < W; j++) codes_c[j] = code_of<Q>(s, to_float(y_c[j]), scale);
            store_pack(codes + (size_t)bt * C, c, C, codes_c);
        }
    }
    if constexpr (!std::is_void_v<Q>) publish(stats, s);
}

// y = layernorm(x).  Writes y (BT, C) and mean, rstd (BT, 1); with q also the codes of y, as quantise(q, f, k, stats, y) makes
// them: y.data may then be null. Aborts if the shapes disagree.
template <class T>
void layernorm_forward(Tensor<T> y, Tensor<float> mean, Tensor<float> rstd, Tensor<T> x, const LayerNorm& w, void* q = nullptr,
                       Format f = FP32, int k = 0, CastStats* stats = nullptr) {
    ENSURE(y.data || q, "neither y nor its codes are wanted");
    ENSURE(!y.data || (y.rows == x.rows && y.cols == x.cols), "y is (%d,%d), x is (%d,%d)", y.rows, y.cols, x.rows, x.cols);
    ENSURE(w.gamma.cols == x.cols, "gamma has %d channels, x has %d", w.gamma.cols, x.cols);
    ENSURE(mean.rows == x.rows && rstd.rows == x.rows, "%d means and %d rstds for %d rows of x", mean.rows, rstd.rows, x.rows);
    auto run = [&](auto* y_data, auto* codes) {
        using Y = std::remove_pointer_t<decltype(y_data)>;
        using Q = std::remove_pointer_t<decltype(codes)>;
        launch(layernorm_forward_kernel<T, Y, Q>, row_blocks(x.rows), row_threads(), y_data, mean.data, rstd.data, (const T*)x.data,
               (const float*)w.gamma.data, (const float*)w.beta.data, codes, stats, std::ldexp(1.0f, k), x.rows, x.cols);
    };
    if (!q) return run(y.data, q);
    if (WARP == 1 && y.data) return run(y.data, (void*)nullptr), quantise(q, f, k, stats, y); // arithmetic is the limit: apart they vectorise
    with_fp8(f, [&](auto zero) {
        if (y.data) run(y.data, (decltype(zero)*)q);
        else run((void*)nullptr, (decltype(zero)*)q);
    });
}

// dx += ...: one warp per token, two passes: the two means, then the gradient.
// Reads dy and x once from memory (then from cache), reads and writes dx.
template <class T>
__global__ void layernorm_backward_input_kernel(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
                                                const float* gamma, int BT, int C) {
    constexpr int N = PACK<T>;
    const int bt = row_of_warp(), lane = threadIdx.x;
    if (bt >= BT) return;
    const T *dy_bt = dy + (size_t)bt * C, *x_bt = x + (size_t)bt * C;
    T* dx_bt = dx + (size_t)bt * C;
    const float mu = mean[bt], rs = rstd[bt];

    float sum_g = 0, sum_g_xhat = 0;
    for (int c = lane * N; c < C; c += WARP * N) {
        const Pack<T> dy_c = load_pack<N>(dy_bt, c, C), x_c = load_pack<N>(x_bt, c, C);
        const Pack<float, N> gamma_c = load_pack<N>(gamma, c, C);
        for (int j = 0; j < N; j++) {
            float g = to_float(dy_c[j]) * gamma_c[j];
            sum_g += g;
            sum_g_xhat += g * (to_float(x_c[j]) - mu) * rs;
        }
    }
    const float mean_g = warp_sum(sum_g) / C, mean_g_xhat = warp_sum(sum_g_xhat) / C;

    for (int c = lane * N; c < C; c += WARP * N) {
        const Pack<T> dy_c = load_pack<N>(dy_bt, c, C), x_c = load_pack<N>(x_bt, c, C);
        const Pack<float, N> gamma_c = load_pack<N>(gamma, c, C);
        Pack<T> dx_c = load_pack<N>(dx_bt, c, C);
        for (int j = 0; j < N; j++) {
            float g = to_float(dy_c[j]) * gamma_c[j], xhat = (to_float(x_c[j]) - mu) * rs;
            dx_c[j] = round_to<T>(to_float(dx_c[j]) + rs * (g - mean_g - xhat * mean_g_xhat));
        }
        store_pack(dx_bt, c, C, dx_c);
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
