// test_simulator.cu -- simulator.h: CUDA's words against their definitions, and each check with a planted fault.
#if defined(FEWBITS_SIMULATOR)
#include "tensorcore.cuh"
#include <alloca.h>
#include <doctest/doctest.h>
#include <set>

template <class T>
static std::vector<T> host_copy(const Buffer& b) {
    std::vector<T> x(b.bytes() / sizeof(T));
    copy_to_host(x.data(), (const T*)b.data(), x.size());
    return x;
}

// ==== CUDA's words ===================================================================================================

static __global__ void index_kernel(unsigned* seen) {
    const unsigned id = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned before = __ballot_sync(id < 32 ? ~0u : (1u << (blockDim.x * blockDim.y * blockDim.z - 32)) - 1, threadIdx.y == 1);
    __syncthreads(); // the index is still its own after others ran
    seen[id] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16 | (before >> id % 32 & 1) << 24;
}
TEST_CASE("threads are numbered x first, warps are 32 neighbours, and the last warp may be smaller") {
    const dim3 shape(5, 3, 3); // 45 threads: 32 and 13
    Buffer seen(45 * 4);
    launch(index_kernel, 1, shape, (unsigned*)seen.data());
    std::vector<unsigned> expected;
    for (unsigned z = 0; z < 3; z++)
        for (unsigned y = 0; y < 3; y++)
            for (unsigned x = 0; x < 5; x++) expected.push_back(x | y << 8 | z << 16 | (y == 1) << 24);
    CHECK(host_copy<unsigned>(seen) == expected);
}

static __global__ void shuffle_kernel(int* out, const int* argument, int width) {
    const int l = threadIdx.x;
    out[l] = __shfl_sync(~0u, 100 + l, argument[l], width);
    out[32 + l] = __shfl_xor_sync(~0u, 100 + l, argument[l], width);
    out[64 + l] = __shfl_up_sync(~0u, 100 + l, (unsigned)argument[l], width);
    out[96 + l] = __shfl_down_sync(~0u, 100 + l, (unsigned)argument[l], width);
}
TEST_CASE("shuffles read the lane that their definition names, for every width, each lane with its own argument") {
    for (int width : {1, 2, 4, 8, 16, 32})
        for (int constant = -1; constant < 32; constant++) {
            Buffer argument(32 * 4), out(128 * 4);
            int* a = (int*)argument.data();
            for (int l = 0; l < 32; l++) a[l] = constant < 0 ? l * 7 % 32 : constant;
            launch(shuffle_kernel, 1, 32, (int*)out.data(), (const int*)a, width);
            std::vector<int> expected(128);
            for (int l = 0; l < 32; l++) {
                const int first = l - l % width, last = first + width - 1;
                expected[l] = first + a[l] % width;
                expected[32 + l] = (l ^ a[l]) > last ? l : l ^ a[l];
                expected[64 + l] = l - a[l] < first ? l : l - a[l];
                expected[96 + l] = l + a[l] > last ? l : l + a[l];
            }
            for (int& e : expected) e += 100;
            CAPTURE(width);
            CAPTURE(constant);
            CHECK(host_copy<int>(out) == expected);
        }
}

static __global__ void wide_shuffle_kernel(double* out) {
    out[threadIdx.x] = __shfl_xor_sync(~0u, threadIdx.x + 1e-9, 31);
}
TEST_CASE("8-byte values are shuffled whole") {
    Buffer out(32 * 8);
    launch(wide_shuffle_kernel, 1, 32, (double*)out.data());
    for (int l = 0; l < 32; l++) CHECK(host_copy<double>(out)[l] == (31 - l) + 1e-9);
}

