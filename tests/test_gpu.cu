// test_gpu.cu -- gpu.cuh: every promise of the machine's vocabulary, whatever WARP and BLOCK are.
#include "gpu.cuh"
#include "rng.h"
#include <algorithm>
#include <doctest/doctest.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

template <class T>
static Buffer machine_copy(const std::vector<T>& x) {
    Buffer b(x.size() * sizeof(T));
    copy_to_machine((T*)b.data(), x.data(), x.size());
    return b;
}
template <class T>
static std::vector<T> host_copy(const Buffer& b) {
    std::vector<T> x(b.bytes() / sizeof(T));
    copy_to_host(x.data(), (const T*)b.data(), x.size());
    return x;
}
template <class F>
static Error error_of(F f) {
    try {
        f();
    } catch (const Error& e) {
        return e;
    }
    return Error(0, "no error");
}

// ==== errors =========================================================================================================

static void needs_seven(int n) { ENSURE(n == 7, "n is %d, not %s", n, "seven"); }

TEST_CASE("ENSURE names the function and the values, with status 1, and is silent when all is well") {
    Error e = error_of([] { needs_seven(8); });
    CHECK(e.status == 1);
    CHECK(std::string(e.what()) == "needs_seven: n is 8, not seven");
    CHECK_NOTHROW(needs_seven(7));
}

TEST_CASE("refuse is the user's error: status 2 and the text alone") {
    Error with_values = error_of([] { refuse("--%s: %d is below %g", "steps", -1, 0.5); });
    CHECK(with_values.status == 2);
    CHECK(std::string(with_values.what()) == "--steps: -1 is below 0.5");
    Error text = error_of([] { refuse("the disk is 100 % full"); });
    CHECK(text.status == 2);
    CHECK(std::string(text.what()) == "the disk is 100 % full");
}

TEST_CASE("format has no longest line") {
    std::string word(5000, 'x');
    CHECK(format("<%s>", word.c_str()) == "<" + word + ">");
    CHECK(format("%s", "") == "");
}

// ==== launch =========================================================================================================

// Counts each visit of (block, thread) at its own place; a coordinate outside of the grid counts as many.
static __global__ void visit_kernel(unsigned* visits) {
    bool inside = blockIdx.x < gridDim.x && blockIdx.y < gridDim.y && blockIdx.z < gridDim.z &&
        threadIdx.x < blockDim.x && threadIdx.y < blockDim.y && threadIdx.z < blockDim.z;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    atomicAdd(&visits[block * (blockDim.x * blockDim.y * blockDim.z) + thread], inside ? 1u : 1000u);
}

TEST_CASE("launch visits every thread of every block once, in 1, 2 and 3 dimensions, and none of 0 blocks") {
    struct {
        dim3 blocks, threads;
    } const cases[] = {
        {dim3(1), dim3(1)},
        {dim3(7), dim3(1)},
        {dim3(5), dim3(BLOCK)},
        {dim3(3, 4), dim3(WARP, ROWS)},
        {dim3(2, 3, 5), dim3(32)},
        {dim3(3), dim3(4, 3, 2)},
        {dim3(1, 1, 6), dim3(1, 5)},
        {dim3(0), dim3(BLOCK)},
        {dim3(3, 0), dim3(BLOCK)},
        {dim3(3, 2, 0), dim3(1)},
    };
    for (auto c : cases) {
        size_t n = (size_t)c.blocks.x * c.blocks.y * c.blocks.z * c.threads.x * c.threads.y * c.threads.z;
        Buffer visits((n + 1) * sizeof(unsigned));
        launch(visit_kernel, c.blocks, c.threads, (unsigned*)visits.data());
        synchronize();
        std::vector<unsigned> expected(n, 1);
        expected.push_back(0);
        CAPTURE(n);
        CHECK(host_copy<unsigned>(visits) == expected);
    }
}

static __global__ void arguments_kernel(float* out, float a, int b, unsigned char c) { *out = a + b + c; }
TEST_CASE("launch converts its arguments to the kernel's parameters, as a call does") {
    Buffer out(sizeof(float));
    launch(arguments_kernel, 1, 1, (float*)out.data(), 0.5, 2u, 'A');
    CHECK(host_copy<float>(out)[0] == 0.5f + 2 + 65);
}

