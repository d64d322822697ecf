// matmul.cuh -- c = a b, the operation that training spends its time in, for operands in any format.
//
//   c[m, n]  =  2^-(ka+kb) sum_k a[m, k] b[k, n]  [+ bias[n]]          or  +=
//
// Source   the tiled kernel: every CUDA book; on the CPU oneDNN (onednn.h) does the same product faster
// Shapes   a (M, K), b (K, N), c (M, N), each for outer x inner batches (examples x heads); any strides, so a
//          transpose or one head of a (BT, 3C) buffer is a view and never a copy
// Formats  a, b: FP32, BF16, FP16, E4M3 or E5M2, each with its exponent; c: FP32 or a stored format, rounded once;
//          products and sums in FP32
// Why      on a CPU without FP8 and FP16 arithmetic operands are decoded first. FP8 values are exact in BF16 (4 and 3
//          significant bits of 8), so nothing is lost; FP16's 11 bits are not, so FP16 is decoded to FP32.
// Tests    tests/test_matmul.cu     Times  bench.cu, bench_matmul
#pragma once
#include "recipes.cuh"
#if !defined(__CUDACC__) && !defined(FEWBITS_SIMULATOR)
#include "onednn.h"
#endif

// A matrix as a product reads it: value[o, i, r, c] = data[o * outer + i * inner + r * row + c * col] * 2^-k.
struct Operand {
    const void* data;
    Format format;
    int k;
    int64_t row, col, outer, inner;
    Operand transposed() const { return {data, format, k, col, row, outer, inner}; }
};

// Where a product is written: unit stride along a row.
template <class T>
struct Output {
    T* data;
    int64_t row, outer, inner;
};

struct Sizes {
    int M, N, K, outer = 1, inner = 1;
};

template <class T>
Operand operand(Tensor<T> x) {
    return {x.data, format_of<T>, 0, x.cols, 1, 0, 0};
}
template <class T>
Output<T> output(Tensor<T> c) {
    return {c.data, c.cols, 0, 0};
}

// ==== the kernel =====================================================================================================

constexpr int TILE = 32;

// One block per TILE x TILE tile of c: it walks along K in steps of TILE, with one tile of a and one of b in shared
// memory, each element of which is read from memory once and used TILE times. Thread i owns elements i, i+BLOCK, ...
template <class T>
__global__ void matmul_tiled_kernel(Output<T> c, Operand a, Operand b, Sizes s, const float* bias, bool accumulate) {
    __shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1]; // + 1: a column lies in 32 different banks
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const int64_t o = blockIdx.z / s.inner, i = blockIdx.z % s.inner;
    const int64_t a_base = o * a.outer + i * a.inner, b_base = o * b.outer + i * b.inner;

    constexpr int PER_THREAD = TILE * TILE / BLOCK;
    float sum[PER_THREAD];
    for (int j = 0; j < PER_THREAD; j++) sum[j] = 0;

    for (int k0 = 0; k0 < s.K; k0 += TILE) {
        for (int e = threadIdx.x; e < TILE * TILE; e += BLOCK) {
            int slow = e / TILE, fast = e % TILE; // `fast` runs along unit stride: neighbouring threads, neighbouring addresses
            int am = a.col == 1 ? slow : fast, ak = a.col == 1 ? fast : slow;
            bool a_inside = m0 + am < s.M && k0 + ak < s.K;
            a_tile[am][ak] = a_inside ? load(a.data, a.format, a_base + (m0 + am) * a.row + (k0 + ak) * a.col) : 0;
            int bk = b.col == 1 ? slow : fast, bn = b.col == 1 ? fast : slow;
            bool b_inside = k0 + bk < s.K && n0 + bn < s.N;
            b_tile[bk][bn] = b_inside ? load(b.data, b.format, b_base + (k0 + bk) * b.row + (n0 + bn) * b.col) : 0;
        }
        __syncthreads(); // both tiles are written before any thread reads them
        for (int j = 0; j < PER_THREAD; j++) {
            int m = (threadIdx.x + j * BLOCK) / TILE, n = (threadIdx.x + j * BLOCK) % TILE;
            for (int k = 0; k < TILE; k++) sum[j] += a_tile[m][k] * b_tile[k][n];
        }
        __syncthreads(); // ... and read by all before the next step overwrites them
    }

    for (int j = 0; j < PER_THREAD; j++) {
        int m = m0 + (threadIdx.x + j * BLOCK) / TILE, n = n0 + (threadIdx.x + j * BLOCK) % TILE;
        if (m >= s.M || n >= s.N) continue;
        T* c_mn = c.data + o * c.outer + i * c.inner + m * c.row + n;
        float value = ldexpf(sum[j], -(a.k + b.k)) + (bias ? bias[n] : 0);
        *c_mn = round_to<T>(accumulate ? to_float(*c_mn) + value : value);
    }
}

template <class T>
void matmul_tiled(Output<T> c, Operand a, Operand b, Sizes s, const float* bias, bool accumulate) {
    dim3 tiles(ceil_div(s.N, TILE), ceil_div(s.M, TILE), s.outer * s.inner);
    launch(matmul_tiled_kernel<T>, tiles, BLOCK, c, a, b, s, bias, accumulate);
}

// ==== on the CPU: decode where the library cannot read the format, then one library call =============================

#if !defined(__CUDACC__) && !defined(FEWBITS_SIMULATOR)

