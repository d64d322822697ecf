// gpt.cuh -- the model: GPT-2's transformer as the list of its equations, forward and backward.
//
//   x = wte[token] + wpe[position]
//   L times:   x += proj(attention(qkv(ln_1(x))));   x += mlp(gelu(fc(ln_2(x))))
//   logits = ln_f(x) wte^T                           loss = mean over tokens of -log softmax(logits)[next token]
//
// Source   Radford et al. 2019 (GPT-2): pre-layernorm, learned positions, biases, the head tied to wte; initialised
//          N(0, 0.02), the two projections onto the residual stream N(0, 0.02 / sqrt(2L)), biases 0, gains 1
// Shapes   B examples of T tokens, BT = B*T; C channels, V tokens in the vocabulary
// Formats  activations and their gradients in the stored format T; see recipes.cuh for the rest
// Why      activations are declared, and thereby allocated, anew in each forward pass from one arena: any (B, T) that
//          fits runs without an allocation, and a dry run tells the size before anything is allocated
// Tests    tests/test_gpt.cu     Times  bench.cu, bench_step
#pragma once
#include "adam.cuh"
#include "attention.cuh"
#include "crossentropy.cuh"
#include "embedding.cuh"
#include "flash_attention.cuh"
#include "linear.cuh"
#include "rng.h"

struct Shape {
    int layers, heads, channels, context, vocab;
};

// Columns of the logits: a multiple of 8, so that each row starts on a 16-byte boundary in every format.
inline int padded(int vocab) { return ceil_div(vocab, 8) * 8; }

// Whether attention is fused: on a GPU with tensor cores for T.
template <class T>
bool is_flash(const Shape& s) {
#if defined(ON_CPU)
    return (void)s, false;
#else
    return flash_attention_supports<T>(s.channels / s.heads, capability());
#endif
}

// ==== activations: one line per tensor, which names it and allocates it ==============================================

// clang-format off
template <class T>
struct BlockActivations {
    Arena& mem; int BT, C, squares, length; bool fp8, flash; // squares = B * heads * T rows of attention
    // needed again by backward
    Tensor<T>     ln1  {mem, BT, C, "ln_1"};
    Tensor<float> mean1{mem, BT, 1}, rstd1{mem, BT, 1};
    Tensor<T>     qkv  {mem, BT, 3 * C, "attn.c_attn"};  // q | k | v, heads side by side
    Tensor<T>     p    {mem, flash ? 0 : squares, length, "attn.p"}; // softmax(q k^T / sqrt(hs)), or only
    Tensor<float> lse  {mem, flash ? squares : 0, 1};    // the logarithms of its sums
    Tensor<T>     att  {mem, BT, C, "attn"};             // p v
    Tensor<T>     mid  {mem, BT, C, "attn residual"};    // x + proj(att)
    Tensor<T>     ln2  {mem, BT, C, "ln_2"};
    Tensor<float> mean2{mem, BT, 1}, rstd2{mem, BT, 1};
    Tensor<T>     fc   {mem, BT, 4 * C, "mlp.c_fc"};
    Tensor<T>     gelu {mem, BT, 4 * C, "mlp.gelu"};
    Tensor<T>     out  {mem, BT, C, "mlp residual"};     // mid + mlp(gelu)
    // FP8 codes of the four Linears' inputs, as forward read them
    Tensor<uint8_t> ln1_codes{mem, fp8 ? BT : 0, C}, att_codes {mem, fp8 ? BT : 0, C},
                    ln2_codes{mem, fp8 ? BT : 0, C}, gelu_codes{mem, fp8 ? BT : 0, 4 * C};
};

// What forward leaves for nobody: shared by all layers.
template <class T>
struct ForwardScratch {
    Arena& mem; int squares, length; bool flash;
    Tensor<float> scores{mem, flash ? 0 : squares, length};  // q k^T, and dP in backward
};

