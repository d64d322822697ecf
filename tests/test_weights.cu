// test_weights.cu -- weights.h: files of both formats, made here by plain loops in which every number tells its place, are read,
// and written again byte for byte; and are spoiled in every way we know.
#include "weights.h"
#include "temp_dir.h"

namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

// ==== files, made by loops of our own ================================================================================

const Shape SHAPE = {2, 2, 6, 5, 7}; // no two dimensions of a matrix are alike but those of attn.c_proj
const int L = SHAPE.layers, C = SHAPE.channels;

// Every kind of tensor in llm.c's order: rows = out, cols = in.
// clang-format off
const struct {
    const char* name;
    int rows, cols; // rows 0: a vector
} KINDS[] = {{"wte.weight", SHAPE.vocab, C}, {"wpe.weight", SHAPE.context, C}, {"ln_1.weight", 0, C}, {"ln_1.bias", 0, C}, {"attn.c_attn.weight", 3 * C, C}, {"attn.c_attn.bias", 0, 3 * C},
             {"attn.c_proj.weight", C, C}, {"attn.c_proj.bias", 0, C}, {"ln_2.weight", 0, C}, {"ln_2.bias", 0, C}, {"mlp.c_fc.weight", 4 * C, C}, {"mlp.c_fc.bias", 0, 4 * C},
             {"mlp.c_proj.weight", C, 4 * C}, {"mlp.c_proj.bias", 0, C}, {"ln_f.weight", 0, C}, {"ln_f.bias", 0, C}};
// clang-format on
const int LAST_KIND = 15;
bool in_layers(int kind) { return kind > 1 && kind < 14; }
std::string name_of(int kind, int layer) { return (in_layers(kind) ? "h." + std::to_string(layer) + "." : "") + KINDS[kind].name; }

// An element's own number, as 16 bits that are finite in BF16 and in FP16; as FP32's 32 bits, the first are BF16's and the others arbitrary.
uint32_t bits16(int kind, int layer, int row, int col) { return 0x2000 + ((kind * L + layer) * 24 + row) * 24 + col; }
uint32_t bits32(int kind, int layer, int row, int col) {
    const uint32_t high = bits16(kind, layer, row, col);
    return high << 16 | (high % 5 ? high * 40503 & 0xFFFF : 0x8000); // one in five half-way between two of BF16's
}
// To the nearest of BF16's, ties to even.
uint32_t rounded(uint32_t bits) {
    const uint32_t low = bits & 0xFFFF, high = bits >> 16;
    return high + (low > 0x8000 || (low == 0x8000 && high % 2));
}
float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

std::string little_endian(uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; i++) text += (char)(value >> 8 * i & 255);
    return text;
}

// clang-format off
enum class Kind { fp32, bf16, exact_bf16, exact_fp16 }; // exact: of 16 bits from the first
// clang-format on
const char* dtype_of(Kind k) { return k == Kind::fp32 ? "F32" : (k == Kind::exact_fp16 ? "F16" : "BF16"); }
int bytes_of(Kind k) { return k == Kind::fp32 ? 4 : 2; }
std::string element(Kind k, int kind, int layer, int row, int col) {
    if (k == Kind::fp32) return little_endian(bits32(kind, layer, row, col), 4);
    return little_endian(k == Kind::bf16 ? rounded(bits32(kind, layer, row, col)) : bits16(kind, layer, row, col), 2);
}

// One tensor's numbers. `swapped`: column by column, as a Linear's lie in Hugging Face's file.
std::string numbers(Kind k, int kind, int layer, bool swapped) {
    std::string bytes;
    const int rows = std::max(KINDS[kind].rows, 1), cols = KINDS[kind].cols;
    if (swapped)
        for (int c = 0; c < cols; c++)
            for (int r = 0; r < rows; r++) bytes += element(k, kind, layer, r, c);
    else
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++) bytes += element(k, kind, layer, r, c);
    return bytes;
}

std::string llmc(Kind k, int padded_vocab = 128, int version = 0) {
    std::string bytes;
    for (int word : {20240326, version ? version : (k == Kind::fp32 ? 3 : 5), SHAPE.context, SHAPE.vocab, L, SHAPE.heads, C, padded_vocab}) bytes += little_endian(word, 4);
    bytes.resize(1024, '\0');
    for (int kind = 0; kind <= LAST_KIND; kind++) {
        for (int layer = 0; layer < (in_layers(kind) ? L : 1); layer++) bytes += numbers(k, kind, layer, false);
        if (kind == 0) bytes.append((padded_vocab - SHAPE.vocab) * C * bytes_of(k), '\0');
    }
    return bytes;
}

