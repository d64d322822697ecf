// run.cuh -- a training run: the loop, what it prints, and what it leaves in its folder.
//
//   train                  look, step, write the log, tell; then the named metric, a sample, the picture
//   train_with_reference   the same again in FP32, and once more with sums in another order; what the run may then claim
//   train_step             the step itself: training.cuh
//
// Why      whatever a run prints is computed from what it also wrote: OUT/log.jsonl has a line for each attempt of a step. None is
//          kept in memory: a run of a million steps needs no more of it than one of a thousand.
// Tests    tests/test_train_gpt.cu
#pragma once
#include <csignal>
#include <unistd.h>
#include "checkpoint.h"
#include "report.h"
#include "training.cuh"

// ==== what a person sees =============================================================================================

// Text as a terminal may show it, where tokens are text; others as numbers. UTF-8 is left as it is.
inline std::string printable(const std::vector<int>& tokens, const Data& data) {
    std::string text;
    if (!data.decode)
        for (int t : tokens) text += std::to_string(t) + " ";
    else
        for (unsigned char c : data.decode(tokens)) text += c == '\n' || c == '\t' || (c >= 32 && c != 127) ? std::string(1, (char)c) : format("\\x%02X", c);
    return text;
}

// SIGINT and SIGTERM end the run after its step, with a checkpoint; a second one ends the program.
volatile std::sig_atomic_t asked_to_stop = 0;
struct Stopped { // thrown then: no twin and no other recipe is trained
    std::string when, next = {}; // what there is to say: that, and how to go on
};
inline void stop_on_signals() {
    struct sigaction action = {};
    action.sa_handler = [](int) {
        if (asked_to_stop) _exit(130);
        asked_to_stop = 1;
    };
    action.sa_flags = SA_RESTART;
    for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

// A word as a shell reads it.
inline std::string shell_word(const std::string& text) {
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return isalnum((unsigned char)c) || strchr("/._-+,:@%=", c); });
    std::string word = "'";
    for (char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
    return plain ? text : word + "'";
}

// Continues --sample, and shows each token as it is drawn. Returns how many there were.
template <class T>
int write_sample(GPT<T>& gpt, const Data& data, const Config& c) {
    int count = 0;
    printf("%s", c.sample.c_str());
    const Sampling how = {c.temperature, c.top_k, c.top_p, (uint32_t)c.seed};
    generate(gpt, c.sample.empty() ? std::vector<int>{data.start} : data.encode(c.sample), c.tokens, c.context, how, [&](int token) {
        printf("%s", printable({token}, data).c_str());
        fflush(stdout), count++;
        return !asked_to_stop;
    });
    printf("\n");
    return count;
}

// What would become of the weights without FP32 masters: a parameter whose numbers are much larger than its updates swallows them.
template <class T>
void print_prediction(const GPT<T>& gpt, const Config& c) {
    const double last = learning_rate(c, c.steps); // the smallest
    int swamped = 0;
    std::string first;
    for (const Parameter& p : gpt.parameters) {
        const std::vector<float> w = master_of(p);
        double squares = 0;
        for (float x : w) squares += (double)x * x;
        const double rms = std::sqrt(squares / w.size());
        if (!predict_swamping(p.storage, last, rms)) continue;
        if (!swamped++) first = format("; first %s, rms %.2g, where an update is %.2g of a step of %s", p.name.c_str(), rms, update_in_ulps(p.storage, last, rms), name_of(p.storage));
    }
    printf("without FP32 masters, updates of %.1e at the end would be less than a step in %d of %zu parameters%s\n", last, swamped, gpt.parameters.size(), first.c_str());
}

// Bytes by class of tensor, for every recipe.
inline void print_memory(const Shape& s, const Config& c) {
    printf("memory in bytes    masters      moments    gradients      weights     averages  activations        total\n");
    for (const Recipe& r : RECIPES) {
        const Memory m = memory_needed(s, r, c.batch, c.context, c.ema > 0);
        printf("  %-4s %s %15zu %12zu %12zu %12zu %12zu %12zu %12zu\n", r.name, r.name == c.recipe ? "<-" : "  ", m.masters, m.moments,
               m.gradients, m.low, m.averages, m.activations, m.total());
    }
}