#if defined(__CUDACC__)
TEST_CASE("launch reports what CUDA refuses") {
    Error e = error_of([] { launch(visit_kernel, dim3(1), dim3(2048), (unsigned*)nullptr); });
    CHECK(e.status == 1);
    CHECK(std::string(e.what()).find("CUDA: ") != std::string::npos);
}
#endif

// ==== atomics ========================================================================================================

static __global__ void atomics_kernel(unsigned* sum, unsigned* largest, unsigned* ticket, unsigned* taken) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(sum, i);
    atomicMax(largest, (i * 2654435761u) | 1);
    atomicAdd(&taken[atomicAdd(ticket, 1u)], 1u);
}
TEST_CASE("atomics of many blocks lose nothing, and return the value before") {
    const unsigned blocks = 2000, threads = 4, n = blocks * threads;
    Buffer sum(4), largest(4), ticket(4), taken(n * 4);
    launch(atomics_kernel, blocks, threads, (unsigned*)sum.data(), (unsigned*)largest.data(), (unsigned*)ticket.data(),
           (unsigned*)taken.data());
    unsigned most = 0;
    for (unsigned i = 0; i < n; i++) most = std::max(most, (i * 2654435761u) | 1);
    CHECK(host_copy<unsigned>(sum)[0] == n * (n - 1) / 2);
    CHECK(host_copy<unsigned>(largest)[0] == most);
    CHECK(host_copy<unsigned>(ticket)[0] == n);
    CHECK(host_copy<unsigned>(taken) == std::vector<unsigned>(n, 1));
}

// ==== sums ===========================================================================================================

// What a warp computed, as each of its lanes saw it.
struct WarpResults {
    float sum, max;
    unsigned unsigned_sum, unsigned_max;
};
static __global__ void warp_kernel(WarpResults* out, const float* x, const unsigned* u, int rows) {
    int row = row_of_warp();
    if (row >= rows) return;
    int i = row * WARP + threadIdx.x;
    out[i] = {warp_sum(x[i]), warp_max(x[i]), warp_sum(u[i]), warp_max(u[i])};
}