// A file of tensors: (name, dtype, shape, bytes) each.
struct Piece {
    std::string name, dtype, shape, bytes;
};
std::string file_of(const std::vector<Piece>& pieces) {
    std::string header = R"({"__metadata__":{"format":"pt"})", data;
    for (const Piece& p : pieces) {
        header += ",\"" + p.name + R"(":{"dtype":")" + p.dtype + R"(","shape":)" + p.shape + R"(,"data_offsets":[)" + std::to_string(data.size()) + "," + std::to_string(data.size() + p.bytes.size()) + "]}";
        data += p.bytes;
    }
    header += "}";
    while (header.size() % 8) header += " ";
    return little_endian(header.size(), 8) + header + data;
}
std::vector<Piece> pieces_of(Kind k, const std::string& prefix = "") {
    std::vector<Piece> pieces;
    auto add = [&](int kind, int layer) {
        const int rows = KINDS[kind].rows, cols = KINDS[kind].cols;
        const bool swapped = in_layers(kind) && rows; // GPT-2 in TensorFlow had convolutions for Linears: (in, out)
        auto shape = [](int a, int b) { return "[" + std::to_string(a) + (b ? "," + std::to_string(b) : "") + "]"; };
        pieces.push_back({prefix + name_of(kind, layer), dtype_of(k), swapped ? shape(cols, rows) : (rows ? shape(rows, cols) : shape(cols, 0)), numbers(k, kind, layer, swapped)});
    };
    add(0, 0), add(1, 0);
    for (int layer = 0; layer < L; layer++)
        for (int kind = 2; kind < 14; kind++) add(kind, layer);
    add(14, 0), add(15, 0);
    return pieces;
}
std::string hugging_face(Kind k, const std::string& prefix = "") { return file_of(pieces_of(k, prefix)); }

// As Hugging Face has it for GPT-2.
const std::string CONFIG = R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
  "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 5, "n_embd": 6, "n_head": 2, "n_layer": 2, "n_positions": 5, "resid_pdrop": 0.1, "n_inner": null,
  "scale_attn_weights": true, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 7})";

// ==== what is read ===================================================================================================

// As the file that the loops made has it.
void check_numbers(const Weights& w, Kind k) {
    CHECK((w.shape.layers == L && w.shape.heads == 2 && w.shape.channels == C && w.shape.context == 5 && w.shape.vocab == 7));
    const std::vector<Parameter> parameters = declare_parameters(SHAPE, recipe_fp32);
    REQUIRE(parameters.size() == 4 + 12 * 2);
    size_t seen = 0;
    for (int kind = 0; kind <= LAST_KIND; kind++)
        for (int layer = 0; layer < (in_layers(kind) ? L : 1); layer++)
            for (const Parameter& p : parameters) {
                if (p.name != name_of(kind, layer)) continue;
                CAPTURE(p.name);
                seen++;
                const int rows = std::max(KINDS[kind].rows, 1), cols = KINDS[kind].cols;
                const std::vector<float> x = w.of(p);
                REQUIRE((p.rows == rows && p.cols == cols && x.size() == (size_t)rows * cols));
                int wrong = 0;
                for (int r = 0; r < rows; r++)
                    for (int c = 0; c < cols; c++) {
                        const uint32_t wide = bits32(kind, layer, r, c), narrow = bits16(kind, layer, r, c);
                        float expected = as_float(k == Kind::fp32 ? wide : (k == Kind::bf16 ? rounded(wide) << 16 : narrow << 16));
                        if (k == Kind::exact_fp16) expected = std::ldexp(1 + (narrow & 1023) / 1024.f, (int)(narrow >> 10) - 15); // 1.m * 2^(e - 15), e in bits 10 to 14
                        wrong += x[r * cols + c] != expected;
                    }
                CHECK(wrong == 0);
            }
    CHECK(seen == parameters.size());
}

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
// A folder with Hugging Face's two files in it.
std::string folder(const TempDir& dir, const std::string& tensors, const std::string& config = CONFIG) {
    dir.write("model.safetensors", tensors), dir.write("config.json", config);
    return dir.path.string();
}
// A model with the weights of a file.
GPT<float> loaded(const std::string& path) {
    const Weights w = open_weights(path);
    GPT<float> gpt(w.shape, recipe_fp32, 1, 1, true, Pass::evaluate);
    load_weights(gpt, w);
    return gpt;
}
// All the file's numbers, or the Error of the first that is refused.
void read_all(const std::string& path) {
    const Weights w = open_weights(path);
    for (const Parameter& p : declare_parameters(w.shape, recipe_fp32)) w.of(p);
}

