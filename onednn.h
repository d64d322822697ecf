// onednn.h -- matrix products on the CPU, by the library that PyTorch uses there. `dnnl::` stands in no other file.
//
//   c[b] = a[b] (M, K) @ b[b] (K, N)  [+ bias]  [+ c[b]]      for every b of outer x inner batches
//
// Source   oneDNN's matmul primitive; its C++ API of versions 2.x and 3.x
// Formats  a, b both FP32 or both BF16; c FP32 or BF16; bias FP32; FP32 accumulators
// Why      primitives are generated for a shape: the first product of a shape costs milliseconds, so they are kept.
//          Transposes and heads are strides, never copies. BF16 is used only where the processor has BF16 dot
//          products: elsewhere version 2.6 refuses it (AVX2) or is three times slower than FP32 (AVX-512 without them).
// Tests    tests/test_matmul.cu     Times  bench.cu, bench_matmul
#pragma once
#include <array>
#include <map>
#include <unordered_map>
#if __has_include(<oneapi/dnnl/dnnl.hpp>)
#include <oneapi/dnnl/dnnl.hpp>
#else
#include <dnnl.hpp>
#endif
#include "recipes.cuh"

// The shape of a product: where element (outer, inner, row, column) of each matrix lies, in elements.
struct Strides {
    int64_t outer, inner, row, col;
};
struct ProductShape {
    int64_t outer, inner, M, N, K;
    Strides a = {}, b = {}, c = {};
    Format ab_format = FP32, c_format = FP32;
    bool has_bias = false, accumulate = false;
    bool operator<(const ProductShape& s) const { return key() < s.key(); }
    std::array<int64_t, 21> key() const {
        return {outer, inner, M, N, K, a.outer, a.inner, a.row, a.col, b.outer, b.inner, b.row, b.col,
                c.outer, c.inner, c.row, c.col, ab_format, c_format, has_bias, accumulate};
    }
};

class OneDnn {
    struct Product {
        dnnl::memory a, b, bias, c;
        dnnl::matmul primitive;
        std::unordered_map<int, dnnl::memory> args;
    };
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    std::map<ProductShape, Product> products;
    static inline bool native_bf16_allowed = true;

    static dnnl::memory::data_type type_of(Format f) {
        ENSURE(f == FP32 || f == BF16, "oneDNN gets FP32 or BF16, not %s", name_of(f));
        return f == FP32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
    }

    static dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                                 const dnnl::memory::desc& bias, const dnnl::memory::desc& c,
                                                 const dnnl::primitive_attr& attributes, bool has_bias) {
#if DNNL_VERSION_MAJOR >= 3
        if (has_bias) return {engine, a, b, bias, c, attributes};
        return {engine, a, b, c, attributes};
#else
        if (has_bias) return {dnnl::matmul::desc(a, b, bias, c), attributes, engine};
        return {dnnl::matmul::desc(a, b, c), attributes, engine};
#endif
    }

    Product make(const ProductShape& s) const {
        using dims = dnnl::memory::dims;
        bool batched = s.outer * s.inner > 1; // oneDNN's plain 2-D product is faster than a batch of one
        auto desc = [&](Format f, int64_t rows, int64_t cols, Strides t) {
            return batched ? dnnl::memory::desc(dims{s.outer, s.inner, rows, cols}, type_of(f), dims{t.outer, t.inner, t.row, t.col})
                           : dnnl::memory::desc(dims{rows, cols}, type_of(f), dims{t.row, t.col});
        };
        auto a = desc(s.ab_format, s.M, s.K, s.a), b = desc(s.ab_format, s.K, s.N, s.b), c = desc(s.c_format, s.M, s.N, s.c);
        auto bias = dnnl::memory::desc(batched ? dims{1, 1, 1, s.N} : dims{1, s.N}, dnnl::memory::data_type::f32,
                                       batched ? dims{s.N, s.N, s.N, 1} : dims{s.N, 1});
        dnnl::primitive_attr attributes;
        if (s.accumulate) {
            dnnl::post_ops add;
            add.append_sum(1.0f);
            attributes.set_post_ops(add);
        }
        auto later = [&](const dnnl::memory::desc& d) { return dnnl::memory(d, engine, nullptr); }; // multiply says where it lies
        const dnnl::matmul primitive(describe(engine, a, b, bias, c, attributes, s.has_bias));
        Product p = {later(a), later(b), later(bias), later(c), primitive, {}};
        p.args = {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.c}};
        if (s.has_bias) p.args.insert({DNNL_ARG_BIAS, p.bias});
        return p;
    }

  public:
    static OneDnn& library() {
        static OneDnn instance;
        return instance;
    }

    // One call of multiply. While `recording` points at a list, each call is noted there: bench.cu repeats a step's
    // products, and nothing else, on the memory they were made for.
    struct Call {
        void* c;
        const void *a, *b;
        const float* bias;
        ProductShape shape;
    };
    std::vector<Call>* recording = nullptr;
    void repeat(const Call& call) { multiply(call.c, call.a, call.b, call.bias, call.shape); }

    // Whether BF16 operands are multiplied as BF16: this processor does so natively (AVX512-BF16, AMX), and it may.
    static bool native_bf16() {
        static const bool native = [] {
            int isa = (int)dnnl::get_effective_cpu_isa(), bf16_isa = (int)dnnl::cpu_isa::avx512_core_bf16;
            return (isa & bf16_isa) == bf16_isa;
        }();
        return native && native_bf16_allowed;
    }
    // false: widen BF16 to FP32, as a processor without BF16 products must. So its path can be tested on one that has them.
    static void allow_native_bf16(bool allowed) { native_bf16_allowed = allowed; }
    static std::string version() {
        const dnnl_version_t* v = dnnl_version();
        return format("oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    }

    void multiply(void* c, const void* a, const void* b, const float* bias, const ProductShape& shape) {
        if (recording) recording->push_back({c, a, b, bias, shape});
        try {
            auto found = products.find(shape);
            if (found == products.end()) found = products.emplace(shape, make(shape)).first;
            Product& p = found->second;
            p.a.set_data_handle((void*)a), p.b.set_data_handle((void*)b), p.c.set_data_handle(c);
            if (bias) p.bias.set_data_handle((void*)bias);
            p.primitive.execute(stream, p.args);
            stream.wait();
        } catch (const dnnl::error& e) {
            throw Error(1, format("oneDNN: %s in a product of M=%ld N=%ld K=%ld", e.what(), (long)shape.M, (long)shape.N, (long)shape.K));
        }
    }
};
