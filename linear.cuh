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
//          twice, with two scales, would not be the derivative of the forward pass it ran
// Tests    tests/test_linear.cu     Times  bench.cu, bench_matmul
#pragma once
#include "column_sum.cuh"
#include "matmul.cuh"
#include "scaling.cuh"

struct Linear {
    Operand w = {};          // (N, K), as rounded after the last optimizer step
    Tensor<float> b, dw, db; // (1, N), (N, K), (1, N)
    CastSite x, dy;
    Operand x_read = {}; // what forward read: kept for dw
};

// x as the products read it: x itself where its format is the site's, else codes in `codes`, with what was seen counted.
template <class T>
Operand cast(CastSite& site, Tensor<uint8_t> codes, Tensor<T> x, Pass pass) {
    if (site.format == format_of<T>) return operand(x);
    ENSURE(codes.size() >= x.size(), "%zu bytes for %zu codes", codes.size(), x.size());
    const int k = site.exponent_for(x, pass);
    quantise(codes.data, site.format, k, site.stats + (pass == Pass::evaluate), x);
    return {codes.data, site.format, k, x.cols, 1, 0, 0};
}

// y (BT, N) = cast(x) w^T + b. `codes` (BT, K) keeps the FP8 codes of x until backward.
template <class T>
void linear_forward(Tensor<T> y, Tensor<T> x, Linear& l, Tensor<uint8_t> codes, Pass pass) {
    ENSURE(y.rows == x.rows && y.cols == l.b.cols && x.cols == l.dw.cols, "y is (%d,%d), x is (%d,%d), w is (%d,%d)", y.rows, y.cols,
           x.rows, x.cols, l.dw.rows, l.dw.cols);
    l.x_read = cast(l.x, codes, x, pass);
    matmul(output(y), l.x_read, l.w.transposed(), {x.rows, y.cols, x.cols}, l.b.data);
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

// dx (BT, K) = cast(dy) w,  l.dw +=,  l.db +=. `codes` (BT, N) and `partial` (partial_floats(BT, N)) are scratch.
template <class T>
void linear_backward(Tensor<T> dx, Tensor<T> dy, Linear& l, Tensor<uint8_t> codes, Tensor<float> partial) {
    const int BT = dy.rows, N = dy.cols, K = dx.cols;
    ENSURE(dx.rows == BT && N == l.b.cols && K == l.dw.cols, "dx is (%d,%d), dy is (%d,%d), w is (%d,%d)", dx.rows, K, BT, N, l.dw.rows, l.dw.cols);
    ENSURE(partial.size() >= partial_floats(BT, N), "scratch of %zu floats, %zu needed", partial.size(), partial_floats(BT, N));
    Operand dy_read = cast(l.dy, codes, dy, Pass::train);
    matmul(output(dx), dy_read, l.w, {BT, K, N});
    matmul_add(output(l.dw), dy_read.transposed(), l.x_read, {N, K, BT});
    launch(column_sum_kernel<T>, strip_blocks(BT, N), BLOCK, partial.data, (const T*)dy.data, BT, N);
    add_partials(l.db.data, partial.data, BT, N);
}
