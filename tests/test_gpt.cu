// test_gpt.cu -- gpt.cuh against the model in double (reference_model.h): losses, every gradient, training, bookkeeping.
#include "training.cuh"
#include "bounds.h"
#include "reference_model.h"
#include <memory>

namespace {

struct Case {
    Shape shape;
    int B, length;
};
//                            layers, heads, channels, context, vocab     B, T: odd sizes, of which none divides another
const Case CASES[] = {{{1, 1, 7, 5, 3}, 1, 1}, {{1, 2, 10, 9, 101}, 5, 9}, {{2, 3, 9, 16, 37}, 3, 13}, {{3, 4, 20, 11, 53}, 3, 7}, {{2, 1, 33, 40, 257}, 1, 35}, {{0, 1, 5, 4, 11}, 3, 3}};
const Case SMALL = {{2, 3, 12, 11, 29}, 3, 7}, WIDER = {{2, 2, 32, 19, 61}, 5, 19};

// A batch of random tokens, after each of which any other may come.
Batch random_batch(const Shape& s, int B, int length, uint32_t seed) {
    Batch batch = {B, length, {}, {}};
    const Rng rng(seed, Stream::test);
    for (int i = 0; i < B * length; i++) batch.x.push_back((int)rng.below(2 * i, s.vocab)), batch.y.push_back((int)rng.below(2 * i + 1, s.vocab));
    return batch;
}
Batch random_batch(const Case& c, uint32_t seed) { return random_batch(c.shape, c.B, c.length, seed); }

// A text of random tokens to train on, of twice a row's length: batches overlap, and a model can learn it.
Tokens random_text(const Case& c, uint32_t seed) {
    std::string text;
    const Rng rng(seed, Stream::test);
    for (int i = 0; i < 2 * c.length; i++) text += (char)rng.below(i, c.shape.vocab);
    return Tokens(text);
}

ReferenceModel reference(const Shape& s) { return ReferenceModel(s.layers, s.heads, s.channels, s.context, s.vocab); }

float loss_scale_of(const Recipe& r) { return r.loss_scaling ? 1024 : 1; }

// A GPT<T> for a recipe that is only known at run time. GPT's members that do not depend on T are reached through it.
struct Model {
    virtual ~Model() = default;
    virtual void initialise(uint32_t seed) = 0;
    virtual void round_weights() = 0; // after the masters were set
    virtual TokenBatch upload(const Batch& b) = 0;
    virtual void forward(const TokenBatch& batch, Pass pass) = 0;
    virtual double loss(const TokenBatch& batch, float dloss) = 0;
    virtual void backward(const TokenBatch& batch) = 0;
    virtual StepResult step(LossScale& scale, Progress& at, const Tokens& text, const Config& c) = 0;
    virtual std::vector<CastStats> cast_stats() = 0;
    virtual Tensor<float> logits() = 0;
    virtual std::string first_nonfinite() = 0;

    const Recipe& recipe;
    std::vector<Parameter>& parameters;
    std::vector<std::pair<std::string, CastSite*>>& sites;
    Buffer &masters, &moments, &gradients, &averages, &low, &activations, &partial;
    Arena& arena;
    template <class T>
    explicit Model(GPT<T>& g)
        : recipe(g.recipe), parameters(g.parameters), sites(g.sites), masters(g.masters), moments(g.moments), gradients(g.gradients),
          averages(g.averages), low(g.low), activations(g.activations), partial(g.partial), arena(g.arena) {}

