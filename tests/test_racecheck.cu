// test_racecheck.cu -- racecheck.h: planted races and unwritten reads are reported with their source lines; right kernels are not.
#if defined(FEWBITS_RACECHECK)
#include "tensorcore.cuh"
#include <doctest/doctest.h>

template <class F>
static std::string report_of(F f) {
    try {
        f();
    } catch (const Error& e) {
        return e.what();
    }
    return "silent";
}
static bool has(const std::string& text, const std::string& words) {
    if (text.find(words) != std::string::npos) return true;
    MESSAGE(text);
    return false;
}
static std::string at(int line) { return format(" at test_racecheck.cu:%d", line); }

// Each kernel is written twice in one: with its fault and without. LINE is that of its first access.
// ==== shared memory ==================================================================================================

constexpr int WRITE_READ = __LINE__ + 3;
static __global__ void write_read_kernel(int* out, bool right) {
    __shared__ int x[64];
    x[threadIdx.x] = threadIdx.x;
    if (right) __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = x[(threadIdx.x + 63) % 64];
}
TEST_CASE("a write and a read of another thread without a barrier: both threads, both lines") {
    Buffer out(2 * 64 * 4);
    const std::string report = report_of([&] { launch(write_read_kernel, 2, 64, (int*)out.data(), false); });
    CHECK(has(report, "block (0,0,0), thread (1,0,0): race on shared memory: "));
    CHECK(has(report, "write by thread (0,0,0)" + at(WRITE_READ)));
    CHECK(has(report, " and read by thread (1,0,0)" + at(WRITE_READ + 2) + ": no barrier between"));
    CHECK(report_of([&] { launch(write_read_kernel, 2, 64, (int*)out.data(), true); }) == "silent");
}

constexpr int WRITE_WRITE = __LINE__ + 4;
static __global__ void write_write_kernel(int* out, bool right) {
    __shared__ int winner;
    if (threadIdx.x == 7)
        winner = 7;
    if (right) __syncthreads();
    if (threadIdx.x == 40)
        winner = 40;
    __syncthreads();
    out[threadIdx.x] = winner;
}
TEST_CASE("two writes") {
    Buffer out(64 * 4);
    const std::string report = report_of([&] { launch(write_write_kernel, 1, 64, (int*)out.data(), false); });
    CHECK(has(report, "write by thread (7,0,0)" + at(WRITE_WRITE)));
    CHECK(has(report, "write by thread (40,0,0)" + at(WRITE_WRITE + 3)));
    CHECK(report_of([&] { launch(write_write_kernel, 1, 64, (int*)out.data(), true); }) == "silent");
}

constexpr int READ_WRITE = __LINE__ + 7;
static __global__ void read_write_kernel(float* out, bool right) { // the second barrier of block_sum
    DYNAMIC_SHARED(shared);
    float* sums = (float*)shared;
    for (int i = 0; i < 2; i++) {
        if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = i;
        __syncthreads();
        for (int w = 0; w < 4; w++) out[threadIdx.x] += sums[w];
        if (right) __syncthreads();
    }
}
TEST_CASE("a write after the reads of others, in dynamic shared memory, round a loop") {
    Buffer out(128 * 4);
    const std::string report = report_of([&] { launch_shared(read_write_kernel, 1, 128, 16, (float*)out.data(), false); });
    CHECK(has(report, "write by thread (0,0,0)" + at(READ_WRITE - 2))); // in the second round; thread 1 is still in the first
    CHECK(has(report, "read by thread (1,0,0)" + at(READ_WRITE)));
    CHECK(report_of([&] { launch_shared(read_write_kernel, 1, 128, 16, (float*)out.data(), true); }) == "silent");
}

enum Between { NOTHING,
               SHUFFLE,
               SYNCWARP };
