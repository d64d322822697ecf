// pack.cuh -- 16 bytes at a time: the widest access of a GPU, which is what it takes to use all of its memory's bandwidth.
//
//   Pack<T>                      PACK<T> neighbouring elements: 4 FP32, 8 BF16 or FP16, 16 FP8; on a CPU 1
//   load_pack<N>(x, i, n)        x[i] .. x[i+N-1]; 0 in place of what is not below n
//   store_pack(y, i, n, p)       the same elements written, those below n
//
//   elements    PackChunk<N> chunk(n);                                          thread t owns packs t, t+BLOCK, ... of a chunk
//               for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N)
//   rows        for (int c = lane * N; c < C; c += WARP * N)                    lane l owns packs l, l+WARP, ... of a row
//
// Formats  any. Where a kernel's tensors differ, N is PACK of the widest: the narrower ones move fewer bytes per access
// Why      a lane that asks for 2 bytes leaves a warp with 64 in flight where 512 would fit. Where a pack begins off a
//          16-byte boundary (in rows of C = 5) or ends past n, its elements go one by one, and nothing outside is touched.
//          With N == 1 all of this is x[i] in a loop of unit stride, which is what a C++ compiler vectorises.
// Tests    tests/test_pack.cu
#pragma once
#include "gpu.cuh"

template <class T>
constexpr int PACK = WARP == 1 ? 1 : 16 / (int)sizeof(T);
// For a kernel that must hold neighbours before it goes on with them: on a CPU, where one lane is the warp, 64 of them.
template <class T>
constexpr int WIDE = WARP == 1 ? 64 : PACK<T>;

template <class T, int N = PACK<T>>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
    T x[N];
    __device__ T& operator[](int j) { return x[j]; }
    __device__ const T& operator[](int j) const { return x[j]; }
};

// A whole pack, in one access, or in several of 16 bytes where it is larger.
#if defined(__CUDACC__)
// clang-format off
template <int BYTES> struct AccessOf { using Type = uint4; };
template <> struct AccessOf<8> { using Type = uint2; };
template <> struct AccessOf<4> { using Type = uint32_t; };
template <> struct AccessOf<2> { using Type = uint16_t; };
// clang-format on
template <class P, class A = typename AccessOf<sizeof(P)>::Type>
__device__ inline void copy_in(P& p, const void* x) {
    A words[sizeof(P) / sizeof(A)];
    for (int i = 0; i < int(sizeof(P) / sizeof(A)); i++) words[i] = ((const A*)x)[i];
    memcpy(&p, words, sizeof(P));
}
template <class P, class A = typename AccessOf<sizeof(P)>::Type>
__device__ inline void copy_out(void* y, const P& p) {
    A words[sizeof(P) / sizeof(A)];
    memcpy(words, &p, sizeof(P));
    for (int i = 0; i < int(sizeof(P) / sizeof(A)); i++) __stwb((A*)y + i, words[i]); // to global memory only; nvcc splits an assignment into elements
}
#else
// clang-format off
template <class P> void copy_in(P& p, const void* x) { memcpy(&p, x, sizeof(P)); }
template <class P> void copy_out(void* y, const P& p) { memcpy(y, &p, sizeof(P)); }
// clang-format on
#endif
template <class P>
__device__ inline bool is_aligned(const void* x) { // a CPU copies from anywhere
    return WARP == 1 || (uintptr_t)x % alignof(P) == 0;
}

template <int N, class T>
__device__ inline Pack<T, N> load_pack(const T* x, size_t i, size_t n) {
    Pack<T, N> p;
    if constexpr (N == 1) p[0] = x[i];
    else if (i + N <= n && is_aligned<Pack<T, N>>(x + i)) copy_in(p, x + i);
    else
        for (int j = 0; j < N; j++) p[j] = i + j < n ? x[i + j] : T();
    return p;
}
template <class T, int N>
__device__ inline void store_pack(T* y, size_t i, size_t n, const Pack<T, N>& p) {
    if constexpr (N == 1) y[i] = p[0];
    else if (i + N <= n && is_aligned<Pack<T, N>>(y + i)) copy_out(y + i, p);
    else
        for (int j = 0; j < N; j++)
            if (i + j < n) y[i + j] = p[j];
}

// The packs of one block of an elementwise kernel; Chunk in gpu.cuh is the same for single elements.
template <int N>
struct PackChunk {
    size_t begin, end;
    __device__ explicit PackChunk(size_t n) {
        Chunk chunk(n);
        begin = chunk.begin + threadIdx.x * (N - 1), end = chunk.end;
    }
};
