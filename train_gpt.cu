// train_gpt.cu -- the program: train a GPT, watch it, use it. Start reading at main.
//
//   main      options -> data -> shape -> train_recipe, once, or for all four recipes, or with FP32 twins and claims
//   use       a model that is there: continue a text, evaluate it on a file, write it as another kind of file
//
// Formats  --recipe chooses a row of recipes.cuh at run time; one binary holds all four
// Tests    tests/test_train_gpt.cu
#include <optional>
#include "command_line.h"
#include "run.cuh"

// ==== what to do =====================================================================================================

// The command line: what it does not say is as in the run that it goes on with, or as in the model that it starts from.
inline Config options_of(int argc, char** argv, std::optional<Weights>& weights) {
    Config c = parse_options(argc, argv);
    if (!c.resume.empty()) {
        std::filesystem::path from;
        const Checkpoint newest = with_newest_checkpoint(c.resume, [&](const std::filesystem::path& at) { return open_checkpoint(from = at); });
        Config before = newest.options;
        before.out = c.resume;
        if (!before.tokenizer.empty() && !tokenizer_files(from.string()).empty()) before.tokenizer = from.string(); // its own copy
        c = parse_options(argc, argv, before);
        check_same_run(before, c);
        weights = newest.weights;
    } else if (!c.from.empty()) {
        weights = open_weights(c.from);
        const Shape& s = weights->shape;
        Config model;
        model.lr = 3e-5; // to fine-tune
        model.layers = s.layers, model.heads = s.heads, model.channels = s.channels, model.context = s.context, model.vocab = s.vocab;
        const std::string folder = std::filesystem::path(weights->path).parent_path().string();
        if (weights->tokens.empty() && !tokenizer_files(folder.empty() ? "." : folder).empty()) model.tokenizer = folder.empty() ? "." : folder;
        c = parse_options(argc, argv, model);
        const std::tuple<const char*, int, int> fixed[] = {{"--layers", c.layers, s.layers}, {"--heads", c.heads, s.heads}, {"--channels", c.channels, s.channels}, {"--vocab", c.vocab, s.vocab}};
        for (auto [name, given, its] : fixed)
            if (given != its) refuse("%s is %d, that of --from %s is %d", name, given, c.from.c_str(), its);
        if (c.context > s.context) refuse("--context is %d, that of --from %s is %d: expected no more", c.context, c.from.c_str(), s.context);
    }
    const int uses = !c.evaluate.empty() + !c.write_to.empty() + !c.data.empty();
    if (c.from.empty() && !(c.evaluate + c.write_to).empty()) refuse("--evaluate and --export need --from, the model");
    if (!c.from.empty() && uses > 1) refuse("--data, --evaluate and --export: expected one of them");
    if (!c.from.empty() && c.data.empty() && (c.compare || c.reference || c.steps != Config().steps)) refuse("--from %s with --steps, --compare or --reference: expected --data too, to train on", c.from.c_str());
    return c;
}

inline void check_data(const Data& data, const Config& c, const std::optional<Weights>& weights) {
    if (!c.sample.empty() && !data.encode && !c.tokenizer.empty()) refuse("--sample %s: --tokenizer %s only decodes: it has no merges, with which text becomes tokens", c.sample.c_str(), c.tokenizer.c_str());
    if (!c.sample.empty() && !data.encode)
        refuse("--sample %s: these data are %d kinds of tokens, and without --tokenizer no text can be made of them", c.sample.c_str(), data.vocab);
    for (unsigned char ch : c.sample)
        if (data.bytes && ch >= data.vocab) refuse("--sample holds byte %d, outside the vocabulary of %d", ch, data.vocab);
    if (weights && data.vocab > weights->shape.vocab) refuse("the data have a vocabulary of %d, the model of %s one of %d", data.vocab, weights->path.c_str(), weights->shape.vocab);
    if (weights && data.bytes && weights->tokens != "bytes") refuse("%s does not read text as bytes: expected --tokenizer, the one that it was trained with", weights->path.c_str());
}

inline size_t parameters_of(const Shape& shape) {
    size_t parameters = 0;
    for (const Parameter& p : declare_parameters(shape, recipe_fp32)) parameters += p.size();
    return parameters;
}

// ==== a model that is there ==========================================================================================

inline bool is_llmc(const std::string& path) { return std::filesystem::path(path).extension() == ".bin"; }

// Makes the folder that --export writes to. A run's is refused: its options and weights have the same names.
inline void make_folder(const std::string& to) {
    const std::filesystem::path path(to);
    if (path.extension() == ".safetensors") refuse("--export %s: expected a folder, for model.safetensors and config.json, or a name that ends with .bin", to.c_str());
    for (const char* name : {"log.jsonl", "state.safetensors"})
        if (std::filesystem::exists(path / name)) refuse("--export %s: is a run's folder, with %s in it: name another one", to.c_str(), name);
    std::error_code error;
    if (std::filesystem::create_directories(path, error); error) refuse("--export %s: cannot be made a folder: %s", to.c_str(), error.message().c_str());
}