    Parameter& operator[](const std::string& name) {
        for (Parameter& p : parameters)
            if (p.name == name) return p;
        throw Error(1, "there is no parameter " + name);
    }
    double evaluate(const Batch& b) {
        TokenBatch batch = upload(b);
        forward(batch, Pass::evaluate);
        return loss(batch, 0);
    }
    double forward_backward(const Batch& b, float dloss) {
        TokenBatch batch = upload(b);
        forward(batch, Pass::train);
        double l = loss(batch, dloss);
        backward(batch);
        return l;
    }
};
template <class T>
struct ModelOf : Model {
    std::unique_ptr<GPT<T>> owner;
    GPT<T>& gpt = *owner;
    explicit ModelOf(std::unique_ptr<GPT<T>> g) : Model(*g), owner(std::move(g)) {}
    void initialise(uint32_t seed) override { gpt.initialise(seed); }
    void round_weights() override { ::round_weights(gpt.parameters, gpt.weight_stats()), gpt.point_at_weights(); }
    TokenBatch upload(const Batch& b) override { return gpt.upload(b.x, b.y, b.B, b.T); }
    void forward(const TokenBatch& batch, Pass pass) override { gpt_forward(gpt, batch, pass); }
    double loss(const TokenBatch& batch, float dloss) override { return gpt_loss(gpt, batch, dloss); }
    void backward(const TokenBatch& batch) override { gpt_backward(gpt, batch); }
    StepResult step(LossScale& scale, Progress& at, const Tokens& text, const Config& c) override { return train_step(gpt, scale, at, text, c); }
    std::vector<CastStats> cast_stats() override { return take_cast_stats(gpt); }
    Tensor<float> logits() override { return gpt.now[0].logits; }
    std::string first_nonfinite() override { return ::first_nonfinite(gpt); }
};
std::unique_ptr<Model> model(const Shape& s, const Recipe& r, int B, int length, bool average = false) {
    auto make = [&](auto type) -> std::unique_ptr<Model> {
        using T = decltype(type);
        return std::make_unique<ModelOf<T>>(std::make_unique<GPT<T>>(s, r, B, length, average));
    };
    return r.stored == FP32 ? make(float()) : r.stored == BF16 ? make(bf16())
                                                               : make(fp16());
}

// How every model here is trained: two micro-batches, clipping, weight decay, one learning rate throughout.
Config training(const Case& c) {
    Config o;
    o.batch = c.B, o.context = c.length, o.accumulate = 2;
    o.lr = o.min_lr = 0x1p-9, o.warmup = 0;
    o.beta2 = 0.999, o.weight_decay = 0.125, o.clip = 0.5;
    return o;
}

// A model in training, and the same step of the reference: it returns the mean loss.
struct Trainee {
    std::unique_ptr<Model> model;
    Tokens text;
    Config config;
    LossScale scale = LossScale::fixed(loss_scale_of(model->recipe));
    Progress at = {};
    double step() {
        const StepResult r = model->step(scale, at, text, config);
        CHECK(!r.skipped);
        return r.loss;
    }
};
Trainee trainee(const Case& c, const Recipe& r) {
    Trainee t{model(c.shape, r, c.B, c.length), random_text(c, 2), training(c)};
    t.model->initialise(1);
    return t;
}
double train_step(ReferenceModel& m, const Tokens& text, const Config& c, int t) {
    double loss = 0;
    m.zero_grad();
    for (int micro = 0; micro < c.accumulate; micro++) {
        const Batch b = train_batch(text, c.batch, c.context, (uint32_t)c.seed, t - 1, micro, c.accumulate);
        loss += m.loss(b.x, b.y, b.B, b.T) / c.accumulate;
        m.backward(1.0 / c.accumulate);
    }
    m.adamw((float)c.lr, (float)c.beta1, (float)c.beta2, 1e-8f, c.weight_decay, t, std::fmin(1, c.clip / m.grad_norm()));
    return loss;
}

std::vector<float> floats_at(const float* machine, size_t n) {
    std::vector<float> host(n);
    synchronize();
    copy_to_host(host.data(), machine, n);
    return host;
}

// All that training keeps, as bytes: masters, moments, the low-precision copies, gradients and the scales of all casts.
std::string state(const Model& gpt) {
    std::string all;
    for (const Buffer* b : {&gpt.masters, &gpt.moments, &gpt.low, &gpt.gradients}) all += bytes_at(b->data(), b->bytes());
    for (auto& [name, site] : gpt.sites) {
        all += name + std::string((const char*)site->state, sizeof(TensorState));
    }
    for (const Parameter& p : gpt.parameters) all += format(" %d", p.k);
    return all;
}

// Every parameter far from its neutral value, so that no term of a gradient hides; FP32 in both models.
void scramble(Model& gpt, ReferenceModel& m, double size) {
    const Rng rng(7, Stream::test);
    uint64_t n = 0;
    for (size_t i = 0; i < m.parameters.size(); i++) {
        std::vector<float> w;
        for (double& value : m.parameters[i].value) {
            w.push_back((float)(size * rng.normal(n++) + (m.parameters[i].name.find("ln_") != std::string::npos)));
            value = w.back();
        }
        copy_to_machine(gpt.parameters[i].master, w.data(), w.size());
    }
    gpt.round_weights();
}

// How far the gradient of one tensor is from the reference's: |g - ref| / |ref| and the cosine of the angle.
struct Distance {
    double relative, cosine, size;
};
Distance distance(const Parameter& p, const ReferenceModel::Parameter& r, double scale) {
    const auto g = floats_at(p.grad, p.size());
    double gg = 0, rr = 0, gr = 0, off = 0;
    for (size_t e = 0; e < g.size(); e++) {
        double got = g[e] / scale;
        gg += got * got, rr += r.grad[e] * r.grad[e], gr += got * r.grad[e], off += (got - r.grad[e]) * (got - r.grad[e]);
    }
    return {std::sqrt(off / rr), gr / std::sqrt(gg * rr), std::sqrt(rr)};
}

// Roundings to FP32 on the longest way from a weight to the loss and back to a gradient. Forward, in each block: two
// layernorms (two sums over C and 10 more each), four products (over C, C, C, 4C), scores and P v (hs and T), softmax
// (T and 10), GELU 20, two residuals. Backward each step is the transpose of one forward: as many, but the sums run
// over the other index (3C, C, 4C, C), and a weight's gradient ends in a sum over BT. Head and loss: C + V and 20.
// Independent errors add as their squares: n of them come to about sqrt(n) u, and rounding to nearest is off by less
// than u nearly always, so sqrt(n) u is more than two standard deviations.
double fp32_error(const Case& c) {
    const int C = c.shape.channels, V = c.shape.vocab, T = c.length, hs = C / c.shape.heads;
    const int forward = 2 * (2 * C + 10) + 7 * C + hs + 2 * T + 10 + 20 + 2, backward = 2 * (2 * C + 10) + 9 * C + 2 * hs + 2 * T + 10 + 20 + 2;
    return U * std::sqrt(c.shape.layers * (forward + backward) + 2 * (2 * C + 10) + 2 * (C + V + 20) + c.B * c.length);
}

// The 16- and 8-bit recipes: what independent roundings do. A number m 2^e, m uniform in [1, 2), is off by an error
// uniform in +-u 2^e: of mean square u^2/3 in 7/3, so that a vector is turned by u / sqrt(7), in a direction of its own,
// and by n roundings by sqrt(n u^2 / 7). A block rounds 11 tensors to the stored format (ln_1, qkv, P, attention, branch,
// mid, ln_2, fc, gelu, branch, out) and reads 4 weights; in FP8 4 inputs and 4 weights are E4M3. Besides: wte, wpe, the
// embedding and ln_f.
double turned(Format f, int times) {
    const double u = f == FP32 ? U : f == BF16 ? 0x1p-8
        : f == FP16                            ? 0x1p-11
        : f == E4M3                            ? 0x1p-4
                                               : 0x1p-3;
    return times * u * u / 7;
}
double forward_turn(const Case& c, const Recipe& r) {
    const int L = c.shape.layers;
    return std::sqrt(turned(r.stored, 11 * L + 4) + turned(r.weight, 4 * L) + turned(r.input, is_fp8(r.input) ? 4 * L : 0));
}
// Backward, on top of what forward has turned: as many stored gradients as there were tensors, the same 4 weights, and
// the casts of 4 gradients; besides d logits and wte.
double backward_turn(const Case& c, const Recipe& r) {
    const int L = c.shape.layers;
    const double backward = turned(r.stored, 11 * L + 2) + turned(r.weight, 4 * L) + turned(r.gradient, is_fp8(r.gradient) ? 4 * L : 0);
    return std::sqrt(std::pow(forward_turn(c, r), 2) + backward);
}

} // namespace

