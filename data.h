// data.h -- a file of tokens becomes a training and a validation split, and the splits become batches.
//
//   training     row n starts at     Rng(seed, batches).below(n, count - T)     n = (step*accumulate + micro)*B + r
//   validation   row w starts at     floor(w * (count - T - 1) / (W - 1))       w = index*B + r, of W = batches*B
//   either       x = tokens[start .. start+T)     y = tokens[start+1 .. start+T+1)
//
//   kind            known by                     token                  vocabulary
//   llm.c shard     magic 20240520               uint16 after 1 KiB     50257, or --vocab
//   nanoGPT .bin    its name; it has no header   uint16                 --vocab, which it needs
//   text            anything else                a byte                 256, or --vocab
//
// Source   github.com/karpathy/llm.c, dev/data/data_common.py; github.com/karpathy/nanoGPT, data/*/prepare.py
// Shapes   x, y (B, T)                         Formats  files are little-endian on every machine
// Why      A batch depends on nothing but its arguments: to resume at step 900, ask for the batch of step 900.
//          Files are mapped, not read: a shard of 1 GB costs one pass over it to check its tokens, and no copy.
// Tests    tests/test_data.cu
#pragma once
#include "data/stories.h"
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ==== tokens =========================================================================================================

// One split: `count` tokens of 1 or 2 bytes, somewhere in a mapped file or in a string of ours.
// Moves, never copies. The last split of a file to go unmaps it.
class Tokens {
    std::shared_ptr<const uint8_t> first_;
    size_t count_ = 0;
    int width_ = 1; // bytes per token

  public:
    Tokens() = default;
    Tokens(std::shared_ptr<const uint8_t> first, size_t count, int width)
        : first_(std::move(first)), count_(count), width_(width) {}
    explicit Tokens(std::string text) : count_(text.size()) {
        auto owner = std::make_shared<const std::string>(std::move(text));
        first_ = {owner, (const uint8_t*)owner->data()};
    }
    Tokens(Tokens&&) = default;
    Tokens& operator=(Tokens&&) = default;

    size_t count() const { return count_; }
    int operator[](size_t i) const {
        const uint8_t* token = first_.get() + i * width_;
        return width_ == 1 ? token[0] : token[0] | token[1] << 8;
    }
    Tokens slice(size_t begin, size_t end) const {
        return Tokens({first_, first_.get() + begin * width_}, end - begin, width_);
    }
};

struct Data {
    Tokens train, validation;
    int vocab = 0;
    bool bytes = false;                                         // whether a token is a byte of text
    std::function<std::vector<int>(const std::string&)> encode; // of text: its bytes, or a tokenizer's; null: there is none
    std::function<std::string(const std::vector<int>&)> decode;
    int start = 0;                   // what a text begins with
    std::vector<Question> questions; // of the embedded stories only
    std::string description;         // one line for the log
};

// ==== files ==========================================================================================================

struct MappedFile {
    std::string path;
    size_t size = 0;
    std::shared_ptr<const uint8_t> bytes;

