// train_gpt.cu -- the program: train a GPT, watch it, sample from it. Start reading at main.
//
//   main         options -> data -> shape -> train_recipe, once, or for all four recipes, or with FP32 twins and claims
//   train        the loop: look, step, write the log, tell; then the named metric, a sample, the picture
//   train_step   the step itself: training.cuh
//
// Formats  --recipe chooses a row of recipes.cuh at run time; one binary holds all four
// Tests    tests/test_train_gpt.cu
#include <filesystem>
#include <fstream>
#include <csignal>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "checkpoint.h"
#include "command_line.h"
#include "report.h"
#include "tokenizer.h"
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

// What would become of the weights without FP32 masters: a parameter whose numbers are much larger than its updates swallows them.
template <class T>
void print_prediction(const GPT<T>& gpt, const Config& c) {
    const double last = learning_rate(c, c.steps); // the smallest
    int swamped = 0;
    std::string first;
    for (const Parameter& p : gpt.parameters) {
        std::vector<float> w(p.size());
        copy_to_host(w.data(), (const float*)p.master, w.size());
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

inline void draw_losses(const std::string& path, const std::string& title, const std::vector<std::pair<std::string, Json>>& runs) {
    Chart chart;
    chart.title = title, chart.x_label = "optimizer step", chart.y_label = "loss (nats per token)";
    int colour = 0;
    for (auto& [name, log] : runs) {
        Series raw, smooth, validation;
        for (const Json& line : log) {
            if (line.contains("val_loss")) validation.x.push_back(line["step"]), validation.y.push_back(number_of(line["val_loss"]));
            else if (line.contains("loss") && !line["skipped"]) raw.x.push_back(line["step"]), raw.y.push_back(number_of(line["loss"]));
        }
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

// SIGINT and SIGTERM end the run after its step, with a checkpoint; a second one ends the program.
volatile std::sig_atomic_t asked_to_stop = 0;
struct Stopped {}; // thrown then: no twin and no other recipe is trained
inline void stop_on_signals() {
    struct sigaction action = {};
    action.sa_handler = [](int) {
        if (asked_to_stop) _exit(130);
        asked_to_stop = 1;
    };
    action.sa_flags = SA_RESTART;
    for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

// The options as JSON, and back.
inline Json json_of(Config c) {
    Json j;
    c.resume.clear(); // of this call, not of the run
    each_option(c, [&](const char* name, auto& field, const char*, auto...) { j[name + 2] = field; });
    return j;
}
inline Config config_of(const Json& j, const std::string& path) {
    Config c;
    each_option(c, [&](const char* name, auto& field, const char*, auto... bounds) {
        if (!j.contains(name + 2)) return; // an option that came later
        try {
            const Json& value = j.at(name + 2);
            if constexpr (sizeof...(bounds) == 2) {
                const std::pair<double, double> range(bounds...);
                const double x = value.get<double>();
                if (!(x >= range.first && x <= range.second) || (std::is_integral_v<std::decay_t<decltype(field)>> && !value.is_number_integer()))
                    refuse("%s: options: %s is %s; expected %.10g to %.10g", path.c_str(), name, value.dump().c_str(), range.first, range.second);
            }
            field = value.get<std::decay_t<decltype(field)>>();
        } catch (const Json::exception& e) {
            refuse("%s: options: %s: %s", path.c_str(), name, e.what());
        }
    });
    return c;
}

// What a run that goes on may have otherwise than before: how long, how it is watched, and where its data lie now.
inline void check_same_run(Config before, Config now) {
    static const std::string may_differ[] = {"--steps", "--save-every", "--keep", "--eval-every", "--eval-batches", "--sample", "--tokens", "--temperature", "--data", "--val-data", "--tokenizer", "--resume"};
    const Json was = json_of(before), is = json_of(now);
    each_option(now, [&](const char* name, auto&, const char*, auto...) {
        if (std::find(std::begin(may_differ), std::end(may_differ), name) == std::end(may_differ) && was.value(name + 2, Json()) != is.value(name + 2, Json()))
            refuse("--resume %s: %s is %s, that run's is %s; a run that goes on keeps it", now.resume.c_str(), name, is[name + 2].dump().c_str(), was[name + 2].dump().c_str());
    });
}

// One of a run's files of lines: `was` bytes of it belong to the run so far.
inline std::ofstream open_lines(const std::filesystem::path& path, std::uintmax_t was) {
    std::error_code error;
    const std::uintmax_t is = was ? std::filesystem::file_size(path, error) : 0;
    if (was && (error || is < was)) refuse("%s has %zu bytes; expected the %zu that it had at the checkpoint, or more", path.c_str(), error ? (size_t)0 : (size_t)is, (size_t)was);
    std::ofstream file(path, was ? std::ios::app : std::ios::trunc);
    if (!file) refuse("--out %s: cannot write %s: %s", path.parent_path().c_str(), path.c_str(), strerror(errno));
    return file;
}

// Trains with one recipe, on all batches but those `without`, and returns the log: what is also in OUT/log.jsonl, a line per step
// and per evaluation.
template <class T>
Json train(const Config& c, const Recipe& recipe, const Shape& shape, const Data& data, const std::vector<uint64_t>& without) {
    std::filesystem::path out(c.out);
    std::error_code error;
    std::filesystem::create_directories(out, error);
    const bool resumes = !c.resume.empty();
    if (!resumes && !checkpoints_in(out).empty())
        refuse("--out %s holds step_%d of an earlier run: go on with it (--resume %s), or name another folder", c.out.c_str(), checkpoints_in(out).back(), c.out.c_str());

    GPT<T> gpt(shape, recipe, c.batch, c.context, c.ema > 0);
    gpt.initialise((uint32_t)c.seed);
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
    std::uintmax_t sizes[3] = {}; // of log.jsonl, decisions.jsonl, shadow.jsonl
    auto each_field = [&](auto f) {
        f("applied", at.applied), f("batches", at.batches), f("skipped", at.skipped), f("replayed", at.replayed);
        f("loss_scale", scale.value), f("good_steps", scale.good_steps), f("first_bad", first_bad);
        f("log_bytes", sizes[0]), f("decisions_bytes", sizes[1]), f("shadow_bytes", sizes[2]);
        f("seconds", spent), f("decision_seconds", deciding), f("replay_seconds", replaying), f("elapsed", elapsed);
        f("look_seconds", gpt.looks.seconds), f("look_bytes", gpt.looks.bytes_read);
    };
    if (resumes) {
        const std::filesystem::path from = newest_checkpoint(out);
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
    }

    const char* const names_of_files[] = {"log.jsonl", "decisions.jsonl", "shadow.jsonl"};
    std::ofstream files[3]; // all are there before any is cut back
    for (int i = 0; i < 3; i++) files[i] = open_lines(out / names_of_files[i], sizes[i]);
    for (int i = 0; resumes && i < 3; i++) std::filesystem::resize_file(out / names_of_files[i], sizes[i]);
    std::ofstream &log_file = files[0], &decisions = files[1], &shadows = files[2];
    const Json options = json_of(c);
    if (!(std::ofstream(out / "config.json") << options.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl)) // a path may hold any bytes, JSON not
        throw Error(1, format("cannot write %s: is the disk full?", (out / "config.json").c_str()));
    if (!resumes) decisions << header << std::endl;

    Json log = Json::array();
    if (resumes)
        each_line(out / "log.jsonl", [&](const Json& line) { log.push_back(line); });
    auto write = [&](const Json& line) {
        log.push_back(line);
        log_file << line.dump() << std::endl;
        if (!log_file) throw Error(1, format("cannot write %s: is the disk full?", (out / "log.jsonl").c_str()));
    };
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
        write(line);
        printf("%sstep %5d/%d | validation loss %.4f\n", terminal ? "\r\033[K" : "", at.applied, c.steps, (double)line["val_loss"]);
        fflush(stdout);
    };

    auto finish_logs = [&] { // whatever became of the run, its report can be drawn
        for (std::ofstream* file : {&decisions, &shadows}) {
            file->close();
            if (!*file) throw Error(1, format("cannot write %s: is the disk full?", (out / (file == &shadows ? "shadow.jsonl" : "decisions.jsonl")).c_str()));
        }
        write_report(out);
    };

    auto save = [&] {
        for (int i = 0; i < 3; i++) {
            const std::filesystem::path path = out / names_of_files[i];
            if (!files[i].flush()) throw Error(1, format("cannot write %s: is the disk full?", path.c_str()));
            if (const int file = open(path.c_str(), O_RDONLY); file >= 0) fsync(file), close(file); // a checkpoint counts on them
            sizes[i] = std::filesystem::file_size(path);
        }
        elapsed = seconds_now() - begin;
        Json progress;
        each_field([&](const char* name, auto& field) { progress[name] = field; });
        save_checkpoint(out, at.applied, gpt, progress, options, c.keep);
    };

    if (!resumes) validate();
    while (at.applied < c.steps) {
        while (std::count(without.begin(), without.end(), at.batches)) at.batches++;
        const double start = seconds_now(), looked = gpt.looks.seconds;
        StepEvidence evidence;
        const StepResult r = train_step(gpt, scale, at, data.train, c, &evidence);
        const double decided = seconds_now();
        const std::string decision = text(r.decision, names);
        decisions << line_of(evidence, r.decision, gpt.policy, names).dump() << "\n";
        if (r.looked && !r.skipped) { // what was taken back is looked at again
            Json line = {{"step", at.applied + r.skipped}, {"tensors", Json::array()}};
            const std::vector<const Shadow*> seen = gpt.shadows();
            for (size_t i = 0; i < seen.size(); i++)
                if (!seen[i]->exponents.empty()) line["tensors"].push_back(json_of(looked_at[i], *seen[i]));
            shadows << line.dump() << "\n";
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
        write(line);
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
            throw Error(1, format("stopped at step %d: 8 steps in a row had to be dropped; the first tensor that went bad was "
                                  "%s (loss scale now %g)",
                                  at.applied + 1, first_bad.c_str(), scale.value));
        }
        if (evaluation_due) validate();
        const bool stopped = asked_to_stop && !r.skipped;
        if (c.saves && !r.skipped && (stopped || (c.save_every && (at.applied % c.save_every == 0 || at.applied == c.steps)))) save();
        if (stopped) {
            finish_logs();
            printf("\nstopped by a signal after step %d of %d", at.applied, c.steps);
            if (c.saves) printf("; to go on: ./train_gpt --resume %s", c.out.c_str());
            printf("\n");
            throw Stopped();
        }
    }
    if (terminal) printf("\n");
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
        write({{"step", at.applied}, {"cost", {{"seconds", spent}, {"shadow_seconds", gpt.looks.seconds}, {"decision_seconds", deciding}, {"replay_seconds", replaying}, {"memory_bytes", memory}, {"shadow_bytes", gpt.looks.bytes_read}}}});
        printf("the procedure took %.2f %% of the time for looks, %.2f %% for decisions and their log, %.2f %% for replays; %zu bytes of memory; %.3g bytes read by looks\n",
               100 * gpt.looks.seconds / spent, 100 * deciding / spent, 100 * replaying / spent, memory, (double)gpt.looks.bytes_read);
    }

    if (!data.questions.empty() && c.eval_every && c.eval_batches) {
        const double accuracy = answer_accuracy(gpt, data.questions, c);
        const size_t questions = std::min(QUESTIONS, data.questions.size());
        write({{"step", at.applied}, {"answer_accuracy", accuracy}, {"questions", questions}});
        printf("answer accuracy: %.1f %% of %zu held-out questions\n", 100 * accuracy, questions);
    }
    if (c.tokens > 0) {
        const std::vector<int> text = data.encode ? data.encode(c.sample.empty() ? "\n" : c.sample) : std::vector<int>{0};
        printf("\n%s%s\n", c.sample.c_str(), printable(generate(gpt, text, c.tokens, c.temperature, c), data).c_str());
    }
    if (at.applied) draw_losses((out / "loss.png").string(), format("%s on %s", recipe.name, data.description.c_str()), {{recipe.name, log}});
    finish_logs();
    printf("\n%.0f s; %s holds report.html, %slog.jsonl and config.json\n", seconds_now() - begin, c.out.c_str(), at.applied ? "loss.png, heat.png, " : "heat.png, ");
    return log;
}

inline Json train_recipe(const Config& c, const Shape& shape, const Data& data, const std::vector<uint64_t>& without = {}) {
    const Recipe r = recipe_named(c.recipe);
    printf("\nrecipe %s: stored %s, weights %s, inputs %s, gradients %s; masters, moments, sums in FP32\n", r.name, name_of(r.stored),
           name_of(r.weight), name_of(r.input), name_of(r.gradient));
    return with_stored(r.stored, [&](auto zero) { return train<decltype(zero)>(c, r, shape, data, without); });
}

// The run, its twin in FP32, that twin again with its sums in another order, and what the run may then claim.
inline void train_with_reference(const Config& c, const Shape& shape, const Data& data) {
    const std::filesystem::path out(c.out);
    const Tolerances tolerances = tolerances_for(recipe_named(c.recipe), c.tolerance);
    printf("to be claimed: %s (hash %08x)\n", tolerances.text().c_str(), tolerances.hash());
    const Ending run = ending_of(train_recipe(c, shape, data));
    Config twin = c;
    twin.recipe = "fp32", twin.masters = "all", twin.resume.clear(), twin.saves = false, twin.tokens = 0, twin.out = (out / "fp32").string();
    const Ending wide = ending_of(train_recipe(twin, shape, data, run.dropped));
    Ending noise;
    if (c.batch % 2 == 0) { // the same examples in each step, and the same windows in each evaluation
        twin.batch /= 2, twin.accumulate *= 2, twin.eval_batches *= 2, twin.out = (out / "fp32 in another order").string();
        noise = ending_of(train_recipe(twin, shape, data, run.dropped));
    }

    const std::vector<Claim> claims = claims_of(tolerances, run, wide, noise, (out / "decisions.jsonl").string());
    if (!(std::ofstream(out / "claims.json") << json_of(claims, tolerances, run.cost).dump(2) << std::endl))
        throw Error(1, format("cannot write %s: is the disk full?", (out / "claims.json").c_str()));
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

// The one line that a failed run ends with.
inline int failed(const std::exception& e, int status) {
    fflush(stdout);
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' '); // a file's name may hold any byte
    fprintf(stderr, "train_gpt: %s\n", line.c_str());
    return status;
}

int main(int argc, char** argv) try {
    Config c = parse_options(argc, argv);
    if (!c.resume.empty()) { // once more, with that run's options in place of the defaults
        const std::filesystem::path from = newest_checkpoint(c.resume);
        Config before = config_of(checkpoint_options(from), (from / "state.safetensors").string());
        before.out = c.resume;
        c = parse_options(argc, argv, before);
        check_same_run(before, c);
    }
    if (c.formats) return printf("%s", formats_table().c_str()), 0;
    printf("machine: %s\n", describe_machine().c_str());
    if (c.machine) return 0;
    if (!c.replay.empty()) {
        const Replayed r = replay((std::filesystem::path(c.replay) / "decisions.jsonl").string());
        printf("%d attempts decided again, all as the run decided: %d applied, %d replayed, %d dropped; %d scales or formats changed\n", r.attempts,
               r.verdicts[0], r.verdicts[1], r.verdicts[2] + r.verdicts[3], r.reasons);
        return 0;
    }

    if (!c.report.empty()) {
        write_report(c.report);
        return printf("%s holds report.html and heat.png\n", c.report.c_str()), 0;
    }

    const Data data = load_data(c.data, c.val_data, c.vocab, c.tokenizer);
    check_context(data, c.context);
    loss_scale_of(c, recipe_named(c.recipe)), rules_of(c); // refuse a bad one before anything is written
    if (!c.sample.empty() && !data.encode)
        refuse("--sample %s: these data are %d kinds of tokens, and without --tokenizer no text can be made of them", c.sample.c_str(), data.vocab);
    for (unsigned char ch : c.sample)
        if (data.bytes && ch >= data.vocab) refuse("--sample holds byte %d, outside the vocabulary of %d", ch, data.vocab);
    const Shape shape = {c.layers, c.heads, c.channels, c.context, data.vocab};
    size_t parameters = 0;
    for (const Parameter& p : declare_parameters(shape, recipe_fp32)) parameters += p.size();
    printf("data: %s\nmodel: %d layers, %d heads, %d channels, context %d, vocabulary %d: %zu parameters\n", data.description.c_str(), c.layers,
           c.heads, c.channels, c.context, data.vocab, parameters);
    print_memory(shape, c);
    check_memory(shape, c);

    stop_on_signals();
    if (c.reference) return train_with_reference(c, shape, data), 0;
    if (!c.compare) return train_recipe(c, shape, data), 0;
    std::vector<std::pair<std::string, Json>> runs;
    for (const Recipe& r : RECIPES) {
        Config one = c;
        one.recipe = r.name, one.compare = false, one.out = (std::filesystem::path(c.out) / r.name).string();
        runs.push_back({r.name, train_recipe(one, shape, data)});
    }
    draw_losses((std::filesystem::path(c.out) / "compare.png").string(), "Four recipes, the same data in the same order", runs);
    return 0;
} catch (const Stopped&) {
    return 0;
} catch (const Error& e) {
    return failed(e, e.status);
} catch (const std::exception& e) {
    return failed(e, 1);
}
