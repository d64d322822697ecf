// test_training.cu -- training.cuh: a step moves everything or nothing; what the model is asked, and what it answers.
#include "training.cuh"
#include "bounds.h"

namespace {

const Shape SHAPE = {2, 2, 12, 8, 64};

std::string random_text() {
    std::string text;
    const Rng rng(1, Stream::test);
    for (int i = 0; i < 300; i++) text += (char)rng.below(i, SHAPE.vocab);
    return text;
}

// Two micro-batches, an average, a warmup that outlasts the test (so that each rate is another), a loss scale that FP16 can hold.
Config training() {
    Config c;
    c.context = SHAPE.context, c.batch = 2, c.accumulate = 2, c.ema = 0.75, c.lr = 0.01, c.warmup = 100;
    return c;
}

// A model in training.
template <class T>
struct Trainee {
    Config config;
    GPT<T> gpt;
    Tokens text;
    LossScale scale = {1024, 100, 0};
    Progress at = {};
    explicit Trainee(const Recipe& r, const Config& c = training(), const Shape& s = SHAPE, const std::string& t = random_text())
        : config(c), gpt(s, r, c.batch, c.context, c.ema > 0), text(t) {
        gpt.initialise((uint32_t)c.seed);
    }
    StepResult step() { return train_step(gpt, scale, at, text, config); }

    Parameter& operator[](const std::string& name) {
        for (Parameter& p : gpt.parameters)
            if (p.name == name) return p;
        throw Error(1, "there is no parameter " + name);
    }
    // A bad value, or a huge one, in a master weight and in the copy that the products read.
    void plant(const std::string& name, size_t element, float value) {
        const Parameter& p = (*this)[name];
        copy_to_machine(p.master + element, &value, 1);
        with_type(p.format, [&](auto zero) {
            using Low = decltype(zero);
            Low low;
            if constexpr (sizeof(Low) == 1) low = saturate_to<Low>(value);
            else low = round_to<Low>(value);
            copy_to_machine((Low*)p.operand().data + element, &low, 1);
        });
    }
};

// body(T(), recipe) for each recipe, with T what it stores.
template <class F>
void each_recipe(F body) {
    for (const Recipe& r : RECIPES) {
        CAPTURE(std::string(r.name));
        with_stored(r.stored, [&](auto zero) { body(zero, r); });
    }
}

std::string bytes_of_all(std::initializer_list<const Buffer*> buffers) {
    std::string all;
    for (const Buffer* b : buffers) all += bytes_at(b->data(), b->bytes());
    return all;
}
// All that an optimizer step may move, as bytes. The scale of a cast that has none yet is nothing.
template <class T>
std::string state(const GPT<T>& gpt) {
    std::string all = bytes_of_all({&gpt.masters, &gpt.moments, &gpt.averages, &gpt.low});
    for (auto& [name, site] : gpt.sites) {
        all += name + std::string((const char*)site->state, sizeof(TensorState));
    }
    for (const Parameter& p : gpt.parameters) all += format(" %d", p.k);
    for (const Block& b : gpt.blocks)
        for (const Linear* l : {&b.qkv, &b.proj, &b.fc, &b.mlp}) all += format(" %d", l->w.by_row.k);
    return all;
}
void put_back(const Buffer& b, const std::string& bytes) {
    REQUIRE(b.bytes() == bytes.size());
    copy_to_machine((char*)b.data(), bytes.data(), bytes.size());
}

std::vector<float> floats_at(const float* machine, size_t n) {
    std::vector<float> host(n);
    synchronize();
    copy_to_host(host.data(), machine, n);
    return host;
}

// The next step is dropped: nothing has moved, the loss scale is half, and the next one has the same learning rate.
template <class T>
StepResult check_dropped(Trainee<T>& t) {
    const std::string before = state(t.gpt);
    const Progress at = t.at;
    const int drops = t.gpt.policy.drops;
    const float scale = t.scale.value;
    const StepResult r = t.step();
    CHECK(r.skipped);
    CHECK((state(t.gpt) == before));
    CHECK(t.at.applied == at.applied);
    CHECK(t.at.batches == at.batches + 1);
    CHECK(t.at.skipped == at.skipped + 1);
    CHECK(t.gpt.policy.drops == drops + 1);
    CHECK(r.lr == learning_rate(t.config, at.applied));
    CHECK(r.loss_scale == scale);
    CHECK(t.scale.value == scale / 2);
    CHECK(t.scale.good_steps == 0);
    return r;
}
template <class T>
StepResult check_applied(Trainee<T>& t) {
    const std::string before = state(t.gpt);
    const Progress at = t.at;
    const StepResult r = t.step();
    CHECK(!r.skipped);
    CHECK((state(t.gpt) != before));
    CHECK(t.at.applied == at.applied + 1);
    CHECK(t.at.batches == at.batches + 1);
    CHECK(t.at.skipped == at.skipped);
    CHECK(t.gpt.policy.drops == 0);
    CHECK(r.lr == learning_rate(t.config, at.applied));
    return r;
}

// From here on both train alike, to the bit. A dropped step has drawn its batches and halved the loss scale: the run that
// never met it is moved on by that much.
template <class T>
void check_continues_as(Trainee<T>& met, Trainee<T>& clean) {
    clean.at.batches = met.at.batches, clean.scale = met.scale;
    for (int i = 0; i < 3; i++) {
        const StepResult a = check_applied(met), b = check_applied(clean);
        CHECK(a.loss == b.loss);
        CHECK(a.norm == b.norm);
        CHECK(a.lr == b.lr);
        CHECK(a.saturated == b.saturated);
        CHECK((state(met.gpt) == state(clean.gpt)));
    }
    CHECK(met.at.applied == clean.at.applied);
    CHECK(met.scale.good_steps == clean.scale.good_steps);
}

} // namespace