// Refused as the user's, in one line with all of these parts.
void check_refused(const std::string& path, std::vector<std::string> parts) {
    try {
        read_all(path);
        FAIL_CHECK("was read: " << parts.back());
    } catch (const Error& error) {
        const std::string message = error.what();
        CAPTURE(message);
        CHECK(error.status == 2);
        CHECK(message.find('\n') == std::string::npos);
        CHECK(message.size() < 500);
        for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, part);
    }
}
// `text` with one part of it, which is there once, replaced.
std::string with(std::string text, const std::string& part, const std::string& by) {
    REQUIRE(text.find(part) != std::string::npos);
    REQUIRE(text.find(part) == text.rfind(part));
    return text.replace(text.find(part), part.size(), by);
}
std::string with_word(std::string bytes, int word, int value) { return bytes.replace(4 * word, 4, little_endian((uint32_t)value, 4)); }

} // namespace

// ==== both ways ======================================================================================================

TEST_CASE("an llm.c file is read, each number in its place, and written again byte for byte, in FP32 and in BF16") {
    TempDir dir;
    const std::string wide = dir.write("fp32.bin", llmc(Kind::fp32)), narrow = dir.write("bf16.bin", llmc(Kind::bf16));
    check_numbers(open_weights(wide), Kind::fp32);
    check_numbers(open_weights(narrow), Kind::bf16);
    write_llmc(dir.at("wide again"), loaded(wide), FP32), write_llmc(dir.at("narrow again"), loaded(narrow), BF16);
    CHECK((contents(dir.at("wide again")) == llmc(Kind::fp32)));
    CHECK((contents(dir.at("narrow again")) == llmc(Kind::bf16)));
    write_llmc(dir.at("rounded"), loaded(wide), BF16), write_llmc(dir.at("widened"), loaded(narrow), FP32); // every number is rounded, gains and biases too
    CHECK((contents(dir.at("rounded")) == llmc(Kind::bf16)));
    check_numbers(open_weights(dir.at("widened")), Kind::bf16);
    CHECK(dir.files() == 6);
    CHECK_THROWS_AS(write_llmc(dir.at("x"), loaded(wide), FP16), Error);
}

TEST_CASE("a folder of Hugging Face's is read, Linears transposed, and written again byte for byte") {
    TempDir dir, again;
    write_safetensors(again.path.string(), loaded(folder(dir, hugging_face(Kind::fp32))), "");
    check_numbers(open_weights(dir.path.string()), Kind::fp32);
    check_numbers(open_weights(dir.at("model.safetensors")), Kind::fp32); // the file itself says as much
    CHECK((contents(again.at("model.safetensors")) == hugging_face(Kind::fp32)));
    check_numbers(open_weights(again.path.string()), Kind::fp32);
    CHECK(again.files() == 2);
    const auto config = nlohmann::json::parse(contents(again.at("config.json")));
    const auto expected = nlohmann::json::parse(R"({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 6, "n_positions": 5, "vocab_size": 7, "layer_norm_epsilon": 1e-5,
                                                    "activation_function": "gelu_new", "tie_word_embeddings": true, "bos_token_id": null, "eos_token_id": null})");
    for (auto& item : expected.items()) CHECK_MESSAGE((config.contains(item.key()) && config[item.key()] == item.value()), item.key());
    CHECK(!config.contains("tokens"));
}

TEST_CASE("from one format to the other and back nothing changes") {
    TempDir dir, other;
    write_safetensors(other.path.string(), loaded(dir.write("x.bin", llmc(Kind::fp32))), "");
    CHECK((contents(other.at("model.safetensors")) == hugging_face(Kind::fp32)));
    write_llmc(dir.at("y.bin"), loaded(other.path.string()), FP32);
    CHECK((contents(dir.at("y.bin")) == llmc(Kind::fp32)));
}