TEST_CASE("warp_sum and warp_max are the sum and the maximum over a warp, in every lane; rows go to warps one by one") {
    const int rows = 5 * ROWS + 3;
    Rng rng(1, Stream::test);
    std::vector<float> x(rows * WARP);
    std::vector<unsigned> u(rows * WARP);
    for (int i = 0; i < rows * WARP; i++) {
        x[i] = (float)rng.below(i, 2001) - (i < WARP ? 5000 : 1000); // integers: sums are exact; row 0 is negative
        u[i] = rng.bits(i);                                          // sums wrap around, maxima have their top bit set
    }
    Buffer x_copy = machine_copy(x), u_copy = machine_copy(u), out(rows * WARP * sizeof(WarpResults));
    launch(warp_kernel, row_blocks(rows), row_threads(), (WarpResults*)out.data(), (const float*)x_copy.data(),
           (const unsigned*)u_copy.data(), rows);
    std::vector<WarpResults> results = host_copy<WarpResults>(out);
    int wrong = 0;
    for (int row = 0; row < rows; row++) {
        WarpResults expected = {0, -INFINITY, 0, 0};
        for (int i = row * WARP; i < (row + 1) * WARP; i++) {
            expected.sum += x[i], expected.max = std::max(expected.max, x[i]);
            expected.unsigned_sum += u[i], expected.unsigned_max = std::max(expected.unsigned_max, u[i]);
        }
        for (int i = row * WARP; i < (row + 1) * WARP; i++) {
            WarpResults r = results[i];
            wrong += r.sum != expected.sum || r.max != expected.max || r.unsigned_sum != expected.unsigned_sum ||
                r.unsigned_max != expected.unsigned_max;
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("row_blocks has a warp for every row and no block too many") {
    CHECK(row_blocks(0) == 0);
    CHECK(row_blocks(1) == 1);
    CHECK(row_blocks(ROWS) == 1);
    CHECK(row_blocks(ROWS + 1) == 2);
}

static __global__ void block_sums_kernel(float* first, float* second, const float* x) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    first[i] = block_sum(x[i]);
    second[i] = block_sum(3 * x[i]); // at once: a missing barrier would mix the two
}
TEST_CASE("block_sum is the sum over a block, in every thread, and two in a row do not mix") {
    const int blocks = 9, n = blocks * BLOCK;
    Rng rng(2, Stream::test);
    std::vector<float> x(n), sum(n), triple(n);
    for (int i = 0; i < n; i++) x[i] = (float)rng.below(i, 2001) - 1000;
    for (int i = 0; i < n; i++)
        for (int j = i / BLOCK * BLOCK; j < (i / BLOCK + 1) * BLOCK; j++) sum[i] += x[j], triple[i] += 3 * x[j];
    Buffer x_copy = machine_copy(x), first(n * 4), second(n * 4);
    launch(block_sums_kernel, blocks, BLOCK, (float*)first.data(), (float*)second.data(), (const float*)x_copy.data());
    CHECK(host_copy<float>(first) == sum);
    CHECK(host_copy<float>(second) == triple);
}

static __global__ void chunk_sums_kernel(float* sums, const float* x, size_t n) {
    Chunk chunk(n);
    float sum = 0;
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) sum += x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
TEST_CASE("a float sum has one order: the same bytes in every run, and with 1, 2 or 3 OpenMP threads") {
    const size_t n = 50 * CHUNK + 77;
    Rng rng(3, Stream::test);
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) x[i] = rng.normal(i);
    Buffer x_copy = machine_copy(x);
    std::vector<std::vector<float>> runs;
    for (int threads : {1, 2, 3, 1}) {
#if defined(_OPENMP)
        const int before = omp_get_max_threads();
        omp_set_num_threads(threads);
#endif
        Buffer sums(chunks(n) * sizeof(float)), total(sizeof(float));
        launch(chunk_sums_kernel, chunks(n), BLOCK, (float*)sums.data(), (const float*)x_copy.data(), n);
        launch(chunk_sums_kernel, 1, BLOCK, (float*)total.data(), (const float*)sums.data(), (size_t)chunks(n));
        runs.push_back(host_copy<float>(sums));
        runs.back().push_back(host_copy<float>(total)[0]);
#if defined(_OPENMP)
        omp_set_num_threads(before);
#endif
        CAPTURE(threads);
        CHECK(memcmp(runs[0].data(), runs.back().data(), runs[0].size() * sizeof(float)) == 0);
    }
    double truth = 0;
    for (float v : x) truth += v;
    CHECK(runs[0].back() == doctest::Approx(truth).epsilon(1e-4));
}

// ==== how elements are shared out ====================================================================================

static __global__ void chunk_kernel(unsigned* visits, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) atomicAdd(&visits[i], 1u);
}
TEST_CASE("the chunks of all blocks cover 0 .. n-1 once, and nothing past n") {
    for (size_t n : {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5}) {
        for (unsigned blocks : {chunks(n), chunks(n) + 2}) { // too many blocks do no harm
            Buffer visits((n + 3 * CHUNK) * sizeof(unsigned));
            launch(chunk_kernel, blocks, BLOCK, (unsigned*)visits.data(), n);
            std::vector<unsigned> expected(n, 1);
            expected.resize(n + 3 * CHUNK, 0);
            CAPTURE(n);
            CHECK(host_copy<unsigned>(visits) == expected);
        }
    }
    CHECK(chunks(0) == 0);
    CHECK(chunks(CHUNK) == 1);
    CHECK(chunks(CHUNK + 1) == 2);
    CHECK(chunks((size_t)CHUNK * 3000000) == 3000000); // 12 billion elements: not an int
}

TEST_CASE("ceil_div rounds up") {
    CHECK(ceil_div(0, 4) == 0);
    CHECK(ceil_div(1, 4) == 1);
    CHECK(ceil_div(4, 4) == 1);
    CHECK(ceil_div(5, 4) == 2);
}

TEST_CASE("bits_as reads the bits and changes none") {
    CHECK(bits_as<uint32_t>(1.0f) == 0x3F800000u);
    CHECK(bits_as<float>(0x40490FDBu) == 3.14159274f);
    CHECK(bits_as<uint64_t>(bits_as<double>(0x7FF0000000000001ull)) == 0x7FF0000000000001ull);
}

// ==== memory =========================================================================================================

TEST_CASE("a Buffer is zeroed, also where old data was") {
    for (size_t n : {1, 63, 64, 65, 100000}) {
        { Buffer dirty = machine_copy(std::vector<char>(n, 'x')); }
        Buffer b(n);
        CHECK(b.bytes() == n);
        CHECK(host_copy<char>(b) == std::vector<char>(n, 0));
    }
}

