// checkpoint.h -- a run on the disk, from where it goes on as if it had never stopped: the same bytes at every later step.
//
//   OUT/step_N/model.safetensors   the FP32 weights under GPT-2's names, Linears as (in, out) as its Conv1D has them; config.json
//   OUT/step_N/state.safetensors   AdamW's moments, averages, the precision policy; how far the run is, and its options
//
// Formats  FP32 and 32-bit integers. The copies that products read, and FP8's exponents, are not kept: they follow from the masters
// Why      A folder becomes step_N when both files are on the disk and not before, and an older one goes after that: whoever
//          is killed at any moment, or loses power, leaves the last good one. Logs are cut back to where they were: what a
//          lost step wrote is written again.
// Tests    tests/test_train_gpt.cu; scripts/check_kills.sh, scripts/check_disk_full.sh
#pragma once
#include "config.h"
#include "decisions.h"
#include "tokenizer.h"
#include "weights.h"

constexpr const char* CHECKPOINT = "fewbits checkpoint 1"; // its format's version

// What is being written, or removed, has a name that no reader takes for a whole one.
inline std::filesystem::path part_of(const std::filesystem::path& path) { return path.string() + ".part"; }

// What a run that was killed left half written or half removed goes.
inline void remove_parts(const std::filesystem::path& out) {
    namespace fs = std::filesystem;
    std::vector<fs::path> parts;
    for (const char* name : {"config.json", "claims.json", "report.html", "heat.png", "loss.png", "compare.png"}) parts.push_back(part_of(out / name));
    std::error_code error;
    for (auto& entry : fs::directory_iterator(out, error))
        if (int step; sscanf(entry.path().filename().c_str(), "step_%d", &step) == 1 && entry.path() == part_of(checkpoint_at(out, step))) parts.push_back(entry.path());
    for (const fs::path& path : parts) fs::remove_all(path, error);
}

// ==== the run's options ==============================================================================================

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

inline std::string text_of(const Json& j, int indent = -1) { return j.dump(indent, ' ', false, Json::error_handler_t::replace); } // a path may hold any bytes, JSON not

// What a run that goes on may have otherwise than before: how long, how it is watched, and where its data lie now.
inline void check_same_run(Config before, Config now) {
    static const std::string may_differ[] = {"--steps", "--save-every", "--keep", "--eval-every", "--eval-batches", "--sample", "--tokens", "--temperature", "--top-k", "--top-p", "--data", "--val-data", "--tokenizer", "--resume"};
    const Json was = json_of(before), is = json_of(now);
    each_option(now, [&](const char* name, auto&, const char*, auto...) {
        if (std::find(std::begin(may_differ), std::end(may_differ), name) == std::end(may_differ) && was.value(name + 2, Json()) != is.value(name + 2, Json()))
            refuse("--resume %s: %s is %s, that run's is %s; a run that goes on keeps it", now.resume.c_str(), name, is[name + 2].dump().c_str(), was[name + 2].dump().c_str());
    });
}

// ==== what its state holds ===========================================================================================

// Of the state's options and progress. FNV-1a changes with any one byte.
inline std::string hash_of(StringMap metadata) {
    const std::string all = metadata["options"] + metadata["progress"];
    return format("%08x", fnv1a(all.data(), all.size()));
}

// f(name in state.safetensors, pointer on the machine) for what an optimizer keeps of a parameter.
template <class F>
void each_moment(const Parameter& p, F f) {
    f("m." + p.name, p.m), f("v." + p.name, p.v);
    if (p.average) f("average." + p.name, p.average);
}
// The same for the policy's two tables, which are 32-bit integers without padding.
template <class F>
void each_table(PolicyState& s, F f) {
    f("policy.tensors", (void*)s.tensors.data(), s.tensors.size(), sizeof(TensorState) / 4);
    f("policy.parameters", (void*)s.parameters.data(), s.parameters.size(), sizeof(StorageState) / 4);
}

// ==== a whole checkpoint =============================================================================================

