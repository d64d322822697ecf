// bench.cu -- what every kernel and the whole training step cost, against what this machine can do, in the same run.
//
//   memory-bound kernel   bytes it has to move / time     in % of y = x or y += x over arrays that no cache holds
//   matrix product        2 M N K / time                  in % of one square product of 1024 in the format multiplied
//   training step         time                            as a multiple of its own matrix products, run alone
//   a token of a text     time                            in % of what reading every weight once takes
//   on a GPU              the same rows                   in % of cudaMemcpy from device to device, and of cuBLASLt's product of
//                                                         the same sizes and formats (attention: of its square of 4096)
//
// Units    MB are 10^6 bytes; ns/element is per element of the size shown. Bytes count once for each kernel that reads or
//          writes them: what still lies in the cache comes at more than 100 % of the memory's rate
// Formats  a product in FP8 is held against BF16 and one in FP16 against FP32, which is what the CPU decodes them to
// Why      a speed means something only beside a limit, and a limit only on the machine and in the minute where it was
//          measured. Kernels and limits: the fastest of many runs. Step and products: in turns, medians, so that
//          whatever else the machine does meets both alike. On a GPU products are our own, so the limit is NVIDIA's.
// Output   Markdown. `--quick` measures briefly, `--only gelu` one file's kernels; OMP_NUM_THREADS=1 where others compute
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include "gpu.cuh"
#if defined(HAVE_CUBLASLT) // the Makefile found it
#include <cublasLt.h>
#endif
#if defined(__CUDACC__)
constexpr bool ON_GPU = true;
#else
constexpr bool ON_GPU = false;
#endif

// ==== taking time ====================================================================================================

bool quick = false;
std::map<std::string, double>* profile = nullptr; // while it points at one: seconds by kernel

// Seconds that `calls` calls take, divided by `calls`. A GPU only queues a kernel: wait for it before reading the clock.
template <class F>
double seconds(int calls, F f) {
    synchronize();
    const double start = seconds_now();
    for (int i = 0; i < calls; i++) f();
    synchronize();
    return (seconds_now() - start) / calls;
}

// Seconds of one call: the fastest of many samples of at least half a millisecond, after a first call that does not count.
// A GPU's are of five: to wait for its queue to empty takes microseconds, once per sample.
template <class F>
double fastest(F f) {
    seconds(1, f);
    double best = seconds(1, f);
    const int calls = 1 + (int)((ON_GPU ? 5e-3 : 5e-4) / best);
    const double end = seconds_now() + (quick ? 0.05 : 0.3);
    for (int sample = 0; sample < 5 || seconds_now() < end; sample++) best = std::min(best, seconds(calls, f));
    return best;
}

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x.empty() ? 0 : x[x.size() / 2];
}

// The headers below launch through these two, so that a step can be taken apart into its kernels, by their names.
template <class F>
void timed(const char* call, F f) {
    if (profile) (*profile)[std::string(call, strcspn(call, "<,"))] += seconds(1, f);
    else f();
}
#define launch(...) timed(#__VA_ARGS__, [&] { (launch)(__VA_ARGS__); })
#define launch_shared(...) timed(#__VA_ARGS__, [&] { (launch_shared)(__VA_ARGS__); })
#define fill_zero(...) timed("fill_zero", [&] { (fill_zero)(__VA_ARGS__); })

#include "training.cuh"

// ==== tensors to work on =============================================================================================

// The model whose sizes are timed, and a number of rows that no cache holds.
constexpr int LAYERS = 6, HEADS = 6, C = 384, CONTEXT = 256, BATCH = 4, VOCAB = 256;
constexpr int BT = BATCH * CONTEXT, LARGE = 32 * BT, SQUARES = BATCH * HEADS * CONTEXT;

// Numbers between -2 and 2 in no order.
template <class T>
__global__ void fill_kernel(T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) x[i] = round_to<T>((float)((uint32_t)i * 2654435761u >> 8) * 0x1p-22f - 2);
}
Buffer filled(Format f, size_t n) {
    Buffer memory(n * bytes_of(f));
    with_type(f, [&](auto zero) { launch(fill_kernel<decltype(zero)>, chunks(n), BLOCK, (decltype(zero)*)memory.data(), n); });
    return memory;
}
template <class T>
struct Filled : Tensor<T> {
    Buffer memory;
    Filled(int rows, int cols) : Tensor<T>(nullptr, rows, cols), memory(filled(format_of<T>, (size_t)rows * cols)) { this->data = (T*)memory.data(); }
    double bytes() const { return memory.bytes(); }
};

// ==== cuBLASLt: the same product by NVIDIA's library =================================================================