TEST_CASE("a Buffer of nothing has no memory") {
    Buffer none, zero(0);
    CHECK(none.data() == nullptr);
    CHECK(zero.data() == nullptr);
    CHECK(zero.bytes() == 0);
}

TEST_CASE("a Buffer moves: one owner, the same memory") {
    Buffer a = machine_copy(std::vector<int>{1, 2, 3});
    void* data = a.data();
    Buffer b(std::move(a));
    CHECK(b.data() == data);
    CHECK(b.bytes() == 12);
    CHECK(a.data() == nullptr);
    CHECK(a.bytes() == 0);
    Buffer c(4);
    c = std::move(b);
    CHECK(c.data() == data);
    CHECK(host_copy<int>(c) == std::vector<int>{1, 2, 3});
    std::vector<Buffer> many;
    for (int i = 0; i < 10; i++) many.push_back(machine_copy(std::vector<int>{i}));
    for (int i = 0; i < 10; i++) CHECK(host_copy<int>(many[i])[0] == i);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) // which ends the program at such a wish
TEST_CASE("a Buffer that does not fit says how much was wanted") {
    volatile size_t wish = (size_t)1 << 60;
    Error e = error_of([&] { Buffer b(wish); });
    CHECK(e.status == 1);
    CHECK(std::string(e.what()).find("1152921504606846976 bytes") != std::string::npos);
#if defined(__CUDACC__)
    cudaGetLastError(); // forget it, or the next launch reports it
#endif
}
#endif

TEST_CASE("copies carry every byte there and back, fill_zero clears the bytes it is told, and 0 elements are fine") {
    std::vector<unsigned char> x(1000), all;
    for (size_t i = 0; i < x.size(); i++) x[i] = (unsigned char)(i * 7 + 1);
    Buffer b = machine_copy(x);
    CHECK(host_copy<unsigned char>(b) == x);
    fill_zero((char*)b.data() + 10, 100);
    std::fill(x.begin() + 10, x.begin() + 110, (unsigned char)0);
    CHECK(host_copy<unsigned char>(b) == x);
    copy_to_machine((int*)nullptr, (const int*)nullptr, 0);
    copy_to_host((int*)nullptr, (const int*)nullptr, 0);
    fill_zero(b.data(), 0);
    CHECK(host_copy<unsigned char>(b) == x);
}

struct ThreeTensors {
    Tensor<float> a;
    Tensor<char> b;
    Tensor<uint16_t> c;
    explicit ThreeTensors(Arena& arena) : a{arena, 3, 50}, b{arena, 1, 1}, c{arena, 256, 2} {}
};
TEST_CASE("an Arena's dry run counts what its real run takes; tensors are 256-byte aligned and apart") {
    Arena dry;
    ThreeTensors counted(dry);
    CHECK(dry.used == 768 + 256 + 1024);
    CHECK(counted.a.data == nullptr);
    CHECK(counted.c.data == nullptr);
    CHECK(counted.a.rows == 3);
    CHECK(counted.a.cols == 50);
    CHECK(counted.a.size() == 150);

    Buffer memory(dry.used);
    Arena real{(char*)memory.data(), 0};
    ThreeTensors t(real);
    CHECK(real.used == dry.used);
    CHECK((char*)t.a.data == memory.data());
    CHECK((char*)t.b.data == (char*)memory.data() + 768);
    CHECK((char*)t.c.data == (char*)memory.data() + 1024);
    for (void* p : {(void*)t.a.data, (void*)t.b.data, (void*)t.c.data}) CHECK((uintptr_t)p % 256 == 0);

    Arena empty;
    CHECK(empty.take(0) == nullptr);
    CHECK(empty.used == 0);
}

TEST_CASE("a Tensor may have more elements than an int can count") {
    CHECK(Tensor<float>(nullptr, 100000, 50257).size() == 5025700000u);
    Arena dry;
    Tensor<float> logits{dry, 100000, 50257};
    CHECK(dry.used == 20102800128u); // rounded up to 256
    CHECK(Tensor<float>().size() == 0);
}

TEST_CASE("the machine has a name") {
    std::string name = machine_name();
    CHECK(name.find('\n') == std::string::npos);
    CHECK(name.size() > 3);
#if defined(ON_CPU)
    CHECK(name == format("CPU, %d thread%s", omp_get_max_threads(), omp_get_max_threads() == 1 ? "" : "s"));
#endif
}
