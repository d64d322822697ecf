// checkpoint.h -- a run on the disk, from where it goes on as if it had never stopped: the same bytes at every later step.
//
//   OUT/step_N/model.safetensors   the FP32 weights under GPT-2's names, Linears as (in, out) as its Conv1D has them; config.json
//   OUT/step_N/state.safetensors   AdamW's moments, averages, the precision policy; how far the run is, and its options
//
// Formats  FP32 and 32-bit integers. The copies that products read, and FP8's exponents, are not kept: they follow from the masters
// Why      A folder becomes step_N when both files are on the disk and not before, and an older one goes after that: whoever
//          is killed at any moment leaves the last good one. Logs are cut back to where they were: what a lost step wrote
//          is written again.
// Tests    tests/test_train_gpt.cu; scripts/check_kills.sh
#pragma once
#include <filesystem>
#include "gpt.cuh"
#include "safetensors.h"

using Json = nlohmann::ordered_json;
constexpr const char* CHECKPOINT = "fewbits checkpoint 1"; // its format's version

// ==== which ones there are ===========================================================================================

inline std::filesystem::path checkpoint_at(const std::filesystem::path& out, int step) { return out / ("step_" + std::to_string(step)); }

// The steps of a folder's checkpoints, in order.
inline std::vector<int> checkpoints_in(const std::filesystem::path& out) {
    std::vector<int> steps;
    std::error_code error;
    for (auto& entry : std::filesystem::directory_iterator(out, error)) {
        int step, used = 0;
        const std::string name = entry.path().filename().string();
        if (sscanf(name.c_str(), "step_%d%n", &step, &used) == 1 && used == (int)name.size() && name == "step_" + std::to_string(step)) steps.push_back(step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}
inline std::filesystem::path newest_checkpoint(const std::filesystem::path& out) {
    const std::vector<int> steps = checkpoints_in(out);
    if (steps.empty()) refuse("--resume %s: there is no checkpoint step_N in it", out.c_str());
    return checkpoint_at(out, steps.back());
}

// ==== tensors to files and back ======================================================================================

inline bool is_linear_weight(const Parameter& p) { return p.matrix && p.name.rfind("h.", 0) == 0; }
inline std::vector<float> transposed(const std::vector<float>& x, int rows, int cols) {
    std::vector<float> y(x.size());
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) y[(size_t)c * rows + r] = x[(size_t)r * cols + c];
    return y;
}
inline std::vector<size_t> shape_of(const Parameter& p, bool for_others) {
    if (!p.matrix) return {(size_t)p.cols};
    if (for_others && is_linear_weight(p)) return {(size_t)p.cols, (size_t)p.rows};
    return {(size_t)p.rows, (size_t)p.cols};
}

// A tensor of a file whose dtype and shape must be these.
inline const uint8_t* expected(const SafeTensors& file, const std::string& path, const std::string& name, Dtype dtype, const std::vector<size_t>& shape) {
    const TensorEntry& t = file.at(name);
    auto text = [](const std::vector<size_t>& dims) {
        std::string s;
        for (size_t d : dims) s += (s.empty() ? "" : ", ") + std::to_string(d);
        return "(" + s + ")";
    };
    if (t.dtype != dtype || t.shape != shape)
        refuse("%s: %s is %s %s; expected %s %s", path.c_str(), name.c_str(), name_of(t.dtype), text(t.shape).c_str(), name_of(dtype), text(shape).c_str());
    return file.bytes(name).first;
}
inline std::vector<float> floats_of(const SafeTensors& file, const std::string& path, const std::string& name, const std::vector<size_t>& shape) {
    const uint8_t* bytes = expected(file, path, name, Dtype::F32, shape);
    std::vector<float> x(file.bytes(name).second / sizeof(float));
    memcpy(x.data(), bytes, x.size() * sizeof(float));
    for (size_t i = 0; i < x.size(); i++)
        if (!std::isfinite(x[i])) refuse("%s: %s[%zu] is %g; expected a finite number", path.c_str(), name.c_str(), i, x[i]);
    return x;
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

template <class T>
void write_model(const std::string& path, const GPT<T>& gpt) {
    std::vector<TensorEntry> tensors;
    for (const Parameter& p : gpt.parameters) tensors.push_back({p.name, Dtype::F32, shape_of(p, true)});
    SafeTensorsWriter file(path, tensors, {{"format", "pt"}}); // what others look for
    for (const Parameter& p : gpt.parameters) {
        std::vector<float> w(p.size());
        copy_to_host(w.data(), (const float*)p.master, w.size());
        if (is_linear_weight(p)) w = transposed(w, p.rows, p.cols);
        file.write(w.data(), w.size() * sizeof(float));
    }
    file.commit();
}
template <class T>
void read_model(const std::string& path, GPT<T>& gpt) {
    const SafeTensors file(path);
    for (Parameter& p : gpt.parameters) {
        std::vector<float> w = floats_of(file, path, p.name, shape_of(p, true));
        if (is_linear_weight(p)) w = transposed(w, p.cols, p.rows);
        copy_to_machine(p.master, w.data(), w.size());
    }
}

// ==== a whole checkpoint =============================================================================================

// As OUT/step_N, whole or not at all; then all but the `keep` newest go. `progress` is the caller's, given back on loading.
template <class T>
void save_checkpoint(const std::filesystem::path& out, int step, GPT<T>& gpt, Json progress, const Json& options, int keep) {
    namespace fs = std::filesystem;
    const fs::path at = checkpoint_at(out, step), part = at.string() + ".part";
    try {
        fs::remove_all(part), fs::create_directory(part);
        write_model((part / "model.safetensors").string(), gpt);
        const Json config = {{"architectures", {"GPT2LMHeadModel"}}, {"model_type", "gpt2"}, {"activation_function", "gelu_new"}, {"n_layer", gpt.shape.layers}, {"n_head", gpt.shape.heads}, {"n_embd", gpt.shape.channels}, {"n_positions", gpt.shape.context}, {"vocab_size", gpt.shape.vocab}, {"layer_norm_epsilon", 1e-5}, {"tie_word_embeddings", true}};
        if (!(std::ofstream(part / "config.json") << config.dump(2) << std::endl)) throw Error(1, "cannot write config.json: is the disk full?");

        std::vector<TensorEntry> tensors;
        each_table(gpt.policy, [&](const char* name, void*, size_t rows, size_t cols) { tensors.push_back({name, Dtype::I32, {rows, cols}}); });
        for (const Parameter& p : gpt.parameters) each_moment(p, [&](const std::string& name, float*) { tensors.push_back({name, Dtype::F32, shape_of(p, false)}); });
        progress["policy"] = {gpt.policy.applied, gpt.policy.drops, gpt.policy.retrying};
        auto text = [](const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); };
        SafeTensorsWriter file((part / "state.safetensors").string(), tensors, {{"format", CHECKPOINT}, {"progress", text(progress)}, {"options", text(options)}});
        each_table(gpt.policy, [&](const char*, void* data, size_t rows, size_t cols) { file.write(data, rows * cols * 4); });
        for (const Parameter& p : gpt.parameters)
            each_moment(p, [&](const std::string&, float* data) {
                std::vector<float> x(p.size());
                copy_to_host(x.data(), (const float*)data, x.size());
                file.write(x.data(), x.size() * sizeof(float));
            });
        file.commit();
        fs::rename(part, at);
    } catch (const std::exception& e) { // a full disk: room is made, and the last good one stays
        std::error_code ignored;
        fs::remove_all(part, ignored);
        throw Error(1, e.what());
    }
    if (const int folder = open(out.c_str(), O_RDONLY | O_DIRECTORY); folder >= 0) fsync(folder), close(folder);
    std::vector<int> steps = checkpoints_in(out);
    for (size_t i = 0; i + keep < steps.size(); i++) fs::remove_all(checkpoint_at(out, steps[i]));
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
    const auto format_of_file = state.metadata().find("format"), found = state.metadata().find(what);
    if (format_of_file == state.metadata().end() || format_of_file->second != CHECKPOINT || found == state.metadata().end())
        refuse("%s: its format is '%s'; expected '%s'", path.c_str(), format_of_file == state.metadata().end() ? "" : format_of_file->second.c_str(), CHECKPOINT);
    try {
        return Json::parse(found->second);
    } catch (const Json::exception& e) {
        refuse("%s: %s: %s", path.c_str(), what, e.what());
    }
}
inline Json checkpoint_options(const std::filesystem::path& at) {
    const std::string path = (at / "state.safetensors").string();
    return checkpoint_json(SafeTensors(path), path, "options");
}

// Into a model of the same shape, recipe and rules. Returns `progress`.
template <class T>
Json load_checkpoint(const std::filesystem::path& at, GPT<T>& gpt) {
    read_model((at / "model.safetensors").string(), gpt);
    const std::string path = (at / "state.safetensors").string();
    const SafeTensors state(path);
    Json progress = checkpoint_json(state, path, "progress");
    PolicyState& policy = gpt.policy;
    const PolicyState own = policy;
    each_table(policy, [&](const char* name, void* data, size_t rows, size_t cols) {
        const uint8_t* bytes = expected(state, path, name, Dtype::I32, {rows, cols});
        if (rows) memcpy(data, bytes, rows * cols * 4); // an empty table has no address
    });
    try {
        policy.applied = progress.at("policy").at(0), policy.drops = progress.at("policy").at(1), policy.retrying = progress.at("policy").at(2);
    } catch (const Json::exception& e) {
        refuse("%s: progress: %s", path.c_str(), e.what());
    }
    check(policy, own, path);
    for (size_t i = 0; i < gpt.parameters.size(); i++) {
        Parameter& p = gpt.parameters[i];
        p.has_master = policy.parameters[i].master;
        each_moment(p, [&](const std::string& name, float* data) {
            const std::vector<float> x = floats_of(state, path, name, shape_of(p, false));
            copy_to_machine(data, x.data(), x.size());
        });
    }
    gpt.follow_formats();
    round_weights(gpt.parameters, gpt.weight_stats());
    gpt.point_at_weights();
    return progress;
}