#if defined(HAVE_CUBLASLT)
void lt(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) throw Error(1, format("cuBLASLt: %s", cublasLtGetStatusString(status)));
}

// Flop per second of c = a b, or c += a b, by the algorithm that the library's heuristic puts first. Sums in FP32: no TF32,
// no fast accumulation of FP8. Its bias would have to be in c's format, so it adds none.
double cublaslt_rate(Format c_format, Operand a, Operand b, Sizes s, bool accumulate) {
    static const cublasLtHandle_t library = [] {
        cublasLtHandle_t handle;
        return lt(cublasLtCreate(&handle)), handle;
    }();
    if (is_fp8(a.format)) a.row = s.K, a.col = 1, b.row = 1, b.col = s.K; // of FP8 it reads no layout but x w^T: time that one
    const bool a_rows = a.col == 1, b_rows = b.col == 1;                  // else they are views of transposed matrices
    auto type = [](Format f) {
        static const cudaDataType_t types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2};
        return types[f];
    };

    // Its matrices are column-major: our c = a b is its c^T = b^T a^T, without moving a number. So its A is our b, its M our N.
    cublasLtMatmulDescOpaque_t product;
    lt(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    auto set = [&](cublasLtMatmulDescAttributes_t what, auto value) { lt(cublasLtMatmulDescSetAttribute(&product, what, &value, sizeof(value))); };
    set(CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(b_rows ? CUBLAS_OP_N : CUBLAS_OP_T));
    set(CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(a_rows ? CUBLAS_OP_N : CUBLAS_OP_T));
    cublasLtMatrixLayoutOpaque_t A, B, C;
    lt(cublasLtMatrixLayoutInit(&A, type(b.format), b_rows ? s.N : s.K, b_rows ? s.K : s.N, b_rows ? b.row : b.col));
    lt(cublasLtMatrixLayoutInit(&B, type(a.format), a_rows ? s.K : s.M, a_rows ? s.M : s.K, a_rows ? a.row : a.col));
    lt(cublasLtMatrixLayoutInit(&C, type(c_format), s.N, s.M, s.N));

    Buffer c((size_t)s.M * s.N * bytes_of(c_format)), scale(sizeof(float)), workspace(32 << 20); // what NVIDIA advises for Hopper
    const float one = 1, beta = accumulate;
    copy_to_machine((float*)scale.data(), &one, 1);
    if (is_fp8(a.format)) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale.data()), set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale.data());

    cublasLtMatmulPreferenceOpaque_t preference;
    lt(cublasLtMatmulPreferenceInit(&preference));
    const uint64_t bytes = workspace.bytes();
    lt(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    cublasLtMatmulHeuristicResult_t first;
    int found = 0;
    lt(cublasLtMatmulAlgoGetHeuristic(library, &product, &A, &B, &C, &C, &preference, 1, &first, &found));
    ENSURE(found > 0, "cuBLASLt knows no algorithm for it");
    lt(first.state);
    return 2.0 * s.M * s.N * s.K / fastest([&] {
               lt(cublasLtMatmul(library, &product, &one, b.data, &A, a.data, &B, &beta, c.data(), &C, c.data(), &C, &first.algo, workspace.data(), bytes, 0));
           });
}
#else
double cublaslt_rate(Format, Operand, Operand, Sizes, bool) { throw Error(1, "this CUDA toolkit has no cuBLASLt"); }
#endif

// ==== limits, and rows that are held against them ====================================================================

struct Limit {
    double rate = 0;  // bytes/s, or flop/s of a product; 0: not measured
    std::string name; // ... or the reason why not
};
struct Limits {
    Limit memory, reading, products[5]; // the last by the format multiplied
} limits;

template <class T>
__global__ void copy_kernel(T* y, const T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) y[i] = x[i];
}
template <class T>
__global__ void add_kernel(T* y, const T* x, size_t n) {
    Chunk chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) y[i] += x[i];
}

template <class T> // one float for each chunk: writing them is nothing
__global__ void read_kernel(T* sums, const T* x, size_t n) {
    Chunk chunk(n);
    T sum = 0;
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK) sum += x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The limit of one product: on a GPU the library's rate for the same sizes and formats, elsewhere our own for a square.
Limit product_limit(Format c, Operand a, Operand b, Sizes s, bool accumulate = false) {
    if (!ON_GPU) return limits.products[a.format];
    try {
        return {cublaslt_rate(c, a, b, s, accumulate), "cuBLASLt"};
    } catch (const Error& e) {
        return {0, e.what()};
    }
}