struct Votes {
    unsigned ballot;
    int any, all, add, max, min;
    unsigned umax, umin, and_, or_, xor_;
    bool operator==(const Votes& v) const { return !memcmp(this, &v, sizeof v); }
};
static __global__ void vote_kernel(Votes* out, const int* x, const int* p, unsigned mask) {
    const int l = threadIdx.x;
    if (!(mask >> l & 1)) return;
    const unsigned u = (unsigned)x[l];
    out[l] = {__ballot_sync(mask, p[l]), __any_sync(mask, p[l]), __all_sync(mask, p[l]), __reduce_add_sync(mask, x[l]), __reduce_max_sync(mask, x[l]), __reduce_min_sync(mask, x[l]),
              __reduce_max_sync(mask, u), __reduce_min_sync(mask, u), __reduce_and_sync(mask, u), __reduce_or_sync(mask, u), __reduce_xor_sync(mask, u)};
}
TEST_CASE("votes and reductions are over the lanes of the mask, and every one of them hears the result") {
    for (unsigned mask : {~0u, 0x0000ffffu, 0x80000001u, 0x00010000u, 0xaaaaaaaau})
        for (int kind = 0; kind < 3; kind++) { // nobody, some, everybody says yes
            Buffer x(128), p(128), out(32 * sizeof(Votes));
            int *xs = (int*)x.data(), *ps = (int*)p.data();
            Votes v = {0, 0, 1, 0, INT32_MIN, INT32_MAX, 0, ~0u, ~0u, 0, 0};
            for (int l = 0; l < 32; l++) {
                xs[l] = (int)((l + 1) * 2654435761u), ps[l] = kind == 0 ? 0 : kind == 2 ? 5
                    : l % 3 == 0                                                        ? -2
                                                                                        : 0;
                if (!(mask >> l & 1)) continue;
                const unsigned u = (unsigned)xs[l];
                v.ballot |= (unsigned)(ps[l] != 0) << l, v.any |= ps[l] != 0, v.all &= ps[l] != 0, v.add = (int)((unsigned)v.add + u);
                v.max = std::max(v.max, xs[l]), v.min = std::min(v.min, xs[l]), v.umax = std::max(v.umax, u), v.umin = std::min(v.umin, u);
                v.and_ &= u, v.or_ |= u, v.xor_ ^= u;
            }
            launch(vote_kernel, 1, 32, (Votes*)out.data(), (const int*)xs, (const int*)ps, mask);
            for (int l = 0; l < 32; l++) CHECK((host_copy<Votes>(out)[l] == (mask >> l & 1 ? v : Votes{})));
        }
}

static __global__ void groups_kernel(int* out) { // the halves of a warp do different things, and meet among themselves
    const int l = threadIdx.x;
    if (l < 16) {
        for (int i = 0; i < 3; i++) out[l] += __reduce_add_sync(0x0000ffffu, l);
    } else {
        __syncwarp(0xffff0000u);
        out[l] = __shfl_sync(0xffff0000u, l, 20);
    }
    __syncwarp();
    out[l] += __shfl_xor_sync(~0u, l, 16);
}
TEST_CASE("parts of a warp can diverge, meet among themselves, and come together again") {
    for (unsigned order = 0; order < 8; order++) {
        simulator::lane_order() = order;
        Buffer out(32 * 4);
        launch(groups_kernel, 1, 32, (int*)out.data());
        for (int l = 0; l < 32; l++) CHECK(host_copy<int>(out)[l] == (l < 16 ? 3 * 120 : 20) + (l ^ 16));
    }
    simulator::lane_order() = 0;
}