// Of runs by name, each from its folder's log.jsonl.
inline void draw_losses(const std::string& path, const std::string& title, const std::vector<std::pair<std::string, std::filesystem::path>>& runs) {
    Chart chart;
    chart.title = title, chart.x_label = "optimizer step", chart.y_label = "loss (nats per token)";
    int colour = 0;
    for (auto& [name, out] : runs) {
        Series raw, smooth, validation;
        each_line(out / "log.jsonl", [&](const Json& line) {
            if (line.contains("val_loss")) validation.x.push_back(line["step"]), validation.y.push_back(number_of(line["val_loss"]));
            else if (line.contains("loss") && !line["skipped"]) raw.x.push_back(line["step"]), raw.y.push_back(number_of(line["loss"]));
        });
        smooth = raw;
        smooth.y = moving_average(raw.y, std::max(1, (int)raw.y.size() / 50));
        raw.faint = true, raw.colour = smooth.colour = colour++;
        validation.colour = runs.size() == 1 ? colour++ : smooth.colour;
        if (runs.size() == 1) smooth.name = "training, smoothed", validation.name = "validation", chart.series.push_back(raw);
        else smooth.name = name;
        chart.series.push_back(smooth);
        if (runs.size() == 1 && !validation.x.empty()) chart.series.push_back(validation);
    }
    const std::vector<double>& y = chart.series[0].y;
    if (runs.size() > 1 && !y.empty()) { // runs that agree differ by little: leave the steep first tenth out of the picture
        chart.y_high = y[y.size() / 10];
        chart.y_low = 0.9 * *std::min_element(y.begin(), y.end());
    }
    save_chart(path, chart);
}

// ==== a run ==========================================================================================================

// Refuses what the machine cannot hold, before anything is allocated or written.
inline void check_memory(const Shape& s, const Config& c) {
    for (const Recipe& r : RECIPES) {
        const size_t needed = memory_needed(s, r, c.batch, c.context, c.ema > 0).total();
        if ((c.compare || r.name == c.recipe || (c.reference && r.stored == FP32)) && needed > machine_memory())
            refuse("--recipe %s needs %zu bytes of memory for this model and batch; this machine has %zu: make --layers, --channels, "
                   "--context or --batch smaller",
                   r.name, needed, machine_memory());
    }
}

// The folder `path` and those that it is to be in; those that are new are on the disk.
inline void make_folders(const std::filesystem::path& path) {
    const std::filesystem::path in = path.parent_path();
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) return;
    if (!in.empty()) make_folders(in);
    if (mkdir(path.c_str(), 0777) == 0) return sync_folder(in.empty() ? "." : in.string());
    const int why = errno == EEXIST ? ENOTDIR : errno;
    if (!std::filesystem::is_directory(path, error)) refuse("--out %s: cannot be made: %s", path.c_str(), strerror(why)); // else it is "a/.", made with "a"
}

