// weights.h -- a model's weights, from and to the files that people have.
//
//   path                               holds                                                   Linears    numbers
//   model.safetensors, or its folder   Hugging Face's GPT-2; its shape is in config.json       (in, out)  F32, F16 or BF16; written: F32
//   OUT, OUT/step_N or OUT/model       a run of ours: the same files, in its newest checkpoint, or if there is none from its end
//   gpt2_124M.bin                      llm.c's, magic 20240326; its shape is in its header     (out, in)  FP32 (version 3) or BF16 (5)
//
// Source   github.com/huggingface/transformers, models/gpt2; github.com/karpathy/llm.c, train_gpt2.cu, gpt2_write_to_checkpoint
// Shapes   of a Parameter, (rows, cols) = (out, in); llm.c pads wte with rows of zeros to a multiple of 128
// Formats  FP32 in memory: every number of the files is exact in it, and has to be finite
// Why      a model that is GPT-2 but for one setting would load, and talk nonsense: each setting is compared
// Tests    tests/test_weights.cu, fuzz/fuzz_weights.cpp; against Python, scripts/check_transformers.py
#pragma once
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include "gpt.cuh"
#include "safetensors.h"
#include "tokenizer.h"

using Json = nlohmann::ordered_json;

// A file of weights, open: what is read from it goes to a model of this shape.
struct Weights {
    std::string path;
    Shape shape;
    std::string tokens = {};                                // "bytes": of text; empty: the files do not say
    std::function<std::vector<float>(const Parameter&)> of = {}; // its numbers, (rows, cols)
};

// ==== a run's checkpoints ============================================================================================

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

// ==== shapes =========================================================================================================

// Within bounds that keep a model's size within 64 bits, and rows within 31. `names` are the fields', in the order of Shape's.
inline void check_shape(const std::string& path, const Shape& s, const std::array<const char*, 5>& names) {
    const int found[] = {s.layers, s.heads, s.channels, s.context, s.vocab}, most[] = {1000, 1 << 12, 1 << 16, 1 << 20, 1 << 24};
    for (int i = 0; i < 5; i++)
        if (found[i] < 1 || found[i] > most[i]) refuse("%s: %s is %d; expected 1 to %d", path.c_str(), names[i], found[i], most[i]);
    if (s.channels % s.heads) refuse("%s: %s is %d; expected a multiple of %s, which is %d", path.c_str(), names[2], s.channels, names[1], s.heads);
}

// Weights as they were read: all finite.
inline std::vector<float> finite(std::vector<float> x, const std::string& path, const std::string& name) {
    for (size_t i = 0; i < x.size(); i++)
        if (!std::isfinite(x[i])) refuse("%s: %s[%zu] is %g; expected a finite number", path.c_str(), name.c_str(), i, x[i]);
    return x;
}

template <class T>
std::vector<float> widened(const uint8_t* bytes, size_t n) { // at any alignment
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        T value;
        memcpy(&value, bytes + i * sizeof(T), sizeof(T));
        x[i] = to_float(value);
    }
    return x;
}

// ==== Hugging Face ===================================================================================================

inline bool is_linear_weight(const Parameter& p) { return p.matrix && p.name.rfind("h.", 0) == 0; }
inline std::vector<float> transposed(const std::vector<float>& x, int rows, int cols) {
    std::vector<float> y(x.size());
    const int tile = 16; // a cache line of floats: four times as fast as row by row
    for (int r0 = 0; r0 < rows; r0 += tile)
        for (int c0 = 0; c0 < cols; c0 += tile)
            for (int c = c0; c < std::min(c0 + tile, cols); c++)
                for (int r = r0; r < std::min(r0 + tile, rows); r++) y[(size_t)c * rows + r] = x[(size_t)r * cols + c];
    return y;
}
inline std::vector<size_t> shape_of(const Parameter& p, bool for_others) {
    if (!p.matrix) return {(size_t)p.cols};
    if (for_others && is_linear_weight(p)) return {(size_t)p.cols, (size_t)p.rows};
    return {(size_t)p.rows, (size_t)p.cols};
}