static __global__ void atomics_kernel(unsigned* x, unsigned long long* wide) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMin(&x[0], (i + 77) * 2654435761u);
    atomicOr(&x[1], 1u << i % 31);
    atomicAdd(&x[2], atomicExch(&x[3], i)); // each value is handed on once: the sum is of all but the last
    unsigned old = x[4], seen;
    while ((seen = atomicCAS(&x[4], old, old + 2)) != old) old = seen;
    atomicMax((int*)&x[5], -1 - (int)i);
    atomicAdd(wide, 1ull << 32);
}
TEST_CASE("atomics of many blocks on several OS threads lose nothing") {
    const unsigned n = 500 * 40;
    Buffer x(6 * 4), wide(8);
    unsigned* p = (unsigned*)x.data();
    p[0] = ~0u, p[5] = 0x80000000u;
#if defined(FEWBITS_RACECHECK)
    return; // `old = x[4]` is a race, as the planted faults of test_racecheck.cu are
#endif
    launch(atomics_kernel, 500, 40, p, (unsigned long long*)wide.data());
    unsigned least = ~0u;
    for (unsigned i = 0; i < n; i++) least = std::min(least, (i + 77) * 2654435761u);
    CHECK(p[0] == least);
    CHECK(p[1] == 0x7fffffffu);
    CHECK(p[2] + p[3] == n * (n - 1) / 2);
    CHECK(p[4] == 2 * n);
    CHECK((int)p[5] == -1);
    CHECK(*(unsigned long long*)wide.data() == (unsigned long long)n << 32);
}

static __global__ void block_reverse_kernel(int* out, int n) { // dynamic and static shared memory, each block its own
    DYNAMIC_SHARED(shared);
    __shared__ int first;
    int* numbers = (int*)shared;
    numbers[threadIdx.x] = blockIdx.x * n + threadIdx.x;
    if (threadIdx.x == 0) first = blockIdx.x * n;
    __syncthreads(); // all numbers are written before any is read
    out[first + threadIdx.x] = numbers[n - 1 - threadIdx.x];
}
TEST_CASE("each block has its own shared memory, of the size that it asked for") {
    for (int n : {1, 31, 32, 33, 256, 1024}) {
        const int blocks = 20;
        Buffer out(blocks * n * 4);
        launch_shared(block_reverse_kernel, blocks, n, n * 4, (int*)out.data(), n);
        std::vector<int> expected;
        for (int b = 0; b < blocks; b++)
            for (int i = n - 1; i >= 0; i--) expected.push_back(b * n + i);
        CHECK(host_copy<int>(out) == expected);
    }
}

#if !defined(FEWBITS_RACECHECK) // which reports it
static __global__ void unwritten_kernel(float* out) {
    DYNAMIC_SHARED(shared);
    *out = (uintptr_t)shared % 128 ? 1 : ((float*)shared)[5];
    ((float*)shared)[5] = 3;
}
TEST_CASE("dynamic shared memory is aligned to 128 bytes and starts as NaN in every block") {
    Buffer out(4);
    for (int i = 0; i < 2; i++) {
        launch_shared(unwritten_kernel, 1, 1, 24, (float*)out.data());
        CHECK(std::isnan(host_copy<float>(out)[0]));
    }
}
#endif

// ==== asynchronous copies ============================================================================================

// Each thread copies two pieces in two groups, the second of `valid` bytes, and looks at both after each step.
static __global__ void copies_kernel(float* out, const float* from, int valid) {
    DYNAMIC_SHARED(shared);
    float *mine = (float*)shared + threadIdx.x * 8, *seen = out + threadIdx.x * 24;
    from += threadIdx.x * 8;
    copy_async(mine, from, 16);
    commit_copies();
    copy_async(mine + 4, from + 4, valid);
    wait_copies<1>(); // the second has no group yet, so nothing has to be there
    for (int i = 0; i < 8; i++) seen[i] = mine[i];
    commit_copies();
    wait_copies<1>();
    for (int i = 0; i < 8; i++) seen[8 + i] = mine[i];
    wait_copies<0>();
    for (int i = 0; i < 8; i++) seen[16 + i] = mine[i];
}
TEST_CASE("cp.async: NaN until its group is waited for; what is not valid becomes zero and is not read") {
    const int threads = 9;
    for (int valid : {0, 4, 12, 16}) {
        Buffer from(threads * 8 * 4), out(threads * 24 * 4);
        float* x = (float*)from.data();
        for (int i = 0; i < threads * 8; i++) x[i] = i + 1;
        launch_shared(copies_kernel, 1, threads, threads * 32, (float*)out.data(), (const float*)x, valid);
        const std::vector<float> seen = host_copy<float>(out);
        int wrong = 0;
        for (int t = 0; t < threads; t++)
            for (int i = 0; i < 8; i++) {
                const float full = x[t * 8 + i], arrived = i < 4 || (i - 4) * 4 < valid ? full : 0, *s = &seen[t * 24 + i];
                wrong += !std::isnan(s[0]);                        // no group was waited for
                wrong += i < 4 ? s[8] != full : !std::isnan(s[8]); // the older group was
                wrong += s[16] != arrived;
            }
        CHECK(wrong == 0);
    }
}