// As OUT/step_N, whole or not at all; then all but the `keep` newest go. `progress` is the caller's, given back on loading.
template <class T>
void save_checkpoint(const std::filesystem::path& out, int step, GPT<T>& gpt, Json progress, const Config& c, const std::string& tokens, const TokenizerFiles& tokenizer) {
    namespace fs = std::filesystem;
    const fs::path at = checkpoint_at(out, step), part = part_of(at);
    try {
        fs::remove_all(part), fs::create_directory(part);
        write_safetensors(part.string(), gpt, tokens, tokenizer);
        std::vector<TensorEntry> tensors;
        each_table(gpt.policy, [&](const char* name, void*, size_t rows, size_t cols) { tensors.push_back({name, Dtype::I32, {rows, cols}}); });
        for (const Parameter& p : gpt.parameters) each_moment(p, [&](const std::string& name, float*) { tensors.push_back({name, Dtype::F32, shape_of(p, false)}); });
        progress["policy"] = {gpt.policy.applied, gpt.policy.drops, gpt.policy.retrying};
        StringMap metadata = {{"format", CHECKPOINT}, {"progress", text_of(progress)}, {"options", text_of(json_of(c))}};
        metadata["hash"] = hash_of(metadata);
        SafeTensorsWriter file((part / "state.safetensors").string(), tensors, metadata);
        each_table(gpt.policy, [&](const char*, void* data, size_t rows, size_t cols) { file.write(data, rows * cols * 4); });
        std::vector<float> some(1 << 18); // stays in the cache; a copy of each tensor would take longer than the disk does
        for (const Parameter& p : gpt.parameters)
            each_moment(p, [&](const std::string&, const float* data) {
                for (size_t i = 0; i < p.size(); i += some.size()) {
                    const size_t n = std::min(some.size(), p.size() - i);
                    copy_to_host(some.data(), data + i, n), file.write(some.data(), n * sizeof(float));
                }
            });
        file.commit(); // each file is on the disk, and the names of all with the last one
        fs::rename(part, at);
    } catch (const std::exception& e) { // a full disk: room is made, and the last good one stays
        std::error_code ignored;
        fs::remove_all(part, ignored);
        throw Error(1, e.what());
    }
    sync_folder(out.string()); // before an older one goes
    const std::vector<int> steps = checkpoints_in(out);
    for (size_t i = 0; i + c.keep < steps.size(); i++) {
        const fs::path old = checkpoint_at(out, steps[i]), going = part_of(old);
        fs::remove_all(going), fs::rename(old, going), sync_folder(out.string());
        fs::remove_all(going);
    }
}

// States that are to take the place of `own`: of the same tensors and parameters, and with numbers that the rules can work on.
inline void check(const PolicyState& state, const PolicyState& own, const std::string& path) {
    auto counts = [](std::initializer_list<int> all) { return std::all_of(all.begin(), all.end(), [](int n) { return n >= 0 && n < 1 << 30; }); };
    for (size_t i = 0; i < own.tensors.size(); i++) {
        const TensorState &t = state.tensors[i], &o = own.tensors[i];
        bool good = t.first == o.first && t.role == o.role && (t.format == o.first || t.format == BF16 || t.format == FP32) && t.k >= -K_LIMIT && t.k <= K_LIMIT && t.head >= 0 && t.head < MAX_WINDOW &&
            t.seen <= MAX_WINDOW && t.steps <= MAX_WINDOW && counts({t.seen, t.steps, t.flushing, t.spikes, t.low_snr, t.good_narrower, t.bad_narrower, t.clean_windows, t.promotions});
        for (uint32_t amax_bits : t.window) good &= amax_bits < 0x7F800000;
        if (!good) refuse("%s: policy.tensors[%zu]: format %d, k %d, place %d of its window, step %d; expected the state of a tensor that was %s", path.c_str(), i, (int)t.format, t.k, t.head, t.steps, name_of(o.first));
    }
    for (size_t i = 0; i < own.parameters.size(); i++) {
        const StorageState &p = state.parameters[i], &o = own.parameters[i];
        if (p.format != o.format || p.master < 0 || p.master > 1 || !counts({p.steps, p.losing, p.below}) || p.steps > MAX_WINDOW)
            refuse("%s: policy.parameters[%zu]: format %d, master %d, step %d; expected format %d, master 0 or 1", path.c_str(), i, p.format, p.master, p.steps, o.format);
    }
}

