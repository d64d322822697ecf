// gpu.cuh -- three machines behind one vocabulary: every kernel of this project is written once, for all of them.
//
//   machine          compiler        WARP   BLOCK   chosen by              for
//   CUDA GPU         nvcc            32     256     __CUDACC__             training
//   simulated GPU    g++ / clang++   32     256     -DFEWBITS_SIMULATOR    testing the GPU's code without one
//   CPU              g++ / clang++    1       1     otherwise              training on a laptop; ASan, UBSan, gdb
//
// Why      Kernels never write 32, they write WARP. "Lane l owns channels l, l+WARP, ..." is coalesced memory traffic
//          on a GPU; with WARP == 1 it is a loop of unit stride that a C++ compiler vectorises, warp_sum is the
//          identity, and no barrier is left. One source, and it is fast on both.
//          No float is ever added atomically: each sum has one fixed order, so a run gives the same bytes twice.
// Tests    tests/test_gpu.cu
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>
#include "errors.h"

// ==== the machine ====================================================================================================

#if defined(__CUDACC__)
#include <cuda_runtime.h>

constexpr int WARP = 32, BLOCK = 256;
#define UNROLL _Pragma("unroll")                                                   // arrays stay in registers only where every index is known at compile time
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[] // as many bytes as launch_shared was told
#define CUDA_CHECK(call)                                                                                \
    do {                                                                                                \
        cudaError_t status_ = (call);                                                                   \
        if (status_ != cudaSuccess)                                                                     \
            throw Error(1, format("%s:%d: CUDA: %s", __FILE__, __LINE__, cudaGetErrorString(status_))); \
    } while (0)

// kernel<<<blocks, threads, shared_bytes>>>(args...) and the error check that is so easily forgotten.
template <class... P, class... A>
void launch_shared(void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared_bytes, A... args) {
    if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
    ENSURE(blocks.y <= 65535 && blocks.z <= 65535, "a grid of %u x %u x %u blocks: CUDA allows 65535 in y and z", blocks.x, blocks.y, blocks.z);
    if (shared_bytes > 48 << 10) CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
    kernel<<<blocks, threads, shared_bytes>>>(args...);
    CUDA_CHECK(cudaGetLastError());
}
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 blocks, dim3 threads, A... args) {
    launch_shared(kernel, blocks, threads, 0, args...);
}
inline void synchronize() { CUDA_CHECK(cudaDeviceSynchronize()); }

#elif defined(FEWBITS_SIMULATOR)
#include "simulator.h" // the same names, each thread of a block a fiber

#else
#define ON_CPU
#define UNROLL
#include <omp.h>

constexpr int WARP = 1, BLOCK = 1;
#define __global__
#define __host__
#define __device__
#define __shared__ static thread_local // a block runs whole on one OS thread
#define __syncthreads() ((void)0)      // ... and a block that has barriers is one thread
#define __syncwarp() ((void)0)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim, gridDim;