// A tensor of a file whose shape must be this, and its dtype one of these.
inline const TensorEntry& expected(const SafeTensors& file, const std::string& path, const std::string& name, std::initializer_list<Dtype> dtypes, const std::vector<size_t>& shape) {
    const TensorEntry& t = file.at(name);
    auto text = [](const std::vector<size_t>& dims) {
        std::string s;
        for (size_t d : dims) s += (s.empty() ? "" : ", ") + std::to_string(d);
        return "(" + s + ")";
    };
    std::string names;
    for (Dtype d : dtypes) names += (names.empty() ? "" : " or ") + std::string(name_of(d));
    if (std::find(dtypes.begin(), dtypes.end(), t.dtype) == dtypes.end() || t.shape != shape)
        refuse("%s: %s is %s %s; expected %s %s", path.c_str(), name.c_str(), name_of(t.dtype), text(t.shape).c_str(), names.c_str(), text(shape).c_str());
    return t;
}
inline std::vector<float> floats_of(const SafeTensors& file, const std::string& path, const std::string& name, const std::vector<size_t>& shape) {
    const Dtype dtype = expected(file, path, name, {Dtype::F32, Dtype::BF16, Dtype::F16}, shape).dtype;
    const auto [bytes, n] = file.bytes(name);
    return finite(dtype == Dtype::F32 ? widened<float>(bytes, n / 4) : (dtype == Dtype::BF16 ? widened<bf16>(bytes, n / 2) : widened<fp16>(bytes, n / 2)), path, name);
}

// The shape that a config.json tells, if its model is GPT-2 as gpt.cuh has it.
inline Shape shape_of_config(const std::string& path, const nlohmann::json& config) {
    if (!config.is_object()) refuse("%s: is not a JSON object", path.c_str());
    auto cited = [](const nlohmann::json& x) { return x.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 60); };
    auto found = [&](const char* field) { // a list or an object may be deep, and printing it would recurse as deep
        const auto is = config.find(field);
        return is == config.end() ? "not there" : (is->is_structured() ? is->type_name() : cited(*is));
    };
    auto setting = [&](const char* field, const std::vector<nlohmann::json>& allowed) { // the first one stands for a field that is not there
        const auto is = config.find(field);
        if (is != config.end() && std::find(allowed.begin(), allowed.end(), *is) == allowed.end())
            refuse("%s: %s is %s; expected %s, as in GPT-2", path.c_str(), field, found(field).c_str(), cited(allowed[0]).c_str());
    };
    auto count = [&](const char* field) {
        const auto is = config.find(field);
        if (is == config.end() || !is->is_number_unsigned() || is->get<uint64_t>() > INT32_MAX) refuse("%s: %s is %s; expected a whole number", path.c_str(), field, found(field).c_str());
        return is->get<int>();
    };
    if (found("model_type") != "\"gpt2\"") refuse("%s: model_type is %s; expected \"gpt2\"", path.c_str(), found("model_type").c_str());
    const std::array<const char*, 5> names = {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"};
    const Shape s = {count(names[0]), count(names[1]), count(names[2]), count(names[3]), count(names[4])};
    check_shape(path, s, names);
    setting("activation_function", {"gelu_new", "gelu_pytorch_tanh"}); // two names of one function
    setting("layer_norm_epsilon", {1e-5});
    setting("n_inner", {nullptr, 4 * s.channels});
    setting("tie_word_embeddings", {true}), setting("scale_attn_weights", {true});
    setting("scale_attn_by_inverse_layer_idx", {false}), setting("add_cross_attention", {false});
    return s;
}

// Names may have "transformer." before them. Masks that older files hold are not weights; a head of its own is refused.
inline Weights weights_of_safetensors(const std::string& path, std::shared_ptr<const SafeTensors> file, const std::string& config_path, const std::string& config_text) {
    const nlohmann::json config = nlohmann::json::parse(config_text, nullptr, false);
    Weights w = {path, shape_of_config(config_path, config)};
    if (auto is = config.find("tokens"); is != config.end() && *is == "bytes") w.tokens = "bytes"; // in this file: Hugging Face hands on what it does not know
    const std::string prefix = file->has("transformer.wte.weight") ? "transformer." : "";
    if (const char* head = "lm_head.weight"; file->has(head)) {
        const std::vector<size_t> shape = {(size_t)w.shape.vocab, (size_t)w.shape.channels};
        if (floats_of(*file, path, head, shape) != floats_of(*file, path, prefix + "wte.weight", shape)) refuse("%s: %s differs from wte.weight; expected them to be tied, as in GPT-2", path.c_str(), head);
    }
    w.of = [=](const Parameter& p) {
        std::vector<float> x = floats_of(*file, path, prefix + p.name, shape_of(p, true));
        return is_linear_weight(p) ? transposed(x, p.cols, p.rows) : x;
    };
    return w;
}