// body(format, format of c, c, a, b, sizes) for the square products that a GPU's formats are compared by: a b, b the transposed view of
// its memory that a Linear's weight is.
template <class T, class F>
void square(Format f, F body) {
    const int n = 4096;
    Filled<T> c(n, n);
    Buffer x = filled(f, (size_t)n * n), w = filled(f, (size_t)n * n);
    const Operand a = {x.data(), f, 0, n, 1, 0, 0}, b = {w.data(), f, 0, n, 1, 0, 0};
    body(f, format_of<T>, output<T>(c), a, b.transposed(), Sizes{n, n, n});
}
template <class F>
void each_square(F body) {
    square<float>(FP32, body), square<bf16>(BF16, body), square<fp16>(FP16, body), square<bf16>(E4M3, body);
}

void measure_limits() {
    printf("\n| limit of this machine              |               |\n|:-----------------------------------|--------------:|\n");
    auto line = [](const std::string& what, Limit limit, const std::string& rate) {
        printf("| %-34s | %s |\n", what.c_str(), (limit.rate ? rate : "skipped: " + limit.name).c_str());
        return limit;
    };
    auto memory = [&](const char* what, double rate) { return line(what, {rate, ON_GPU ? "memcpy" : "memory"}, format("%8.1f GB/s", rate / 1e9)); };
    auto product = [&](int n, Format f, Limit limit) { return line(format("product %d x %d x %d, %s", n, n, n, name_of(f)), limit, format("%5.0f GFLOP/s", limit.rate / 1e9)); };

    const size_t n = 1 << 26;
    Filled<float> x(1 << 13, 1 << 13), y(1 << 13, 1 << 13);
    const double copy = 8 * n / fastest([&] { launch(copy_kernel<float>, chunks(n), BLOCK, y.data, (const float*)x.data, n); });
    const double add = 12 * n / fastest([&] { launch(add_kernel<float>, chunks(n), BLOCK, y.data, (const float*)x.data, n); });
    limits.memory = memory("copy, y = x, 268 MB each, FP32", copy);
    const Limit added = memory("add, y += x, 268 MB each, FP32", add);
    if (add > copy) limits.memory = added; // a CPU reads what it is about to overwrite: its copies move half as much again
    limits.reading = memory("read, sum of x, 268 MB, FP32", 4 * n / fastest([&] { launch(read_kernel<float>, chunks(n), BLOCK, y.data, (const float*)x.data, n); }));

#if defined(__CUDACC__)
    limits.memory = memory("cudaMemcpy, 268 MB", 8 * n / fastest([&] { CUDA_CHECK(cudaMemcpy(y.data, x.data, 4 * n, cudaMemcpyDeviceToDevice)); }));
    each_square([&](Format f, Format c, const auto&, Operand a, Operand b, Sizes s) { limits.products[f] = product(s.M, f, product_limit(c, a, b, s)); });
    limits.products[E5M2] = limits.products[E4M3];
#else
    auto product_rate = [](auto zero) {
        const int n = 1024;
        Filled<decltype(zero)> a(n, n), b(n, n), c(n, n);
        return 2.0 * n * n * n / fastest([&] { matmul(output(c), operand(a), operand(b), {n, n, n}); });
    };
    limits.products[FP32] = limits.products[FP16] = product(1024, FP32, {product_rate(float()), "product"});
    limits.products[BF16] = limits.products[E4M3] = limits.products[E5M2] = product(1024, BF16, {product_rate(bf16()), "product"});
#endif
}

// A row for f(), whose rate, of flop if it has any, else of bytes, is held against `limit`.
template <class F>
void row(const std::string& what, const std::string& formats, const std::string& size, double elements, double bytes, double flop, const Limit& limit, F f) {
    const double s = fastest(f), rate = (flop ? flop : bytes) / s;
    const std::string share = limit.rate ? format("%3.0f %% of %-7s", 100 * rate / limit.rate, limit.name.c_str()) : "not measured";
    printf("| %-23s | %-12s | %-17s | %8.3f | %7.1f | %8.1f | %10.4f | %4.0f %s | %s |\n", what.c_str(), formats.c_str(), size.c_str(),
           bytes / 1e6, flop / 1e6, s * 1e6, s * 1e9 / elements, rate / 1e9, flop ? "GFLOP/s" : "GB/s   ", share.c_str());
    fflush(stdout);
}
template <class F>
void kernel_row(const std::string& what, const std::string& formats, int rows, int cols, double bytes, F f) {
    row(what, formats, format("%d x %d", rows, cols), (double)rows * cols, bytes, 0, limits.memory, f);
}
template <class F>
void product_row(const std::string& what, const std::string& formats, Sizes s, int products, double bytes, const Limit& limit, F f) {
    const double outputs = (double)products * s.M * s.N;
    row(what, formats, format(products > 1 ? "%dx%dx%d (%d)" : "%dx%dx%d", s.M, s.N, s.K, products), outputs, bytes, 2 * outputs * s.K, limit, f);
}
template <class T>
const char* const name = name_of(format_of<T>);