// Trains with one recipe, on all batches but those `without`. OUT/log.jsonl has a line per step and per evaluation.
template <class T>
void train(const Config& c, const Recipe& recipe, const Shape& shape, const Data& data, const std::vector<uint64_t>& without) {
    const std::filesystem::path out(c.out);
    if (asked_to_stop) throw Stopped{"before its first step"};
    make_folders(out);
    const bool resumes = !c.resume.empty();
    if (!resumes && !checkpoints_in(out).empty())
        refuse("--out %s holds step_%d of an earlier run: go on with it (--resume %s), or name another folder", c.out.c_str(), checkpoints_in(out).back(), c.out.c_str());

    if (std::filesystem::exists(out / "model") && !std::filesystem::exists(out / "log.jsonl"))
        refuse("--out %s has a folder \"model\", and is no run's: its weights would go there; name another folder", c.out.c_str());

    GPT<T> gpt(shape, recipe, c.batch, c.context, c.ema > 0);
    if (c.from.empty()) gpt.initialise((uint32_t)c.seed);
    else if (!resumes) load_weights(gpt, open_weights(c.from));
    gpt.rules = rules_of(c);
    if (!resumes) print_prediction(gpt, c);
    if (c.masters != "all") gpt.drop_masters(c.rounding == "stochastic", (uint32_t)c.seed);
    const std::vector<std::string> looked_at = gpt.tensor_names();
    std::vector<std::string> names(looked_at.begin(), looked_at.begin() + gpt.policy.tensors.size()); // of all that is decided on
    for (const Parameter& p : gpt.parameters) names.push_back(p.name);
    const std::string header = header_of(gpt.rules, gpt.policy, names).dump();

    // What the run knows beside the model; all of it is in a checkpoint.
    LossScale scale = loss_scale_of(c, recipe);
    Progress at;
    double spent = 0, deciding = 0, replaying = 0, elapsed = 0; // seconds in steps; of these, in decisions and their logs, in replays; in all
    std::string first_bad;
    size_t sizes[3] = {}; // of log.jsonl, decisions.jsonl, shadow.jsonl
    auto each_field = [&](auto f) {
        f("applied", at.applied), f("batches", at.batches), f("skipped", at.skipped), f("replayed", at.replayed);
        f("loss_scale", scale.value), f("good_steps", scale.good_steps), f("first_bad", first_bad);
        f("log_bytes", sizes[0]), f("decisions_bytes", sizes[1]), f("shadow_bytes", sizes[2]);
        f("seconds", spent), f("decision_seconds", deciding), f("replay_seconds", replaying), f("elapsed", elapsed);
        f("look_seconds", gpt.looks.seconds), f("look_bytes", gpt.looks.bytes_read);
    };
    auto load = [&](const std::filesystem::path& from) {
        const Json progress = load_checkpoint(from, gpt);
        try {
            each_field([&](const char* name, auto& field) { field = progress.at(name).template get<std::decay_t<decltype(field)>>(); });
        } catch (const Json::exception& e) {
            refuse("%s: progress: %s", (from / "state.safetensors").c_str(), e.what());
        }
        const PolicyState& p = gpt.policy;
        if (from != checkpoint_at(out, at.applied) || p.applied != at.applied || p.drops || p.retrying || at.batches < (uint64_t)at.applied || at.skipped < 0 || at.replayed < 0 ||
            !(scale.value > 0) || !std::isnormal(scale.value) || scale.good_steps < 0 || (scale.interval && scale.good_steps >= scale.interval) || !sizes[0] || !sizes[1])
            refuse("%s: progress: %s; expected a run's after the step that names the folder", (from / "state.safetensors").c_str(), progress.dump().c_str());
        printf("going on from %s\n", from.c_str());
    };
    if (resumes) with_newest_checkpoint(out, load);

    auto lines = [&](const char* name, size_t kept) { return Lines((out / name).string(), kept); };
    Lines files[] = {lines("log.jsonl", sizes[0]), lines("decisions.jsonl", sizes[1]), lines("shadow.jsonl", sizes[2])};
    Lines &log = files[0], &decisions = files[1], &shadows = files[2];
    for (Lines& file : files) file.cut(); // all are there
    remove_parts(out);
    write_whole((out / "config.json").string(), text_of(json_of(c), 2) + "\n");
    if (!resumes) decisions.write(header);
    const bool terminal = isatty(1);
    const double begin = seconds_now() - elapsed;
    double shown = seconds_now();

    auto validate = [&] {
        if (!c.eval_every || !c.eval_batches) return;
        Json line = {{"step", at.applied}, {"val_loss", evaluate(gpt, data.validation, c)}};
        if (c.ema > 0) {
            gpt.swap_average();
            line["val_loss_ema"] = evaluate(gpt, data.validation, c);
            gpt.swap_average();
        }
        log.write(line.dump());
        printf("%sstep %5d/%d | validation loss %.4f\n", terminal ? "\r\033[K" : "", at.applied, c.steps, (double)line["val_loss"]);
        fflush(stdout);
    };

    auto finish_logs = [&] { // whatever became of the run, its report can be drawn
        for (Lines& file : files) file.sync();
        write_report(out);
    };

    const char* tokens = data.bytes ? "bytes" : "";
    const TokenizerFiles tokenizer = map_tokenizer(c.tokenizer);
    auto save = [&] {
        for (int i = 0; i < 3; i++) files[i].sync(), sizes[i] = files[i].size(); // a checkpoint counts on them
        elapsed = seconds_now() - begin;
        Json progress;
        each_field([&](const char* name, auto& field) { progress[name] = field; });
        save_checkpoint(out, at.applied, gpt, progress, c, tokens, tokenizer);
    };

    if (!resumes) validate();
    while (at.applied < c.steps) {
        while (std::count(without.begin(), without.end(), at.batches)) at.batches++;
        const double start = seconds_now(), looked = gpt.looks.seconds;
        StepEvidence evidence;
        const StepResult r = train_step(gpt, scale, at, data.train, c, &evidence);
        const double decided = seconds_now();
        const std::string decision = text(r.decision, names);
        decisions.write(line_of(evidence, r.decision, gpt.policy, names).dump());
        if (r.looked && !r.skipped) { // what was taken back is looked at again
            Json line = {{"step", at.applied + r.skipped}, {"tensors", Json::array()}};
            const std::vector<const Shadow*> seen = gpt.shadows();
            for (size_t i = 0; i < seen.size(); i++)
                if (!seen[i]->exponents.empty()) line["tensors"].push_back(json_of(looked_at[i], *seen[i]));
            shadows.write(line.dump());
        }
        const double now = seconds_now();
        spent += now - start, deciding += now - decided;
        if (r.decision.verdict == Verdict::replay) replaying += decided - start - (gpt.looks.seconds - looked);
        const double rate = (double)c.accumulate * c.batch * c.context / (now - start);
        Json line = {{"step", at.applied + r.skipped}, {"loss", r.loss}, {"grad_norm", r.norm}, {"lr", r.lr}};
        line["loss_scale"] = r.loss_scale, line["skipped"] = r.skipped, line["tokens_per_second"] = rate, line["seconds"] = now - begin;
        if (is_fp8(recipe.input)) line["saturated"] = r.saturated;
        if (is_fp8(recipe.input) || r.skipped) line["decision"] = decision;
        const bool replays = r.decision.verdict == Verdict::replay, stops = r.decision.verdict == Verdict::stop;
        if (r.skipped && !replays) {
            std::string bad = first_nonfinite(gpt);
            if (gpt.policy.drops == 1) first_bad = format("%s, at step %d", bad.c_str(), at.applied + 1);
            line["dropped_batch"] = at.batches - 1, line["first_bad"] = bad;
        }
        log.write(line.dump());
        const bool evaluation_due = c.eval_every && !r.skipped && (at.applied % c.eval_every == 0 || at.applied == c.steps);
        if (now - shown > (terminal ? 0.2 : 2) || evaluation_due || at.applied == c.steps) {
            shown = now;
            printf("%sstep %5d/%d | %s | loss %.4f | norm %.3f | lr %.2e | loss scale %g | skipped %d | %.0f tok/s | %.0f s left%s", terminal ? "\r\033[K" : "",
                   at.applied, c.steps, recipe.name, r.loss, r.norm, r.lr, scale.value, at.skipped, rate,
                   spent / at.batches * (c.steps - at.applied), terminal ? "" : "\n");
            fflush(stdout);
        }
        if (stops) {
            if (terminal) printf("\n");
            finish_logs();
            throw Error(1, format("stopped at step %d: %d steps in a row had to be dropped; the first tensor that went bad was "
                                  "%s (loss scale now %g)",
                                  at.applied + 1, gpt.rules.skip_limit, first_bad.c_str(), scale.value));
        }
        if (evaluation_due) validate();
        const bool stopped = asked_to_stop && !r.skipped;
        if (c.saves && !r.skipped && (stopped || (c.save_every && (at.applied % c.save_every == 0 || at.applied == c.steps)))) save();
        if (stopped) {
            finish_logs();
            throw Stopped{format("after step %d of %d", at.applied, c.steps), c.saves ? "; to go on: ./train_gpt --resume " + shell_word(c.out) : ""};
        }
    }
    if (terminal) printf("\n");
    const bool has_checkpoints = !checkpoints_in(out).empty(), saves_model = c.saves && at.applied && !has_checkpoints;
    if (has_checkpoints && checkpoints_in(out).back() != at.applied) save(); // after a signal it had one: what is read is the newest
    if (saves_model) { // an earlier run's is there until this one is whole
        const std::filesystem::path model = out / "model", part = part_of(model);
        std::filesystem::remove_all(part), make_folders(part);
        write_safetensors(part.string(), gpt, tokens, tokenizer);
        std::filesystem::remove_all(model), std::filesystem::rename(part, model), sync_folder(out.string());
    }
    if (is_fp8(recipe.input)) {
        int promoted = 0;
        for (const TensorState& t : gpt.policy.tensors) promoted += !is_fp8(t.format);
        printf("FP8: %d steps replayed because a cast saturated, %d batches dropped, %d of %zu tensors promoted; every decision is in decisions.jsonl\n",
               at.replayed, at.skipped, promoted, gpt.policy.tensors.size());
    }
    if (c.masters != "all") {
        int masters = 0;
        for (const StorageState& p : gpt.policy.parameters) masters += p.master;
        printf("masters: %d of %zu parameters were given one\n", masters, gpt.policy.parameters.size());
    }
    if (at.applied) {
        const size_t memory = gpt.stats.bytes() + gpt.looks.counts.bytes() + gpt.looks.partial.bytes() + gpt.update_counts.bytes() + gpt.update_sums.bytes() +
            gpt.policy.tensors.size() * sizeof(TensorState) + gpt.policy.parameters.size() * sizeof(StorageState);
        const Json cost = {{"seconds", spent}, {"shadow_seconds", gpt.looks.seconds}, {"decision_seconds", deciding}, {"replay_seconds", replaying}, {"memory_bytes", memory}, {"shadow_bytes", gpt.looks.bytes_read}};
        log.write(Json{{"step", at.applied}, {"cost", cost}}.dump());
        printf("the procedure took %.2f %% of the time for looks, %.2f %% for decisions and their log, %.2f %% for replays; %zu bytes of memory; %.3g bytes read by looks\n",
               100 * gpt.looks.seconds / spent, 100 * deciding / spent, 100 * replaying / spent, memory, (double)gpt.looks.bytes_read);
    }

    if (!data.questions.empty() && c.eval_every && c.eval_batches) {
        const double accuracy = answer_accuracy(gpt, data.questions, c);
        const size_t questions = std::min(QUESTIONS, data.questions.size());
        log.write(Json{{"step", at.applied}, {"answer_accuracy", accuracy}, {"questions", questions}}.dump());
        printf("answer accuracy: %.1f %% of %zu held-out questions\n", 100 * accuracy, questions);
    }
    if (c.tokens > 0) {
        printf("\n");
        write_sample(gpt, data, c);
    }
    if (at.applied) draw_losses((out / "loss.png").string(), format("%s on %s", recipe.name, data.description.c_str()), {{recipe.name, out}});
    finish_logs();
    printf("\n%.0f s; %s holds %sreport.html, %slog.jsonl and config.json\n", seconds_now() - begin, c.out.c_str(), saves_model ? "model, " : "", at.applied ? "loss.png, heat.png, " : "heat.png, ");
}