inline unsigned atomicMax(unsigned* p, unsigned value) {
    unsigned old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(p, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
inline unsigned atomicAdd(unsigned* p, unsigned value) { return __atomic_fetch_add(p, value, __ATOMIC_RELAXED); }

// Blocks are shared among the OpenMP threads; the threads of one block take turns.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 blocks, dim3 threads, A... args) {
    const long n = (long)blocks.x * blocks.y * blocks.z;
#pragma omp parallel for schedule(static) if (n > 1)
    for (long b = 0; b < n; b++) {
        gridDim = blocks, blockDim = threads;
        blockIdx = dim3(b % blocks.x, b / blocks.x % blocks.y, b / blocks.x / blocks.y);
        for (unsigned z = 0; z < threads.z; z++)
            for (unsigned y = 0; y < threads.y; y++)
                for (unsigned x = 0; x < threads.x; x++) {
                    threadIdx = dim3(x, y, z);
                    kernel(args...);
                }
    }
}
inline void synchronize() {}
#endif

// ==== sums over a warp and over a block: FP32, one fixed order =======================================================

template <class T> // float or unsigned
__device__ inline T warp_sum(T x) {
#if !defined(ON_CPU)
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
#endif
    return x;
}
template <class T>
__device__ inline T warp_max(T x) {
#if !defined(ON_CPU)
    for (int step = WARP / 2; step > 0; step /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
#endif
    return x;
}

// The sum over a block of BLOCK threads, handed to every thread.
__device__ inline float block_sum(float x) {
    __shared__ float partial[(BLOCK + WARP - 1) / WARP];
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads(); // the partials are written before any thread reads them
    float sum = 0;
    for (int w = 0; w < BLOCK / WARP; w++) sum += partial[w];
    __syncthreads(); // ... and read by all before the next block_sum overwrites them
    return sum;
}

// Counts of a block in its shared memory; a thread that is alone in its block needs no atomic.
__device__ inline void count_in(unsigned* bin) {
    if (BLOCK == 1) ++*bin;
    else atomicAdd(bin, 1u);
}

// ==== how elements are shared out ====================================================================================

// One block of an elementwise kernel owns CHUNK neighbouring elements: its threads interleave on a GPU, its one thread
// walks them on a CPU.      for (size_t i = chunk.begin; i < chunk.end; i += BLOCK)
constexpr int CHUNK = 4096;
struct Chunk {
    size_t begin, end;
    __device__ explicit Chunk(size_t n) {
        size_t first = (size_t)blockIdx.x * CHUNK;
        begin = first + threadIdx.x;
        end = first + CHUNK < n ? first + CHUNK : n;
    }
};
template <class I>
__host__ __device__ constexpr I ceil_div(I a, I b) {
    return (a + b - 1) / b;
}
inline unsigned chunks(size_t n) { return (unsigned)ceil_div<size_t>(n, CHUNK); }

// Row kernels: one warp per row, ROWS warps to a block.   int row = row_of_warp(), lane = threadIdx.x;
constexpr int ROWS = 4;
__device__ inline int row_of_warp() { return blockIdx.x * ROWS + threadIdx.y; }
inline unsigned row_blocks(int rows) { return ceil_div(rows, ROWS); }
inline dim3 row_threads() { return dim3(WARP, ROWS); }

// ==== memory =========================================================================================================

// The bits of one value read as another type of the same size.
template <class To, class From>
__host__ __device__ inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "bits_as needs types of one size");
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}

// Memory of the machine the kernels run on, zeroed, owned.
class Buffer {
    void* data_ = nullptr;
    size_t bytes_ = 0;

  public:
    Buffer() = default;
    explicit Buffer(size_t bytes) : bytes_(bytes) {
        if (bytes == 0) return;
#if defined(__CUDACC__)
        if (cudaMalloc(&data_, bytes) != cudaSuccess && (cudaGetLastError(), true)) // so that the next launch does not report it
            throw Error(1, format("out of GPU memory: %zu bytes wanted", bytes));
        CUDA_CHECK(cudaMemset(data_, 0, bytes));
#else
        data_ = aligned_alloc(256, ceil_div<size_t>(bytes, 256) * 256); // as cudaMalloc does; Arena counts on it
        if (!data_) throw Error(1, format("out of memory: %zu bytes wanted", bytes));
        memset(data_, 0, bytes);
#endif
#if defined(FEWBITS_RACECHECK)
        racecheck::watch(data_, bytes, false);
#endif
    }
    Buffer(Buffer&& b) noexcept : data_(std::exchange(b.data_, nullptr)), bytes_(std::exchange(b.bytes_, 0)) {}
    Buffer& operator=(Buffer&& b) noexcept {
        std::swap(data_, b.data_), std::swap(bytes_, b.bytes_);
        return *this;
    }
    ~Buffer() {
#if defined(FEWBITS_RACECHECK)
        racecheck::forget(data_);
#endif
#if defined(__CUDACC__)
        cudaFree(data_);
#else
        free(data_);
#endif
    }
    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }
};