// ==== against the truth ==============================================================================================

TEST_CASE("gpt: the same names, shapes and initial weights as the reference, bit for bit, in every recipe") {
    for (const Case& c : {CASES[1], CASES[3]})
        for (const Recipe& r : RECIPES) {
            CAPTURE(std::string(r.name));
            auto gpt = model(c.shape, r, 1, 1, true);
            ReferenceModel m = reference(c.shape);
            gpt->initialise(1234), m.init(1234);
            REQUIRE(gpt->parameters.size() == m.parameters.size());
            for (size_t i = 0; i < m.parameters.size(); i++) {
                const Parameter& p = gpt->parameters[i];
                const auto& q = m.parameters[i];
                CAPTURE(q.name);
                CHECK(p.name == q.name);
                CHECK(p.rows == q.rows);
                CHECK(p.cols == q.cols);
                CHECK(p.matrix == q.is_matrix);
                REQUIRE(p.size() == q.value.size());
                const auto master = floats_at(p.master, p.size()), average = floats_at(p.average, p.size());
                int different = 0;
                for (size_t e = 0; e < p.size(); e++) different += master[e] != q.value[e] || average[e] != q.value[e];
                CHECK(different == 0);
            }
        }
}

TEST_CASE("gpt: in FP32 the loss and every parameter's gradient are the reference's") {
    for (const Case& c : CASES)
        for (double size : {0.0, 0.3}) { // the initial weights, and scrambled ones
            INFO("layers=" << c.shape.layers << " heads=" << c.shape.heads << " C=" << c.shape.channels << " V=" << c.shape.vocab << " B=" << c.B
                           << " T=" << c.length << " size=" << size);
            auto gpt = model(c.shape, recipe_fp32, c.B, c.length);
            ReferenceModel m = reference(c.shape);
            gpt->initialise(1), m.init(1);
            if (size > 0) scramble(*gpt, m, size);
            const Batch tokens = random_batch(c, 2);
            const double loss = gpt->forward_backward(tokens, 1), want = m.loss(tokens.x, tokens.y, tokens.B, tokens.T);
            m.backward();
            CHECK(std::fabs(loss - want) / want < fp32_error(c));
            for (size_t i = 0; i < m.parameters.size(); i++) {
                CAPTURE(m.parameters[i].name);
                Distance d = distance(gpt->parameters[i], m.parameters[i], 1);
                CHECK(d.relative < fp32_error(c));
            }
        }
}

