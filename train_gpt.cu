// train_gpt.cu -- the program: train a GPT, watch it, use it. Start reading at main.
//
//   main                                        options -> data -> shape -> train_recipe, once, or for all four recipes, or with FP32 twins and claims
//   sample, evaluate_on_file, export_weights    what to do with a model that is there
//
// Formats  --recipe chooses a row of recipes.cuh at run time; one binary holds all four
// Tests    tests/test_train_gpt.cu
#include <optional>
#include "command_line.h"
#include "run.cuh"

// ==== what to do =====================================================================================================

// Whether a file lies in a folder, however both are named.
inline bool lies_in(const std::filesystem::path& file, const std::filesystem::path& folder) {
    const std::filesystem::path relative = std::filesystem::weakly_canonical(file).lexically_relative(std::filesystem::weakly_canonical(folder));
    return !relative.empty() && *relative.begin() != "..";
}

// What is only said of training, with a model that is used as it is.
inline void check_use(Config c, const Config& defaults) {
    static const std::string allowed[] = {"--recipe", "--from", "--evaluate", "--export", "--tokenizer", "--context", "--batch", "--seed", "--sample", "--tokens", "--temperature", "--top-k", "--top-p", "--out", "--formats", "--machine"};
    const Json given = json_of(c), expected = json_of(defaults);
    each_option(c, [&](const char* name, auto&, const char*, auto...) {
        if (std::find(std::begin(allowed), std::end(allowed), name) == std::end(allowed) && given.value(name + 2, Json()) != expected.value(name + 2, Json()))
            refuse("%s %s is of no use here: --from %s without --data trains nothing", name, given[name + 2].dump().c_str(), c.from.c_str());
    });
    if (!c.evaluate.empty() && !c.write_to.empty()) refuse("--evaluate and --export: expected one of them");
    if (!(c.evaluate + c.write_to).empty() && !c.sample.empty()) refuse("--sample %s and %s: expected one of them", c.sample.c_str(), c.evaluate.empty() ? "--export" : "--evaluate");
}

// The command line: what it does not say is as in the run that it goes on with, or as in the model that it starts from.
inline Config options_of(int argc, char** argv, std::optional<Weights>& weights) {
    Config c = parse_options(argc, argv);
    if (c.from.empty() && c.resume.empty() && !(c.evaluate + c.write_to).empty()) refuse("--evaluate and --export need --from, the model");
    if (!c.resume.empty()) {
        std::filesystem::path from;
        const Checkpoint newest = with_newest_checkpoint(c.resume, [&](const std::filesystem::path& at) { return open_checkpoint(from = at); });
        Config before = newest.options;
        before.out = c.resume;
        if (!before.tokenizer.empty() && !std::filesystem::exists(before.tokenizer)) before.tokenizer = from.string(); // its own copy
        c = parse_options(argc, argv, before);
        check_same_run(before, c);
        weights = newest.weights;
        if (c.reference && !c.from.empty()) open_weights(c.from); // its twins start there too
    } else if (!c.from.empty()) {
        weights = open_weights(c.from);
        const Shape& s = weights->shape;
        Config model;
        model.layers = s.layers, model.heads = s.heads, model.channels = s.channels, model.context = s.context, model.vocab = s.vocab;
        model.lr = 3e-5; // to fine-tune
        const std::string folder = std::filesystem::path(weights->path).parent_path().string();
        if (weights->tokens.empty() && !tokenizer_files(folder.empty() ? "." : folder).empty()) model.tokenizer = folder.empty() ? "." : folder;
        c = parse_options(argc, argv, model);
        const std::tuple<const char*, int, int> fixed[] = {{"--layers", c.layers, s.layers}, {"--heads", c.heads, s.heads}, {"--channels", c.channels, s.channels}, {"--vocab", c.vocab, s.vocab}};
        for (auto [name, given, its] : fixed)
            if (given != its) refuse("%s is %d, that of --from %s is %d", name, given, c.from.c_str(), its);
        if (c.context > s.context) refuse("--context is %d, that of --from %s is %d: expected no more", c.context, c.from.c_str(), s.context);
        if (c.data.empty()) check_use(c, model);
        else if (!(c.evaluate + c.write_to).empty()) refuse("--data and %s: expected one of them", c.evaluate.empty() ? "--export" : "--evaluate");
        else if (lies_in(weights->path, c.out)) refuse("--out %s holds %s, which --from reads: name another folder", c.out.c_str(), weights->path.c_str());
    }
    return c;
}

inline void check_data(const Data& data, const Config& c, const std::optional<Weights>& weights) {
    if (!c.sample.empty() && !data.encode && !c.tokenizer.empty()) refuse("--sample %s: --tokenizer %s only decodes: it has no merges, with which text becomes tokens", c.sample.c_str(), c.tokenizer.c_str());
    if (!c.sample.empty() && !data.encode)
        refuse("--sample %s: these data are %d kinds of tokens, and without --tokenizer no text can be made of them", c.sample.c_str(), data.vocab);
    for (unsigned char ch : c.sample)
        if (data.bytes && ch >= data.vocab) refuse("--sample holds byte %d, outside the vocabulary of %d", ch, data.vocab);
    if (weights && data.vocab > weights->shape.vocab) refuse("the data have a vocabulary of %d, the model of %s one of %d", data.vocab, weights->path.c_str(), weights->shape.vocab);
    if (weights && c.resume.empty() && data.bytes && weights->tokens != "bytes")
        refuse("%s does not say that it reads text as bytes: expected --tokenizer, the one that it was trained with (a model of bytes has \"tokens\": \"bytes\" in its config.json)", weights->path.c_str());
}