constexpr int WARP_RACE = __LINE__ + 3;
static __global__ void warp_kernel(int* out, Between between) {
    __shared__ int x[32];
    x[threadIdx.x] = threadIdx.x;
    if (between == SHUFFLE) out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
    if (between == SYNCWARP) __syncwarp();
    out[threadIdx.x] = x[threadIdx.x ^ 1];
}
TEST_CASE("within a warp __syncwarp orders memory, and a shuffle does not") {
    Buffer out(32 * 4);
    for (Between between : {NOTHING, SHUFFLE}) {
        const std::string report = report_of([&] { launch(warp_kernel, 1, 32, (int*)out.data(), between); });
        CHECK(has(report, "race on shared memory"));
        CHECK(has(report, at(WARP_RACE)));
        CHECK(has(report, at(WARP_RACE + 3)));
    }
    CHECK(report_of([&] { launch(warp_kernel, 1, 32, (int*)out.data(), SYNCWARP); }) == "silent");
}

constexpr int OTHER_WARP = __LINE__ + 4;
static __global__ void other_warp_kernel(int* out) {
    __shared__ int x;
    if (threadIdx.x == 0)
        x = 1;
    __syncwarp(); // orders the lanes of each warp, not warps
    out[threadIdx.x] = threadIdx.x == 33 ? x : 0;
}
TEST_CASE("__syncwarp orders nothing between two warps") {
    Buffer out(64 * 4);
    const std::string report = report_of([&] { launch(other_warp_kernel, 1, 64, (int*)out.data()); });
    CHECK(has(report, "write by thread (0,0,0)" + at(OTHER_WARP)));
    CHECK(has(report, "read by thread (33,0,0)" + at(OTHER_WARP + 2)));
}

// ==== neighbours, atomics ============================================================================================

