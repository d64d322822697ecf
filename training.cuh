// training.cuh -- one step of training, and ways to look at the model that it trains.
//
//   train_step   micro-batches -> does it count? (policy.cuh) -> unscale and clip -> AdamW on the FP32 masters -> round -> average
//   evaluate     mean loss on fixed validation windows, or on all tokens        answer_accuracy   sums that the model never saw
//
// Source   arXiv:1710.03740, sections 3.1 and 3.2: FP32 masters, loss scaling, skipped steps
// Units    losses in nats per token; steps: applied ones move t and the learning rate, attempts draw batches
// Formats  the model's T is the recipe's stored format; everything here is FP32, or double on the host
// Why      a step either moves everything or nothing: what is decided after the gradients is decided before any weight
// Tests    tests/test_training.cu     Times  bench.cu, bench_step
#pragma once
#include "config.h"
#include "data.h"
#include "sampling.cuh"

// ==== one optimizer step =============================================================================================

struct Progress {
    int applied = 0;      // updates made: AdamW's t, and what the learning rate follows
    uint64_t batches = 0; // drawn: those of dropped steps too; a replay draws none
    int skipped = 0, replayed = 0;
};

struct StepResult {
    double loss, norm;
    float lr, loss_scale;
    bool skipped; // nothing moved: dropped, or to be replayed
    unsigned saturated;
    Decision decision;
    bool looked = false; // at all tensors: gpt.shadows()
};

inline Evidence evidence_of(const CastStats& s) {
    Evidence e;
    e.amax_bits = s.amax_bits, e.nan = s.nan, e.inf = s.inf, e.saturated = s.saturated;
    e.flushed = s.flushed, e.subnormal = s.subnormal, e.nonzero = s.nonzero;
    return e;
}

// Turns looks at what the Linears cast on or off; on, the weights are looked at here and now.
template <class T>
void look(GPT<T>& gpt, bool on) {
    for (auto& [name, site] : gpt.sites) {
        site->looks = on ? &gpt.looks : nullptr;
        if (on) site->shadow = {}; // a backward pass may never come
    }
    if (!on) return;
    gpt.weight_shadows.clear();
    for (const Parameter* p : gpt.linear_weights) gpt.weight_shadows.push_back(look_at(gpt.looks, p->weight(), p->format, p->k, Role::weight, 0));
}

// What this attempt's casts and its looks saw, in the order of policy.tensors.
template <class T>
StepEvidence take_evidence(GPT<T>& gpt, double loss, double norm, bool looked) {
    StepEvidence seen = {std::isfinite(loss), std::isfinite(norm), {}, {}};
    if (gpt.policy.tensors.empty()) return seen;
    for (const CastStats& s : take_cast_stats(gpt)) seen.tensors.push_back(evidence_of(s));
    for (const CastStats& s : weight_cast_stats(gpt)) seen.tensors.push_back(evidence_of(s));
    const std::vector<const Shadow*> shadows = gpt.shadows();
    for (size_t i = 0; looked && i < shadows.size(); i++)
        if (!shadows[i]->exponents.empty()) add_shadow(seen.tensors[i], *shadows[i]);
    return seen;
}

template <class T>
StepResult train_step(GPT<T>& gpt, LossScale& scale, Progress& at, const Tokens& tokens, const Config& c, StepEvidence* evidence = nullptr) {
    // 1. Gradients of `scale * loss`, summed in FP32 over the micro-batches. The scale lifts small gradients into FP16's
    //    range; in the other recipes it stays 1.
    StepResult r = {0, 0, learning_rate(c, at.applied), scale.value, false, 0, {}};
    r.looked = c.shadow_every && at.applied % c.shadow_every == 0;
    fill_zero(gpt.gradients.data(), gpt.gradients.bytes());
    for (int micro = 0; micro < c.accumulate; micro++) {
        Batch batch = train_batch(tokens, c.batch, c.context, (uint32_t)c.seed, at.batches, micro, c.accumulate);
        TokenBatch on_machine = gpt.upload(batch.x, batch.y, batch.B, batch.T);
        look(gpt, r.looked && micro == 0);
        gpt_forward(gpt, on_machine, Pass::train);
        r.loss += gpt_loss(gpt, on_machine, scale.value / c.accumulate) / c.accumulate;
        if (!std::isfinite(r.loss)) break; // the step is lost: leave the activations as they are, for the autopsy
        gpt_backward(gpt, on_machine);
    }

    // 2. Does this step count? The FP32 gradients, and what the saturating FP8 casts saw, decide before anything moves. If
    //    it does not, no weight, no moment, no t, no learning rate, no average moves. A step that only saturated is tried
    //    again with the same batch, its scales repaired.
    r.norm = global_norm((float*)gpt.gradients.data(), gpt.gradients.bytes() / 4, 1 / scale.value, (float*)gpt.partial.data());
    look(gpt, false);
    StepEvidence seen = take_evidence(gpt, r.loss, r.norm, r.looked);
    for (const Evidence& e : seen.tensors) r.saturated += e.saturated;
    r.decision = decide(gpt.rules, gpt.policy, seen);
    if (evidence) *evidence = seen;
    for (auto& [name, site] : gpt.sites) site->has_first_k = false;
    const bool replay = r.decision.verdict == Verdict::replay;
    at.batches += !replay;
    if (r.decision.verdict != Verdict::apply) {
        if (r.decision.cause != Cause::saturated) scale.overflowed();
        at.skipped += !replay, at.replayed += replay;
        r.skipped = true;
        return r;
    }

    // 3. AdamW moves the FP32 masters and rounds them to what the products read. Clipping comes after unscaling: the norm
    //    above is that of the true gradients.
    const double clip = c.clip > 0 && r.norm > c.clip ? c.clip / r.norm : 1;
    AdamW adam;
    adam.lr = r.lr, adam.beta1 = (float)c.beta1, adam.beta2 = (float)c.beta2, adam.weight_decay = (float)c.weight_decay;
    adam.grad_scale = (float)(clip / scale.value);
    adam.set_step(++at.applied);
    gpt.follow_formats();
    const bool measured = r.looked || (gpt.rules.grants_masters && std::any_of(gpt.parameters.begin(), gpt.parameters.end(), [](const Parameter& p) { return !p.has_master; }));
    adamw_update(gpt.parameters, gpt.weight_stats(), adam, gpt.watch, measured, at.applied);
    gpt.point_at_weights();
    if (measured) {
        seen.updates = updates_seen(gpt.parameters, gpt.watch);
        give_masters(gpt.rules, gpt.policy, seen.updates, r.decision);
        for (size_t i = 0; i < gpt.parameters.size(); i++) gpt.parameters[i].has_master = gpt.policy.parameters[i].master;
        if (evidence) *evidence = seen;
    }
    if (c.ema > 0) update_average(gpt.parameters, (float)c.ema);

    scale.succeeded();
    return r;
}