    int32_t word(int i) const { // of a header of little-endian int32
        const uint8_t* p = bytes.get() + 4 * i;
        return (int32_t)(p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
    }
};

inline MappedFile map_file(const std::string& path) {
    const char* name = path.c_str();
    struct stat status;
    if (stat(name, &status) != 0) refuse("%s: %s; expected a file of text or of tokens", name, strerror(errno));
    if (S_ISDIR(status.st_mode)) refuse("%s: is a directory; expected a file of text or of tokens", name);
    if (!S_ISREG(status.st_mode)) refuse("%s: is not a regular file; save it to disk first", name);
    size_t size = (size_t)status.st_size;
    if (size == 0) refuse("%s: is empty; expected text or tokens", name);

    int file = open(name, O_RDONLY);
    if (file < 0) refuse("%s: cannot be opened: %s", name, strerror(errno));
    void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    int why = errno;
    close(file); // the mapping stays
    if (bytes == MAP_FAILED) refuse("%s: cannot be mapped: %s", name, strerror(why));
    auto unmap = [size](const uint8_t* p) { munmap((void*)p, size); };
    return {path, size, std::shared_ptr<const uint8_t>((const uint8_t*)bytes, unmap)};
}

constexpr int SHARD_MAGIC = 20240520, SHARD_VERSION = 1, SHARD_HEADER = 1024; // the last in bytes
constexpr struct {
    int magic;
    const char* name;
} OTHER_LLMC_FILES[] = {
    {20240326, "model"},
    {20240327, "debug state"},
    {20240328, "tokenizer"},
    {20240522, "evaluation set"},
    {20240527, "optimizer state"},
    {20240801, "shard of Llama-3's uint32 tokens"},
};

// clang-format off
enum class TokenFile { text, nanogpt, shard };
// clang-format on
inline const char* name_of(TokenFile kind) {
    return kind == TokenFile::text ? "text" : (kind == TokenFile::nanogpt ? "nanoGPT tokens" : "an llm.c shard");
}

inline TokenFile kind_of(const MappedFile& file) {
    const char* name = file.path.c_str();
    int magic = file.size >= 4 ? file.word(0) : 0;
    if (magic == SHARD_MAGIC) return TokenFile::shard;
    for (auto& other : OTHER_LLMC_FILES)
        if (magic == other.magic)
            refuse("%s: is an llm.c %s (magic %d); expected a shard of uint16 tokens (magic %d)", name, other.name,
                   magic, SHARD_MAGIC);
    if (file.size >= 8 && memcmp(file.bytes.get(), "BIN.TOK\n", 8) == 0)
        refuse("%s: is an LLM.Q token file; expected an llm.c shard, a nanoGPT .bin or text", name);
    bool bin = file.path.size() >= 4 && file.path.compare(file.path.size() - 4, 4, ".bin") == 0;
    return bin ? TokenFile::nanogpt : TokenFile::text;
}

// The tokens of a shard or a nanoGPT file or a text, in place, each checked against `vocab`.
inline Tokens tokens_of(const MappedFile& file, TokenFile kind, int vocab) {
    const char* name = file.path.c_str();
    size_t header = 0;
    int width = kind == TokenFile::text ? 1 : 2; // bytes per token
    if (kind == TokenFile::shard) {
        header = SHARD_HEADER;
        if (file.size < header)
            refuse("%s: is an llm.c shard cut off in its header: %zu bytes of %zu", name, file.size, header);
        int version = file.word(1), ntok = file.word(2);
        if (version != SHARD_VERSION)
            refuse("%s: is an llm.c shard of version %d; expected version %d", name, version, SHARD_VERSION);
        if (ntok <= 0) refuse("%s: is an llm.c shard whose header counts %d tokens; expected 1 or more", name, ntok);
        size_t whole = header + (size_t)ntok * width;
        if (file.size != whole)
            refuse("%s: has %zu bytes; expected %zu, as its header counts %d tokens", name, file.size, whole, ntok);
    }
    if (file.size % width) refuse("%s: has %zu bytes; expected an even number, 2 for each token", name, file.size);

    Tokens tokens({file.bytes, file.bytes.get() + header}, (file.size - header) / width, width);
    bool holds_all = vocab >= 1 << 8 * width; // no token can be out of range
    for (size_t i = 0; !holds_all && i < tokens.count(); i++)
        if (tokens[i] >= vocab)
            refuse("%s: token %d at position %zu is outside the vocabulary of %d; expected 0 to %d", name, tokens[i], i,
                   vocab, vocab - 1);
    return tokens;
}

inline void describe(Data& data, const std::string& source) {
    data.description = format("%s: %zu training and %zu validation tokens, vocabulary %d", source.c_str(), data.train.count(), data.validation.count(), data.vocab);
}
// The last tenth is for validation.
inline void split(Data& data, const Tokens& tokens) {
    const size_t cut = tokens.count() * 9 / 10;
    data.train = tokens.slice(0, cut), data.validation = tokens.slice(cut, tokens.count());
}

// Text is its bytes.
inline void speak_bytes(Data& data) {
    data.bytes = true, data.start = '\n';
    data.encode = [](const std::string& text) {
        std::vector<int> tokens;
        for (char c : text) tokens.push_back((unsigned char)c);
        return tokens;
    };
    data.decode = [](const std::vector<int>& tokens) { return std::string(tokens.begin(), tokens.end()); };
}

// The training and the validation split.
//   path      ""  the embedded stories, with their questions
//   val_path  ""  the last tenth of `path`; else a file of the same kind
//   vocab     0   the vocabulary of the kind of file
inline Data load_data(const std::string& path, const std::string& val_path, int vocab) {
    if (vocab < 0) refuse("--vocab is %d; expected 1 or more, or 0 for the vocabulary of the kind of file", vocab);
    Data data;
    std::string source = "embedded stories";
    if (path.empty()) {
        if (!val_path.empty())
            refuse("--val-data %s needs --data: the embedded stories bring their own", val_path.c_str());
        if (vocab && vocab < 128) refuse("--vocab is %d; the embedded stories are ASCII: expected 128 or more", vocab);
        Stories stories = make_stories();
        data.train = Tokens(std::move(stories.train)), data.validation = Tokens(std::move(stories.validation));
        data.questions = std::move(stories.questions);
        data.vocab = vocab ? vocab : 256, data.bytes = true;
    } else {
        MappedFile file = map_file(path);
        TokenFile kind = kind_of(file);
        if (kind == TokenFile::nanogpt && !vocab)
            refuse("%s: has no header, so it is read as nanoGPT's uint16 tokens, which do not say their vocabulary: "
                   "add --vocab N (65 for shakespeare_char, 50257 for GPT-2's tokens)",
                   path.c_str());
        data.bytes = kind == TokenFile::text;
        data.vocab = vocab ? vocab : (data.bytes ? 256 : 50257);
        Tokens tokens = tokens_of(file, kind, data.vocab);
        source = path + " (" + name_of(kind) + ")";
        if (val_path.empty()) {
            split(data, tokens);
        } else {
            MappedFile val_file = map_file(val_path);
            TokenFile val_kind = kind_of(val_file);
            if (val_kind != kind)
                refuse("%s: is %s; expected %s, as %s is", val_path.c_str(), name_of(val_kind), name_of(kind),
                       path.c_str());
            data.train = std::move(tokens), data.validation = tokens_of(val_file, kind, data.vocab);
            source += " and " + val_path;
        }
    }
    if (data.bytes) speak_bytes(data);
    describe(data, source);
    return data;
}

// ==== batches ========================================================================================================

struct Batch {
    int B, T;
    std::vector<int> x, y; // (B, T) each: y[b, t] is the token after x[b, t]
};

inline void check_context(const Data& data, int T) {
    size_t needed = (size_t)T + 1; // the last token of a row is only predicted
    if (data.train.count() < needed || data.validation.count() < needed)
        refuse("--context %d needs %zu tokens in each split; there are %zu for training and %zu for validation", T,
               needed, data.train.count(), data.validation.count());
}

// Row b of a batch: T tokens from `start` on, and the token after each.
inline void copy_row(Batch* batch, int b, const Tokens& tokens, size_t start) {
    for (int t = 0; t < batch->T; t++) {
        batch->x[(size_t)b * batch->T + t] = tokens[start + t];
        batch->y[(size_t)b * batch->T + t] = tokens[start + t + 1];
    }
}

inline Batch empty_batch(const Tokens& tokens, int B, int T) {
    ENSURE(B > 0 && T > 0 && tokens.count() > (size_t)T, "B %d, T %d, %zu tokens", B, T, tokens.count());
    return {B, T, std::vector<int>((size_t)B * T), std::vector<int>((size_t)B * T)};
}

// Micro-batch `micro` of the `accumulate` of a step: B rows from random places.
inline Batch train_batch(const Tokens& tokens, int B, int T, uint32_t seed, uint64_t step, int micro, int accumulate) {
    ENSURE(0 <= micro && micro < accumulate, "micro-batch %d of %d", micro, accumulate);
    Batch batch = empty_batch(tokens, B, T);
    Rng rng(seed, Stream::batches);
    for (int r = 0; r < B; r++) {
        uint64_t n = (step * accumulate + micro) * B + r;
        copy_row(&batch, r, tokens, rng.below(n, tokens.count() - T));
    }
    return batch;
}

// Batch `index` of `batches`: windows spread evenly over the split, the same for every evaluation and every recipe.
inline Batch validation_batch(const Tokens& tokens, int B, int T, int index, int batches) {
    ENSURE(0 <= index && index < batches, "batch %d of %d", index, batches);
    Batch batch = empty_batch(tokens, B, T);
    uint64_t windows = (uint64_t)batches * B, last_start = tokens.count() - T - 1;
    for (int r = 0; r < B; r++) {
        uint64_t w = (uint64_t)index * B + r;
        copy_row(&batch, r, tokens, windows > 1 ? w * last_start / (windows - 1) : 0);
    }
    return batch;
}