template <class T>
struct BackwardScratch {
    Arena& mem; int BT, C, squares, length; bool fp8, flash; // each gradient is named after its tensor
    Tensor<T> residual{mem, BT, C};              // of the residual stream, added to by each branch
    Tensor<T> ln  {mem, BT, C};
    Tensor<T> att {mem, BT, C};
    Tensor<T> qkv {mem, BT, 3 * C};
    Tensor<T> gelu{mem, BT, 4 * C}, fc = gelu;   // gelu_backward works in place
    Tensor<T> scores{mem, flash ? 0 : squares, length};
    Tensor<float> delta{mem, flash ? squares : 0, 1};
    int codes_both_ways = fp8 && BOTH_WAYS ? BT : 0;
    LinearScratch linear{{mem, fp8 ? BT : 0, 4 * C}, {mem, codes_both_ways, 4 * C}, {mem, codes_both_ways, 4 * C},
                         {mem, 2 * ceil_div(BT, STRIP), 4 * C}};
};

template <class T>
struct Activations {
    int B, length, BT;
    Tensor<T> embedded;
    std::vector<BlockActivations<T>> blocks;
    Tensor<T> lnf;
    Tensor<float> mean, rstd, logits, loss;
    ForwardScratch<T> scratch;
    BackwardScratch<T> d;

    Activations(Arena& mem, const Shape& s, int B, int T_, bool fp8, bool flash, Pass pass)
        : B(B), length(T_), BT(B * T_), embedded(mem, BT, s.channels, "embedding"),
          blocks(make_blocks(mem, s, B, T_, fp8, flash, pass)),
          lnf(mem, BT, s.channels, "ln_f"), mean(mem, BT, 1), rstd(mem, BT, 1),
          logits(mem, pass == Pass::read ? 1 : BT, padded(s.vocab), "logits"), loss(mem, BT, 1, "loss"),
          scratch{mem, B * s.heads * T_, T_, flash},
          d{mem, pass == Pass::train ? BT : 0, s.channels, pass == Pass::train ? B * s.heads * T_ : 0, T_, fp8, flash} {}

    // Without a backward pass a block needs nothing but the one before it: two take turns.
    static std::vector<BlockActivations<T>> make_blocks(Arena& mem, const Shape& s, int B, int T_, bool fp8, bool flash, Pass pass) {
        std::vector<BlockActivations<T>> blocks;
        for (mem.layer = 0; mem.layer < s.layers; mem.layer++)
            if (pass == Pass::train || mem.layer < 2) blocks.push_back({mem, B * T_, s.channels, B * s.heads * T_, T_, fp8, flash});
            else blocks.push_back(blocks[mem.layer - 2]);
        mem.layer = -1;
        return blocks;
    }
};
// clang-format on

template <class T>
size_t activation_bytes(const Shape& s, const Recipe& r, int B, int length, Pass pass) {
    Arena dry;
    Activations<T>(dry, s, B, length, is_fp8(r.input), is_flash<T>(s), pass);
    return dry.used;
}

// What a model keeps of a text that it reads token by token: a row of each layer's q | k | v for each token.
template <class T>
struct Cache {
    int context, length = 0; // in tokens: room, and how many were read
    Buffer memory;
    std::vector<Tensor<T>> qkv; // of each layer, (context, 3C)
    Tensor<float> scores;       // (heads, context): scratch

    static size_t bytes(const Shape& s, int context) { return ((size_t)s.layers * 3 * s.channels * sizeof(T) + s.heads * sizeof(float)) * context + 256 * (s.layers + 1); }
    Cache(const Shape& s, int context) : context(context), memory(bytes(s, context)) {
        Arena a{(char*)memory.data()};
        for (int l = 0; l < s.layers; l++) qkv.emplace_back(a, context, 3 * s.channels);
        scores = {a, s.heads, context};
    }
};

// ==== parameters =====================================================================================================

// Every weight tensor of the model, in order, without memory: names, shapes and formats. The names are GPT-2's.
inline std::vector<Parameter> declare_parameters(const Shape& s, const Recipe& r) {
    std::vector<Parameter> all;
    auto add = [&](const std::string& name, int rows, int cols, bool matrix, Format f) {
        Parameter p;
        p.name = name, p.rows = rows, p.cols = cols, p.matrix = matrix, p.format = f;
        if (r.stored == FP16) p.storage = FP16;
        all.push_back(p);
    };
    const int C = s.channels;
    auto vector = [&](const std::string& name, int n) { add(name, 1, n, false, FP32); };
    auto linear = [&](const std::string& name, int rows, int cols) {
        add(name + ".weight", rows, cols, true, r.weight);
        vector(name + ".bias", rows);
    };
    auto layernorm = [&](const std::string& name) { vector(name + ".weight", C), vector(name + ".bias", C); };

    add("wte.weight", s.vocab, C, true, r.stored);
    add("wpe.weight", s.context, C, true, r.stored);
    for (int l = 0; l < s.layers; l++) {
        const std::string h = "h." + std::to_string(l) + ".";
        layernorm(h + "ln_1");
        linear(h + "attn.c_attn", 3 * C, C);
        linear(h + "attn.c_proj", C, C);
        layernorm(h + "ln_2");
        linear(h + "mlp.c_fc", 4 * C, C);
        linear(h + "mlp.c_proj", C, 4 * C);
    }
    layernorm("ln_f");
    return all;
}

