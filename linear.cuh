// linear.cuh -- y = x w^T + b: the operation whose operands a recipe may make 8 bits narrow.
//
//   forward    y  = cast(x) w^T + b
//   backward   dx = cast(dy) w          dw += cast(dy)^T cast(x)          db += sum over tokens of dy
//
// Source   arXiv:2209.05433, section 3: E4M3 for what goes forward, E5M2 for gradients
// Shapes   x, dx (BT, K)    y, dy (BT, N)    w, dw (N, K)    b, db (N)
// Formats  x, y, dx, dy in the stored format; cast() gives the recipe's input or gradient format: the stored one itself,
//          or FP8 codes with their exponent; w in the weight format; b, dw, db and all sums in FP32
// Why      both products of dy read the same cast, and dw reads the cast of x that forward read: a step that quantised
//          twice, with two scales, would not be the derivative of the forward pass it ran. Tensor cores read FP8 only
//          where the summed index lies contiguous: on a GPU codes that two products sum over have a transposed copy.
// Tests    tests/test_linear.cu     Times  bench.cu, bench_matmul
#pragma once
#include "column_sum.cuh"
#include "layernorm.cuh"
#include "matmul.cuh"
#include "shadow.cuh"

#if defined(ON_CPU)
constexpr bool BOTH_WAYS = false;
#else
constexpr bool BOTH_WAYS = true; // FP8 codes exist by row and by column
#endif

// One matrix, as products that sum along its rows and along its columns read it: the same view twice, or two copies.
struct Cast {
    Operand by_row, by_col;
};

// clang-format off
enum class Pass { train, evaluate, read }; // the last: of one text, for what may follow it
// clang-format on

// The input or the output gradient of a Linear, cast at every step: policy.cuh decides with which format and which scale.
struct CastSite {
    const Rules* rules = nullptr;
    const TensorState* state = nullptr;
    CastStats* stats = nullptr;  // on the machine: [0] of this step, [1] of whatever an evaluation casts
    ShadowPass* looks = nullptr; // set while a shadow pass looks at what is cast: at `shadow`
    Shadow shadow;
    bool has_first_k = false; // a first scale is of the first micro-batch, and the same for all of its step's
    int first_k = 0;

    Format format() const { return state->format; }
    bool scale_is_known() const { return !needs_own_amax(*rules, *state); }

    // The exponent to cast x with. The first use is measured, not guessed: a scale of 1 would flush a gradient of 1e-6.
    template <class T>
    int exponent_for(Tensor<T> x, Pass pass) {
        if (scale_is_known()) return state->k;
        if (has_first_k) return first_k;
        CastStats* scratch = stats + 1;
        fill_zero(scratch, sizeof(CastStats));
        measure(scratch, x);
        CastStats seen;
        copy_to_host(&seen, scratch, 1);
        const int k = cast_exponent(*rules, *state, seen.amax_bits);
        if (pass == Pass::train && keeps_scale(*rules, *state) && seen.amax_bits) has_first_k = true, first_k = k;
        return k;
    }
};

struct Linear {
    Cast w = {};             // (N, K), as rounded after the last optimizer step
    Tensor<float> b, dw, db; // (1, N), (N, K), (1, N)
    CastSite x, dy;
    Operand x_read = {}; // what forward read: kept for dw
};

// x as the products read it, shown to the shadow pass if there is one.
template <class T>
Cast shown(CastSite& site, Tensor<T> x, Cast read) {
    if (site.looks) site.shadow = look_at(*site.looks, x, read.by_row.format, read.by_row.k, site.state->role, site.rules->margin);
    return read;
}
template <class T>
Cast uncast(CastSite& site, Tensor<T> x) {
    return shown(site, x, {operand(x), operand(x)});
}

// FP8 codes as operands: (rows, cols) in q, and where qt is given the same codes as (cols, rows) there.
inline Cast codes_of(const CastSite& site, int k, const uint8_t* q, const uint8_t* qt, int rows, int cols) {
    const Operand by_row = {q, site.format(), k, cols, 1, 0, 0}, by_col = {qt, site.format(), k, 1, rows, 0, 0};
    return {by_row, qt ? by_col : by_row};
}

// x as the products read it: x itself unless the site's format is FP8, else codes in `codes`, with what was seen counted.
template <class T>
Operand cast(CastSite& site, Tensor<uint8_t> codes, Tensor<T> x, Pass pass) {
    if (!is_fp8(site.format())) return uncast(site, x).by_row;
    ENSURE(codes.size() >= x.size(), "%zu bytes for %zu codes", codes.size(), x.size());
    const int k = site.exponent_for(x, pass);
    quantise(codes.data, site.format(), k, site.stats + (pass != Pass::train), x);
    return shown(site, x, codes_of(site, k, codes.data, nullptr, x.rows, x.cols)).by_row;
}

// cast(layernorm(x)), on a GPU in one kernel once the scale is known. `y` receives layernorm(x), which is what the products
// read if the site was promoted: it must last until backward.
template <class T>
Operand layernorm_cast(Tensor<T> y, Tensor<float> mean, Tensor<float> rstd, Tensor<T> x, const LayerNorm& w, CastSite& site, Tensor<uint8_t> codes, Pass pass) {
    if (!is_fp8(site.format()) || !site.scale_is_known()) {
        layernorm_forward(y, mean, rstd, x, w);
        return cast(site, codes, y, pass);
    }
    layernorm_forward(y, mean, rstd, x, w, codes.data, site.format(), site.state->k, site.stats + (pass != Pass::train));
    return shown(site, y, codes_of(site, site.state->k, codes.data, nullptr, x.rows, x.cols)).by_row;
}