// ==== everything or nothing ==========================================================================================

TEST_CASE("training: a step that meets a NaN or Inf in a weight moves nothing; once repaired, it is as if it had never been") {
#if defined(ON_CPU)
    const std::vector<const char*> names = {"wte.weight", "wpe.weight", "h.0.ln_1.bias", "h.1.attn.c_attn.weight", "h.0.mlp.c_fc.bias", "h.1.mlp.c_proj.weight", "ln_f.weight"};
#else
    const std::vector<const char*> names = {"wte.weight", "h.1.mlp.c_proj.weight"}; // the decision is the host's
#endif
    each_recipe([&](auto zero, const Recipe& r) {
        using T = decltype(zero);
        for (int good : {0, 2}) // steps before the bad one: at the first one FP8 has no scales yet
            for (const char* name : names)
                for (float bad : {NAN, INFINITY}) {
                    INFO(name << " = " << bad << " after " << good << " steps");
                    Trainee<T> met(r), clean(r);
                    if (std::isinf(bad) && is_fp8(met[name].format)) continue; // the E4M3 copy of Inf is 448: what the step reads is finite
                    for (int i = 0; i < good; i++) met.step(), clean.step();
                    REQUIRE((state(met.gpt) == state(clean.gpt)));
                    const std::string masters = bytes_of_all({&met.gpt.masters}), low = bytes_of_all({&met.gpt.low});
                    met.plant(name, met[name].size() - 1, bad);
                    check_dropped(met);
                    put_back(met.gpt.masters, masters), put_back(met.gpt.low, low);
                    CHECK((state(met.gpt) == state(clean.gpt)));
                    check_continues_as(met, clean);
                }
    });
}

TEST_CASE("training: an FP16 loss scale that overflows is halved until it does not, and the first update has the first learning rate") {
    Trainee<fp16> met(recipe_fp16), clean(recipe_fp16);
    met.scale.value = 0x1p24f; // d loss/d logit is nearly 1 / (two micro-batches of 16 tokens): of 2^24, 8 x what FP16 holds
    int dropped = 0;
    for (; dropped < 20; dropped++) {
        Trainee<fp16> trial(recipe_fp16); // the same step of the same model, to see whether it will be dropped
        trial.scale = met.scale, trial.at = met.at;
        if (!trial.step().skipped) break;
        const StepResult r = check_dropped(met);
        CHECK(std::isfinite(r.loss)); // the loss itself is not scaled: only gradients tell
        CHECK(!std::isfinite(r.norm));
        CHECK(first_nonfinite(met.gpt).substr(0, 12) == "gradient of ");
        CHECK(met.gpt.policy.drops == dropped + 1);
    }
    CHECK(dropped >= 3);
    CHECK(met.scale.value == std::ldexp(0x1p24f, -dropped));
    CHECK(met.at.applied == 0); // so check_applied looks for the first learning rate
    check_continues_as(met, clean);
}

