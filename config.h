// config.h -- every option of ./train_gpt, once: its name, its default, its meaning and what values it may have.
//
//   each_option(config, option) visits them: to parse the command line, to print --help, to write config.json
//   loss_scale_of, learning_rate: what two of the options mean
//
// Units    learning rates per step; warmup, eval-every, loss-scale-window in optimizer steps; context and tokens in tokens
// Why      a list of options that is kept twice drifts apart; this one is kept once
// Tests    tests/test_config.cu, tests/test_train_gpt.cu
#pragma once
#include <algorithm>
#include "policy.cuh"

struct Config {
    std::string recipe = "bf16";
    bool compare = false;

    std::string from, evaluate, write_to;
    std::string data, val_data, tokenizer;
    int vocab = 0;

    int layers = 2, heads = 4, channels = 64, context = 160;

    int batch = 16, accumulate = 1, steps = 4400;
    double lr = 8e-3, min_lr = -1;
    int warmup = 100;
    double beta1 = 0.9, beta2 = 0.95, weight_decay = 0.1, clip = 1, ema = 0;
    std::string loss_scale = "auto";
    int loss_scale_window = 2000;
    std::string scaling = "delayed";
    int scale_window = 16, scale_margin = 1, scale_interval = 16, scale_deadband = 2;
    bool no_guard = false, no_promote = false;
    int shadow_every = 16;
    std::string masters = "all", rounding = "nearest";
    std::string replay, report;
    bool reference = false;
    double tolerance = 0;
    int64_t seed = 1;

    int save_every = 0, keep = 2;
    std::string resume;
    bool saves = true; // no option: false for twins

    int eval_every = 250, eval_batches = 10;
    std::string out = "out";
    std::string sample;
    int tokens = 400;
    double temperature = 0.8, top_p = 1;
    int top_k = 0;

    bool formats = false, machine = false;
};

// option(name, field, what it is, smallest, largest); text options and flags have no bounds.
template <class F>
void each_option(Config& c, F option) {
    const int most = 1 << 30;
    option("--recipe", c.recipe, "number formats: fp32, bf16, fp16 or fp8");
    option("--compare", c.compare, "train with all four recipes on the same data, and draw their losses in one picture");
    option("--from", c.from, "weights to start with, and the shape: a folder that --out named, a folder with Hugging Face's GPT-2, its model.safetensors, or llm.c's gpt2_124M.bin");
    option("--evaluate", c.evaluate, "with --from: the loss on all of a file of text or tokens, and stop");
    option("--export", c.write_to, "with --from: write the weights as a folder for Hugging Face, or as an llm.c .bin file (FP32 with --recipe fp32, else BF16), and stop");
    option("--data", c.data, "a text file (read as bytes), an llm.c .bin shard, or a nanoGPT .bin with --vocab; default: built-in stories");
    option("--val-data", c.val_data, "validation data of the same kind; default: the last 10 % of --data");
    option("--tokenizer", c.tokenizer, "a tokenizer.json, a folder with one or with vocab.json and merges.txt: GPT-2's BPE, which reads --data text; empty: as bytes");
    option("--vocab", c.vocab, "tokens in the vocabulary; 0: what the data says", 0, most);
    option("--layers", c.layers, "transformer blocks", 1, 1000);
    option("--heads", c.heads, "attention heads", 1, 1 << 12);
    option("--channels", c.channels, "width of the residual stream, a multiple of --heads", 1, 1 << 16);
    option("--context", c.context, "tokens that the model sees at once", 1, 1 << 20);
    option("--batch", c.batch, "examples in a micro-batch", 1, 1 << 20);
    option("--accumulate", c.accumulate, "micro-batches in an optimizer step", 1, 1 << 20);
    option("--steps", c.steps, "optimizer steps", 0, most);
    option("--lr", c.lr, "peak learning rate; with --from the default is 3e-05", 0, 1e3);
    option("--min-lr", c.min_lr, "learning rate at the end of the cosine; -1: a fortieth of --lr", -1, 1e3);
    option("--warmup", c.warmup, "steps of linear warmup", 0, most);
    option("--beta1", c.beta1, "AdamW: decay of the mean of gradients", 0, 0.999999);
    option("--beta2", c.beta2, "AdamW: decay of the mean of squared gradients", 0, 0.999999);
    option("--weight-decay", c.weight_decay, "AdamW: decay of matrices, per unit of learning rate", 0, 1e3);
    option("--clip", c.clip, "largest global gradient norm; 0: no clipping", 0, 1e30);
    option("--ema", c.ema, "decay of an average of the weights, evaluated beside them (what is saved for others are the weights); 0: none", 0, 0.9999999);
    option("--loss-scale", c.loss_scale, "none, dynamic, a number, or auto: dynamic for fp16, none for the others");
    option("--loss-scale-window", c.loss_scale_window, "good steps in a row after which a dynamic loss scale doubles", 1, most);
    option("--scaling", c.scaling, "FP8 scales: delayed (from past steps), current (each tensor's own), global (delayed, one per role) or none");
    option("--scale-window", c.scale_window, "steps whose amaxes a delayed scale covers", 1, MAX_WINDOW);
    option("--scale-margin", c.scale_margin, "binades left free above them", 0, 16);
    option("--scale-interval", c.scale_interval, "steps from one chance of a scale to grow to the next", 1, most);
    option("--scale-deadband", c.scale_deadband, "binades by which it must grow if it grows; 1: any", 1, 64);
    option("--no-guard", c.no_guard, "plain delayed scaling, to compare: the first scale is 1, and steps that saturated count");
    option("--no-promote", c.no_promote, "FP8 tensors stay in FP8 whatever the evidence");
    option("--shadow-every", c.shadow_every, "steps from one look at every tensor (its exponents, its error in each format, what updates lose) to the next; 0: never", 0, most);
    option("--masters", c.masters, "all; none: each weight is rounded to 16 bits at each step; measured: none, until one is seen to need its own");
    option("--rounding", c.rounding, "of weights without masters: nearest or stochastic");
    option("--report", c.report, "a folder that --out named: draw its report.html and heat.png again, and stop");
    option("--replay", c.replay, "a folder that --out named: compute its run's decisions again from its decisions.jsonl, and stop");
    option("--reference", c.reference, "train FP32 twins too, write OUT/claims.json, and fail if a claim does");
    option("--tolerance", c.tolerance, "of the claim that losses match FP32's, relative; 0: 0.01 in fp8, 0.0025 in the others", 0, 1);
    option("--seed", c.seed, "of the initial weights, the batches and the sample", 0, (int64_t)UINT32_MAX);
    option("--save-every", c.save_every, "steps between checkpoints OUT/step_N; 0: one only when a signal stops the run, and at its end the weights as OUT/model", 0, most);
    option("--keep", c.keep, "checkpoints that are kept: the newest", 1, most);
    option("--resume", c.resume, "a folder that --out named: go on from its newest checkpoint, with its run's options but for those given now");
    option("--eval-every", c.eval_every, "steps between evaluations; 0: never", 0, most);
    option("--eval-batches", c.eval_batches, "batches of an evaluation; 0: never", 0, most);
    option("--out", c.out, "folder for all that a run leaves: log.jsonl, loss.png, report.html, weights and checkpoints");
    option("--sample", c.sample, "text that the final sample continues; with --from and without --data: continue it, and stop");
    option("--tokens", c.tokens, "length of the sample; 0: no sample", 0, 1 << 20);
    option("--temperature", c.temperature, "of the sample; 0: always the most likely token", 0, 100);
    option("--top-k", c.top_k, "draw from the k most likely tokens; 0: from all", 0, most);
    option("--top-p", c.top_p, "draw from the fewest tokens that are this probable together", 0, 1);
    option("--formats", c.formats, "print the number formats' facts, computed from the code, and stop");
    option("--machine", c.machine, "print what this program would run on, and stop");
}