template <class T>
static __global__ void halves_kernel(T* out) {
    __shared__ T x[64];
    x[threadIdx.x] = T{};
    out[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
}
TEST_CASE("two threads may write the two halves, or the four quarters, of a word") {
    Buffer out(4 * 64 * 2);
    CHECK(report_of([&] { launch(halves_kernel<bf16>, 4, 64, (bf16*)out.data()); }) == "silent");
    CHECK(report_of([&] { launch(halves_kernel<e4m3>, 4, 64, (e4m3*)out.data()); }) == "silent");
}

constexpr int OVERLAP = __LINE__ + 5;
static __global__ void overlap_kernel(int* out) {
    __shared__ uint16_t x[2];
    if (threadIdx.x == 0) x[0] = 1;
    if (threadIdx.x == 1) x[1] = 1;
    if (threadIdx.x == 2) ((uint8_t*)x)[3] = 2;
    __syncthreads();
    out[threadIdx.x] = x[1];
}
TEST_CASE("... but not the same byte of it") {
    Buffer out(32 * 4);
    const std::string report = report_of([&] { launch(overlap_kernel, 1, 32, (int*)out.data()); });
    CHECK(has(report, "write by thread (1,0,0)" + at(OVERLAP - 1)));
    CHECK(has(report, "write by thread (2,0,0)" + at(OVERLAP)));
}

constexpr int PLAIN = __LINE__ + 3;
static __global__ void atomic_kernel(unsigned* count, bool right) {
    const unsigned mine = atomicAdd(count, 1u);
    if (!right && threadIdx.x == 3) *count = mine;
}
TEST_CASE("atomics do not race with atomics, in one block or several; with a plain write they do") {
    Buffer count(4);
    CHECK(report_of([&] { launch(atomic_kernel, 5, 64, (unsigned*)count.data(), true); }) == "silent");
    CHECK(((unsigned*)count.data())[0] == 5 * 64);
    const std::string report = report_of([&] { launch(atomic_kernel, 1, 64, (unsigned*)count.data(), false); });
    CHECK(has(report, "atomic by thread ("));
    CHECK(has(report, at(PLAIN - 1)));
    CHECK(has(report, "write by thread (3,0,0)" + at(PLAIN)));
}

// ==== global memory ==================================================================================================

constexpr int BLOCKS = __LINE__ + 2;
static __global__ void blocks_kernel(float* x, int stride) {
    x[blockIdx.x * stride + threadIdx.x] += 1;
    __syncthreads();
    x[blockIdx.x * stride + (threadIdx.x + 1) % 64] += 1;
}
TEST_CASE("nothing orders two blocks; launches are ordered") {
    Buffer x(4 * 64 * 4);
    const std::string report = report_of([&] { launch(blocks_kernel, dim3(2, 2), 64, (float*)x.data(), 63); });
    CHECK(has(report, "race on global memory: "));
    CHECK(has(report, "write by thread (63,0,0) of block (0,0,0)" + at(BLOCKS)));
    CHECK(has(report, "read by thread (0,0,0) of block (1,0,0)" + at(BLOCKS) + ": nothing orders two blocks"));
    for (int i = 0; i < 2; i++) CHECK(report_of([&] { launch(blocks_kernel, 4, 64, (float*)x.data(), 64); }) == "silent");
    CHECK(report_of([&] { launch(blocks_kernel, 1, 64, (float*)x.data() + 5, 64); }) == "silent");
}

constexpr int LENGTH = __LINE__ + 2;
static __global__ void memcpy_kernel(char* to, const char* from, int n) {
    memcpy(to + threadIdx.x * 8, from, n);
}
TEST_CASE("memcpy of a length that is not known") {
    Buffer to(64 * 8), from(64);
    CHECK(report_of([&] { launch(memcpy_kernel, 1, 32, (char*)to.data(), (const char*)from.data(), 8); }) == "silent");
    const std::string report = report_of([&] { launch(memcpy_kernel, 1, 32, (char*)to.data(), (const char*)from.data(), 9); });
    CHECK(has(report, "write by thread (0,0,0)" + at(LENGTH) + " and write by thread (1,0,0)" + at(LENGTH)));
}

// ==== what the simulator does in a lane's name =======================================================================

constexpr int COPY = __LINE__ + 4;
static __global__ void copy_kernel(float* out, const float* from, bool right) {
    DYNAMIC_SHARED(shared);
    float* x = (float*)shared;
    copy_async(x + 4 * threadIdx.x, from + 4 * threadIdx.x, 16);
    commit_copies();
    wait_copies<0>(); // for one's own copies only
    if (right) __syncthreads();
    out[threadIdx.x] = x[(4 * threadIdx.x + 124) % 128];
}
TEST_CASE("cp.async: others see the copy after a barrier") {
    Buffer out(32 * 4), from(128 * 4);
    const std::string report = report_of([&] { launch_shared(copy_kernel, 1, 32, 512, (float*)out.data(), (const float*)from.data(), false); });
    CHECK(has(report, "write by thread (0,0,0) at "));
    CHECK(has(report, format("test_racecheck.cu:%d and read by thread (1,0,0)", COPY + 2)));
    CHECK(has(report, at(COPY + 4)));
    CHECK(report_of([&] { launch_shared(copy_kernel, 1, 32, 512, (float*)out.data(), (const float*)from.data(), true); }) == "silent");
}

constexpr int OVERWRITE = __LINE__ + 5;
static __global__ void pipeline_kernel(float* out, const float* from, bool right) { // the barrier before a buffer is filled again
    DYNAMIC_SHARED(shared);
    float* x = (float*)shared;
    for (int i = 0; i < 3; i++) {
        copy_async(x + 4 * threadIdx.x, from, 16);
        commit_copies();
        wait_copies<0>();
        __syncthreads();
        out[threadIdx.x] += x[(4 * threadIdx.x + 4) % 128];
        if (right) __syncthreads();
    }
}
TEST_CASE("cp.async: the copy may land as soon as it is issued") {
    Buffer out(32 * 4), from(16);
    const std::string report = report_of([&] { launch_shared(pipeline_kernel, 1, 32, 512, (float*)out.data(), (const float*)from.data(), false); });
    CHECK(has(report, "read by thread ("));
    CHECK(has(report, at(OVERWRITE + 4)));
    CHECK(has(report, format("test_racecheck.cu:%d: no barrier", OVERWRITE)));
    CHECK(report_of([&] { launch_shared(pipeline_kernel, 1, 32, 512, (float*)out.data(), (const float*)from.data(), true); }) == "silent");
}

constexpr int MATRIX = __LINE__ + 4;
static __global__ void ldmatrix_kernel(uint32_t* out, bool right) {
    DYNAMIC_SHARED(shared);
    uint32_t r[4];
    for (int i = 0; i < 4; i++) ((uint32_t*)shared)[(4 * threadIdx.x + 4 + i) % 128] = i; // the next lane's row
    if (right) __syncwarp();
    ldmatrix<false>(r, shared + 16 * threadIdx.x);
    out[threadIdx.x] = r[0];
}
TEST_CASE("ldmatrix reads each row in the name of the lane that brought it, and orders nothing") {
    Buffer out(32 * 4);
    const std::string report = report_of([&] { launch_shared(ldmatrix_kernel, 1, 32, 512, (uint32_t*)out.data(), false); });
    CHECK(has(report, "write by thread (31,0,0)" + at(MATRIX)));
    CHECK(has(report, "and read by thread (0,0,0) at "));
    CHECK(has(report, format("test_racecheck.cu:%d: no barrier", MATRIX + 2)));
    CHECK(report_of([&] { launch_shared(ldmatrix_kernel, 1, 32, 512, (uint32_t*)out.data(), true); }) == "silent");
}

// ==== shared memory that nobody wrote ================================================================================

constexpr int UNWRITTEN = __LINE__ + 6;
static __global__ void unwritten_kernel(int* out, bool dynamic, int n) {
    DYNAMIC_SHARED(shared);
    __shared__ int fixed[64];
    int* x = dynamic ? (int*)shared : fixed;
    if ((int)threadIdx.x < n) x[threadIdx.x] = 1;
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = x[63 - threadIdx.x];
}
TEST_CASE("a read of shared memory that its block has not written, static and dynamic, though the last block wrote it") {
    Buffer out(3 * 64 * 4);
    for (bool dynamic : {false, true}) {
        auto run = [&](int n) { return report_of([&] { launch_shared(unwritten_kernel, 3, 64, 256, (int*)out.data(), dynamic, n); }); };
        CHECK(run(64) == "silent");
        const std::string report = run(63);
        CHECK(has(report, "block (0,0,0): shared memory that nobody wrote: read by thread (0,0,0)" + at(UNWRITTEN + 1)));
        CHECK(run(64) == "silent");
    }
}

// ==== helpers ========================================================================================================

static __attribute__((noinline)) __device__ void put(int* x, int value) { *x = value; }
constexpr int CALL = __LINE__ + 2;
static __global__ void call_kernel(int* out) {
    put(out, threadIdx.x);
}
TEST_CASE("an access in a function names the line that called it, too") {
    Buffer out(4);
    const std::string report = report_of([&] { launch(call_kernel, 1, 2, (int*)out.data()); });
    CHECK(has(report, at(CALL - 3) + format(", called at test_racecheck.cu:%d", CALL)));
}

static __global__ void block_sum_kernel(float* out) { out[threadIdx.x] = block_sum(1.0f) + block_sum(2.0f); }
TEST_CASE("block_sum is right") {
    Buffer out(BLOCK * 4);
    CHECK(report_of([&] { launch(block_sum_kernel, 3, BLOCK, (float*)out.data()); }) != "silent"); // three blocks write `out`
    CHECK(report_of([&] { launch(block_sum_kernel, 1, BLOCK, (float*)out.data()); }) == "silent");
    CHECK(((float*)out.data())[5] == 3 * BLOCK);
}
#endif