// Bytes by class of tensor.
struct Memory {
    size_t masters = 0, moments = 0, gradients = 0, averages = 0, low = 0, activations = 0;
    size_t total() const { return masters + moments + gradients + averages + low + activations; }
};

// Of the copy that products read. FP8 codes have room for 16 bits: for their transpose, or for BF16 if the weight is promoted.
inline size_t low_bytes(const Parameter& p) { return p.format == FP32 ? 0 : 2 * ceil_div<size_t>(p.size(), 16) * 16; }

// For training with batches of up to B x length tokens, or for passes of another kind alone.
inline Memory memory_needed(const Shape& s, const Recipe& r, int B, int length, bool average, Pass pass = Pass::train) {
    Memory m;
    for (const Parameter& p : declare_parameters(s, r)) {
        Arena one, low;
        one.take(p.size() * 4);
        low.take(low_bytes(p));
        m.masters += one.used, m.low += low.used;
        if (pass == Pass::train) m.gradients += one.used, m.moments += 2 * one.used;
        if (average) m.averages += one.used;
    }
    m.activations = with_stored(r.stored, [&](auto zero) { return activation_bytes<decltype(zero)>(s, r, B, length, pass); });
    return m;
}

struct Block {
    LayerNorm ln1, ln2;
    Linear qkv, proj, fc, mlp;
};

template <class T>
struct GPT {
    Shape shape;
    Recipe recipe;
    Memory memory;
    std::vector<Parameter> parameters;
    Buffer masters, moments, gradients, averages, low, activations, stats, tokens, partial;
    Parameter *wte, *wpe;
    std::vector<Block> blocks;
    LayerNorm lnf;
    Rules rules;                                          // of the precision procedure,
    PolicyState policy;                                   // and what it knows: in FP8 of the sites, and then of the Linears' weights; of all parameters' masters
    std::vector<std::pair<std::string, CastSite*>> sites; // inputs and gradients of Linears, by name, in the order in which a step casts
    std::vector<Parameter*> linear_weights;
    std::vector<TensorState> plain_states; // of the other recipes' inputs and gradients
    ShadowPass looks;
    std::vector<Shadow> weight_shadows; // of the last look
    UpdateWatch watch;
    Buffer update_counts, update_sums;
    Arena arena;
    std::vector<Activations<T>> now; // of the last forward pass: none or one

    CastStats* weight_stats() const { return (CastStats*)stats.data(); }
    CastStats* site_stats() const { return weight_stats() + parameters.size(); }
    Tensor<T> embedding(const Parameter* p) const { return {(T*)p->operand().data, p->rows, p->cols}; }

    // A batch on the machine; its memory holds one at a time.
    TokenBatch upload(const std::vector<int>& x, const std::vector<int>& y, int B, int length) {
        ENSURE((4 * (size_t)B * length + 1) * sizeof(int) <= tokens.bytes(), "a batch of %d x %d tokens is larger than the model was made for", B, length);
        return upload_batch((int*)tokens.data(), x, y, B, length, shape.vocab);
    }