// What a checkpoint's state says beside its tensors.
inline Json checkpoint_json(const SafeTensors& state, const std::string& path, const char* what) {
    StringMap said = state.metadata();
    if (said["format"] != CHECKPOINT) refuse("%s: its format is '%s'; expected '%s'", path.c_str(), said["format"].c_str(), CHECKPOINT);
    try {
        Json j = Json::parse(said[what]);
        if (said.count("hash") && said["hash"] != hash_of(said)) refuse("%s: the hash of its options and progress is %s; expected %s, as it was written", path.c_str(), hash_of(said).c_str(), said["hash"].c_str());
        return j;
    } catch (const Json::exception& e) {
        refuse("%s: %s: %s", path.c_str(), what, e.what());
    }
}

// A checkpoint whose files are there, of the lengths that their headers say: what has to be known before a model is made.
struct Checkpoint {
    Config options;
    Weights weights;
};
inline Checkpoint open_checkpoint(const std::filesystem::path& at) {
    const std::string path = (at / "state.safetensors").string(), config = (at / "config.json").string();
    const Checkpoint c = {config_of(checkpoint_json(SafeTensors(path), path, "options"), path), open_weights((at / "model.safetensors").string())};
    if (c.weights.shape.heads != c.options.heads) refuse("%s: n_head is %d; expected %d, as in %s", config.c_str(), c.weights.shape.heads, c.options.heads, path.c_str()); // no tensor's shape tells
    return c;
}

// read(newest checkpoint). If that is damaged, the error also says from where one can still go on.
template <class F>
auto with_newest_checkpoint(const std::filesystem::path& out, F read) {
    std::vector<int> steps = checkpoints_in(out);
    if (steps.empty()) refuse("--resume %s: there is no checkpoint step_N in it", out.c_str());
    try {
        return read(checkpoint_at(out, steps.back()));
    } catch (const Error& e) {
        for (std::string newer; steps.size() > 1;) {
            newer += (newer.empty() ? "step_" : " and step_") + std::to_string(steps.back());
            steps.pop_back();
            try {
                open_checkpoint(checkpoint_at(out, steps.back()));
            } catch (const Error&) {
                continue;
            }
            throw Error(e.status, format("%s; step_%d before it is whole: remove %s to go on from there", e.what(), steps.back(), newer.c_str()));
        }
        throw;
    }
}

// Into a model of the same shape, recipe and rules. Returns `progress`.
template <class T>
Json load_checkpoint(const std::filesystem::path& at, GPT<T>& gpt) {
    load_weights(gpt, open_weights((at / "model.safetensors").string()));
    const std::string path = (at / "state.safetensors").string();
    const SafeTensors state(path);
    Json progress = checkpoint_json(state, path, "progress");
    PolicyState policy = gpt.policy;
    each_table(policy, [&](const char* name, void* data, size_t rows, size_t cols) {
        expected(state, path, name, {Dtype::I32}, {rows, cols});
        if (rows) memcpy(data, state.bytes(name).first, rows * cols * 4); // an empty table has no address
    });
    try {
        policy.applied = progress.at("policy").at(0), policy.drops = progress.at("policy").at(1), policy.retrying = progress.at("policy").at(2);
    } catch (const Json::exception& e) {
        refuse("%s: progress: %s", path.c_str(), e.what());
    }
    check(policy, gpt.policy, path);
    gpt.policy = policy; // in place: the model's casts point into its tables
    for (size_t i = 0; i < gpt.parameters.size(); i++) {
        Parameter& p = gpt.parameters[i];
        p.has_master = policy.parameters[i].master;
        each_moment(p, [&](const std::string& name, float* data) {
            const std::vector<float> x = floats_of(state, path, name, shape_of(p, false));
            copy_to_machine(data, x.data(), x.size());
        });
    }
    gpt.follow_formats();
    gpt.follow_masters();
    return progress;
}