// ==== faults =========================================================================================================

static __global__ void fine_kernel(int* out) {
    __shared__ int x[64];
    x[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = __shfl_xor_sync(~0u, x[63 - threadIdx.x], 1);
}
// The message of the launch's Error; and the next launch is as if nothing had been.
template <class F>
static std::string failure_of(F f) {
    std::string message = "no failure";
    try {
        f();
    } catch (const Error& e) {
        message = e.what();
        CHECK(e.status == 1);
    }
    Buffer out(3 * 64 * 4);
    CHECK_NOTHROW(launch(fine_kernel, 3, 64, (int*)out.data()));
    int wrong = 0;
    for (int i = 0; i < 3 * 64; i++) wrong += host_copy<int>(out)[i] != 63 - (i % 64 ^ 1);
    CHECK(wrong == 0);
    return message;
}
static bool has(const std::string& text, const std::string& words) {
    if (text.find(words) != std::string::npos) return true;
    MESSAGE(text);
    return false;
}

static __global__ void some_barrier_kernel(int n) {
    if ((int)threadIdx.x < n) __syncthreads();
}
TEST_CASE("a barrier that some threads never reach is reported with its line") {
    const int line = __LINE__ - 3;
    const std::string message = failure_of([] { launch(some_barrier_kernel, 2, 64, 60); });
    CHECK(has(message, "block (0,0,0): 60 threads wait at __syncthreads at"));
    CHECK(has(message, format("test_simulator.cu:%d, which the other 4 never reach", line)));
    CHECK(failure_of([] { launch(some_barrier_kernel, 2, 64, 0); }) == "no failure");
    CHECK(failure_of([] { launch(some_barrier_kernel, 2, 64, 64); }) == "no failure");
}

static __global__ void two_barriers_kernel() {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}
TEST_CASE("two barriers at two lines are not one") {
    const int line = __LINE__ - 4;
    const std::string message = failure_of([] { launch(two_barriers_kernel, 1, 64); });
    CHECK(has(message, "thread (32,0,0): __syncthreads at"));
    CHECK(has(message, format("test_simulator.cu:%d, while other threads of the block wait", line + 1)));
    CHECK(has(message, format("test_simulator.cu:%d", line)));
}

static __global__ void exited_kernel(int* out) {
    if (threadIdx.x >= 30) return;
    out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
}
static __global__ void diverged_kernel(int* out) {
    if (threadIdx.x == 7) out[0] = __any_sync(~0u, 1);
    else out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
}
static __global__ void barrier_and_warp_kernel() {
    if (threadIdx.x == 3) __syncthreads();
    else __syncwarp();
}
static __global__ void small_warp_kernel(int* out) { out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1); }
TEST_CASE("a shuffle with missing lanes names those that wait and those that never come") {
    Buffer out(64 * 4);
    CHECK(has(failure_of([&] { launch(exited_kernel, 1, 32, (int*)out.data()); }), "warp 0, __shfl_xor_sync: lanes 0 1 2"));
    CHECK(has(failure_of([&] { launch(exited_kernel, 1, 32, (int*)out.data()); }), "29 wait and these never come: 30 31"));
    const std::string diverged = failure_of([&] { launch(diverged_kernel, 1, 32, (int*)out.data()); });
    CHECK(has(diverged, "__any_sync: lanes 7 wait and these never come: 0 1 2 3 4 5 6 8 9"));
    CHECK(has(diverged, "__shfl_xor_sync: lanes 0 1 2 3 4 5 6 8"));
    CHECK(has(diverged, "; and block (0,0,0), warp 0, "));
    CHECK(has(failure_of([] { launch(barrier_and_warp_kernel, 1, 32); }), "__syncwarp: lanes 0 1 2 4"));
    CHECK(has(failure_of([&] { launch(small_warp_kernel, 1, 40, (int*)out.data()); }), "warp 1, __shfl_xor_sync: lanes 0 1 2 3 4 5 6 7 wait and these never come: 8 9"));
}