TEST_CASE("gpt: ten training losses in FP32 are the reference's: two micro-batches, clipping, AdamW with weight decay") {
    for (const Case& c : {CASES[1], CASES[2], CASES[3]}) {
        INFO("layers=" << c.shape.layers << " C=" << c.shape.channels);
        Trainee gpt = trainee(c, recipe_fp32);
        ReferenceModel m = reference(c.shape);
        m.init(1);
        double worst = 0, first = 0, last = 0;
        for (int t = 1; t <= 10; t++) {
            last = gpt.step();
            if (t == 1) first = last;
            const double want = train_step(m, gpt.text, gpt.config, t);
            CHECK(m.grad_norm() > gpt.config.clip); // so that clipping is tested
            worst = std::fmax(worst, std::fabs(last - want) / want);
        }
        CHECK(worst < 1e-5);
        CHECK(last < first); // it learns
    }
}

TEST_CASE("gpt: in 16- and 8-bit recipes the loss is within what their roundings explain") {
    for (const Case& c : {SMALL, WIDER})
        for (const Recipe& r : RECIPES) {
            CAPTURE(std::string(r.name));
            auto gpt = model(c.shape, r, c.B, c.length);
            ReferenceModel m = reference(c.shape);
            gpt->initialise(1), m.init(1);
            const Batch tokens = random_batch(c, 2);
            const double loss = gpt->evaluate(tokens), want = m.loss(tokens.x, tokens.y, tokens.B, tokens.T);
            // ln_f(x), of length sqrt(C), is turned: each component is off by forward_turn, root of mean square, so a logit
            // is by that times |wte[v]|. Of a loss's derivative p - [v = target] the squares add up to at most 2. A mean
            // over tokens is not farther off than one of them; two standard deviations.
            double longest = 0;
            for (int v = 0; v < c.shape.vocab; v++) {
                double square = 0;
                for (int i = 0; i < c.shape.channels; i++) square += std::pow(m.parameters[0].value[(size_t)v * c.shape.channels + i], 2);
                longest = std::fmax(longest, std::sqrt(square));
            }
            const double bound = 2 * std::sqrt(2) * forward_turn(c, r) * longest + fp32_error(c) * want;
            CHECK(std::fabs(loss - want) < bound);
        }
}

TEST_CASE("gpt: in 16- and 8-bit recipes every gradient has the reference's direction") {
    for (const Case& c : {SMALL, WIDER})
        for (const Recipe& r : RECIPES) {
            CAPTURE(std::string(r.name));
            auto gpt = model(c.shape, r, c.B, c.length);
            ReferenceModel m = reference(c.shape);
            gpt->initialise(1), m.init(1);
            const Batch tokens = random_batch(c, 2);
            gpt->forward_backward(tokens, loss_scale_of(r));
            m.loss(tokens.x, tokens.y, tokens.B, tokens.T), m.backward();
            const double turn = 2 * backward_turn(c, r) + fp32_error(c); // two standard deviations
            for (size_t i = 0; i < m.parameters.size(); i++) {
                CAPTURE(m.parameters[i].name);
                Distance d = distance(gpt->parameters[i], m.parameters[i], loss_scale_of(r));
                CHECK(d.cosine > std::sqrt(1 - turn * turn)); // |error| = turn |g|: at the worst at a right angle to the sum
            }
        }
}

// ==== FP8: codes and scales ==========================================================================================