inline size_t parameters_of(const Shape& shape) {
    size_t parameters = 0;
    for (const Parameter& p : declare_parameters(shape, recipe_fp32)) parameters += p.size();
    return parameters;
}

// ==== a model that is there ==========================================================================================

// Makes the folder that --export writes to. A run's is refused: its options and weights have the same names.
inline void make_folder(const std::string& to) {
    const std::filesystem::path path(to);
    if (path.extension() == ".safetensors") refuse("--export %s: expected a folder, for model.safetensors and config.json, or a name that ends with .bin", to.c_str());
    for (const char* name : {"log.jsonl", "state.safetensors"})
        if (std::filesystem::exists(path / name)) refuse("--export %s: is a run's folder, with %s in it: name another one", to.c_str(), name);
    std::error_code error;
    if (std::filesystem::create_directories(path, error); error) refuse("--export %s: cannot be made a folder: %s", to.c_str(), error.message().c_str());
}

// The model, with memory for passes of one kind.
template <class T>
std::unique_ptr<GPT<T>> loaded(const Weights& weights, const Config& c, int batch, int length, Pass pass) {
    const Shape& s = weights.shape;
    const Recipe recipe = recipe_named(c.recipe);
    const size_t needed = memory_needed(s, recipe, batch, length, false, pass).total() + Cache<T>::bytes(s, pass == Pass::read ? length : 0);
    if (needed > machine_memory()) refuse("%s needs %zu bytes of memory with --batch %d and --context %d; this machine has %zu", weights.path.c_str(), needed, batch, length, machine_memory());
    auto gpt = std::make_unique<GPT<T>>(s, recipe, batch, length, false, pass);
    load_weights(*gpt, weights);
    fprintf(stderr, "model: %s: %d layers, %d heads, %d channels, context %d, vocabulary %d: %zu parameters; recipe %s\n", weights.path.c_str(), s.layers, s.heads, s.channels, s.context, s.vocab, parameters_of(s), recipe.name);
    return gpt;
}

template <class T>
void sample(const Weights& weights, const Config& c) {
    Data data;
    data.vocab = weights.shape.vocab;
    if (!c.tokenizer.empty()) {
        const auto tokenizer = std::make_shared<const Tokenizer>(load_tokenizer(c.tokenizer));
        speak(data, tokenizer), data.vocab = tokenizer->size();
    } else if (weights.tokens == "bytes") speak_bytes(data);
    check_data(data, c, weights);
    const auto gpt = loaded<T>(weights, c, 1, c.context, Pass::read);
    stop_on_signals(); // after a token
    const double start = seconds_now();
    const int count = write_sample(*gpt, data, c);
    fprintf(stderr, "%d tokens, %.1f per second\n", count, count / (seconds_now() - start));
}

template <class T>
void evaluate_on_file(const Weights& weights, const Config& c) {
    const Data data = load_data(c.evaluate, c.evaluate, c.vocab, c.tokenizer); // all of it, on either side
    check_data(data, c, weights);
    const Tokens& tokens = data.validation;
    if (tokens.count() < 2) refuse("--evaluate %s has %zu tokens; expected 2 or more: the first is only read", c.evaluate.c_str(), tokens.count());
    const size_t predictions = tokens.count() - 1;
    const int length = (int)std::min<size_t>(c.context, predictions), batch = (int)std::min<size_t>(c.batch, predictions / length);
    const double loss = evaluate_all(*loaded<T>(weights, c, batch, length, Pass::evaluate), tokens, c);
    const MappedFile file = map_file(c.evaluate);
    printf("loss %.6f nats per token, perplexity %.4f", loss, std::exp(loss));
    if (kind_of(file) == TokenFile::text) printf(", %.4f bits per byte", loss * predictions / std::log(2.0) / (file.size - data.decode({tokens[0]}).size()));
    printf("; %zu tokens of %s after the first\n", predictions, c.evaluate.c_str());
}

template <class T>
void export_weights(const Weights& weights, const Config& c) {
    const std::string& to = c.write_to;
    const bool llmc = std::filesystem::path(to).extension() == ".bin";
    if (!llmc) make_folder(to);
    const auto gpt = loaded<T>(weights, c, 1, 1, Pass::evaluate);
    const Format f = gpt->recipe.stored == FP32 ? FP32 : BF16;
    if (llmc) write_llmc(to, *gpt, f);
    else write_safetensors(to, *gpt, weights.tokens, map_tokenizer(c.tokenizer));
    printf("%s holds %s\n", to.c_str(), llmc ? format("llm.c's model in %s", name_of(f)).c_str() : "model.safetensors and config.json");
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

    if (!c.from.empty() && c.data.empty() && c.resume.empty())
        return with_stored(recipe_named(c.recipe).stored, [&](auto zero) {
            using T = decltype(zero);
            if (!c.evaluate.empty()) evaluate_on_file<T>(*weights, c);
            else if (!c.write_to.empty()) export_weights<T>(*weights, c);
            else sample<T>(*weights, c);
        }), 0;

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
    stop_on_signals(); // after a step
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