// ==== a row per kernel ===============================================================================================

template <class T>
void bench_layernorm(int rows) {
    Filled<float> gamma(1, C), beta(1, C), dgamma(1, C), dbeta(1, C), mean(rows, 1), rstd(rows, 1), partial(2, (int)partial_floats(rows, C));
    LayerNorm w = {gamma, beta, dgamma, dbeta};
    Filled<T> x(rows, C), y(rows, C), dx(rows, C);
    kernel_row("layernorm_forward", name<T>, rows, C, 2 * x.bytes(), [&] { layernorm_forward<T>(y, mean, rstd, x, w); });
    Filled<e4m3> q(rows, C);
    Buffer stats(sizeof(CastStats));
    if (BOTH_WAYS) // the fused kernels are a GPU's
        kernel_row("layernorm + quantise", name<T> + std::string(" -> E4M3"), rows, C, x.bytes() + q.bytes(),
                   [&] { layernorm_forward<T>({}, mean, rstd, x, w, q.data, E4M3, 3, (CastStats*)stats.data()); });
    kernel_row("layernorm_backward", name<T>, rows, C, 6 * x.bytes(), [&] { layernorm_backward<T>(dx, w, y, x, mean, rstd, partial); });
}

template <class T>
void bench_gelu(int rows) {
    Filled<T> x(rows, 4 * C), y(rows, 4 * C), dy(rows, 4 * C);
    kernel_row("gelu_forward", name<T>, rows, 4 * C, 2 * x.bytes(), [&] { gelu_forward<T>(y, x); });
    kernel_row("gelu_backward", name<T>, rows, 4 * C, 3 * x.bytes(), [&] { gelu_backward<T>(y, dy, x); });
    Filled<e5m2> q(rows, 4 * C), qt(rows, 4 * C);
    Buffer stats(sizeof(CastStats));
    if (BOTH_WAYS)
        kernel_row("gelu_b. + quantise, turn", name<T> + std::string(" -> E5M2"), rows, 4 * C, 3 * x.bytes() + 2 * q.bytes(),
                   [&] { gelu_backward<T>(y, dy, x, q.data, E5M2, 3, (CastStats*)stats.data(), qt.data); });
}

template <class T>
void bench_embedding(int rows) {
    std::vector<int> tokens(rows);
    for (int i = 0; i < rows; i++) tokens[i] = (int)(i * 2654435761u >> 24);
    Buffer memory((4 * (size_t)rows + 1) * sizeof(int));
    TokenBatch batch = upload_batch((int*)memory.data(), tokens, tokens, rows / CONTEXT, CONTEXT, VOCAB);
    Filled<T> x(rows, C), wte(VOCAB, C), wpe(CONTEXT, C);
    Filled<float> dwte(VOCAB, C), dwpe(CONTEXT, C);
    kernel_row("embedding_forward", name<T>, rows, C, x.bytes() + wte.bytes() + wpe.bytes(), [&] { embedding_forward<T>(x, batch, wte, wpe); });
    kernel_row("embedding_backward", name<T>, rows, C, 2 * (x.bytes() + dwte.bytes() + dwpe.bytes()), [&] { embedding_backward<T>(dwte, dwpe, batch, x); });
}

template <class T>
void bench_crossentropy(int rows) {
    Filled<float> logits(rows, VOCAB), loss(rows, 1);
    Filled<T> dlogits(rows, VOCAB);
    Buffer target(rows * sizeof(int)); // zeros
    kernel_row("crossentropy", name<T>, rows, VOCAB, logits.bytes() + dlogits.bytes(), [&] { crossentropy<T>(loss, dlogits, logits, (const int*)target.data(), 1); });
}

// quantise without its counters: what they cost is the difference.
template <class T, class Q>
__global__ void bare_quantise_kernel(Q* q, const T* x, float scale, size_t n) {
    constexpr int N = PACK<T>;
    PackChunk<N> chunk(n);
    for (size_t i = chunk.begin; i < chunk.end; i += BLOCK * N) {
        const Pack<T> x_i = load_pack<N>(x, i, chunk.end);
        Pack<Q, N> q_i;
        for (int j = 0; j < N; j++) q_i[j] = saturate_to<Q>(to_float(x_i[j]) * scale);
        store_pack(q, i, chunk.end, q_i);
    }
}
template <class T, class Q>
void bare_quantise(Q* q, Tensor<T> x, float scale) {
    launch(bare_quantise_kernel<T, Q>, chunks(x.size()), BLOCK, q, (const T*)x.data, scale, x.size());
}