// --loss-scale as a LossScale.
inline LossScale loss_scale_of(const Config& c, const Recipe& r) {
    if (c.loss_scale == "none" || (c.loss_scale == "auto" && !r.loss_scaling)) return LossScale::fixed(1);
    if (c.loss_scale == "dynamic" || c.loss_scale == "auto") return LossScale::dynamic(c.loss_scale_window);
    char* end;
    float value = std::strtof(c.loss_scale.c_str(), &end);
    if (*end || !(value > 0) || !std::isnormal(value)) // so that 1 / value is finite too
        refuse("--loss-scale %s: expected none, dynamic, auto or a positive number", c.loss_scale.c_str());
    return LossScale::fixed(value);
}

// The precision procedure's rules.
inline Rules rules_of(const Config& c) {
    static const char* names[] = {"delayed", "current", "global", "none"};
    Rules r;
    const auto found = std::find(std::begin(names), std::end(names), c.scaling);
    if (found == std::end(names)) refuse("--scaling %s: expected delayed, current, global or none", c.scaling.c_str());
    r.scaling = (Scaling)(found - names);
    r.window = c.scale_window, r.margin = c.scale_margin, r.interval = c.scale_interval, r.deadband = c.scale_deadband;
    r.guard = !c.no_guard, r.promote = !c.no_promote, r.grants_masters = c.masters == "measured";
    if (c.masters != "all" && c.masters != "none" && c.masters != "measured") refuse("--masters %s: expected all, none or measured", c.masters.c_str());
    if (c.rounding != "nearest" && c.rounding != "stochastic") refuse("--rounding %s: expected nearest or stochastic", c.rounding.c_str());
    return r;
}

// The learning rate of applied step t = 0, 1, ...: linear warmup, then a cosine from lr down to min_lr.
inline float learning_rate(const Config& c, int t) {
    if (t < c.warmup) return (float)(c.lr * (t + 1) / c.warmup);
    const double last = c.min_lr < 0 ? c.lr / 40 : c.min_lr;
    double done = c.steps > c.warmup ? std::min(1.0, (double)(t - c.warmup) / (c.steps - c.warmup)) : 1;
    return (float)(last + 0.5 * (1 + std::cos(3.141592653589793 * done)) * (c.lr - last));
}