    // Memory for the model, and for training with batches of up to B x length tokens or for another kind of pass alone; weights are zero.
    GPT(const Shape& s, const Recipe& r, int B, int length, bool average = false, Pass pass = Pass::train)
        : shape(s), recipe(r), memory(memory_needed(s, r, B, length, average, pass)), parameters(declare_parameters(s, r)),
          masters(memory.masters), moments(memory.moments), gradients(memory.gradients), averages(memory.averages), low(memory.low),
          activations(memory.activations), stats((parameters.size() + 16 * s.layers + 1) * sizeof(CastStats)),
          tokens((4 * (size_t)B * length + 1) * sizeof(int)), partial(chunks(memory.gradients / 4) * sizeof(float)), blocks(s.layers),
          looks(std::max((size_t)B * length, (size_t)s.channels) * 4 * s.channels), update_counts(parameters.size() * sizeof(UpdateCounts)),
          update_sums(UpdateWatch::partial_floats(parameters) * sizeof(float)) {
        ENSURE(r.stored == format_of<T>, "recipe %s stores %s, the model is built for %s", r.name, name_of(r.stored), name_of(format_of<T>));
        ENSURE(s.channels % s.heads == 0, "%d channels do not split into %d heads", s.channels, s.heads);
        Arena w{(char*)masters.data()}, mv{(char*)moments.data()}, g{(char*)gradients.data()}, a{(char*)averages.data()}, lo{(char*)low.data()};
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter& p = parameters[i];
            p.master = (float*)w.take(p.size() * 4);
            if (pass == Pass::train) p.grad = (float*)g.take(p.size() * 4), p.m = (float*)mv.take(p.size() * 4), p.v = (float*)mv.take(p.size() * 4);
            if (average) p.average = (float*)a.take(p.size() * 4);
            if (p.format != FP32) p.low = lo.take(low_bytes(p));
            p.stats = weight_stats() + i;
            set_format(p, p.format);
        }
        for (const Parameter& p : parameters) policy.parameters.push_back({0, 0, 0, 1, p.storage});
        watch.counts = (UpdateCounts*)update_counts.data(), watch.partial = (float*)update_sums.data();
        connect();
    }

    // The format of the copy that products read; its numbers are for the next rounding to write.
    static void set_format(Parameter& p, Format f) {
        p.format = f, p.k = 0;
        p.low_t = is_fp8(f) && BOTH_WAYS ? (char*)p.low + low_bytes(p) / 2 : nullptr;
    }

    // The blocks' views of the parameters, which stand in the order of declare_parameters.
    void connect() {
        Parameter* next = parameters.data();
        auto layernorm = [&](LayerNorm& l) {
            l.gamma = next->weight(), l.dgamma = next->gradient(), next++;
            l.beta = next->weight(), l.dbeta = next->gradient(), next++;
        };
        const int n = 8 * shape.layers;
        const bool fp8 = is_fp8(recipe.input);
        std::vector<TensorState>& states = fp8 ? policy.tensors : plain_states;
        states.resize(fp8 ? n + n / 2 : n), sites.resize(n);
        int linears = 0; // the i-th Linear's input is cast i-th, its gradient i-th from the end
        auto cast_site = [&](CastSite& c, const std::string& name, Format f, Role role, int at) {
            states[at] = TensorState(f, role);
            c.rules = &rules, c.state = &states[at], c.stats = site_stats() + 2 * at;
            sites[at] = {name, &c};
        };
        auto linear = [&](Linear& l) {
            const std::string name = next->name.substr(0, next->name.rfind('.'));
            if (fp8) states[n + linears] = TensorState(recipe.weight, Role::weight);
            linear_weights.push_back(next);
            l.dw = next->gradient(), next++;
            l.b = next->weight(), l.db = next->gradient(), next++;
            cast_site(l.x, name + " input", recipe.input, Role::input, linears);
            cast_site(l.dy, name + " gradient", recipe.gradient, Role::gradient, n - 1 - linears++);
        };
        wte = next++, wpe = next++;
        for (Block& b : blocks) {
            layernorm(b.ln1), linear(b.qkv), linear(b.proj);
            layernorm(b.ln2), linear(b.fc), linear(b.mlp);
        }
        layernorm(lnf);
        point_at_weights();
    }

    // What a look sees: the sites, then the Linears' weights. In FP8 these are policy.tensors.
    std::vector<std::string> tensor_names() const {
        std::vector<std::string> names;
        for (auto& [name, site] : sites) names.push_back(name);
        for (const Parameter* p : linear_weights) names.push_back(p->name);
        return names;
    }
    std::vector<const Shadow*> shadows() const {
        std::vector<const Shadow*> all;
        for (auto& [name, site] : sites) all.push_back(&site->shadow);
        for (const Shadow& s : weight_shadows) all.push_back(&s);
        return all;
    }

    // Weights take the formats that the policy decided; the next rounding writes them.
    void follow_formats() {
        for (size_t i = 0; i < linear_weights.size() && sites.size() + i < policy.tensors.size(); i++)
            if (const Format f = policy.tensors[sites.size() + i].format; f != linear_weights[i]->format) set_format(*linear_weights[i], f);
    }

    // The copies that products read are rounded from the masters.
    void follow_masters() {
        round_weights(parameters, weight_stats());
        point_at_weights();
    }

    // From here on a weight is a number of its storage format, rounded at every step, until the policy gives it a master.
    void drop_masters(bool stochastic, uint32_t seed) {
        watch.stochastic = stochastic, watch.rng = Rng(seed, Stream::rounding);
        for (size_t i = 0; i < parameters.size(); i++) drop_master(parameters[i]), policy.parameters[i].master = 0;
        follow_masters();
    }

    // Linears read the low-precision copies with the exponents that they have now.
    void point_at_weights() {
        const Parameter* next = wpe + 1;
        auto weight = [](const Parameter& p) {
            Operand by_col = {p.low_t, p.format, p.k, 1, p.rows, 0, 0};
            return Cast{p.operand(), p.low_t ? by_col : p.operand()};
        };
        for (Block& b : blocks) {
            b.qkv.w = weight(next[2]), b.proj.w = weight(next[4]);
            b.fc.w = weight(next[8]), b.mlp.w = weight(next[10]);
            next += 12;
        }
    }

    // Masters and averages change places, to evaluate with the averages; a second call undoes the first exactly.
    void swap_average() {
        ENSURE(averages.bytes() == masters.bytes(), "no averages are kept");
        launch(swap_kernel<float>, chunks(masters.bytes() / 4), BLOCK, (float*)masters.data(), (float*)averages.data(), masters.bytes() / 4);
        follow_masters();
    }

    // GPT-2's initialisation: element e of tensor i is number i * 2^40 + e of the stream, whatever the recipe or machine.
    void initialise(uint32_t seed) {
        const Rng rng(seed, Stream::weights);
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter& p = parameters[i];
            const bool onto_residual = p.name.find("c_proj.weight") != std::string::npos;
            const bool gain = p.name.find("ln_") != std::string::npos && p.name.find(".weight") != std::string::npos;
            const float std = (float)(onto_residual ? 0.02 / std::sqrt(2.0 * shape.layers) : 0.02);
            std::vector<float> w(p.size(), gain ? 1.0f : 0.0f);
            if (p.matrix) {
#pragma omp parallel for
                for (long e = 0; e < (long)w.size(); e++) w[e] = std * rng.normal((uint64_t)i << 40 | e);
            }
            copy_to_machine(p.master, w.data(), w.size());
            if (p.average) copy_to_machine(p.average, w.data(), w.size());
        }
        follow_masters();
    }
};