template <class T>
void bench_quantise(int rows) {
    Filled<T> x(rows, 4 * C);
    Filled<e4m3> q(rows, 4 * C);
    Buffer stats(sizeof(CastStats));
    CastStats* seen = (CastStats*)stats.data();
    const std::string from = name_of(format_of<T>);
    kernel_row("measure", from, rows, 4 * C, x.bytes(), [&] { measure<T>(seen, x); });
    kernel_row("quantise", from + " -> E4M3", rows, 4 * C, x.bytes() + q.bytes(), [&] { quantise<T>(q.data, E4M3, 3, seen, x); });
    Filled<e4m3> qt(rows, 4 * C);
    if (BOTH_WAYS) {
        kernel_row("quantise, turn", from + " -> E4M3", rows, 4 * C, x.bytes() + 2 * q.bytes(), [&] { quantise<T>(q.data, E4M3, 3, seen, x, qt.data); });
        kernel_row("transpose_codes", "E4M3", rows, 4 * C, 2 * q.bytes(), [&] { transpose_codes(qt.data, q.data, rows, 4 * C); });
    }
    kernel_row("... without counters", from + " -> E4M3", rows, 4 * C, x.bytes() + q.bytes(), [&] { bare_quantise<T>(q.data, x, 8); });
    kernel_row("quantise", from + " -> E5M2", rows, 4 * C, x.bytes() + q.bytes(), [&] { quantise<T>(q.data, E5M2, 3, seen, x); });
#if defined(ON_CPU)
    kernel_row("decode", "E4M3 -> " + from, rows, 4 * C, x.bytes() + q.bytes(),
               [&] { launch(decode_kernel<T, e4m3>, rows, BLOCK, x.data, operand<e4m3>(q), rows, 4 * C, 1, 0.125f); });
#endif
}

template <class Low> // the format of the copy that products read
void bench_adamw(int rows) {
    Filled<float> w(rows, C), m(rows, C), grad(rows, C);
    Filled<Low> low(rows, C);
    Buffer v(w.memory.bytes()), stats(sizeof(CastStats)); // v: zeros, as it may not be negative
    std::vector<Parameter> one = {{"w", rows, C, true, w.data, m.data, (float*)v.data(), grad.data, nullptr, format_of<Low>, low.data, 0, (CastStats*)stats.data()}};
    const double copied = sizeof(Low) % 4;
    kernel_row("adamw_update", name<Low>, rows, C, w.size() * (28 + copied), [&] { adamw_update(one, (CastStats*)stats.data(), AdamW{1e-3f}); });
}
void bench_gradients(int rows) { // FP32 in every recipe
    Filled<float> grad(rows, C), partial(1, chunks(grad.size()));
    kernel_row("global_norm", "FP32", rows, C, grad.bytes(), [&] { global_norm(grad.data, grad.size(), 1, partial.data); });
    kernel_row("fill_zero", "FP32", rows, C, grad.bytes(), [&] { fill_zero(grad.data, grad.memory.bytes()); });
}

template <class T>
void bench_column_sum(int rows) {
    Filled<T> x(rows, 4 * C);
    Filled<float> partial(1, (int)partial_floats(rows, 4 * C));
    kernel_row("column_sum_kernel", name<T>, rows, 4 * C, x.bytes(),
               [&] { launch(column_sum_kernel<T>, strip_blocks(rows, 4 * C), BLOCK, partial.data, (const T*)x.data, rows, 4 * C); });
}

template <class T>
void bench_attention(int) {
    Filled<float> s(SQUARES, CONTEXT);
    Filled<T> p(SQUARES, CONTEXT), ds(SQUARES, CONTEXT), qkv(BT, 3 * C), dqkv(BT, 3 * C), y(BT, C);
    const double forward = s.bytes() / 2 + p.bytes(), backward = s.bytes() / 2 + 1.5 * p.bytes(); // reads the visible half, writes all
    kernel_row("causal_softmax_forward", name<T>, SQUARES, CONTEXT, forward,
               [&] { launch(causal_softmax_forward_kernel<T>, row_blocks(SQUARES), row_threads(), p.data, s.data, 0.125f, SQUARES, CONTEXT); });
    kernel_row("causal_softmax_backward", name<T>, SQUARES, CONTEXT, backward, [&] {
        launch(causal_softmax_backward_kernel<T>, row_blocks(SQUARES), row_threads(), ds.data, (const float*)s.data, (const T*)p.data, 0.125f, SQUARES, CONTEXT);
    });
    const Sizes sizes = {CONTEXT, CONTEXT, C / HEADS};
    product_row("attention_forward", name<T>, sizes, 2 * BATCH * HEADS, 4 * y.bytes() + s.bytes() + p.bytes() + forward, limits.products[format_of<T>],
                [&] { attention_forward<T>(y, p, s, qkv, CONTEXT, HEADS); });
    product_row("attention_backward", name<T>, sizes, 4 * BATCH * HEADS, 9 * y.bytes() + s.bytes() + 3 * p.bytes() + backward, limits.products[format_of<T>],
                [&] { attention_backward<T>(dqkv, y, p, qkv, s, ds, CONTEXT, HEADS); });
#if !defined(ON_CPU)
    if constexpr (sizeof(T) == 2) { // half the tiles are skipped: so half the flops are counted
        Filled<float> lse(SQUARES, 1), delta(SQUARES, 1);
        product_row("flash_attention_forward", name<T>, sizes, BATCH * HEADS, 4 * y.bytes(), limits.products[format_of<T>],
                    [&] { flash_attention_forward<T>(y, lse, qkv, CONTEXT, HEADS); });
        product_row("flash_attention_backward", name<T>, sizes, 5 * BATCH * HEADS / 2, 9 * y.bytes(), limits.products[format_of<T>],
                    [&] { flash_attention_backward<T>(dqkv, y, y, lse, delta, qkv, CONTEXT, HEADS); });
    }
#endif
}