TEST_CASE("gpt: FP8 reads E4M3 inputs and weights and E5M2 gradients, each with a scale that fills its range") {
    const Case& c = WIDER;
    ModelOf<bf16> owner(std::make_unique<GPT<bf16>>(c.shape, recipe_fp8, c.B, c.length));
    GPT<bf16>& gpt = owner.gpt;
    gpt.initialise(1);
    CHECK(gpt.sites.size() == 8 * 2); // four Linears in a block, an input and a gradient each
    for (auto& [name, site] : gpt.sites) CHECK(!site->scale_is_known());

    owner.forward_backward(random_batch(c, 2), 1);
    for (auto& named : gpt.sites) {
        const std::string& name = named.first;
        const CastSite* site = named.second;
        CAPTURE(name);
        const bool is_input = name.find(" input") != std::string::npos;
        CHECK(site->format() == (is_input ? E4M3 : E5M2));
        CHECK(site->has_first_k);
        CastStats seen;
        copy_to_host(&seen, site->stats, 1);
        const double scaled = std::ldexp(seen.amax(), site->first_k), largest = is_input ? 448 : 57344;
        CHECK(scaled <= largest / 2); // one binade is left free, and not two
        CHECK(scaled > largest / 4);
        CHECK(seen.saturated + seen.nan + seen.inf == 0);
    }

    // The codes of the first cast forward and the last one backward are those tensors, to half a spacing.
    auto compare = [&](auto code, auto& site, Tensor<bf16> x, Tensor<uint8_t> codes) {
        using Code = decltype(code);
        std::vector<bf16> values(x.size());
        std::vector<Code> stored(x.size());
        copy_to_host(values.data(), x.data, x.size()), copy_to_host(stored.data(), (const Code*)codes.data, x.size());
        Worst worst;
        for (size_t i = 0; i < values.size(); i++)
            worst.see(i, std::ldexp(to_float(stored[i]), -site.first_k), to_float(values[i]),
                      std::ldexp(rounding_error<Code>(std::ldexp(to_float(values[i]), site.first_k)), -site.first_k));
        check("codes", worst, x.cols);
    };
    auto& a = gpt.now[0];
    Owned<bf16> ln1(a.BT, gpt.shape.channels); // which is not kept
    layernorm_forward(ln1.view(), a.mean, a.rstd, a.embedded, gpt.blocks[0].ln1);
    compare(e4m3(), gpt.blocks[0].qkv.x, ln1, a.blocks[0].ln1_codes);
    compare(e5m2(), gpt.blocks[0].qkv.dy, a.d.qkv, a.d.linear.codes);

    // The gradient of that Linear's weights is the product of those very codes: BT terms, two roundings each.
    {
        const Tensor<float> dw = gpt.blocks[0].qkv.dw;
        const int BT = c.B * c.length, N = dw.rows, K = dw.cols;
        std::vector<e4m3> x((size_t)BT * K);
        std::vector<e5m2> dy((size_t)BT * N);
        copy_to_host(x.data(), (const e4m3*)a.blocks[0].ln1_codes.data, x.size()), copy_to_host(dy.data(), (const e5m2*)a.d.linear.codes.data, dy.size());
        const auto got = floats_at(dw.data, dw.size());
        const double scale = std::ldexp(1.0, -gpt.blocks[0].qkv.x.first_k - gpt.blocks[0].qkv.dy.first_k);
        Worst worst;
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) {
                double sum = 0, size = 0;
                for (int bt = 0; bt < BT; bt++) {
                    double term = scale * to_float(dy[(size_t)bt * N + n]) * to_float(x[(size_t)bt * K + k]);
                    sum += term, size += std::fabs(term);
                }
                worst.see((size_t)n * K + k, got[(size_t)n * K + k], sum, gamma_fp32(2 * BT) * size);
            }
        check("dw", worst, K);
    }

    for (const Parameter& p : gpt.parameters) {
        CAPTURE(p.name);
        const bool linear = p.name.find(".weight") != std::string::npos && p.name.find("ln_") == std::string::npos && p.name[0] == 'h';
        CHECK((p.format == E4M3) == linear);
        if (!linear) continue;
        const auto w = floats_at(p.master, p.size());
        std::vector<e4m3> low(p.size());
        copy_to_host(low.data(), (const e4m3*)p.low, low.size());
        float amax = 0;
        Worst worst;
        for (size_t e = 0; e < w.size(); e++) {
            amax = std::fmax(amax, std::fabs(w[e]));
            worst.see(e, std::ldexp(to_float(low[e]), -p.k), w[e], std::ldexp(rounding_error<e4m3>(std::ldexp(w[e], p.k)), -p.k));
        }
        check("weight", worst, p.cols);
        CHECK(std::ldexp(amax, p.k) <= 448); // no margin: the amax is of this very tensor
        CHECK(std::ldexp(amax, p.k) > 224);
    }

    const std::vector<CastStats> casts = take_cast_stats(gpt);
    REQUIRE(casts.size() == gpt.sites.size());
    StepEvidence evidence;
    for (const CastStats& s : casts) evidence.tensors.push_back(evidence_of(s));
    for (const CastStats& s : weight_cast_stats(gpt)) evidence.tensors.push_back(evidence_of(s));
    for (const CastStats& s : take_cast_stats(gpt)) CHECK(s.amax_bits + s.nan + s.inf + s.saturated + s.nonzero == 0); // counting started anew
    CHECK(decide(gpt.rules, gpt.policy, evidence).verdict == Verdict::apply);
    for (size_t i = 0; i < gpt.sites.size(); i++) {
        CAPTURE(gpt.sites[i].first);
        const CastSite* site = gpt.sites[i].second;
        CHECK(site->state == &gpt.policy.tensors[i]);
        const double largest = site->format() == E4M3 ? 448 : 57344, amax = bits_as<float>(evidence.tensors[i].amax_bits);
        CHECK(std::ldexp(amax, site->state->k) <= largest / 2);
        CHECK(std::ldexp(amax, site->state->k) > largest / 4);
    }
}

// Backward must find what forward read: promoted inputs are no codes but the activations themselves, of every layer.
// E4M3 changes each factor by a sixteenth at most; another layer's activations would change the gradient altogether.
TEST_CASE("gpt: with inputs promoted to BF16 the FP8 model has nearly the same gradients") {
    const Case& c = WIDER;
    std::vector<std::vector<float>> gradients[2];
    for (bool promoted : {false, true}) {
        ModelOf<bf16> owner(std::make_unique<GPT<bf16>>(c.shape, recipe_fp8, c.B, c.length));
        owner.gpt.initialise(1);
        if (promoted)
            for (TensorState& t : owner.gpt.policy.tensors)
                if (t.role == Role::input) t.format = BF16;
        owner.forward_backward(random_batch(c, 2), 1);
        for (const Block& b : owner.gpt.blocks)
            for (const Linear* l : {&b.qkv, &b.proj, &b.fc, &b.mlp}) gradients[promoted].push_back(floats_at(l->dw.data, l->dw.size()));
    }
    for (size_t i = 0; i < gradients[0].size(); i++) {
        double off = 0, size = 0;
        for (size_t e = 0; e < gradients[0][i].size(); e++) {
            const double a = gradients[0][i][e], b = gradients[1][i][e];
            off += (a - b) * (a - b), size += a * a;
        }
        CAPTURE(i);
        CHECK(off > 0);
        CHECK(std::sqrt(off / size) < 0.25);
    }
}