template <class T>
void use(const Weights& weights, const Config& c) {
    const Shape& shape = weights.shape;
    const bool evaluates = !c.evaluate.empty(), exports = !c.write_to.empty(), samples = !evaluates && !exports;
    const Recipe recipe = recipe_named(c.recipe);
    const auto tokenizer = c.tokenizer.empty() ? nullptr : std::make_shared<const Tokenizer>(load_tokenizer(c.tokenizer));
    if (tokenizer && tokenizer->size() > shape.vocab) refuse("--tokenizer %s has %d tokens, the vocabulary of %s is %d", c.tokenizer.c_str(), tokenizer->size(), weights.path.c_str(), shape.vocab);
    Data data;
    if (evaluates) { // all of the file, on either side
        data = load_data(c.evaluate, c.evaluate, c.vocab, c.tokenizer);
        if (data.validation.count() < 2) refuse("--evaluate %s has %zu tokens; expected 2 or more: the first is only read", c.evaluate.c_str(), data.validation.count());
    } else if (data.vocab = shape.vocab; tokenizer) speak(data, tokenizer), data.vocab = tokenizer->size();
    else if (weights.tokens == "bytes") speak_bytes(data);
    check_data(data, c, weights);
    if (exports && !is_llmc(c.write_to)) make_folder(c.write_to);

    const Pass pass = samples ? Pass::read : Pass::evaluate;
    const int length = exports ? 1 : (evaluates ? (int)std::min<size_t>(c.context, data.validation.count() - 1) : c.context);
    const int batch = evaluates ? (int)std::min<size_t>(c.batch, (data.validation.count() - 1) / length) : 1;
    const size_t needed = memory_needed(shape, recipe, batch, length, false, pass).total() + Cache<T>::bytes(shape, samples ? c.context : 0);
    if (needed > machine_memory()) refuse("%s needs %zu bytes of memory with --batch %d and --context %d; this machine has %zu", weights.path.c_str(), needed, batch, length, machine_memory());
    GPT<T> gpt(shape, recipe, batch, length, false, pass);
    load_weights(gpt, weights);
    fprintf(stderr, "model: %s: %d layers, %d heads, %d channels, context %d, vocabulary %d: %zu parameters; recipe %s\n", weights.path.c_str(), shape.layers, shape.heads, shape.channels, shape.context,
            shape.vocab, parameters_of(shape), recipe.name);

    if (exports && is_llmc(c.write_to)) {
        const Format f = recipe.stored == FP32 ? FP32 : BF16;
        write_llmc(c.write_to, gpt, f);
        printf("%s holds llm.c's model in %s\n", c.write_to.c_str(), name_of(f));
    } else if (exports) {
        write_safetensors(c.write_to, gpt, weights.tokens, c.tokenizer);
        printf("%s holds model.safetensors and config.json\n", c.write_to.c_str());
    } else if (evaluates) {
        const double loss = evaluate_all(gpt, data.validation, c);
        const MappedFile file = map_file(c.evaluate);
        printf("loss %.6f nats per token, perplexity %.4f", loss, std::exp(loss));
        if (kind_of(file) == TokenFile::text) printf(", %.4f bits per byte", loss * (data.validation.count() - 1) / std::log(2.0) / (file.size - data.decode({data.validation[0]}).size()));
        printf("; %zu tokens of %s after the first\n", data.validation.count() - 1, c.evaluate.c_str());
    } else {
        const double start = seconds_now();
        write_sample(gpt, data, c);
        fprintf(stderr, "%d tokens, %.1f per second\n", c.tokens, c.tokens / (seconds_now() - start));
    }
}

// ==== main ===========================================================================================================

// The one line that a failed run ends with.
inline int failed(const std::exception& e, int status) {
    fflush(stdout);
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' '); // a file's name may hold any byte
    fprintf(stderr, "train_gpt: %s\n", line.c_str());
    return status;
}

int main(int argc, char** argv) try {
    std::optional<Weights> weights;
    const Config c = options_of(argc, argv, weights);
    if (c.formats) return printf("%s", formats_table().c_str()), 0;
    if (c.machine) return printf("machine: %s\n", describe_machine().c_str()), 0;
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

    if ((c.evaluate + c.write_to).empty()) stop_on_signals(); // after a step or a token
    if (!c.from.empty() && c.data.empty() && c.resume.empty()) return with_stored(recipe_named(c.recipe).stored, [&](auto zero) { use<decltype(zero)>(*weights, c); }), 0;

    printf("machine: %s\n", describe_machine().c_str());
    const Data data = load_data(c.data, c.val_data, c.vocab, c.tokenizer);
    check_context(data, c.context);
    loss_scale_of(c, recipe_named(c.recipe)), rules_of(c); // refuse a bad one before anything is written
    check_data(data, c, weights);
    const Shape shape = weights ? weights->shape : Shape{c.layers, c.heads, c.channels, c.context, data.vocab};
    printf("data: %s\nmodel: %d layers, %d heads, %d channels, context %d, vocabulary %d: %zu parameters\n", data.description.c_str(), shape.layers,
           shape.heads, shape.channels, shape.context, shape.vocab, parameters_of(shape));
    print_memory(shape, c);
    check_memory(shape, c);
    if (c.reference) return train_with_reference(c, shape, data), 0;
    if (c.compare) return train_all_recipes(c, shape, data), 0;
    return train_recipe(c, shape, data), 0;
} catch (const Stopped& s) {
    return printf("\nstopped by a signal %s%s\n", s.when.c_str(), s.next.c_str()), 0;
} catch (const Error& e) {
    return failed(e, e.status);
} catch (const std::exception& e) {
    return failed(e, 1);
}