template <class T>
void bench_linear(const std::string& layer, const Recipe& r, int rows, int N, int K) {
    Buffer x = filled(r.input, (size_t)rows * K), w = filled(r.weight, (size_t)N * K), dy = filled(r.gradient, (size_t)rows * N);
    const Operand x_read = {x.data(), r.input, 0, K, 1, 0, 0}, w_read = {w.data(), r.weight, 0, K, 1, 0, 0}, dy_read = {dy.data(), r.gradient, 0, N, 1, 0, 0};
    auto by_column = [](Operand x, int rows) { return BOTH_WAYS && is_fp8(x.format) ? Operand{x.data, x.format, 0, 1, rows, 0, 0} : x; };
    const Operand w_by_col = by_column(w_read, N), dy_by_col = by_column(dy_read, rows), x_by_col = by_column(x_read, rows);
    const Sizes forward = {rows, N, K}, input = {rows, K, N}, weight = {N, K, rows};
    Filled<T> y(rows, N), dx(rows, K);
    Filled<float> dw(N, K), b(1, N);
    product_row(layer + ": y = x w^T + b", r.name, forward, 1, x.bytes() + w.bytes() + y.bytes(), product_limit(format_of<T>, x_read, w_read.transposed(), forward),
                [&] { matmul(output<T>(y), x_read, w_read.transposed(), forward, {b.data}); });
    product_row(layer + ": dx = dy w", r.name, input, 1, dy.bytes() + w.bytes() + dx.bytes(), product_limit(format_of<T>, dy_read, w_read, input),
                [&] { matmul(output<T>(dx), dy_read, w_by_col, input); });
    product_row(layer + ": dw += dy^T x", r.name, weight, 1, dy.bytes() + x.bytes() + 2 * dw.bytes(), product_limit(FP32, dy_read.transposed(), x_read, weight, true),
                [&] { matmul_add(output<float>(dw), dy_by_col.transposed(), x_by_col, weight); });
}

void bench_matmul(int rows) {
    if (ON_GPU && rows == BT)
        each_square([](Format f, Format c_format, auto c, Operand a, Operand b, Sizes s) {
            const double bytes = (double)s.M * s.N * (2 * bytes_of(f) + bytes_of(c_format));
            product_row("square: c = a b", name_of(f), s, 1, bytes, limits.products[f], [&] { matmul(c, a, b, s); });
        });
    for (const Recipe& r : RECIPES)
        with_stored(r.stored, [&](auto zero) {
            using T = decltype(zero);
            bench_linear<T>("qkv", r, rows, 3 * C, C), bench_linear<T>("proj", r, rows, C, C);
            bench_linear<T>("fc", r, rows, 4 * C, C), bench_linear<T>("mlp", r, rows, C, 4 * C);
        });
}

// ==== the training step, its products alone, and where the rest goes =================================================

using Action = std::function<void()>;

// train_step, ever on: each call of either is the next step of one run. The second looks at every tensor.
struct Steps {
    Action plain, looking;
};
template <class T>
Steps make_steps(const Recipe& r, const Tokens& tokens) {
    struct State {
        Config c;
        GPT<T> gpt;
        LossScale scale;
        Progress at;
    };
    Config c;
    c.batch = BATCH, c.context = CONTEXT;
    const std::shared_ptr<State> s(new State{c, GPT<T>(Shape{LAYERS, HEADS, C, CONTEXT, VOCAB}, r, BATCH, CONTEXT), loss_scale_of(c, r), {}}); // which must not move
    s->gpt.initialise((uint32_t)c.seed);
    auto step = [s, &tokens](int shadow_every) {
        s->c.shadow_every = shadow_every;
        train_step(s->gpt, s->scale, s->at, tokens, s->c);
    };
    return {[step] { step(0); }, [step] { step(1); }};
}