inline void train_recipe(const Config& c, const Shape& shape, const Data& data, const std::vector<uint64_t>& without = {}) {
    const Recipe r = recipe_named(c.recipe);
    printf("\nrecipe %s: stored %s, weights %s, inputs %s, gradients %s; masters, moments, sums in FP32\n", r.name, name_of(r.stored),
           name_of(r.weight), name_of(r.input), name_of(r.gradient));
    with_stored(r.stored, [&](auto zero) { train<decltype(zero)>(c, r, shape, data, without); });
}

// Four runs in OUT's folders fp32, bf16, fp16 and fp8, and a picture of all.
inline void train_all_recipes(const Config& c, const Shape& shape, const Data& data) {
    const std::filesystem::path out(c.out);
    std::vector<std::pair<std::string, std::filesystem::path>> runs;
    std::string done;
    for (const Recipe& r : RECIPES) try {
            Config one = c;
            one.recipe = r.name, one.compare = false, one.out = (out / r.name).string();
            train_recipe(one, shape, data);
            runs.push_back({r.name, one.out}), done += (done.empty() ? "" : ", ") + runs.back().first;
        } catch (const Stopped& s) {
            throw Stopped{format("in recipe %s, ", r.name) + s.when + "; finished: " + (done.empty() ? "none" : done) + "; nothing is compared", s.next};
        }
    remove_parts(out);
    draw_losses((out / "compare.png").string(), "Four recipes, the same data in the same order", runs);
}