TEST_CASE("training: an Inf that a saturating FP8 cast hides drops the step all the same") {
    for (int good : {0, 2}) {
        CAPTURE(good);
        Trainee<bf16> met(recipe_fp8), clean(recipe_fp8);
        for (int i = 0; i < good; i++) met.step(), clean.step();
        const std::string masters = bytes_of_all({&met.gpt.masters});
        // Finite itself, but the BF16 nearest to it is Inf: a channel of ln_1 is Inf for each token. What the product
        // reads is E4M3's largest, and layernorm's backward does not read beta: loss and gradients know nothing of it.
        met.plant("h.0.ln_1.bias", 5, 0x1.FFFFFEp127f);
        const StepResult r = check_dropped(met);
        CHECK(std::isfinite(r.loss));
        CHECK(std::isfinite(r.norm));
        CHECK(first_nonfinite(met.gpt) == "activation h.0.ln_1");
        put_back(met.gpt.masters, masters);
        check_continues_as(met, clean);

        // In BF16, which casts nothing, the same Inf is in the loss.
        Trainee<bf16> plain(recipe_bf16);
        for (int i = 0; i < good; i++) plain.step();
        plain.plant("h.0.ln_1.bias", 5, 0x1.FFFFFEp127f);
        CHECK(!std::isfinite(check_dropped(plain).loss));
        CHECK(first_nonfinite(plain.gpt) == "activation h.0.ln_1");
    }
}

TEST_CASE("training: a gradient that is Inf before its FP8 cast drops the step") {
    Trainee<bf16> met(recipe_fp8), clean(recipe_fp8);
    met.gpt.rules.margin = clean.gpt.rules.margin = 6; // such gains make gradients grow fast: none is to saturate
    for (int e = 0; e < SHAPE.channels; e++) met.plant("ln_f.weight", e, 1024), clean.plant("ln_f.weight", e, 1024);
    met.step(), clean.step();
    met.scale.value = 0x1p127f; // 1/32 of it is finite in BF16, but not what those gains make of it
    const StepResult r = check_dropped(met);
    CHECK(std::isfinite(r.loss));
    met.scale.value = 1024;
    check_continues_as(met, clean);

    // One Inf among finite gradients: its code is a finite number, its count is what remains.
    CastSite& site = met.gpt.blocks[0].fc.dy;
    Owned<bf16> dy(1, 4, {1, -INFINITY, INFINITY, 0.5f});
    Owned<uint8_t> codes(1, 4);
    cast(site, codes.view(), dy.view(), Pass::train);
    const auto stored = codes.stored();
    CHECK(stored[1] == 0xFB);
    CHECK(stored[2] == 0x7B);
    unsigned seen = 0;
    for (const CastStats& s : take_cast_stats(met.gpt)) seen += s.inf;
    CHECK(seen == 2);
}

TEST_CASE("training: a step whose FP8 cast saturates is taken back, its scale repaired, and the same batch tried again") {
    Trainee<bf16> met(recipe_fp8), clean(recipe_fp8);
    met.gpt.rules.promote = false; // two spikes would be enough
    for (int i = 0; i < 2; i++) met.step(), clean.step();
    for (size_t i : {1, 14}) { // an input and a gradient
        CAPTURE(met.gpt.sites[i].first);
        const std::string weights = bytes_of_all({&met.gpt.masters, &met.gpt.moments, &met.gpt.low});
        const Progress before = met.at;
        met.gpt.policy.tensors[i].k += 5;
        const StepResult spike = met.step();
        CHECK(spike.decision.verdict == Verdict::replay);
        CHECK(spike.decision.culprit == (int)i);
        CHECK(spike.saturated > 0);
        CHECK((bytes_of_all({&met.gpt.masters, &met.gpt.moments, &met.gpt.low}) == weights));
        CHECK(met.at.batches == before.batches);
        CHECK(met.at.applied == before.applied);
        CHECK(met.at.replayed == before.replayed + 1);
        CHECK(met.at.skipped == before.skipped);
        CHECK(met.scale.value == clean.scale.value); // a loss scale has no part in it

        // The replay is the step of a run that never had the wrong scale, but for the scale's margin.
        const StepResult a = check_applied(met), b = check_applied(clean);
        CHECK(a.saturated == 0);
        CHECK(met.at.batches == clean.at.batches);
        CHECK(std::fabs(a.loss - b.loss) < 0x1p-4 * b.loss); // E4M3's unit round-off
    }

    // A fourth failure drops the batch. Without a guard a saturated step counts.
    const uint64_t batches = met.at.batches;
    for (const Verdict verdict : {Verdict::replay, Verdict::replay, Verdict::replay, Verdict::drop}) {
        met.gpt.policy.tensors[1].k += 5;
        CHECK(met.step().decision.verdict == verdict);
    }
    CHECK(met.at.batches == batches + 1);
    met.gpt.rules.guard = false, met.gpt.policy.tensors[0].k += 5;
    CHECK(!check_applied(met).skipped);
}