TEST_CASE("safetensors are read in F32, BF16 and F16, with and without \"transformer.\" before the names") {
    for (Kind k : {Kind::fp32, Kind::bf16, Kind::exact_bf16, Kind::exact_fp16})
        for (const char* prefix : {"", "transformer."}) {
            TempDir dir;
            check_numbers(open_weights(folder(dir, hugging_face(k, prefix))), k);
        }
}

TEST_CASE("every master, average and copy of the model has the numbers") {
    TempDir dir;
    const GPT<float> gpt = loaded(dir.write("x.bin", llmc(Kind::exact_bf16)));
    GPT<bf16> narrow(SHAPE, recipe_bf16, 1, 1, false, Pass::evaluate);
    load_weights(narrow, open_weights(dir.at("x.bin")));
    for (size_t i = 0; i < gpt.parameters.size(); i++) {
        const Parameter &p = gpt.parameters[i], &q = narrow.parameters[i];
        std::vector<float> average(p.size());
        copy_to_host(average.data(), (const float*)p.average, average.size());
        CHECK((master_of(p) == average && master_of(p) == master_of(q)));
        if (q.format != BF16) continue;
        std::vector<bf16> low(q.size());
        copy_to_host(low.data(), (const bf16*)q.low, low.size());
        for (size_t e = 0; e < low.size(); e++) REQUIRE(to_float(low[e]) == master_of(p)[e]); // of 16 bits: none was rounded
    }
}

// ==== llm.c ==========================================================================================================

TEST_CASE("llm.c's header, its padding and its size are as llm.c has them; GPT-2 124M has its two sizes") {
    TempDir dir;
    write_llmc(dir.at("x.bin"), loaded(dir.write("from.bin", llmc(Kind::fp32, 7))), FP32); // llm.c reads a model that was not padded; ours is
    const MappedFile file = map_file(dir.at("x.bin"));
    const int words[] = {20240326, 3, 5, 7, 2, 2, 6, 128};
    for (int i = 0; i < 256; i++) CHECK(file.word(i) == (i < 8 ? words[i] : 0));
    CHECK(file.size == 1024 + 4 * (1104 + (128 - 7) * 6)); // 1104 = 7*6 + 5*6 + 2*(4*6 + 18*6+18 + 6*6+6 + 24*6+24 + 6*24+6) + 2*6
    for (size_t i = 7 * 6; i < 128 * 6; i++) REQUIRE(file.word(256 + (int)i) == 0);

    for (auto [vocab, rows] : {std::pair{1, 128}, {127, 128}, {128, 128}, {129, 256}, {50257, 50304}}) {
        const Parameter wte = declare_parameters({1, 1, 1, 1, vocab}, recipe_fp32)[0];
        CHECK(llmc_rows(wte) == rows);
    }
    size_t elements = 0, tensors = 0;
    const std::vector<Parameter> parameters = declare_parameters({12, 12, 768, 1024, 50257}, recipe_fp32);
    each_of_llmc(parameters, [&](const Parameter& p) { elements += (size_t)llmc_rows(p) * p.cols, tensors++; });
    CHECK(tensors == parameters.size());
    CHECK(elements == 124475904);
    CHECK(LLMC_HEADER + 4 * elements == 497904640);
    CHECK(LLMC_HEADER + 2 * elements == 248952832);
}

TEST_CASE("a vocabulary of any padding is read, and what pads it does not matter") {
    TempDir dir;
    for (int padded : {7, 8, 128, 1000}) check_numbers(open_weights(dir.write("x.bin", llmc(Kind::fp32, padded))), Kind::fp32);
    std::string bytes = llmc(Kind::fp32);
    bytes.replace(1024 + 7 * 6 * 4, 4, little_endian(0x7FC00000, 4)); // NaN, in a row of no token
    check_numbers(open_weights(dir.write("x.bin", bytes)), Kind::fp32);
}