// Seconds that counting costs in a step's FP8 casts: of 7 C inputs of a token and layer in E4M3, and of 9 C gradients in E5M2.
double seconds_of_counters() {
    Filled<bf16> x(BT, 4 * C);
    Buffer q(x.size()), stats(sizeof(CastStats));
    auto difference = [&](Format f, auto zero) {
        const double counted = fastest([&] { quantise<bf16>(q.data(), f, 3, (CastStats*)stats.data(), x); });
        return counted - fastest([&] { bare_quantise<bf16>((decltype(zero)*)q.data(), x, 8); });
    };
    return LAYERS / 4.0 * (7 * difference(E4M3, e4m3()) + 9 * difference(E5M2, e5m2()));
}

// The matrix products of a step and nothing else: the same library calls, in the same order, on the same memory. Where they
// are our own kernel there is nothing to repeat: it is a line of the profile.
Action products_of([[maybe_unused]] const Action& step) {
#if defined(__CUDACC__) || defined(FEWBITS_SIMULATOR)
    return {};
#else
    std::vector<OneDnn::Call> calls;
    OneDnn::library().recording = &calls;
    step();
    OneDnn::library().recording = nullptr;
    return [calls] { for (const OneDnn::Call& call : calls) OneDnn::library().repeat(call); };
#endif
}

void bench_step(int) {
    struct Run {
        const char* name;
        Action step, looking, products;
        std::map<std::string, std::vector<double>> seconds; // of "step", "products", "profiled", and by kernel
        double ms(const std::string& what) const { return seconds.count(what) ? 1e3 * median(seconds.at(what)) : 0; }
    };
    const Data data = load_data("", "", 0);
    std::vector<Run> runs;
    for (const Recipe& r : RECIPES)
        with_stored(r.stored, [&](auto zero) {
            const Steps steps = make_steps<decltype(zero)>(r, data.train);
            runs.push_back({r.name, steps.plain, steps.looking, {}, {}});
        });
    for (Run& r : runs)
        for (int i = 0; i < 3; i++) r.step(); // code is generated, workspaces grow, first scales are measured
    for (Run& r : runs) r.products = products_of(r.step);

    std::map<std::string, int> kernels; // that any recipe launched
    for (int round = 0; round < (quick ? 3 : 15); round++)
        for (Run& r : runs) {
            r.seconds["step"].push_back(seconds(1, r.step));
            r.seconds["looking"].push_back(seconds(1, r.looking));
            if (r.products) r.seconds["products"].push_back(seconds(1, r.products));
            std::map<std::string, double> seen; // in a step of its own: waiting for every kernel costs a GPU time
            profile = &seen;
            r.seconds["profiled"].push_back(seconds(1, r.step));
            profile = nullptr;
            double products = 0; // by kernels of our own
            for (auto& [kernel, s] : seen) {
                if (kernel.rfind("matmul", 0) == 0 || kernel == "add_parts_kernel") products += s;
                else r.seconds[kernel].push_back(s), kernels[kernel]++;
            }
            if (products) r.seconds["products"].push_back(products);
        }

    auto line = [&](const std::string& what, int digits, auto value) {
        printf("| %-39s", what.c_str());
        for (Run& r : runs) printf(" | %8.*f", digits, value(r));
        printf(" |\n");
    };
    printf("\n| one training step                       |     fp32 |     bf16 |     fp16 |      fp8 |\n"
           "|:----------------------------------------|---------:|---------:|---------:|---------:|\n");
    line("ms", 1, [](Run& r) { return r.ms("step"); });
    line("tokens/s", 0, [](Run& r) { return 1e3 * BT / r.ms("step"); });
    line("its matrix products alone, ms", 1, [](Run& r) { return r.ms("products"); });
    line("step / products", 2, [](Run& r) { return r.ms("step") / r.ms("products"); });
    line("step / BF16 step", 2, [&](Run& r) { return r.ms("step") / runs[1].ms("step"); });
    line("looks, in one step of 16: % of a step", 2, [](Run& r) { return 100.0 / 16 * (r.ms("looking") / r.ms("step") - 1); });
    const double counters = 1e3 * seconds_of_counters();
    line("counters of casts: % of a step", 2, [&](Run& r) { return &r == &runs[3] ? 100 * counters / r.ms("step") : 0; });
    for (auto& [kernel, launches] : kernels) line(kernel + ", ms", 2, [name = kernel](Run& r) { return r.ms(name); });
}