TEST_CASE("training: skipped steps are counted in all and in a row; an update ends the row") {
    each_recipe([](auto zero, const Recipe& r) {
        Trainee<decltype(zero)> t(r);
        const std::string masters = bytes_of_all({&t.gpt.masters}), low = bytes_of_all({&t.gpt.low});
        t.plant("ln_f.bias", 0, NAN);
        for (int i = 0; i < 3; i++) check_dropped(t);
        CHECK(t.gpt.policy.drops == 3);
        put_back(t.gpt.masters, masters), put_back(t.gpt.low, low);
        check_applied(t);
        check_applied(t);
        CHECK(t.scale.value == 128);
        CHECK(t.scale.good_steps == 2);
        t.plant("ln_f.bias", 0, NAN);
        check_dropped(t);
        CHECK(t.at.skipped == 4);
        CHECK(t.gpt.policy.drops == 1);
        CHECK(t.at.applied == 2);
        CHECK(t.at.batches == 6);
    });
}

TEST_CASE("training: a step stops at the micro-batch whose loss is not finite, which is the one that the autopsy sees") {
    Config c = training();
    c.accumulate = 3;
    const Tokens text(random_text());
    const int token = 7, channel = 3;
    auto is_bad = [&](int micro) { // that token at position 0 of a row
        const Batch b = train_batch(text, c.batch, c.context, (uint32_t)c.seed, 0, micro, 3);
        return b.x[0] == token || b.x[c.context] == token;
    };
    while (is_bad(0) || !is_bad(1) || is_bad(2)) c.seed++; // the second of three

    Trainee<fp16> t(recipe_fp16, c), first(recipe_fp16, c);
    t.scale = first.scale = LossScale::fixed(1);
    for (Trainee<fp16>* model : {&t, &first}) { // each is finite in FP16, their sum is not
        model->plant("wte.weight", token * SHAPE.channels + channel, 40000);
        model->plant("wpe.weight", channel, 40000);
    }
    const std::string before = state(t.gpt);
    const StepResult r = t.step();
    CHECK(r.skipped);
    CHECK(!std::isfinite(r.loss));
    CHECK((state(t.gpt) == before));
    CHECK(t.at.batches == 1);  // a step, not its micro-batches
    CHECK(t.scale.value == 1); // static
    CHECK(first_nonfinite(t.gpt) == "activation embedding");

    // What the gradients hold is the first micro-batch's share, and no more.
    const Batch b = train_batch(text, c.batch, c.context, (uint32_t)c.seed, 0, 0, 3);
    const TokenBatch on_machine = first.gpt.upload(b.x, b.y, b.B, b.T);
    gpt_forward(first.gpt, on_machine, Pass::train);
    CHECK(std::isfinite(gpt_loss(first.gpt, on_machine, 1.0f / 3)));
    gpt_backward(first.gpt, on_machine);
    CHECK((bytes_of_all({&t.gpt.gradients}) == bytes_of_all({&first.gpt.gradients})));
}

// ==== the precision procedure, end to end ============================================================================

namespace {

// All reasons of the next `n` steps, each of which must be applied.
template <class T>
std::string decisions_of(Trainee<T>& t, int n) {
    std::vector<std::string> names = t.gpt.tensor_names();
    names.resize(t.gpt.policy.tensors.size());
    for (const Parameter& p : t.gpt.parameters) names.push_back(p.name);
    std::string all;
    for (int i = 0; i < n; i++)
        for (const Reason& r : check_applied(t).decision.reasons)
            if (r.change >= Change::promote) all += text(r, names) + "\n";
    return all;
}
Config steady(float lr) {
    Config c = training();
    c.lr = c.min_lr = lr, c.warmup = 0;
    return c;
}
Config still() { return steady(0); } // what was planted stays as it is

} // namespace

TEST_CASE("training: looks at tensors and at updates change no bit of what is trained") {
    each_recipe([](auto zero, const Recipe& r) {
        Config never = training(), always = training();
        never.shadow_every = 0, always.shadow_every = 1;
        Trainee<decltype(zero)> a(r, never), b(r, always);
        for (int i = 0; i < 5; i++) {
            const StepResult x = check_applied(a), y = check_applied(b);
            CHECK(!x.looked);
            CHECK(y.looked);
            CHECK(x.loss == y.loss);
            CHECK((bytes_of_all({&a.gpt.masters, &a.gpt.moments, &a.gpt.averages, &a.gpt.low}) == bytes_of_all({&b.gpt.masters, &b.gpt.moments, &b.gpt.averages, &b.gpt.low})));
        }
        REQUIRE(b.gpt.shadows().size() == 12 * 2);
        for (const Shadow* s : b.gpt.shadows()) {
            CHECK(s->own.snr > 2000);
            CHECK(s->exponents.size() == EXPONENTS);
        }
        CHECK(a.gpt.looks.bytes_read == 0);
        CHECK(b.gpt.looks.bytes_read > 0);
    });
}