template <class T>
void copy_to_machine(T* to, const T* from, size_t n) {
    if (n == 0) return; // and the pointers may be null
#if defined(__CUDACC__)
    CUDA_CHECK(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyHostToDevice));
#else
    memcpy(to, from, n * sizeof(T));
#endif
}
template <class T>
void copy_to_host(T* to, const T* from, size_t n) {
    if (n == 0) return; // and the pointers may be null
#if defined(__CUDACC__)
    CUDA_CHECK(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDeviceToHost));
#else
    memcpy(to, from, n * sizeof(T));
#endif
}
inline void fill_zero(void* data, size_t bytes) {
    if (bytes == 0) return;
#if defined(__CUDACC__)
    CUDA_CHECK(cudaMemset(data, 0, bytes));
#else
    memset(data, 0, bytes);
#endif
}

// Memory handed out in order from one block. With base == nullptr it only counts: a dry run gives the size to allocate.
// Pieces that were given a name can be asked for later: which tensor was it that first held a NaN?
struct Arena {
    struct Piece {
        const char* name;
        int layer; // -1: of no layer
        void* data;
        int rows, cols, element_bytes;
    };
    char* base = nullptr;
    size_t used = 0;
    int layer = -1;
    std::vector<Piece> pieces = {};
    void* take(size_t bytes) {
        size_t at = used;
        used += ceil_div<size_t>(bytes, 256) * 256; // every tensor starts on a 256-byte boundary
        return base ? base + at : nullptr;
    }
};

// A row-major matrix of rows x cols elements of type T: a view, not an owner. `Tensor<T> x{arena, rows, cols}` takes its
// memory from an arena: declaring a tensor is what allocates it.
template <class T>
struct Tensor {
    T* data = nullptr;
    int rows = 0, cols = 0;
    Tensor() = default;
    Tensor(T* data, int rows, int cols) : data(data), rows(rows), cols(cols) {}
    Tensor(Arena& arena, int rows, int cols, const char* name = nullptr)
        : data((T*)arena.take((size_t)rows * cols * sizeof(T))), rows(rows), cols(cols) {
        if (name) arena.pieces.push_back({name, arena.layer, data, rows, cols, (int)sizeof(T)});
    }
    size_t size() const { return (size_t)rows * cols; }
    Tensor from(int row) const { return {data + (size_t)row * cols, rows - row, cols}; } // all rows from this one on
};

// Bytes of memory that the machine has: the GPU's, or the computer's.
inline size_t machine_memory() {
#if defined(__CUDACC__)
    size_t free, total;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return total;
#else
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
#endif
}

// Compute capability times ten, and the number of multiprocessors: of the GPU, or of the simulated one.
#if defined(__CUDACC__)
inline const cudaDeviceProp& device() {
    static const cudaDeviceProp device = [] {
        cudaDeviceProp d;
        CUDA_CHECK(cudaGetDeviceProperties(&d, 0));
        return d;
    }();
    return device;
}
inline int capability() { return device().major * 10 + device().minor; }
inline int processors() { return device().multiProcessorCount; }
#elif defined(FEWBITS_SIMULATOR)
inline int capability() { return simulator::capability(); }
inline int processors() { return 8; }
#endif

// On a clock that never goes back.
inline double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// "CPU, 2 threads" or "NVIDIA H200, compute capability 9.0"; refuses when a CUDA build finds no GPU.
inline std::string machine_name() {
#if defined(__CUDACC__)
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        refuse("this build is for a CUDA GPU and none answers here; build for the CPU with: make MACHINE=cpu");
    return format("%s, compute capability %d.%d", device().name, device().major, device().minor);
#elif defined(FEWBITS_SIMULATOR)
    return format("simulated GPU, compute capability %d.%d", capability() / 10, capability() % 10);
#else
    return format("CPU, %d thread%s", omp_get_max_threads(), omp_get_max_threads() == 1 ? "" : "s");
#endif
}