// ==== evaluation, generation, and the same bytes =====================================================================

TEST_CASE("gpt: evaluations, before, between and within steps, change no bit of training, in any recipe") {
    const Case& c = SMALL;
    for (const Recipe& r : RECIPES) {
        CAPTURE(std::string(r.name));
        Trainee a = trainee(c, r), b = trainee(c, r);
        const Batch full = random_batch(c, 5), one = random_batch(c.shape, 1, c.shape.context, 6), shortest = random_batch(c.shape, 1, 1, 7);
        auto look = [&] {
            for (const Batch* batch : {&full, &one, &shortest}) b.model->evaluate(*batch);
        };
        auto check_same = [&] { CHECK((state(*a.model) == state(*b.model))); };
        look();
        check_same(); // no scale has been chosen from an evaluation
        for (int t = 1; t <= 3; t++) {
            CHECK(a.step() == b.step());
            look();
            check_same();
        }
        // Between two micro-batches, whose gradients and statistics add up.
        for (uint32_t seed : {8, 9}) {
            CHECK(a.model->forward_backward(random_batch(c, seed), 1) == b.model->forward_backward(random_batch(c, seed), 1));
            look();
            check_same();
        }
        const auto seen = a.model->cast_stats(), seen_too = b.model->cast_stats();
        REQUIRE(seen.size() == seen_too.size());
        for (size_t i = 0; i < seen.size(); i++) CHECK(memcmp(&seen[i], &seen_too[i], sizeof(CastStats)) == 0);
    }
}

TEST_CASE("gpt: after training batches a forward pass of another shape has the reference's logits") {
    const Case& c = CASES[3];
    auto gpt = model(c.shape, recipe_fp32, c.B, c.length);
    ReferenceModel m = reference(c.shape);
    gpt->initialise(1), m.init(1);
    scramble(*gpt, m, 0.3);
    gpt->forward_backward(random_batch(c, 2), 1);
    for (int length : {1, 2, 5, c.shape.context}) {
        CAPTURE(length);
        const Batch tokens = random_batch(c.shape, 1, length, 3);
        gpt->evaluate(tokens);
        m.loss(tokens.x, tokens.y, 1, length);
        const auto logits = floats_at(gpt->logits().data, gpt->logits().size());
        double largest = 0;
        for (double l : m.logits) largest = std::fmax(largest, std::fabs(l));
        Worst worst;
        const int V = c.shape.vocab, cols = gpt->logits().cols; // the rows are padded
        for (int i = 0; i < length * V; i++) worst.see(i, logits[i / V * cols + i % V], m.logits[i], fp32_error(c) * largest);
        check("logits", worst, c.shape.vocab);
    }
}

TEST_CASE("gpt: a text that is read token by token has the reference's logits, in every recipe") {
    for (const Case& c : {CASES[3], WIDER})
        for (const Recipe& r : RECIPES) {
            CAPTURE(std::string(r.name));
            const int T_ = c.shape.context, V = c.shape.vocab;
            const Batch text = random_batch(c.shape, 1, T_, 3);
            ReferenceModel m = reference(c.shape);
            m.init(1), m.loss(text.x, text.y, 1, T_);
            double largest = 0, longest = 0; // of logits, and of rows of wte: see above
            for (double l : m.logits) largest = std::fmax(largest, std::fabs(l));
            for (int v = 0; v < V; v++) {
                double square = 0;
                for (int i = 0; i < c.shape.channels; i++) square += std::pow(m.parameters[0].value[(size_t)v * c.shape.channels + i], 2);
                longest = std::fmax(longest, std::sqrt(square));
            }
            const double bound = 5 * forward_turn(c, r) * longest + fp32_error(c) * largest; // the largest of T V normal numbers: below five deviations
            with_stored(r.stored, [&](auto zero) {
                using T = decltype(zero);
                GPT<T> gpt(c.shape, r, 1, T_, false, Pass::read);
                gpt.initialise(1);
                CHECK((gpt.moments.bytes() == 0 && gpt.gradients.bytes() == 0));
                for (int first : {1, 3, T_}) {
                    Cache<T> cache(c.shape, T_);
                    Worst worst;
                    for (int at = 0; at < T_;) {
                        const int n = at ? 1 : first;
                        const auto logits = read_on(gpt, cache, {text.x.begin() + at, text.x.begin() + at + n});
                        at += n;
                        REQUIRE((cache.length == at && (int)logits.size() == V));
                        for (int v = 0; v < V; v++) worst.see((size_t)(at - 1) * V + v, logits[v], m.logits[(size_t)(at - 1) * V + v], bound);
                    }
                    check("logits", worst, V);
                    CHECK_THROWS_AS(read_on(gpt, cache, {1}), Error); // it is full
                }
                Cache<T> cache(c.shape, T_);
                read_on(gpt, cache, {1, 2});
                CHECK_THROWS_WITH_AS(read_on(gpt, cache, {1, 2}), doctest::Contains("1 x 2 tokens after 2"), Error);
            });
        }
}