// A channel of layernorm's output is 2^21 times the others, as in models whose few outlier features are never read: the others are
// 0 in E4M3, at the scale that the outlier asks for.
TEST_CASE("training: an outlier that flushes the rest of a Linear's input promotes that input, after one window, and nothing else") {
    Trainee<bf16> t(recipe_fp8, still());
    t.plant("h.0.ln_2.weight", 3, 0x1p21f);
    for (int n = 0; n < 4 * SHAPE.channels; n++) t.plant("h.0.mlp.c_fc.weight", n * SHAPE.channels + 3, 0);
    CHECK(decisions_of(t, 15) == "");
    CHECK(decisions_of(t, 1) == "h.0.mlp.c_fc input: promote E4M3 -> BF16\n");
    CHECK(t.gpt.blocks[0].fc.x.format() == BF16);
    CHECK(decisions_of(t, 40) == "");
}

TEST_CASE("training: a weight whose outlier flushes the others is promoted; its copy is then BF16, rounded from its master") {
    Trainee<bf16> t(recipe_fp8, still());
    t.gpt.rules.margin = 8; // for c_proj's input, which the outlier makes large in some steps and small in others
    t.plant("h.1.mlp.c_fc.weight", 5, 0x1p14f);
    round_weights(t.gpt.parameters, t.gpt.weight_stats()); // as the optimizer would have written it
    t.gpt.point_at_weights();
    CHECK(decisions_of(t, 15) == "");
    const std::string reasons = decisions_of(t, 1);
    CHECK(reasons.find("h.1.mlp.c_fc.weight: promote E4M3 -> BF16\n") != std::string::npos);
    CHECK(reasons.find("h.1.mlp.c_proj.weight") == std::string::npos);
    const Parameter& p = t["h.1.mlp.c_fc.weight"];
    REQUIRE(p.format == BF16);
    const std::vector<float> w = floats_at(p.master, p.size());
    std::vector<bf16> low(p.size());
    copy_to_host(low.data(), (const bf16*)p.low, low.size());
    for (size_t i = 0; i < w.size(); i++) CHECK(low[i].bits == round_to<bf16>(w[i]).bits);
    for (const Operand& read : {t.gpt.blocks[1].fc.w.by_row, t.gpt.blocks[1].fc.w.by_col}) {
        CHECK(read.format == BF16);
        CHECK(read.k == 0);
        CHECK(read.data == p.low);
    }
    check_applied(t);
}

TEST_CASE("training: a promoted input goes back to FP8 once looks say for two windows that it would do, and its scale is measured afresh") {
    Config c = still();
    c.shadow_every = 2;
    Trainee<bf16> t(recipe_fp8, c);
    t.gpt.rules.window = 4, t.gpt.rules.clean_to_demote = 2;
    t.plant("h.0.ln_2.weight", 3, 0x1p21f);
    for (int n = 0; n < 4 * SHAPE.channels; n++) t.plant("h.0.mlp.c_fc.weight", n * SHAPE.channels + 3, 0);
    CHECK(decisions_of(t, 4) == "h.0.mlp.c_fc input: promote E4M3 -> BF16\n");
    CHECK(decisions_of(t, 12) == ""); // as long as the outlier is there it would be flushed
    t.plant("h.0.ln_2.weight", 3, 1);
    CHECK(decisions_of(t, 8) == "h.0.mlp.c_fc input: demote BF16 -> E4M3\n");
    CHECK(!t.gpt.blocks[0].fc.x.scale_is_known());
    check_applied(t);
    CHECK(t.gpt.blocks[0].fc.x.state->k > 0);
}

TEST_CASE("training: a look is at the first micro-batch; of a backward pass that never came it says nothing") {
    Config c = training();
    c.shadow_every = 1;
    Trainee<bf16> t(recipe_fp8, c), first(recipe_fp8, c);
    check_applied(t);
    const Batch b = train_batch(t.text, c.batch, c.context, (uint32_t)c.seed, 0, 0, c.accumulate);
    look(first.gpt, true);
    gpt_forward(first.gpt, first.gpt.upload(b.x, b.y, b.B, b.T), Pass::train);
    for (int i = 0; i < 8; i++) CHECK((t.gpt.shadows()[i]->exponents == first.gpt.shadows()[i]->exponents));
    for (int i = 8; i < 16; i++) CHECK(!t.gpt.shadows()[i]->exponents.empty());

    t.plant("wte.weight", 0, NAN);
    CHECK(!std::isfinite(check_dropped(t).loss));
    for (int i = 8; i < 16; i++) CHECK(t.gpt.shadows()[i]->exponents.empty());
}