// What each FP8 cast saw since the last call; counting starts anew.
template <class T>
std::vector<CastStats> take_cast_stats(GPT<T>& gpt) {
    std::vector<CastStats> seen(16 * gpt.shape.layers), by_site;
    copy_to_host(seen.data(), gpt.site_stats(), seen.size());
    fill_zero(gpt.site_stats(), seen.size() * sizeof(CastStats));
    for (auto& [name, site] : gpt.sites) by_site.push_back(seen[site->stats - gpt.site_stats()]);
    return by_site;
}

// The same of the Linears' weights, as they were when they were last rounded.
template <class T>
std::vector<CastStats> weight_cast_stats(const GPT<T>& gpt) {
    std::vector<CastStats> all(gpt.parameters.size()), seen;
    copy_to_host(all.data(), gpt.weight_stats(), all.size());
    for (const Parameter* p : gpt.linear_weights) seen.push_back(all[p - gpt.parameters.data()]);
    return seen;
}

// ==== one transformer block ==========================================================================================

// clang-format off
template <class T>
void block_forward(BlockActivations<T>& a, Tensor<T> x, Block& w, ForwardScratch<T>& s, int heads, Pass pass, Tensor<T> seen = {}) {
    Operand ln1 = layernorm_cast(a.ln1, a.mean1, a.rstd1, x, w.ln1, w.qkv.x, a.ln1_codes, pass);     // (BT, C)
    linear_forward(a.qkv, ln1, w.qkv);                                   // (BT, C) @ (3C, C)^T -> (BT, 3C)
    if (seen.rows) attention_of_last(a.att, s.scores, seen, heads);      // (tokens read, 3C) -> (1, C)
    else if (a.flash) flash_attention_forward(a.att, a.lse, a.qkv, a.length, heads); // (BT, 3C) -> (BT, C)
    else attention_forward(a.att, a.p, s.scores, a.qkv, a.length, heads);
    Operand att = cast(w.proj.x, a.att_codes, a.att, pass);
    linear_forward(a.mid, att, w.proj, plus(x));                         // x + (BT, C) @ (C, C)^T -> (BT, C)

    Operand ln2 = layernorm_cast(a.ln2, a.mean2, a.rstd2, a.mid, w.ln2, w.fc.x, a.ln2_codes, pass);  // (BT, C)
    linear_forward(a.gelu, ln2, w.fc, gelu_keeping(a.fc));               // gelu((BT, C) @ (4C, C)^T) -> (BT, 4C)
    Operand gelu = cast(w.mlp.x, a.gelu_codes, a.gelu, pass);
    linear_forward(a.out, gelu, w.mlp, plus(a.mid));                     // mid + (BT, 4C) @ (C, 4C)^T -> (BT, C)
}