TEST_CASE("gpt: an evaluation, whose layers share memory, has the very logits of a training pass") {
    const Shape deep = {5, 2, 12, 8, 40};
    for (const Recipe& r : {recipe_fp32, recipe_bf16, recipe_fp16}) { // in FP8 the first scales would be another pass's
        auto gpt = model(deep, r, 2, 8);
        gpt->initialise(1);
        const TokenBatch batch = gpt->upload(random_batch(deep, 2, 8, 1));
        gpt->forward(batch, Pass::train);
        const auto trained = floats_at(gpt->logits().data, gpt->logits().size());
        gpt->forward(batch, Pass::evaluate);
        CHECK((floats_at(gpt->logits().data, gpt->logits().size()) == trained));
    }
}

TEST_CASE("gpt: what stands after a token changes no bit of its logits") {
    const Case& c = SMALL;
    for (const Recipe& r : RECIPES) {
        CAPTURE(std::string(r.name));
        Trainee trained = trainee(c, r);
        trained.step(); // FP8: scales are of past steps. The first ever is measured, on all tokens.
        auto& gpt = trained.model;
        const Batch a = random_batch(c.shape, 1, 9, 3);
        Batch b = a;
        for (int t = 5; t < 9; t++) b.x[t] = (a.x[t] + 1) % c.shape.vocab;
        const int V = c.shape.vocab;
        gpt->evaluate(a);
        const auto first = floats_at(gpt->logits().data, 9 * V);
        gpt->evaluate(b);
        const auto second = floats_at(gpt->logits().data, 9 * V);
        CHECK(std::equal(first.begin(), first.begin() + 5 * V, second.begin()));
        CHECK(!std::equal(first.begin() + 5 * V, first.end(), second.begin() + 5 * V));
    }
}

// Three steps from the same seed with this many threads; oneDNN's products are generated anew, for that many.
static std::string trained(const Case& c, const Recipe& r, int threads, double* loss) {
    std::string result;
    with_threads(threads, [&] {
#if defined(ON_CPU)
        OneDnn::library() = OneDnn();
#endif
        Trainee gpt = trainee(c, r);
        for (int t = 1; t <= 3; t++) *loss = gpt.step();
        result = state(*gpt.model);
    });
    return result;
}

TEST_CASE("gpt: training twice gives the same bytes, in every recipe, with 1 thread and with 2") {
    for (const Case& c : {SMALL, WIDER})
        for (const Recipe& r : RECIPES) {
            CAPTURE(std::string(r.name));
            double loss[2];
            std::string results[2];
            for (int threads : {1, 2}) {
                CAPTURE(threads);
                double again;
                results[threads - 1] = trained(c, r, threads, &loss[threads - 1]);
                CHECK((results[threads - 1] == trained(c, r, threads, &again)));
                CHECK(loss[threads - 1] == again);
            }
            // Our kernels give the same bytes for any number of threads; oneDNN may add in another order for another.
            CHECK(std::fabs(loss[0] - loss[1]) / loss[0] < (r.stored == FP32 ? 1e-5 : forward_turn(c, r)));
        }
}

// ==== memory =========================================================================================================

TEST_CASE("gpt: memory_needed is what is allocated, and what a training pass uses") {
    for (const Case& c : CASES)
        for (const Recipe& r : RECIPES) {
            CAPTURE(std::string(r.name));
            for (bool average : {false, true}) {
                auto gpt = model(c.shape, r, c.B, c.length, average);
                const Memory m = memory_needed(c.shape, r, c.B, c.length, average);
                CHECK(m.masters == gpt->masters.bytes());
                CHECK(m.moments == gpt->moments.bytes());
                CHECK(m.gradients == gpt->gradients.bytes());
                CHECK(m.averages == gpt->averages.bytes());
                CHECK(m.low == gpt->low.bytes());
                CHECK(m.activations == gpt->activations.bytes());
                CHECK(m.total() == m.masters + m.moments + m.gradients + m.averages + m.low + m.activations);

                // Every tensor ends within its buffer, the last one in its last 256 bytes.
                const Parameter& last = gpt->parameters.back();
                auto rest = [](const Buffer& b, const void* p, size_t bytes) { return (char*)b.data() + b.bytes() - ((const char*)p + bytes); };
                for (auto [buffer, data] : {std::pair<const Buffer*, float*>{&gpt->masters, last.master}, {&gpt->moments, last.v}, {&gpt->gradients, last.grad}}) {
                    CHECK(rest(*buffer, data, last.size() * 4) >= 0);
                    CHECK(rest(*buffer, data, last.size() * 4) < 256);
                }
                gpt->initialise(1);
                TokenBatch batch = gpt->upload(random_batch(c, 2));
                gpt->forward(batch, Pass::train);
                CHECK(gpt->arena.used == m.activations);
                gpt->forward(batch, Pass::evaluate);
                CHECK(gpt->arena.used < m.activations);
                const Memory less = memory_needed(c.shape, r, c.B, c.length, average, Pass::evaluate);
                CHECK(gpt->arena.used == less.activations);
                CHECK((less.masters == m.masters && less.low == m.low && less.averages == m.averages && !less.moments && !less.gradients));
            }
        }
}