TEST_CASE("training: an Inf in a master that its saturating FP8 copy hides drops the step, and the weight is named") {
    Trainee<bf16> t(recipe_fp8);
    check_applied(t);
    t.plant("h.1.attn.c_proj.weight", 7, INFINITY);
    round_weights(t.gpt.parameters, t.gpt.weight_stats()); // as the optimizer would have written it
    t.gpt.point_at_weights();
    const StepResult r = check_dropped(t);
    CHECK(std::isfinite(r.loss)); // the products read 448
    CHECK(r.decision.cause == Cause::not_finite);
    REQUIRE(r.decision.culprit >= 0);
    CHECK(t.gpt.tensor_names()[r.decision.culprit] == "h.1.attn.c_proj.weight");
}

TEST_CASE("training: a NaN in a weight is the weight's, though activations are cast before the list comes to it") {
    Trainee<bf16> t(recipe_fp8);
    t.plant("h.1.attn.c_proj.weight", 7, NAN);
    round_weights(t.gpt.parameters, t.gpt.weight_stats());
    t.gpt.point_at_weights();
    const StepResult r = check_dropped(t);
    REQUIRE(r.decision.culprit >= 0);
    CHECK(t.gpt.tensor_names()[r.decision.culprit] == "h.1.attn.c_proj.weight");
}

TEST_CASE("training: a NaN is dropped, and named by the first tensor that was cast with it") {
    Trainee<bf16> t(recipe_fp8);
    check_applied(t);
    t.plant("h.1.mlp.c_fc.bias", 2, NAN); // read after c_fc's own input
    const StepResult r = check_dropped(t);
    REQUIRE(r.decision.culprit >= 0);
    CHECK(t.gpt.tensor_names()[r.decision.culprit] == "h.1.mlp.c_proj input");
}

// lr = 1e-5: near 1 a step of BF16 is 2^-8 or 2^-7, near 0.02 it is 2^-13; biases start at 0, where steps are tiny.
TEST_CASE("training: a run without masters whose updates are swamped gives masters to the swamped parameters, by name, after one window") {
    for (bool stochastic : {false, true}) {
        Config c = steady(1e-5f);
        c.masters = "measured";
        Trainee<bf16> t(recipe_bf16, c);
        t.gpt.rules.grants_masters = true;
        t.gpt.drop_masters(stochastic, 1);
        const auto gains = floats_at(t["ln_f.weight"].master, SHAPE.channels);
        CHECK(decisions_of(t, 15) == "");
        if (!stochastic) CHECK(floats_at(t["ln_f.weight"].master, SHAPE.channels) == gains); // not one update arrived
        const std::string given = decisions_of(t, 1);
        for (const char* name : {"h.0.ln_1.weight", "h.1.ln_2.weight", "ln_f.weight", "wte.weight", "h.1.mlp.c_fc.weight"}) {
            CAPTURE(std::string(name));
            CHECK(given.find(std::string(name) + ": master BF16 -> FP32\n") != std::string::npos);
            CHECK(t[name].has_master);
        }
        CHECK(given.find(".bias") == std::string::npos);
        CHECK(!t["ln_f.bias"].has_master);
        decisions_of(t, 5);
        const auto after = floats_at(t["ln_f.weight"].master, SHAPE.channels);
        for (int i = 0; i < SHAPE.channels; i++) {
            if (!stochastic) CHECK(after[i] != gains[i]); // now they do
            CHECK(std::fabs(after[i] - gains[i]) < (stochastic ? 0x1p-6 : 6e-5));
        }
    }
    Trainee<bf16> t(recipe_bf16, steady(1e-5f)); // asked for none: measured now and then, given to nobody
    t.gpt.rules.grants_masters = false;
    t.gpt.drop_masters(false, 1);
    CHECK(decisions_of(t, 40) == "");
    CHECK(!t["ln_f.weight"].has_master);
}

// ==== the update =====================================================================================================