// The same lines, bottom to top. d.residual is d loss/d out on entry and d loss/d x on return: an addition hands its
// gradient to both branches unchanged, so each half only adds its branch's share to it.
template <class T>
void block_backward(BackwardScratch<T>& d, BlockActivations<T>& a, Tensor<T> x, Block& w, ForwardScratch<T>& s, int heads) {
    linear_backward   (d.gelu, d.residual, w.mlp, d.linear);
    Cast dfc = gelu_backward_cast(d.fc, d.gelu, a.fc, w.fc.dy, d.linear);
    linear_backward   (d.ln, d.fc, dfc, w.fc, d.linear);
    layernorm_backward(d.residual, w.ln2, d.ln, a.mid, a.mean2, a.rstd2, d.linear.partial);      // +=

    linear_backward   (d.att, d.residual, w.proj, d.linear);
    if (a.flash) flash_attention_backward(d.qkv, d.att, a.att, a.lse, d.delta, a.qkv, a.length, heads);
    else attention_backward(d.qkv, d.att, a.p, a.qkv, s.scores, d.scores, a.length, heads);
    linear_backward   (d.ln, d.qkv, w.qkv, d.linear);
    layernorm_backward(d.residual, w.ln1, d.ln, x, a.mean1, a.rstd1, d.linear.partial);          // +=
}
// clang-format on

// ==== the whole model ================================================================================================

// logits of every position. An evaluation neither keeps what only backward needs nor touches a scale. With a cache the batch is one text's next
// tokens: its first ones, or the one that follows what the cache holds; logits of the last alone.
template <class T>
void gpt_forward(GPT<T>& gpt, const TokenBatch& batch, Pass pass, Cache<T>* cache = nullptr) {
    const int C = gpt.shape.channels, before = cache ? cache->length : 0;
    ENSURE(!cache == (pass != Pass::read) && (!before || batch.B * batch.T == 1) && (!cache || (batch.B == 1 && before + batch.T <= cache->context)),
           "%d x %d tokens after %d", batch.B, batch.T, before);
    gpt.arena = Arena{(char*)gpt.activations.data()};
    gpt.now.clear();
    gpt.now.emplace_back(gpt.arena, gpt.shape, batch.B, batch.T, is_fp8(gpt.recipe.input), is_flash<T>(gpt.shape), pass);
    ENSURE(gpt.arena.used <= gpt.activations.bytes(), "a batch of %d x %d needs %zu bytes of activations, %zu were set aside", batch.B,
           batch.T, gpt.arena.used, gpt.activations.bytes());
    Activations<T>& a = gpt.now[0];

    Tensor<T> wpe = gpt.embedding(gpt.wpe), x = a.embedded;
    embedding_forward(x, batch, gpt.embedding(gpt.wte), wpe.from(before));
    if (before) a.scratch.scores = cache->scores;
    for (int l = 0; l < gpt.shape.layers; l++) {
        Tensor<T> seen;
        if (cache) a.blocks[l].qkv = Tensor<T>(cache->qkv[l].from(before).data, batch.T, 3 * C);
        if (before) seen = {cache->qkv[l].data, before + 1, 3 * C};
        block_forward(a.blocks[l], x, gpt.blocks[l], a.scratch, gpt.shape.heads, pass, seen);
        x = a.blocks[l].out;
    }
    layernorm_forward(a.lnf, a.mean, a.rstd, x, gpt.lnf);
    matmul(output(a.logits), operand(a.lnf.from(a.BT - a.logits.rows)), gpt.wte->operand().transposed(), {a.logits.rows, gpt.shape.vocab, C});
    if (cache) cache->length += batch.T;
}