TEST_CASE("gpt: what does not fit is refused, with its values") {
    const Case& c = SMALL; // 3 heads, 12 channels
    CHECK_THROWS_WITH_AS(GPT<float>(c.shape, recipe_bf16, 1, 1), doctest::Contains("recipe bf16 stores BF16, the model is built for FP32"), Error);
    Shape uneven = c.shape;
    uneven.channels = 13;
    CHECK_THROWS_WITH_AS(GPT<float>(uneven, recipe_fp32, 1, 1), doctest::Contains("13 channels do not split into 3 heads"), Error);

    auto gpt = model(c.shape, recipe_fp32, 2, 8);
    gpt->initialise(1);
    Buffer memory(1000 * sizeof(int));
    const Batch many = random_batch(c.shape, 4, 11, 1), too_long = random_batch(c.shape, 1, 12, 1); // a context of 11
    CHECK_THROWS_WITH_AS(gpt->upload(many), doctest::Contains("a batch of 4 x 11 tokens is larger than the model was made for"), Error);
    TokenBatch batch = upload_batch((int*)memory.data(), many.x, many.y, 4, 11, c.shape.vocab);
    CHECK_THROWS_WITH_AS(gpt->forward(batch, Pass::train), doctest::Contains("a batch of 4 x 11 needs"), Error);
    batch = upload_batch((int*)memory.data(), too_long.x, too_long.y, 1, 12, c.shape.vocab);
    CHECK_THROWS_WITH_AS(gpt->forward(batch, Pass::evaluate), doctest::Contains("12 positions in the batch"), Error);
}

// ==== autopsy ========================================================================================================

template <class T>
static void plant(float* tensor, size_t element, T value) {
    copy_to_machine(tensor + element, &value, 1);
}
TEST_CASE("gpt: first_nonfinite names a weight that is NaN, in every recipe") {
    const Case& c = SMALL;
    for (const Recipe& r : RECIPES) {
        CAPTURE(std::string(r.name));
        auto gpt = model(c.shape, r, c.B, c.length);
        gpt->initialise(1);
        gpt->forward_backward(random_batch(c, 2), 1);
        CHECK(gpt->first_nonfinite() == "nothing (each tensor is finite now)");
        for (const char* name : {"wte.weight", "h.1.attn.c_attn.weight", "h.0.ln_2.bias", "ln_f.weight"}) {
            gpt->initialise(1);
            plant((*gpt)[name].master, (*gpt)[name].size() - 1, NAN);
            gpt->round_weights();
            CHECK(!std::isfinite(gpt->forward_backward(random_batch(c, 2), 1)));
            CHECK(gpt->first_nonfinite() == std::string("weight ") + name);
        }
    }
}

TEST_CASE("gpt: first_nonfinite names the activation that overflowed in FP16, and BF16 does not overflow there") {
    const Case& c = SMALL;
    auto autopsy = [&](const Recipe& r) {
        auto gpt = model(c.shape, r, c.B, c.length);
        gpt->initialise(1);
        Parameter& p = (*gpt)["h.1.mlp.c_fc.weight"];
        std::vector<float> w(p.size());
        for (size_t e = 0; e < w.size(); e++) w[e] = e % 2 ? 60000 : -60000; // finite in FP16, unlike their products' sum
        copy_to_machine(p.master, w.data(), w.size());
        gpt->round_weights();
        gpt->forward_backward(random_batch(c, 2), 1);
        return gpt->first_nonfinite();
    };
    CHECK(autopsy(recipe_fp16) == "activation h.1.mlp.c_fc");
    CHECK(autopsy(recipe_bf16) == "nothing (each tensor is finite now)");
}

TEST_CASE("gpt: first_nonfinite names the gradient that is NaN, the first in the order of backward") {
    const Case& c = SMALL;
    for (const Recipe& r : RECIPES) {
        CAPTURE(std::string(r.name));
        auto gpt = model(c.shape, r, c.B, c.length);
        gpt->initialise(1);
        gpt->forward_backward(random_batch(c, 2), 1);
        plant((*gpt)["h.0.mlp.c_proj.bias"].grad, 3, NAN);
        CHECK(gpt->first_nonfinite() == "gradient of h.0.mlp.c_proj.bias");
        plant((*gpt)["h.1.attn.c_attn.weight"].grad, 0, INFINITY); // a later block: earlier in backward
        CHECK(gpt->first_nonfinite() == "gradient of h.1.attn.c_attn.weight");
        plant((*gpt)["wpe.weight"].grad, 0, NAN);
        CHECK(gpt->first_nonfinite() == "gradient of h.1.attn.c_attn.weight");
    }
}