static __global__ void not_in_mask_kernel() { __syncwarp(0xffff0000u); }
static __global__ void from_outside_kernel(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, threadIdx.x == 9 ? 20 : 3);
}
TEST_CASE("a lane must be in its own mask, and reads only lanes that take part") {
    Buffer out(64 * 4);
    CHECK(has(failure_of([] { launch(not_in_mask_kernel, 1, 32); }), "thread (0,0,0): __syncwarp: lane 0 calls it with mask ffff0000, which leaves it out"));
    CHECK(has(failure_of([&] { launch(from_outside_kernel, 1, 32, (int*)out.data()); }), "__shfl_sync with mask 0000ffff: lane 9 reads lane 20, which takes no part"));
}

static __global__ void missing_mma_kernel() {
    float d[4] = {};
    uint32_t a[4] = {}, b[2] = {};
    if (threadIdx.x != 5) mma<bf16, bf16>(d, a, b);
}
static __global__ void ldmatrix_kernel(int offset) {
    DYNAMIC_SHARED(shared);
    for (int i = threadIdx.x; i < 1024; i += 32) shared[i] = 0;
    __syncwarp();
    uint32_t r[4];
    ldmatrix<false>(r, shared + threadIdx.x * 16 + (threadIdx.x == 11 ? offset : 0));
}
TEST_CASE("mma and ldmatrix want every lane; ldmatrix wants 16-byte rows that are aligned") {
    CHECK(has(failure_of([] { launch(missing_mma_kernel, 1, 32); }), "mma.m16n8k16: lanes 0 1 2 3 4 6"));
    CHECK(has(failure_of([] { launch(missing_mma_kernel, 1, 32); }), "never come: 5"));
    CHECK(has(failure_of([] { launch_shared(ldmatrix_kernel, 1, 32, 1024, 8); }), "ldmatrix: lane 11's row at"));
    CHECK(failure_of([] { launch_shared(ldmatrix_kernel, 1, 32, 1024, 16); }) == "no failure");
}

static __global__ void misaligned_copy_kernel(const char* from, int to_offset, int valid) {
    DYNAMIC_SHARED(shared);
    copy_async(shared + to_offset, from, valid);
}
TEST_CASE("cp.async wants both addresses aligned, and not more bytes than it copies") {
    Buffer from(64);
    const char* x = (const char*)from.data();
    CHECK(has(failure_of([=] { launch_shared(misaligned_copy_kernel, 1, 1, 64, x, 4, 16); }), "cp.async of 16 bytes from"));
    CHECK(has(failure_of([=] { launch_shared(misaligned_copy_kernel, 1, 1, 64, x + 2, 0, 16); }), "both must be multiples of 16"));
    CHECK(has(failure_of([=] { launch_shared(misaligned_copy_kernel, 1, 1, 64, x, 0, 17); }), "cp.async of 17 of 16 bytes"));
    CHECK(failure_of([=] { launch_shared(misaligned_copy_kernel, 1, 1, 64, x + 2, 0, 0); }) == "no failure");
}