// What a run's log says about its end.
inline Ending ending_of_run(const std::filesystem::path& out) {
    Json log = Json::array();
    each_line(out / "log.jsonl", [&](const Json& line) { log.push_back(line); });
    return ending_of(log);
}

// The run, its twin in FP32, that twin again with its sums in another order, and what the run may then claim.
inline void train_with_reference(const Config& c, const Shape& shape, const Data& data) {
    const std::filesystem::path out(c.out);
    const Tolerances tolerances = tolerances_for(recipe_named(c.recipe), c.tolerance);
    printf("to be claimed: %s (hash %08x)\n", tolerances.text().c_str(), tolerances.hash());
    train_recipe(c, shape, data);
    const Ending run = ending_of_run(out);
    auto train_twin = [&](Config twin, const char* name) {
        twin.recipe = "fp32", twin.masters = "all", twin.resume.clear(), twin.saves = false, twin.tokens = 0, twin.out = (out / name).string();
        try {
            train_recipe(twin, shape, data, run.dropped);
        } catch (const Stopped& s) {
            throw Stopped{format("in the twin %s, ", name) + s.when + "; the run itself is finished, nothing is claimed",
                          checkpoints_in(out).empty() ? "" : "; to train its twins again: ./train_gpt --resume " + shell_word(c.out)};
        }
        return ending_of_run(twin.out);
    };
    const Ending wide = train_twin(c, "fp32");
    Ending noise;
    if (c.batch % 2 == 0) { // the same examples in each step, and the same windows in each evaluation
        Config other = c;
        other.batch /= 2, other.accumulate *= 2, other.eval_batches *= 2;
        noise = train_twin(other, "fp32 in another order");
    }

    const std::vector<Claim> claims = claims_of(tolerances, run, wide, noise, (out / "decisions.jsonl").string());
    write_whole((out / "claims.json").string(), json_of(claims, tolerances, run.cost).dump(2) + "\n");
    write_report(out); // again, now with the twins and the claims
    std::string failed;
    printf("\n");
    for (const Claim& claim : claims) {
        printf("%s  %-7s  %s\n             %s\n", claim.name.c_str(), claim.holds ? "holds" : "FAILS", claim.says.c_str(), claim.evidence.c_str());
        if (!claim.holds) failed += (failed.empty() ? "" : " and ") + claim.name;
    }
    printf("%s\n", NOT_CLAIMED);
    if (!failed.empty()) throw Error(1, format("claim %s of this run does not hold: see %s", failed.c_str(), (out / "claims.json").c_str()));
}

