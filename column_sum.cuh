// column_sum.cuh -- sums over tokens, one per channel: the gradients of biases and of layernorm's gain and shift.
//
//   out[c]  +=  sum_r f(r, c)          over BT rows, in two steps with a fixed order and no float atomics:
//   partial[s, c] = the sum over strip s of STRIP rows;      out[c] += the sum over strips, from first to last
//
// Shapes   out (C), partial (ceil(BT / STRIP), C) with C up to 4 x channels
// Formats  the summands in the stored format, every sum in FP32
// Why      BT is thousands and C is hundreds: one thread per column alone would leave a GPU idle, and float atomics
//          would give another sum at every run
// Tests    tests/test_linear.cu, tests/test_layernorm.cu
#pragma once
#include "gpu.cuh"

constexpr int STRIP = 64;    // rows one block sums
constexpr int COLUMNS = 256; // columns one block sums; its thread t owns columns t, t+BLOCK, ...
constexpr int COLUMNS_PER_THREAD = COLUMNS / BLOCK;

inline dim3 strip_blocks(int rows, int cols) { return dim3(ceil_div(cols, COLUMNS), ceil_div(rows, STRIP)); }
inline size_t partial_floats(int rows, int cols) { return (size_t)ceil_div(rows, STRIP) * cols; }

// The columns and rows of one block:   for r in [row_begin, row_end): for j < count: column(j)
struct Strip {
    int row_begin, row_end, first, count;
    __device__ Strip(int rows, int cols) {
        row_begin = blockIdx.y * STRIP;
        row_end = row_begin + STRIP < rows ? row_begin + STRIP : rows;
        first = blockIdx.x * COLUMNS + threadIdx.x;
        count = first < cols ? (cols - first + BLOCK - 1) / BLOCK : 0;
        count = count < COLUMNS_PER_THREAD ? count : COLUMNS_PER_THREAD;
    }
    __device__ int column(int j) const { return first + j * BLOCK; }
};

// out[c] += sum_s partial[s, c]. One block per COLUMNS columns.
template <class T> // always float: kernels are templates, so that a header may hold them
__global__ void add_partials_kernel(T* out, const T* partial, int strips, int cols) {
    const Strip own(strips, cols); // only its columns matter: of each all strips are summed
    for (int j = 0; j < own.count; j++) {
        const int c = own.column(j);
        T sum = 0;
        for (int s = 0; s < strips; s++) sum += partial[(size_t)s * cols + c];
        out[c] += sum;
    }
}
inline void add_partials(float* out, const float* partial, int rows, int cols) {
    launch(add_partials_kernel<float>, ceil_div(cols, COLUMNS), BLOCK, out, partial, ceil_div(rows, STRIP), cols);
}