static __global__ void capability_kernel(int* out) { *out = CAPABILITY; }
TEST_CASE("launches that no GPU would take are refused; how much shared memory a block has depends on the capability") {
    Buffer out(4);
    auto with = [&](dim3 blocks, dim3 threads, size_t bytes) { return failure_of([&] { launch_shared(capability_kernel, blocks, threads, bytes, (int*)out.data()); }); };
    CHECK(has(with(1, 1025, 0), "a block of 1025 x 1 x 1 threads"));
    CHECK(has(with(1, dim3(32, 33), 0), "a block of 32 x 33 x 1 threads"));
    CHECK(has(with(1, dim3(1, 1, 65), 0), "a block of 1 x 1 x 65 threads"));
    CHECK(has(with(1, 0, 0), "a block of 0 x 1 x 1 threads"));
    CHECK(has(with(dim3(1, 65536), 1, 0), "a grid of 1 x 65536 x 1 blocks"));
    CHECK(with(0, 1, 0) == "no failure");
    struct {
        int capability, kibibytes;
    } const limits[] = {{75, 64}, {80, 163}, {86, 99}, {89, 99}, {90, 227}, {100, 227}, {120, 99}};
    for (auto l : limits) {
        simulator::capability() = l.capability;
        CHECK(with(1, 1, l.kibibytes << 10) == "no failure");
        CHECK(host_copy<int>(out)[0] == l.capability);
        CHECK(has(with(1, 1, (l.kibibytes << 10) + 1), format("a block of compute capability %d.%d has at most %d", l.capability / 10, l.capability % 10, l.kibibytes << 10)));
    }
    simulator::capability() = 90;
}