// out (batch, rows, cols), dense = x, in FP32 or BF16. One block per row: out[batch, r, :] = x[o, i, r, :] * 2^-k.
template <class Wide, class Narrow>
__global__ void decode_kernel(Wide* out, Operand x, int rows, int cols, int inner, float scale) {
    const int64_t batch = blockIdx.x / rows, r = blockIdx.x % rows;
    const Narrow* x_r = (const Narrow*)x.data + batch / inner * x.outer + batch % inner * x.inner + r * x.row;
    Wide* out_r = out + (int64_t)blockIdx.x * cols;
    for (int c = threadIdx.x; c < cols; c += BLOCK) out_r[c] = round_to<Wide>(to_float(x_r[c]) * scale);
}

// c[o, i, m, :] = round(sum[o, i, m, :]). One block per row.
template <class T>
__global__ void store_kernel(Output<T> c, const float* sum, Sizes s) {
    const int64_t batch = blockIdx.x / s.M, m = blockIdx.x % s.M;
    T* c_m = c.data + batch / s.inner * c.outer + batch % s.inner * c.inner + m * c.row;
    const float* sum_m = sum + (int64_t)blockIdx.x * s.N;
    for (int n = threadIdx.x; n < s.N; n += BLOCK) c_m[n] = round_to<T>(sum_m[n]);
}

// Memory for decoded operands; it grows to the largest that was ever needed.
inline void* workspace(int which, size_t bytes) {
    static Buffer buffers[3];
    if (buffers[which].bytes() < bytes) buffers[which] = Buffer(bytes);
    return buffers[which].data();
}

// x in `wide` format with exponent 0: x itself where it has it, else decoded, keeping the dimension that has unit stride.
inline Operand widened(Operand x, Format wide, int rows, int cols, Sizes s, int which) {
    if (x.format == wide && x.k == 0) return x;
    if (x.col != 1) return widened(x.transposed(), wide, cols, rows, s, which).transposed();
    const int64_t batches = (int64_t)s.outer * s.inner;
    Operand y = {workspace(which, batches * rows * cols * bytes_of(wide)), wide, 0, cols, 1, (int64_t)s.inner * rows * cols, (int64_t)rows * cols};
    with_type(x.format, [&](auto narrow) {
        using Narrow = decltype(narrow);
        float scale = std::ldexp(1.0f, -x.k);
        if (wide == BF16) launch(decode_kernel<bf16, Narrow>, batches * rows, BLOCK, (bf16*)y.data, x, rows, cols, s.inner, scale);
        else launch(decode_kernel<float, Narrow>, batches * rows, BLOCK, (float*)y.data, x, rows, cols, s.inner, scale);
    });
    return y;
}

template <class T>
void matmul_onednn(Output<T> c, Operand a, Operand b, Sizes s, const float* bias, bool accumulate) {
    auto fits_bf16 = [](Format f) { return f == BF16 || is_fp8(f); };
    Format wide = fits_bf16(a.format) && fits_bf16(b.format) && OneDnn::native_bf16() ? BF16 : FP32;
    a = widened(a, wide, s.M, s.K, s, 0);
    b = widened(b, wide, s.K, s.N, s, 1);

    const bool direct = format_of<T> == FP32 || format_of<T> == wide; // can the library write T?
    ENSURE(direct || !accumulate, "a product can only be added to FP32, not to %s", name_of(format_of<T>));
    Output<float> sum = {nullptr, s.N, (int64_t)s.inner * s.M * s.N, (int64_t)s.M * s.N};
    if (!direct) sum.data = (float*)workspace(2, (size_t)s.outer * s.inner * s.M * s.N * 4);

    ProductShape shape = {s.outer, s.inner, s.M, s.N, s.K};
    shape.a = {a.outer, a.inner, a.row, a.col}, shape.b = {b.outer, b.inner, b.row, b.col};
    shape.c = direct ? Strides{c.outer, c.inner, c.row, 1} : Strides{sum.outer, sum.inner, sum.row, 1};
    shape.ab_format = wide, shape.c_format = direct ? format_of<T> : FP32;
    shape.has_bias = bias != nullptr, shape.accumulate = accumulate;
    OneDnn::library().multiply(direct ? (void*)c.data : sum.data, a.data, b.data, bias, shape);
    if (!direct) launch(store_kernel<T>, s.outer * s.inner * s.M, BLOCK, c, (const float*)sum.data, s);
}
#endif

// ==== what the model calls ===========================================================================================

template <class T>
void multiply(Output<T> c, Operand a, Operand b, Sizes s, const float* bias, bool accumulate) {
    ENSURE(s.M > 0 && s.N > 0 && s.K > 0 && s.outer > 0 && s.inner > 0, "M=%d N=%d K=%d outer=%d inner=%d", s.M, s.N, s.K, s.outer, s.inner);
#if defined(__CUDACC__) || defined(FEWBITS_SIMULATOR)
    matmul_tiled(c, a, b, s, bias, accumulate);
#else
    matmul_onednn(c, a, b, s, bias, accumulate);
#endif
}

// c = a b [+ bias]
template <class T>
void matmul(Output<T> c, Operand a, Operand b, Sizes s, const float* bias = nullptr) {
    multiply(c, a, b, s, bias, false);
}
// c += a b, for weight gradients: c is FP32
inline void matmul_add(Output<float> c, Operand a, Operand b, Sizes s) { multiply(c, a, b, s, (const float*)nullptr, true); }

// The machine, its matrix products, and which formats they read natively.
inline std::string describe_machine() {
#if defined(__CUDACC__) || defined(FEWBITS_SIMULATOR)
    return machine_name() + "; products by a plain tiled kernel with FP32 arithmetic";
#else
    return machine_name() + "; products by " + OneDnn::version() +
        (OneDnn::native_bf16() ? ": BF16 natively, FP8 decoded to BF16 (exact), FP16 decoded to FP32"
                               : ": this processor has no BF16 dot product: all formats decoded to FP32");
#endif
}