// ==== text, token by token ===========================================================================================

// GPT-2 124M, its initial weights: one token after others, against reading each weight once.
void bench_sampling(int context) {
    const Shape gpt2 = {12, 12, 768, 1024, 50257};
    printf("\n| GPT-2 124M, a token after %4d others    |     fp32 |     bf16 |     fp16 |      fp8 |\n"
           "|:----------------------------------------|---------:|---------:|---------:|---------:|\n", context);
    std::vector<double> ms, megabytes;
    for (const Recipe& r : RECIPES)
        with_stored(r.stored, [&](auto zero) {
            using T = decltype(zero);
            GPT<T> gpt(gpt2, r, 1, context, false, Pass::read);
            gpt.initialise(1);
            double bytes = 0;
            for (const Parameter& p : gpt.parameters) bytes += p.name == "wpe.weight" ? 0 : p.size() * bytes_of(p.format);
            Cache<T> cache(gpt2, context + 256);
            read_on(gpt, cache, std::vector<int>(context, 1));
            std::vector<double> times;
            for (int i = 0; i < (quick ? 5 : 100); i++) times.push_back(1e3 * seconds(1, [&] { read_on(gpt, cache, {i}); }));
            ms.push_back(median(times)), megabytes.push_back(bytes / 1e6);
        });
    auto line = [&](const std::string& what, int digits, auto value) {
        printf("| %-39s", what.c_str());
        for (size_t i = 0; i < ms.size(); i++) printf(" | %8.*f", digits, value(i));
        printf(" |\n");
    };
    line("ms", 1, [&](int i) { return ms[i]; });
    line("tokens/s", 1, [&](int i) { return 1e3 / ms[i]; });
    line("weights, MB", 1, [&](int i) { return megabytes[i]; });
    line("reading them once: % of that time", 1, [&](int i) { return 100 * megabytes[i] * 1e6 / limits.reading.rate / (ms[i] / 1e3); });
}

// ==== main ===========================================================================================================

std::string processor() {
    std::ifstream file("/proc/cpuinfo"); // where there is one
    for (std::string line; std::getline(file, line);)
        if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
    return "unknown";
}

int main(int argc, char** argv) try {
    std::string only;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) quick = true;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
        else refuse("%s: expected --quick, or --only NAME", argv[i]);
    }
    printf("machine: %s  \nprocessor: %s  \ncompiler: %s\n", describe_machine().c_str(), processor().c_str(), __VERSION__);
    measure_limits();
    if (only != "step" && only != "sampling")
        printf("\n| kernel                  | format       | size              |       MB |   MFLOP |       us | ns/element |         rate | of the limit    |\n"
               "|:------------------------|:-------------|:------------------|---------:|--------:|---------:|-----------:|-------------:|----------------:|\n");
    bool found = false;
    auto bench = [&](const char* name, std::vector<int> sizes, std::vector<void (*)(int)> formats) {
        if (!only.empty() && only != name) return;
        found = true;
        for (int rows : sizes)
            for (auto run : formats) run(rows);
    };
    bench("layernorm", {BT, LARGE}, {bench_layernorm<float>, bench_layernorm<bf16>, bench_layernorm<fp16>});
    bench("gelu", {BT, LARGE}, {bench_gelu<float>, bench_gelu<bf16>, bench_gelu<fp16>});
    bench("embedding", {BT, LARGE}, {bench_embedding<float>, bench_embedding<bf16>, bench_embedding<fp16>});
    bench("crossentropy", {BT, LARGE}, {bench_crossentropy<float>, bench_crossentropy<bf16>, bench_crossentropy<fp16>});
    bench("quantise", {BT, LARGE}, {bench_quantise<float>, bench_quantise<bf16>});
    bench("adamw", {4 * C, LARGE}, {bench_adamw<float>, bench_adamw<bf16>, bench_adamw<fp16>, bench_adamw<e4m3>, bench_gradients});
    bench("column_sum", {BT, LARGE}, {bench_column_sum<float>, bench_column_sum<bf16>, bench_column_sum<fp16>});
    bench("attention", {BT}, {bench_attention<float>, bench_attention<bf16>, bench_attention<fp16>});
    bench("matmul", ON_GPU ? std::vector<int>{BT, LARGE} : std::vector<int>{BT}, {bench_matmul});
    bench("step", {BT}, {bench_step});
    bench("sampling", {256}, {bench_sampling});
    if (!found) refuse("--only %s: there is nothing of that name to time", only.c_str());
    return 0;
} catch (const Error& e) {
    fprintf(stderr, "bench: %s\n", e.what());
    return e.status;
}