// After one step m is (1 - beta1) g: three roundings, of clip / (norm * loss scale), of g times that, and of m itself.
TEST_CASE("training: gradients with a norm above clip are scaled by clip / norm, others by nothing") {
    each_recipe([](auto zero, const Recipe& r) {
        using T = decltype(zero);
        Config c = training();
        c.clip = 0;
        Trainee<T> plain(r, c);
        const size_t n = plain.gpt.gradients.bytes() / 4;
        const double norm = plain.step().norm;
        const auto g = floats_at((const float*)plain.gpt.gradients.data(), n);
        double square = 0;
        for (float x : g) square += std::pow(x / 1024.0, 2);
        CHECK(std::fabs(norm - std::sqrt(square)) <= gamma_fp32(CHUNK + 3) * std::sqrt(square)); // of the true gradients

        for (double share : {1.5, 1.0, 0.5, 1 / 3.0, 1e-6}) {
            CAPTURE(share);
            c.clip = share * norm;
            Trainee<T> clipped(r, c);
            CHECK(clipped.step().norm == norm); // as it was before clipping
            CHECK((bytes_of_all({&clipped.gpt.gradients}) == bytes_of_all({&plain.gpt.gradients})));
            if (share >= 1) CHECK((state(clipped.gpt) == state(plain.gpt)));
            const double factor = std::min(1.0, c.clip / norm) / 1024;
            Worst worst, exact;
            for (size_t i = 0; i < clipped.gpt.parameters.size(); i++) {
                const Parameter &p = clipped.gpt.parameters[i], &q = plain.gpt.parameters[i];
                const auto m = floats_at(p.m, p.size()), v = floats_at(p.v, p.size()), grad = floats_at(p.grad, p.size());
                const auto m_plain = floats_at(q.m, q.size()), v_plain = floats_at(q.v, q.size());
                for (size_t e = 0; e < p.size(); e++) {
                    const double want = (1 - (double)0.9f) * grad[e] * factor;
                    worst.see(e, m[e], want, gamma_fp32(3) * std::fabs(want) + 0x1p-149);
                    if (share != 0.5) continue; // a power of two: no rounding differs
                    exact.see(e, m[e], m_plain[e] / 2, 0x1p-149);
                    if (v_plain[e] > 0x1p-120) exact.see(e, v[e], v_plain[e] / 4, 0x1p-149);
                }
            }
            check("m", worst, 1);
            check("m and v of half the gradient", exact, 1);
        }
    });
}

// average + (1 - decay) (w - average): the difference, the product, the sum. The decay itself is exact here.
TEST_CASE("training: the average follows the masters, and changes places with them and back in every byte") {
    each_recipe([](auto zero, const Recipe& r) {
        using T = decltype(zero);
        Trainee<T> t(r), undisturbed(r);
        const size_t n = t.gpt.masters.bytes() / 4;
        auto masters = [&] { return floats_at((const float*)t.gpt.masters.data(), n); };
        auto averages = [&] { return floats_at((const float*)t.gpt.averages.data(), n); };
        CHECK(masters() == averages()); // both are the initial weights
        for (int i = 0; i < 4; i++) {
            const auto before = averages();
            t.step(), undisturbed.step();
            const auto w = masters(), after = averages();
            Worst worst;
            for (size_t e = 0; e < n; e++) {
                const double change = 0.25 * ((double)w[e] - before[e]), want = before[e] + change;
                worst.see(e, after[e], want, gamma_fp32(2) * std::fabs(change) + gamma_fp32(1) * (std::fabs(want) + 3 * U * std::fabs(change)));
            }
            check("average", worst, 1);
            CHECK(w != after);

            const std::string all = state(t.gpt);
            t.gpt.swap_average();
            CHECK((state(t.gpt) != all));
            CHECK(masters() == after);
            CHECK(averages() == w);
            for (const Parameter& p : t.gpt.parameters) { // the copies are those of the average
                if (sizeof(T) != 2 || p.format != format_of<T>) continue;
                const auto x = floats_at(p.master, p.size());
                std::vector<T> low(p.size());
                copy_to_host(low.data(), (const T*)p.low, low.size());
                bool same = true;
                for (size_t e = 0; e < x.size(); e++) same &= to_float(low[e]) == to_float(round_to<T>(x[e]));
                CHECK(same);
            }
            t.gpt.swap_average();
            CHECK((state(t.gpt) == all));
            CHECK((state(t.gpt) == state(undisturbed.gpt)));
        }
    });
    Config c = training();
    c.ema = 0;
    Trainee<float> none(recipe_fp32, c);
    none.step();
    CHECK_THROWS_WITH_AS(none.gpt.swap_average(), doctest::Contains("no averages are kept"), Error);
}