// d loss/d logits lie where the logits lay, each row where that row began.
template <class T>
Operand dlogits(const Activations<T>& a) {
    return {a.logits.data, format_of<T>, 0, (int64_t)(sizeof(float) / sizeof(T)) * a.logits.cols, 1, 0, 0};
}

// The mean loss of the last forward pass, in nats per token. Unless dloss is 0, d (dloss * loss)/d logits take the logits' place.
template <class T>
double gpt_loss(GPT<T>& gpt, const TokenBatch& batch, float dloss) {
    Activations<T>& a = gpt.now[0];
    Tensor<T> in_place((T*)a.logits.data, a.BT, a.logits.cols);
    crossentropy(a.loss, dloss == 0 ? Tensor<T>() : in_place, a.logits, batch.target, dloss / a.BT, gpt.shape.vocab);
    std::vector<float> losses(a.BT);
    copy_to_host(losses.data(), a.loss.data, losses.size());
    double sum = 0;
    for (float l : losses) sum += l;
    return sum / a.BT;
}

// Every parameter's grad += its share of the loss that gpt_loss differentiated.
template <class T>
void gpt_backward(GPT<T>& gpt, const TokenBatch& batch) {
    Activations<T>& a = gpt.now[0];
    const int V = gpt.shape.vocab, C = gpt.shape.channels, L = gpt.shape.layers;
    matmul(output(a.d.ln), dlogits(a), gpt.wte->operand(), {a.BT, C, V}); // dlogits @ wte
    matmul_add(output(gpt.wte->gradient()), dlogits(a).transposed(), operand(a.lnf), {V, C, a.BT});
    fill_zero(a.d.residual.data, a.d.residual.size() * sizeof(T));
    layernorm_backward(a.d.residual, gpt.lnf, a.d.ln, L ? a.blocks[L - 1].out : a.embedded, a.mean, a.rstd, a.d.linear.partial);
    for (int l = L - 1; l >= 0; l--)
        block_backward(a.d, a.blocks[l], l ? a.blocks[l - 1].out : a.embedded, gpt.blocks[l], a.scratch, gpt.shape.heads);
    embedding_backward(gpt.wte->gradient(), gpt.wpe->gradient(), batch, a.d.residual);
}

// ==== autopsy ========================================================================================================

// The first tensor that holds a NaN or Inf: weights, then the last forward pass's activations in their order, then
// gradients from the last layer to the first.
template <class T>
std::string first_nonfinite(GPT<T>& gpt) {
    CastStats* scratch = gpt.site_stats() + 16 * gpt.shape.layers; // the last place: nobody else's
    auto bad = [&](auto tensor) {
        fill_zero(scratch, sizeof(CastStats));
        measure(scratch, tensor);
        CastStats seen;
        copy_to_host(&seen, scratch, 1);
        return seen.nan + seen.inf > 0;
    };
    for (const Parameter& p : gpt.parameters)
        if (bad(p.weight())) return "weight " + p.name;
    for (const Arena::Piece& a : gpt.arena.pieces) {
        const std::string name = (a.layer < 0 ? "" : "h." + std::to_string(a.layer) + ".") + a.name;
        if (a.data == gpt.now[0].logits.data) { // nobody writes what pads its rows
            for (int r = 0; r < a.rows; r++)
                if (bad(Tensor<float>((float*)a.data + (size_t)r * a.cols, 1, gpt.shape.vocab))) return "activation " + name;
            continue;
        }
        const bool is_bad = a.element_bytes == 4 ? bad(Tensor<float>((float*)a.data, a.rows, a.cols)) : bad(Tensor<T>((T*)a.data, a.rows, a.cols));
        if (is_bad) return "activation " + name;
    }
    for (auto p = gpt.parameters.rbegin(); p != gpt.parameters.rend(); ++p)
        if (bad(p->gradient())) return "gradient of " + p->name;
    return "nothing (each tensor is finite now)";
}