static __global__ void late_failure_kernel() {
    if (blockIdx.x % 10 == 7) __syncwarp(2);
}
TEST_CASE("of many blocks that fail the first is named, however many OS threads run them") {
    for (int i = 0; i < 20; i++) CHECK(has(failure_of([] { launch(late_failure_kernel, 200, 1); }), "simulated GPU: block (7,0,0)"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(FEWBITS_RACECHECK)
static __global__ void deep_kernel(int below) {
    char here;
    const size_t room = (size_t)(&here - (const char*)simulator::current->stack);
    volatile char* local = (volatile char*)alloca(room + below);
    for (int i = 0; i < 300; i++) local[i] = 1;
}
TEST_CASE("a thread that needs more stack than there is") {
    CHECK(has(failure_of([] { launch(deep_kernel, 1, 2, 200); }), "need more than its stack of 65536 bytes"));
    CHECK(failure_of([] { launch(deep_kernel, 1, 2, -2000); }) == "no failure");
}
#endif

// ==== the order of lanes =============================================================================================

static __global__ void neighbours_kernel(int* out, bool with_barrier) {
    __shared__ int x[64];
    x[threadIdx.x] = -1;
    __syncthreads();
    x[threadIdx.x] = threadIdx.x;
    if (with_barrier) __syncthreads();
    out[threadIdx.x] = threadIdx.x == 0 ? 0 : x[threadIdx.x - 1]; // in ascending order the neighbour has always written
}
TEST_CASE("a missing barrier shows when lanes and warps run in another order, and only then; the right kernel does not care") {
    auto results = [](bool with_barrier, unsigned order) {
        simulator::lane_order() = order;
        Buffer out(64 * 4);
        launch(neighbours_kernel, 1, 64, (int*)out.data(), with_barrier);
        simulator::lane_order() = 0;
        return host_copy<int>(out);
    };
    std::vector<int> right(64);
    for (int i = 1; i < 64; i++) right[i] = i - 1;
    for (unsigned order = 0; order < 10; order++) CHECK(results(true, order) == right);
#if !defined(FEWBITS_RACECHECK) // which does not need luck
    std::set<std::vector<int>> different;
    CHECK(results(false, 0) == right);
    for (unsigned order = 1; order < 10; order++) different.insert(results(false, order));
    CHECK(different.count(right) == 0);
    CHECK(different.size() > 5);
#endif
}

// ==== banks ==========================================================================================================

TEST_CASE("bank conflicts: how many more turns than one an access takes") {
    auto conflicts = [](int lanes, int bytes, int stride) {
        simulator::BankCount banks;
        const void* address[32];
        for (int l = 0; l < lanes; l++) address[l] = (const void*)(uintptr_t)(4096 + l * stride);
        banks.count(address, lanes, bytes);
        CHECK(banks.accesses == 1);
        return (int)banks.conflicts;
    };
    CHECK(conflicts(32, 4, 4) == 0);
    CHECK(conflicts(32, 4, 0) == 0); // all read one word
    CHECK(conflicts(32, 4, 8) == 1);
    CHECK(conflicts(32, 4, 128) == 31); // a column of a 32 x 32 matrix of floats
    CHECK(conflicts(32, 4, 132) == 0);  // ... with one float of padding
    CHECK(conflicts(8, 16, 16) == 0);
    CHECK(conflicts(8, 16, 32) == 1); // ldmatrix of rows of 16, 32, 64 elements of 2 bytes, without a swizzle
    CHECK(conflicts(8, 16, 64) == 3);
    CHECK(conflicts(8, 16, 128) == 7);
    CHECK(conflicts(8, 16, 144) == 0);
    simulator::BankCount banks; // 16 lanes read one word, 16 another of its bank: two turns
    const void* address[32];
    for (int l = 0; l < 32; l++) address[l] = (const void*)(uintptr_t)(l % 2 * 128);
    banks.count(address, 32, 4);
    CHECK(banks.conflicts == 1);
}

static __global__ void bank_kernel(const char* from, int stride) {
    DYNAMIC_SHARED(shared);
    copy_async(shared + threadIdx.x * stride, from, 16);
    commit_copies();
    wait_copies<0>();
    __syncwarp();
    uint32_t r[4];
    ldmatrix<false>(r, shared + threadIdx.x * stride);
}
TEST_CASE("ldmatrix and cp.async count theirs: 8 lanes at a time") {
    Buffer from(16);
    for (int stride : {16, 64, 128}) {
        simulator::ldmatrix_banks.reset(), simulator::copy_banks.reset();
        launch_shared(bank_kernel, 3, 32, 32 * stride, (const char*)from.data(), stride);
        const int each = stride == 16 ? 0 : stride == 64 ? 3
                                                         : 7;
        for (auto* banks : {&simulator::ldmatrix_banks, &simulator::copy_banks}) {
            CHECK(banks->accesses == 3 * 4);
            CHECK(banks->conflicts == 3 * 4 * each);
        }
    }
}

// ==== out of bounds ==================================================================================================

#if defined(__SANITIZE_ADDRESS__)
#include <sys/wait.h>

// What a child process that runs f writes to stderr before it ends.
template <class F>
static std::string stderr_of(F f) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        f();
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char piece[4096];
    for (ssize_t n; (n = read(ends[0], piece, sizeof piece)) > 0;) text.append(piece, n);
    close(ends[0]);
    waitpid(child, nullptr, 0);
    return text;
}
static __global__ void dynamic_bounds_kernel(int n) {
    DYNAMIC_SHARED(shared);
    ((float*)shared)[n] = 1;
}
static __global__ void static_bounds_kernel(int n) {
    __shared__ float x[33];
    float* volatile p = x; // or UBSan, which knows the size of x, comes first
    p[n] = 1;
}
TEST_CASE("AddressSanitizer sees the first byte past dynamic and past static shared memory") {
    CHECK(has(stderr_of([] { launch_shared(dynamic_bounds_kernel, 1, 1, 33 * 4, 33); }), "AddressSanitizer: heap-buffer-overflow"));
    CHECK(has(stderr_of([] { launch(static_bounds_kernel, 1, 1, 33); }), "AddressSanitizer: global-buffer-overflow"));
    CHECK(stderr_of([] { launch_shared(dynamic_bounds_kernel, 1, 1, 33 * 4, 32), launch(static_bounds_kernel, 1, 1, 32); }) == "");
}
#endif
#endif