// ==== looking at the model ===========================================================================================

// Mean loss over fixed windows of the split, in nats per token: the same windows at every call and for every recipe.
template <class T>
double evaluate(GPT<T>& gpt, const Tokens& tokens, const Config& c) {
    double loss = 0;
    for (int i = 0; i < c.eval_batches; i++) {
        Batch batch = validation_batch(tokens, c.batch, c.context, i, c.eval_batches);
        TokenBatch on_machine = gpt.upload(batch.x, batch.y, batch.B, batch.T);
        gpt_forward(gpt, on_machine, Pass::evaluate);
        loss += gpt_loss(gpt, on_machine, 0) / c.eval_batches;
    }
    return loss;
}

// Mean loss over all tokens but the first: windows of c.context, and a shorter one for the rest.
template <class T>
double evaluate_all(GPT<T>& gpt, const Tokens& tokens, const Config& c) {
    const size_t predictions = tokens.count() - 1, length = std::min<size_t>(c.context, predictions);
    double sum = 0;
    for (size_t at = 0; at < predictions;) {
        const size_t n = std::min(length, predictions - at), rows = n < length ? 1 : std::min<size_t>(c.batch, (predictions - at) / n);
        Batch batch = empty_batch(tokens, (int)rows, (int)n);
        for (size_t r = 0; r < rows; r++) copy_row(&batch, (int)r, tokens, at + r * n);
        TokenBatch on_machine = gpt.upload(batch.x, batch.y, batch.B, batch.T);
        gpt_forward(gpt, on_machine, Pass::evaluate);
        sum += gpt_loss(gpt, on_machine, 0) * (rows * n);
        at += rows * n;
    }
    return sum / predictions;
}

// The logits that follow each text: one forward pass over rows padded to the context, read at each row's last token.
// Texts are cut to their last `context` tokens; what stands after a token cannot change its logits.
template <class T>
std::vector<std::vector<float>> next_logits(GPT<T>& gpt, const std::vector<std::vector<int>>& texts, int context) {
    const int B = (int)texts.size(), V = gpt.shape.vocab;
    std::vector<int> x((size_t)B * context, 0), last(B);
    for (int b = 0; b < B; b++) {
        ENSURE(!texts[b].empty(), "text %d is empty: there is no token to continue", b);
        const int n = (int)std::min<size_t>(texts[b].size(), context);
        std::copy(texts[b].end() - n, texts[b].end(), x.begin() + (size_t)b * context);
        last[b] = b * context + n - 1;
    }
    gpt_forward(gpt, gpt.upload(x, x, B, context), Pass::evaluate);
    std::vector<std::vector<float>> logits(B, std::vector<float>(V));
    for (int b = 0; b < B; b++) copy_to_host(logits[b].data(), gpt.now[0].logits.data + (size_t)last[b] * gpt.now[0].logits.cols, V);
    return logits;
}

// Of the first QUESTIONS held-out questions, the share whose answer the model gives exactly, byte for byte, decoding greedily.
constexpr size_t QUESTIONS = 400;
template <class T>
double answer_accuracy(GPT<T>& gpt, std::vector<Question> questions, const Config& c) {
    if (questions.size() > QUESTIONS) questions.resize(QUESTIONS);
    Sampling greedy;
    greedy.temperature = 0;
    int right = 0;
    for (size_t first = 0; first < questions.size(); first += c.batch) {
        const size_t count = std::min<size_t>(c.batch, questions.size() - first);
        std::vector<std::vector<int>> texts(count);
        std::vector<std::string> said(count);
        size_t longest = 0;
        for (size_t b = 0; b < count; b++) {
            const std::string prompt = "\n" + questions[first + b].prompt; // a story starts after the last one's end
            texts[b].assign(prompt.begin(), prompt.end());
            longest = std::max(longest, questions[first + b].answer.size());
        }
        for (size_t i = 0; i < longest; i++) {
            auto logits = next_logits(gpt, texts, c.context);
            for (size_t b = 0; b < count; b++) texts[b].push_back(draw(logits[b], greedy, 0)), said[b] += (char)texts[b].back();
        }
        for (size_t b = 0; b < count; b++) right += said[b].compare(0, questions[first + b].answer.size(), questions[first + b].answer) == 0;
    }
    return (double)right / questions.size();
}