TEST_CASE("an llm.c file that is cut off, too long, or not what its header says is refused") {
    TempDir dir;
    const std::string good = llmc(Kind::fp32), size = std::to_string(good.size());
    auto refused = [&](const std::string& bytes, std::vector<std::string> parts) {
        parts.push_back("x.bin: ");
        check_refused(dir.write("x.bin", bytes), parts);
    };
    refused(good.substr(0, good.size() - 1), {"has " + std::to_string(good.size() - 1) + " bytes", "expected " + size, "layers 2", "channels 6", "context 5", "padded vocabulary 128"});
    refused(good + "x", {"has " + std::to_string(good.size() + 1) + " bytes", "expected " + size});
    refused(good.substr(0, 1024), {"has 1024 bytes", "expected " + size});
    for (int n : {4, 8, 1023}) refused(good.substr(0, n), {"cut off in its header", std::to_string(n) + " bytes of 1024"});
    refused(llmc(Kind::bf16, 128, 3), {"expected " + size}); // the other width
    refused(llmc(Kind::fp32, 128, 5), {"has " + size});
    for (int version : {-1, 0, 1, 2, 4, 6}) refused(with_word(good, 1, version), {"version " + std::to_string(version), "expected 3 (FP32) or 5 (BF16)"});
    const struct {
        int word;
        const char* field;
        int most;
    } fields[] = {{2, "context", 1 << 20}, {3, "vocabulary", 1 << 24}, {4, "layers", 1000}, {5, "heads", 1 << 12}, {6, "channels", 1 << 16}};
    for (auto& f : fields)
        for (int value : {0, -1, INT_MIN, INT_MAX, f.most + 1}) refused(with_word(good, f.word, value), {"header's "s + f.field + " is " + std::to_string(value), "expected 1 to " + std::to_string(f.most)});
    refused(with_word(good, 5, 4), {"channels is 6", "multiple of its header's heads, which is 4"});
    refused(with_word(good, 5, 1024), {"channels is 6", "which is 1024"});
    for (int padded : {6, 0, -1, INT_MIN, INT_MAX, (1 << 24) + 1}) refused(with_word(good, 7, padded), {"padded vocabulary is " + std::to_string(padded), "expected 7"});
    for (auto [word, value] : {std::pair{2, 6}, {4, 3}, {6, 8}}) refused(with_word(good, word, value), {"has " + size, "expected "}); // a position, a layer, two channels more

    // The largest that a header may promise: 16 KiB were not enough for its names, and nothing else is allocated.
    std::string huge = good;
    for (auto& f : fields) huge = with_word(huge, f.word, f.most);
    huge = with_word(huge, 7, 1 << 24);
    const uint64_t c = 1 << 16, numbers = (1ull << 24) * c + (1ull << 20) * c + 1000 * (12 * c * c + 13 * c) + 2 * c;
    refused(huge, {"has " + size, "expected " + std::to_string(1024 + 4 * numbers), "layers 1000", "channels 65536", "context 1048576", "padded vocabulary 16777216"});
}

TEST_CASE("llm.c's other files, and files of another kind, are refused as what they are") {
    TempDir dir;
    const struct {
        int magic;
        const char* name;
    } others[] = {{20240327, "debug state"}, {20240328, "tokenizer"}, {20240520, "shard"}, {20240522, "evaluation set"}, {20240527, "optimizer state"}, {20240801, "shard"}};
    for (auto& other : others) check_refused(dir.write("x.bin", with_word(llmc(Kind::fp32), 0, other.magic)), {"x.bin: is an llm.c ", other.name, std::to_string(other.magic), "expected a model (magic 20240326)"});
    check_refused(dir.write("ckpt.pt", "PK\3\4 and so on"), {"ckpt.pt: is a zip file", "torch.save", "expected safetensors or llm.c"});
    check_refused(dir.write("x.bin", ""), {"x.bin: is empty"});
    check_refused(dir.write("x.bin", "abc"), {dir.at("config.json"), "No such file", "shape of " + dir.at("x.bin")});
    dir.write("config.json", CONFIG);
    check_refused(dir.write("x.bin", "abc"), {"x.bin: header"});
    check_refused(dir.at("nowhere"), {dir.at("nowhere"), "is not there", "expected a folder with model.safetensors"});
    check_refused("/dev/null", {"/dev/null: is not a regular file"});
}

// ==== Hugging Face ===================================================================================================

