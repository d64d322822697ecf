// tile.cuh -- a piece of a matrix in shared memory, laid out so that tensor cores can be fed without bank conflicts.
//
//   granule (row, c), 16 bytes, lies at  row * ROW_BYTES + 16 * (c ^ swizzle(row))
//
//   ROW_BYTES     rows in 128 bytes     swizzle(row)            so that 8 granules of one column c, in 8 neighbouring
//   32            4                     row / 4 % 2             rows, lie in 8 different groups of 4 banks: ldmatrix
//   64            2                     row / 2 % 4             reads all 8 in one turn
//   128, 256      1                     row % 8
//
// Shapes   "K-major": rows are m (or n) and k runs along a row. Not K-major: rows are k and m (or n) runs along a row,
//          which 16-bit formats can have (ldmatrix transposes 16-bit elements) and FP8 cannot
// Source   the layout of fragments: tensorcore.cuh
// Tests    tests/test_tile.cu
#pragma once
#include "tensorcore.cuh"

template <class T, int ROWS, int COLS> // T: bf16, fp16, e4m3, e5m2;  COLS * sizeof(T) is 32, 64, 128 or 256
struct Tile {
    static constexpr int ROW_BYTES = COLS * sizeof(T), GRANULES = ROW_BYTES / 16, BYTES = ROWS * ROW_BYTES;
    static constexpr int ROWS_IN_128 = GRANULES < 8 ? 8 / GRANULES : 1, DIFFERENT = GRANULES < 8 ? GRANULES : 8;
    unsigned char* data; // aligned to 128 bytes

    __device__ unsigned char* granule(int row, int c) const { return data + row * ROW_BYTES + 16 * (c ^ row / ROWS_IN_128 % DIFFERENT); }

    // Starts copying from a row-major matrix: `from` is the tile's corner in it, `stride` elements from row to row; rows from
    // `rows` on and columns from `cols` on are outside and become 0. `aligned`: every row starts on a 16-byte boundary.
    // A thread copies granules of one column c, and counts within the tile in 32 bits (stride < 2^24): this is in every loop, beside
    // few tensor-core instructions, and registers are scarce.
    template <int THREADS>
    __device__ void load(const T* from, int stride, int rows, int cols, bool aligned, int thread) const {
        static_assert(THREADS % GRANULES == 0, "a step of all threads is whole rows");
        constexpr int N = 16 / sizeof(T), STEP = THREADS / GRANULES; // elements of a granule; rows that all threads copy at once
        const int c = thread % GRANULES, first = thread / GRANULES, left = cols - c * N, some = left < N ? left : N, inside = some < 0 ? 0 : some;
        for (int row = first; row < ROWS; row += STEP) {
            const int count = row < rows ? inside : 0; // elements of this granule
            const T* source = count ? from + (row * stride + c * N) : from;
            if (aligned) {
                copy_async(granule(row, c), source, count * (int)sizeof(T));
            } else {
                T* to = (T*)granule(row, c);
                for (int e = 0; e < N; e++) to[e] = e < count ? source[e] : T{};
            }
        }
    }

    // Rows m0 .. m0+15 and k0 .. k0+MMA_K-1 of A, K-major or not: 4 registers.
    __device__ void fragment_a(uint32_t* a, int m0, int k0, int lane) const {
        ldmatrix<false>(a, granule(m0 + lane % 16, k0 * (int)sizeof(T) / 16 + lane / 16));
    }
    __device__ void fragment_a_transposed(uint32_t* a, int m0, int k0, int lane) const {
        ldmatrix<true>(a, granule(k0 + lane % 8 + lane / 16 * 8, m0 / 8 + lane / 8 % 2));
    }
    // Columns n0 .. n0+15 of B: the 2 + 2 registers of two neighbouring products.
    __device__ void fragment_b(uint32_t* b, int n0, int k0, int lane) const {
        ldmatrix<false>(b, granule(n0 + lane % 8 + lane / 16 * 8, k0 * (int)sizeof(T) / 16 + lane / 8 % 2));
    }
    __device__ void fragment_b_transposed(uint32_t* b, int n0, int k0, int lane) const {
        ldmatrix<true>(b, granule(k0 + lane % 16, n0 / 8 + lane / 16));
    }
};