TEST_CASE("training: evaluate is the mean over the validation windows, the same at every call, and moves nothing") {
    each_recipe([](auto zero, const Recipe& r) {
        Config c = training();
        c.eval_batches = 3;
        Trainee<decltype(zero)> t(r, c);
        t.step();
        const std::string before = state(t.gpt);
        const double loss = evaluate(t.gpt, t.text, c);
        double sum = 0;
        for (int i = 0; i < 3; i++) {
            const Batch b = validation_batch(t.text, c.batch, c.context, i, 3);
            const TokenBatch on_machine = t.gpt.upload(b.x, b.y, b.B, b.T);
            gpt_forward(t.gpt, on_machine, Pass::evaluate);
            sum += gpt_loss(t.gpt, on_machine, 0);
        }
        CHECK(std::fabs(loss - sum / 3) <= 4 * 0x1p-53 * loss); // divided before it is added
        CHECK(evaluate(t.gpt, t.text, c) == loss);
        CHECK((state(t.gpt) == before));
    });
}

// ==== the next token =================================================================================================

TEST_CASE("training: next_logits are those of the last token of each text, whatever is padded or stands beside") {
    each_recipe([](auto zero, const Recipe& r) {
        const int T = SHAPE.context, V = SHAPE.vocab;
        Trainee<decltype(zero)> t(r);
        t.step(); // FP8: scales of past steps. The first ever are measured, on all tokens.
        const std::vector<int> a = {5, 9, 2}, b = {1, 2, 3, 4, 5, 6, 7, 8}, other = {63, 0};
        const auto logits = next_logits(t.gpt, {a, b}, T);
        REQUIRE(logits.size() == 2);
        std::vector<int> x = a;
        for (int token : {60, 61, 62, 63, 1}) x.push_back(token); // not what next_logits pads with
        x.insert(x.end(), b.begin(), b.end());
        gpt_forward(t.gpt, t.gpt.upload(x, x, 2, T), Pass::evaluate);
        for (int row : {0, 1}) {
            CHECK(logits[row].size() == (size_t)V);
            CHECK(logits[row] == floats_at(t.gpt.now[0].logits.data + (row ? 2 * T - 1 : 2) * t.gpt.now[0].logits.cols, V));
        }
        CHECK(next_logits(t.gpt, {a, other}, T)[0] == logits[0]);

        std::vector<int> longer = {60, 61, 62};
        longer.insert(longer.end(), b.begin(), b.end());
        CHECK(next_logits(t.gpt, {a, longer}, T) == logits); // the last tokens that fit
        CHECK(next_logits(t.gpt, {a, {1, 2, 3, 4, 5, 6, 8, 8}}, T)[1] != logits[1]);

        CHECK_THROWS_WITH_AS(next_logits(t.gpt, {a, {}}, T), doctest::Contains("text 1 is empty"), Error);
        CHECK_THROWS_WITH_AS(next_logits(t.gpt, {a, a, a}, T), doctest::Contains("a batch of 3 x 8 tokens is larger"), Error);
    });
}

// ==== questions ======================================================================================================

TEST_CASE("training: answer_accuracy counts exact answers: none before training, all of two that a model has learnt by heart") {
    Config c;
    c.context = 8, c.batch = 4, c.steps = 300, c.warmup = 10, c.lr = 0.01, c.weight_decay = 0;
    const Question one = {"1+2=", "3."}, two = {"4+5=", "09."}, wrong = {"1+2=", "4."}, half = {"4+5=", "08."}, start = {"4+5=", "0"};
    std::string text;
    for (int i = 0; i < 8; i++) text += "\n" + one.prompt + one.answer + "\n" + two.prompt + two.answer;
    Trainee<float> t(recipe_fp32, c, {1, 2, 32, 8, 64}, text);
    CHECK(answer_accuracy(t.gpt, {one, two}, c) == 0);
    double loss = 0;
    while (t.at.applied < c.steps) loss = t.step().loss;
    CAPTURE(loss);
    CHECK(answer_accuracy(t.gpt, {one, two}, c) == 1);
    CHECK(answer_accuracy(t.gpt, {two, one}, c) == 1);
    CHECK(answer_accuracy(t.gpt, {one}, c) == 1);
    CHECK(answer_accuracy(t.gpt, {wrong, half}, c) == 0);                           // no answer is half right
    CHECK(answer_accuracy(t.gpt, {start, two}, c) == 1);                            // what is said after an answer of another length does not count
    CHECK(answer_accuracy(t.gpt, {one, wrong, two, two, one, half}, c) == 4 / 6.0); // the last batch is not full

    std::vector<Question> many(QUESTIONS, one);
    many[0] = wrong;
    many.insert(many.end(), 100, wrong);
    CHECK(answer_accuracy(t.gpt, many, c) == (QUESTIONS - 1.0) / QUESTIONS); // of the first QUESTIONS only
    CHECK(QUESTIONS == 400);
}