// y (BT, N) = x w^T + b, and what the epilogue adds.
template <class T>
void linear_forward(Tensor<T> y, Operand x, Linear& l, Epilogue e = {}) {
    ENSURE(y.cols == l.b.cols && x.row == l.dw.cols, "y is (%d,%d), x has %d columns, w is (%d,%d)", y.rows, y.cols, (int)x.row, l.dw.rows, l.dw.cols);
    l.x_read = x, e.bias = l.b.data;
    matmul(output(y), x, l.w.by_row.transposed(), {y.rows, y.cols, l.dw.cols}, e);
}
// ... + residual
template <class T>
Epilogue plus(Tensor<T> residual) {
    Epilogue e;
    e.residual = residual.data;
    return e;
}
// gelu(...), with its argument kept for backward
template <class T>
Epilogue gelu_keeping(Tensor<T> argument) {
    Epilogue e;
    e.kept = argument.data;
    return e;
}

// partial[s, n] = sum over a strip of tokens of dy[bt, n].
template <class T>
__global__ void column_sum_kernel(float* partial, const T* dy, int BT, int N) {
    Strip strip(BT, N);
    float sum[COLUMNS_PER_THREAD];
    for (int j = 0; j < strip.count; j++) sum[j] = 0;
    for (int bt = strip.row_begin; bt < strip.row_end; bt++) {
        const T* dy_bt = dy + (size_t)bt * N;
        for (int j = 0; j < strip.count; j++) sum[j] += to_float(dy_bt[strip.column(j)]);
    }
    for (int j = 0; j < strip.count; j++) partial[(size_t)blockIdx.y * N + strip.column(j)] = sum[j];
}

// What a backward pass through a Linear needs for a while: codes of dy (BT, N) both ways, of x (BT, K) by column; the
// partial sums of db (partial_floats(BT, N)).
struct LinearScratch {
    Tensor<uint8_t> codes, codes_by_col, x_by_col;
    Tensor<float> partial;
};

// dy as both of its products read it.
template <class T>
Cast cast_gradient(CastSite& site, const LinearScratch& s, Tensor<T> dy) {
    if (!is_fp8(site.format())) return uncast(site, dy);
    ENSURE(s.codes.size() >= dy.size(), "%zu bytes for %zu codes", s.codes.size(), dy.size());
    const int k = site.exponent_for(dy, Pass::train);
    uint8_t* by_col = BOTH_WAYS ? s.codes_by_col.data : nullptr;
    quantise(s.codes.data, site.format(), k, site.stats, dy, by_col);
    return shown(site, dy, codes_of(site, k, s.codes.data, by_col, dy.rows, dy.cols));
}

// cast(dx) where dx = dy * gelu'(x), in one kernel once the scale is known; dx itself is written too, and may be dy.
template <class T>
Cast gelu_backward_cast(Tensor<T> dx, Tensor<T> dy, Tensor<T> x, CastSite& site, const LinearScratch& s) {
    if (!is_fp8(site.format()) || !site.scale_is_known()) {
        gelu_backward(dx, dy, x);
        return cast_gradient(site, s, dx);
    }
    uint8_t* by_col = BOTH_WAYS ? s.codes_by_col.data : nullptr;
    gelu_backward(dx, dy, x, s.codes.data, site.format(), site.state->k, site.stats, by_col);
    return shown(site, dx, codes_of(site, site.state->k, s.codes.data, by_col, dx.rows, dx.cols));
}

// dx (BT, K) = dy w,  l.dw += dy^T x,  l.db += sum of dy; the products read dy_read, its cast.
template <class T>
void linear_backward(Tensor<T> dx, Tensor<T> dy, Cast dy_read, Linear& l, const LinearScratch& s) {
    const int BT = dy.rows, N = dy.cols, K = dx.cols;
    ENSURE(dx.rows == BT && N == l.b.cols && K == l.dw.cols, "dx is (%d,%d), dy is (%d,%d), w is (%d,%d)", dx.rows, K, BT, N, l.dw.rows, l.dw.cols);
    ENSURE(s.partial.size() >= partial_floats(BT, N), "scratch of %zu floats, %zu needed", s.partial.size(), partial_floats(BT, N));
    matmul(output(dx), dy_read.by_row, l.w.by_col, {BT, K, N});

    Operand x = l.x_read;
    if (BOTH_WAYS && is_fp8(x.format)) {
        transpose_codes(s.x_by_col.data, (const uint8_t*)x.data, BT, K);
        x = codes_of(l.x, x.k, nullptr, s.x_by_col.data, BT, K).by_col;
    }
    matmul_add(output(l.dw), dy_read.by_col.transposed(), x, {N, K, BT});
    launch(column_sum_kernel<T>, strip_blocks(BT, N), BLOCK, s.partial.data, (const T*)dy.data, BT, N);
    add_partials(l.db.data, s.partial.data, BT, N);
}
template <class T>
void linear_backward(Tensor<T> dx, Tensor<T> dy, Linear& l, const LinearScratch& s) {
    linear_backward(dx, dy, cast_gradient(l.dy, s, dy), l, s);
}