TEST_CASE("tensors that are not weights are ignored: masks, and a head that is wte") {
    TempDir dir;
    std::vector<Piece> pieces = pieces_of(Kind::fp32);
    const Piece wte = pieces[0];
    pieces.insert(pieces.begin() + 5, {"h.0.attn.bias", "F32", "[1,1,5,5]", std::string(100, '\0')});
    pieces.insert(pieces.begin() + 9, {"h.1.attn.bias", "U8", "[1,1,5,5]", std::string(25, '\1')});
    pieces.push_back({"h.0.attn.masked_bias", "F32", "[]", little_endian(0xC61C4000, 4)}); // -1e4
    pieces.push_back({"score.weight", "F32", "[2,6]", std::string(48, '\xff')});           // NaN, and nobody's
    pieces.push_back({"lm_head.weight", wte.dtype, wte.shape, wte.bytes});
    check_numbers(open_weights(folder(dir, file_of(pieces))), Kind::fp32);
    pieces = pieces_of(Kind::fp32, "transformer.");
    pieces.push_back({"lm_head.weight", wte.dtype, wte.shape, wte.bytes}); // it has no prefix
    check_numbers(open_weights(folder(dir, file_of(pieces))), Kind::fp32);

    pieces.back().bytes[41 * 4 + 1] ^= 1; // in its last number, a bit
    check_refused(folder(dir, file_of(pieces)), {"model.safetensors: lm_head.weight differs from wte.weight", "tied"});
    pieces.back() = {"lm_head.weight", "F32", "[6,7]", wte.bytes};
    check_refused(folder(dir, file_of(pieces)), {"lm_head.weight is F32 (6, 7)", "(7, 6)"});
}

TEST_CASE("a tensor that is not there, or of another shape or dtype, is refused by its name") {
    TempDir dir;
    std::vector<Piece> pieces = pieces_of(Kind::fp32);
    auto refused = [&](const char* name, const std::function<void(Piece&)>& spoil, std::vector<std::string> parts) {
        std::vector<Piece> bad = pieces;
        for (Piece& p : bad)
            if (p.name == name) spoil(p);
        parts.push_back(name), parts.push_back("model.safetensors: ");
        check_refused(folder(dir, file_of(bad)), parts);
    };
    refused("h.1.mlp.c_fc.bias", [](Piece& p) { p.name = "h.1.mlp.c_fc.scale"; }, {"is not there"});
    refused("h.0.attn.c_attn.weight", [](Piece& p) { p.shape = "[18,6]"; }, {"is F32 (18, 6)", "expected F32 or BF16 or F16 (6, 18)"}); // as nn.Linear would
    refused("wpe.weight", [](Piece& p) { p.shape = "[6,5]"; }, {"is F32 (6, 5)", "(5, 6)"});
    refused("ln_f.bias", [](Piece& p) { p.shape = "[1,6]"; }, {"is F32 (1, 6)", "(6)"});
    refused("ln_f.bias", [](Piece& p) { p.dtype = "I32"; }, {"is I32 (6)", "expected F32 or BF16 or F16 (6)"});
    refused("wte.weight", [](Piece& p) { p.shape = "[8,6]", p.bytes += std::string(24, '\0'); }, {"is F32 (8, 6)", "(7, 6)"}); // padded
    pieces[0].name = "transformer.wte.weight";                                                                                 // then all have the prefix
    check_refused(folder(dir, file_of(pieces)), {"\"transformer.wpe.weight\" is not there"});
}

TEST_CASE("a weight that is not finite is refused with its place, in every format of both kinds of file") {
    TempDir dir;
    const struct {
        Kind kind;
        uint32_t bits;
        const char* shown;
    } bad[] = {{Kind::fp32, 0x7FC00000, "nan"}, {Kind::fp32, 0x7F800000, "inf"}, {Kind::fp32, 0xFF800000, "-inf"}, {Kind::exact_bf16, 0x7FC0, "nan"}, {Kind::exact_bf16, 0xFF80, "-inf"}, {Kind::exact_fp16, 0x7C00, "inf"}, {Kind::exact_fp16, 0x7E01, "nan"}};
    for (auto& b : bad) {
        const int width = bytes_of(b.kind);
        std::vector<Piece> pieces = pieces_of(b.kind);
        for (Piece& p : pieces)
            if (p.name == "h.1.attn.c_proj.weight") p.bytes.replace(11 * width, width, little_endian(b.bits, width));
        check_refused(folder(dir, file_of(pieces)), {"model.safetensors: h.1.attn.c_proj.weight[11] is "s + b.shown + ";", "expected a finite number"});
        if (b.kind == Kind::exact_fp16) continue;
        std::string bytes = llmc(b.kind);
        bytes.replace(bytes.size() - width, width, little_endian(b.bits, width));
        check_refused(dir.write("x.bin", bytes), {"x.bin: ln_f.bias[5] is "s + b.shown + ";", "expected a finite number"});
    }
}