// The FP32 weights as folder/model.safetensors, with folder/config.json, and a tokenizer if there is one. `tokens`: see Weights.
template <class T>
void write_safetensors(const std::string& folder, const GPT<T>& gpt, const std::string& tokens, const TokenizerFiles& tokenizer = {}) {
    const Shape& s = gpt.shape;
    Json config = {{"architectures", {"GPT2LMHeadModel"}}, {"model_type", "gpt2"}, {"activation_function", "gelu_new"}, {"n_layer", s.layers}, {"n_head", s.heads}, {"n_embd", s.channels},
                   {"n_positions", s.context}, {"n_ctx", s.context}, {"vocab_size", s.vocab}, {"layer_norm_epsilon", 1e-5}, {"tie_word_embeddings", true},
                   {"attn_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"resid_pdrop", 0.0}, {"torch_dtype", "float32"}};
    if (s.vocab <= 50256) config["bos_token_id"] = config["eos_token_id"] = nullptr; // else they would be GPT-2's
    if (!tokens.empty()) config["tokens"] = tokens;
    std::vector<TensorEntry> tensors;
    for (const Parameter& p : gpt.parameters) tensors.push_back({p.name, Dtype::F32, shape_of(p, true)});
    SafeTensorsWriter file(folder + "/model.safetensors", tensors, {{"format", "pt"}}); // what others look for
    for (const Parameter& p : gpt.parameters) {
        std::vector<float> w = master_of(p);
        if (is_linear_weight(p)) w = transposed(w, p.rows, p.cols);
        file.write(w.data(), w.size() * sizeof(float));
    }
    write_whole(folder + "/config.json", config.dump(2) + "\n");
    write_tokenizer(tokenizer, folder);
    file.commit(); // last: who finds it finds all
}

// ==== llm.c ==========================================================================================================

constexpr int LLMC_MAGIC = 20240326, LLMC_FP32 = 3, LLMC_BF16 = 5, LLMC_HEADER = 1024; // the last in bytes
inline int llmc_rows(const Parameter& p) { return p.name == "wte.weight" ? ceil_div(p.rows, 128) * 128 : p.rows; }

// f(parameter) in llm.c's order: every layer of one kind, then the next kind.
template <class P, class F>
void each_of_llmc(P& parameters, F f) {
    for (const char* kind : {"wte.weight", "wpe.weight", "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                             "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"})
        for (auto& p : parameters)
            if (p.name == kind || (p.name.rfind("h.", 0) == 0 && p.name.substr(p.name.find('.', 2) + 1) == kind)) f(p);
}

inline Weights weights_of_llmc(const MappedFile& file) {
    const char* name = file.path.c_str();
    if (file.size < LLMC_HEADER) refuse("%s: is an llm.c model cut off in its header: %zu bytes of %d", name, file.size, LLMC_HEADER);
    const int version = file.word(1), padded_vocab = file.word(7);
    if (version != LLMC_FP32 && version != LLMC_BF16) refuse("%s: is an llm.c model of version %d; expected %d (FP32) or %d (BF16)", name, version, LLMC_FP32, LLMC_BF16);
    Weights w = {file.path, {file.word(4), file.word(5), file.word(6), file.word(2), file.word(3)}};
    check_shape(file.path, w.shape, {"its header's layers", "its header's heads", "its header's channels", "its header's context", "its header's vocabulary"});
    if (padded_vocab < w.shape.vocab || padded_vocab > 1 << 24) refuse("%s: its padded vocabulary is %d; expected %d, the vocabulary, or more", name, padded_vocab, w.shape.vocab);

    const size_t width = version == LLMC_FP32 ? 4 : 2;
    std::map<std::string, size_t> begins; // bytes
    size_t end = LLMC_HEADER;
    std::vector<Parameter> parameters = declare_parameters(w.shape, recipe_fp32);
    each_of_llmc(parameters, [&](const Parameter& p) {
        begins[p.name] = end;
        end += (p.name == "wte.weight" ? (size_t)padded_vocab * p.cols : p.size()) * width;
    });
    if (file.size != end) refuse("%s: has %zu bytes; expected %zu, by its header's layers %d, channels %d, context %d, padded vocabulary %d", name, file.size, end, w.shape.layers, w.shape.channels, w.shape.context, padded_vocab);
    w.of = [=](const Parameter& p) {
        const uint8_t* bytes = file.bytes.get() + begins.at(p.name);
        return finite(version == LLMC_FP32 ? widened<float>(bytes, p.size()) : widened<bf16>(bytes, p.size()), file.path, p.name);
    };
    return w;
}

// As llm.c has it: FP32, or every number rounded to BF16.
template <class T>
void write_llmc(const std::string& path, const GPT<T>& gpt, Format f) {
    ENSURE(f == FP32 || f == BF16, "llm.c has models in FP32 and BF16, not in %s", name_of(f));
    int32_t header[LLMC_HEADER / 4] = {};
    const Shape& s = gpt.shape;
    const int words[] = {LLMC_MAGIC, f == FP32 ? LLMC_FP32 : LLMC_BF16, s.context, s.vocab, s.layers, s.heads, s.channels, ceil_div(s.vocab, 128) * 128};
    std::copy(std::begin(words), std::end(words), header);
    WholeFile file(path);
    file.write(header, sizeof header);
    each_of_llmc(gpt.parameters, [&](const Parameter& p) {
        std::vector<float> w = master_of(p);
        w.resize((size_t)llmc_rows(p) * p.cols); // with zeros
        std::vector<bf16> rounded(w.size());
        for (size_t i = 0; f == BF16 && i < w.size(); i++) rounded[i] = round_to<bf16>(w[i]);
        file.write(f == FP32 ? (void*)w.data() : rounded.data(), w.size() * bytes_of(f));
    });
    file.commit();
}

// ==== either =========================================================================================================

// Of a file or a folder: see the table above.
inline Weights open_weights(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    auto there = [&](const char* name) { return fs::exists(fs::path(path) / name, error); };
    if (fs::is_directory(path, error)) {
        if (there("model.safetensors")) return open_weights((fs::path(path) / "model.safetensors").string());
        if (const std::vector<int> steps = checkpoints_in(path); !steps.empty()) return open_weights((checkpoint_at(path, steps.back()) / "model.safetensors").string());
        if (there("log.jsonl") && there("model/model.safetensors")) return open_weights((fs::path(path) / "model/model.safetensors").string());
        const std::pair<const char*, const char*> hints[] = {{"log.jsonl", ": the run in it has not come to its end"},
                                                             {"model.safetensors.index.json", ": save_pretrained with a larger max_shard_size makes one file of its several"},
                                                             {"pytorch_model.bin", ": save_pretrained makes one of pytorch_model.bin"}};
        const auto hint = std::find_if(std::begin(hints), std::end(hints), [&](auto& h) { return there(h.first); });
        refuse("%s: has no model.safetensors and no checkpoint step_N in it%s", path.c_str(), hint == std::end(hints) ? "" : hint->second);
    }
    if (!fs::exists(path, error)) refuse("%s: is not there; expected a folder with model.safetensors or step_N in it, or a file of weights", path.c_str());
    const MappedFile file = map_file(path);
    const int magic = file.size >= 4 ? file.word(0) : 0;
    if (magic == LLMC_MAGIC) return weights_of_llmc(file);
    for (auto& other : OTHER_LLMC_FILES)
        if (magic == other.magic) refuse("%s: is an llm.c %s (magic %d); expected a model (magic %d)", path.c_str(), other.name, magic, LLMC_MAGIC);
    if (magic == SHARD_MAGIC) refuse("%s: is an llm.c shard of tokens (magic %d); expected a model (magic %d)", path.c_str(), magic, LLMC_MAGIC);
    if (magic == 0x04034B50) refuse("%s: is a zip file, as torch.save writes it; expected safetensors or llm.c's format", path.c_str());
    const fs::path config = fs::path(path).parent_path() / "config.json";
    std::ifstream text(config);
    if (!text) refuse("%s: cannot be read: %s; it says the shape of %s", config.c_str(), strerror(errno), path.c_str());
    return weights_of_safetensors(path, std::make_shared<SafeTensors>(path), config.string(), {std::istreambuf_iterator<char>(text), {}});
}

// Into the model's masters, and from there into the copies that products read.
template <class T>
void load_weights(GPT<T>& gpt, const Weights& from) {
    for (Parameter& p : gpt.parameters) {
        const std::vector<float> w = from.of(p);
        copy_to_machine(p.master, w.data(), w.size());
        if (p.average) copy_to_machine(p.average, w.data(), w.size());
    }
    gpt.follow_masters();
}