TEST_CASE("a config.json of another model than GPT-2 is refused by the field, what it is, and what GPT-2 has") {
    TempDir dir;
    const std::string tensors = hugging_face(Kind::fp32);
    const struct {
        std::string part, by;
        std::vector<std::string> words;
    } table[] = {
        {R"("n_layer": 2)", R"("n_layers": 2)", {"n_layer is not there", "expected a whole number"}},
        {R"("n_layer": 2)", R"("n_layer": "2")", {"n_layer is \"2\"", "whole number"}},
        {R"("n_layer": 2)", R"("n_layer": 2.5)", {"n_layer is 2.5"}},
        {R"("n_layer": 2)", R"("n_layer": -1)", {"n_layer is -1"}},
        {R"("n_layer": 2)", R"("n_layer": null)", {"n_layer is null"}},
        {R"("n_layer": 2)", R"("n_layer": true)", {"n_layer is true"}},
        {R"("n_layer": 2)", R"("n_layer": [2])", {"n_layer is array"}},
        {R"("n_layer": 2)", R"("n_layer": 4294967298)", {"n_layer is 4294967298"}}, // 2 in 32 bits
        {R"("n_layer": 2)", R"("n_layer": 1e999)", {"is not a JSON object"}},
        {R"("n_layer": 2)", R"("n_layer": 0)", {"n_layer is 0", "expected 1 to 1000"}},
        {R"("n_layer": 2)", R"("n_layer": 1001)", {"n_layer is 1001", "expected 1 to 1000"}},
        {R"("n_head": 2)", R"("n_head": 0)", {"n_head is 0", "expected 1 to 4096"}},
        {R"("n_head": 2)", R"("n_head": 4)", {"n_embd is 6", "expected a multiple of n_head, which is 4"}},
        {R"("n_head": 2)", R"("n_head": {})", {"n_head is object"}},
        {R"("n_embd": 6)", R"("n_embd": 65537)", {"n_embd is 65537", "expected 1 to 65536"}},
        {R"("n_embd": 6)", R"("n_embd": 8)", {"model.safetensors: wte.weight is F32 (7, 6)", "(7, 8)"}},
        {R"("n_positions": 5)", R"("n_positions": 1048577)", {"n_positions is 1048577"}},
        {R"("n_positions": 5)", R"("n_position": 5)", {"n_positions is not there"}},
        {R"("vocab_size": 7)", R"("vocab_size": 16777217)", {"vocab_size is 16777217", "expected 1 to 16777216"}},
        {R"("vocab_size": 7)", R"("vocab_size": 1e1)", {"vocab_size is 10.0"}},
        {R"("model_type": "gpt2")", R"("model_type": "gpt_neo")", {"model_type is \"gpt_neo\"", "expected \"gpt2\""}},
        {R"("model_type": "gpt2")", R"("type": "gpt2")", {"model_type is not there"}},
        {R"("model_type": "gpt2")", R"("model_type": 2)", {"model_type is 2"}},
        {R"("gelu_new")", R"("gelu")", {"activation_function is \"gelu\"", "expected \"gelu_new\", as in GPT-2"}},
        {R"("gelu_new")", R"(null)", {"activation_function is null"}},
        {R"("gelu_new")", "\"a\\n\xC3\xA9\\u0000" + std::string(1000, 'x') + "\"", {R"(activation_function is "a\n\u00e9\u0000xxx)"}},
        {R"("n_inner": null)", R"("n_inner": 25)", {"n_inner is 25"}},
        {R"("n_inner": null)", R"("n_inner": "24")", {"n_inner is \"24\""}},
        {"1e-05", "1e-06", {"layer_norm_epsilon is 1e-06", "expected 1e-05"}},
        {"1e-05", "\"1e-05\"", {"layer_norm_epsilon is \"1e-05\""}},
        {R"("scale_attn_weights": true)", R"("scale_attn_weights": false)", {"scale_attn_weights is false", "expected true"}},
        {R"("n_ctx": 5)", R"("tie_word_embeddings": false)", {"tie_word_embeddings is false", "expected true"}},
        {R"("n_ctx": 5)", R"("scale_attn_by_inverse_layer_idx": true)", {"scale_attn_by_inverse_layer_idx is true"}},
        {R"("n_ctx": 5)", R"("add_cross_attention": true)", {"add_cross_attention is true"}},
        {R"("vocab_size": 7})", R"("vocab_size": 7)", {"is not a JSON object"}},
    };
    for (auto& t : table) {
        std::vector<std::string> words = t.words;
        if (words[0].find("model.safetensors") == std::string::npos) words.push_back("config.json: ");
        check_refused(folder(dir, tensors, with(CONFIG, t.part, t.by)), words);
    }
    for (const char* text : {"", "null", "[]", "\"gpt2\"", "{", "\xff"}) check_refused(folder(dir, tensors, text), {"config.json: is not a JSON object"});
    check_refused(folder(dir, tensors, with(CONFIG, R"("n_layer": 2)", "\"n_layer\": " + std::string(1000000, '[') + std::string(1000000, ']'))), {"n_layer is array"}); // however deep
    fs::remove(dir.at("config.json"));
    check_refused(dir.path.string(), {dir.at("config.json"), "No such file", "it says the shape of " + dir.at("model.safetensors")});

    for (auto& [part, by] : std::vector<std::pair<std::string, std::string>>{{R"("gelu_new")", R"("gelu_pytorch_tanh")"}, {R"("n_inner": null)", R"("n_inner": 24)"}, {"1e-05", "0.00001"}, {R"("activation_function": "gelu_new", )", ""}, {R"("layer_norm_epsilon": 1e-05, )", ""}, {R"("n_inner": null,)", ""}, {R"("n_ctx": 5)", R"("tie_word_embeddings": true)"}, {R"("n_ctx": 5)", R"("n_ctx": 1024)"}})
        check_numbers(open_weights(folder(dir, tensors, with(CONFIG, part, by))), Kind::fp32); // the same model
}

// ==== folders ========================================================================================================

TEST_CASE("of a run's folder the newest checkpoint is read, by its number; a folder with nothing to read is refused") {
    TempDir dir;
    check_refused(dir.path.string(), {dir.path.string() + ": has no model.safetensors and no checkpoint step_N in it"});
    dir.write("pytorch_model.bin", "PK");
    check_refused(dir.path.string(), {"no model.safetensors", "pytorch_model.bin", "save_pretrained"});
    dir.write("model.safetensors.index.json", "{}");
    check_refused(dir.path.string(), {"no model.safetensors", "max_shard_size"});
    dir.write("log.jsonl", "{}");
    check_refused(dir.path.string(), {"no model.safetensors", "has not come to its end"});

    dir.write("config.json", R"({"layers": 1})"); // the run's
    for (const char* name : {"step_9", "step_10", "step_11.part", "step_012", "step_", "step_x", "step_-1x"}) fs::create_directory(dir.at(name));
    write_safetensors(dir.at("step_9"), loaded(dir.write("x.bin", llmc(Kind::bf16))), "bytes");
    check_refused(dir.path.string(), {"step_10", "model.safetensors: is not there"});
    write_safetensors(dir.at("step_10"), loaded(dir.write("y.bin", llmc(Kind::fp32))), "bytes");
    const Weights w = open_weights(dir.path.string());
    CHECK(w.path == dir.at("step_10/model.safetensors"));
    CHECK(w.tokens == "bytes");
    check_numbers(w, Kind::fp32);
    check_numbers(open_weights(dir.at("step_9")), Kind::bf16);
    CHECK(open_weights(dir.at("x.bin")).tokens == "");
}

TEST_CASE("what tokens are is read from config.json, where Hugging Face's save_pretrained leaves it") {
    TempDir dir;
    const std::string tensors = hugging_face(Kind::fp32);
    CHECK(open_weights(folder(dir, tensors)).tokens == "");
    for (auto& [tokens, read] : std::vector<std::pair<std::string, std::string>>{{"\"bytes\"", "bytes"}, {"\"words\"", ""}, {"1", ""}, {"null", ""}, {"[\"bytes\"]", ""}})
        CHECK(open_weights(folder(dir, tensors, with(CONFIG, R"("n_ctx": 5)", "\"tokens\": " + tokens))).tokens == read);
}

TEST_CASE("weights that cannot be written leave what was there, and say why") {
    TempDir dir;
    const GPT<float> gpt = loaded(dir.write("x.bin", llmc(Kind::fp32)));
    CHECK_THROWS_WITH_AS(write_llmc(dir.at("nowhere/y.bin"), gpt, FP32), (dir.at("nowhere/y.bin") + ": its folder cannot be opened: No such file or directory").c_str(), Error);
    CHECK_THROWS_WITH_AS(write_safetensors(dir.at("nowhere"), gpt, ""), (dir.at("nowhere/model.safetensors") + ": its folder cannot be opened: No such file or directory").c_str(), Error);
    CHECK(dir.files() == 1);
}
