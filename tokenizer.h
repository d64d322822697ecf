// tokenizer.h -- the files that hold a tokenizer of GPT-2's kind.
//
//   path                        known by            holds
//   tokenizer.json              its "model"         vocabulary, merges "a b" or ["a", "b"], added tokens: Hugging Face's
//   vocab.json and merges.txt   their folder        vocabulary; after "#version", a merge "a b" in each line
//   gpt2_tokenizer.bin          magic 20240328      llm.c's: 1 KiB of header, then for each token its length in a byte and its bytes;
//                                                   it has no merges, so it only decodes
//
// Source   github.com/huggingface/tokenizers; github.com/karpathy/llm.c, llmc/tokenizer.h
// Formats  In JSON a byte is a letter: printable Latin-1 is itself, the 68 others are U+0100 on, so that U+0120 is a space.
// Why      What would encode otherwise than GPT-2 is refused, by file and field: tokens that are almost right train almost well.
// Tests    tests/test_tokenizer.cu, fuzz/fuzz_tokenizer.cpp; against Python, scripts/check_tokenizer.py
#pragma once
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include "bpe.h"
#include "data.h"
#include "files.h"

// ==== spellings ======================================================================================================

constexpr int TOKENIZER_MAGIC = 20240328, TOKENIZER_HEADER = 1024; // llm.c's; the last in bytes
constexpr size_t MOST_TOKENS = 1 << 20, MOST_BYTES = 32 << 20;     // of a file of JSON

using VocabJson = nlohmann::json; // keeps objects in a map: in ordered_json 50257 tokens would take quadratic time

inline std::string quoted(std::string text) { // in one line of a message
    if (text.size() > 60) text = text.substr(0, 60) + "...";
    return VocabJson(text).dump(-1, ' ', true, VocabJson::error_handler_t::replace);
}

// The letter that spells a byte: itself where Latin-1 prints it, else one of U+0100 to U+0143, in order; and back, -1: none.
inline int letter_of(int byte) { return byte <= 32 ? 256 + byte : (byte >= 127 && byte <= 160 ? 162 + byte : (byte == 173 ? 323 : byte)); }
inline int byte_of(uint32_t letter) {
    for (int byte : {(int)letter, (int)letter - 256, (int)letter - 162, 173})
        if (byte >= 0 && byte < 256 && letter_of(byte) == (int)letter) return byte;
    return -1;
}
// What a token of this spelling decodes to. With another letter, as only special tokens have, it is its own UTF-8, as in Python.
inline std::string bytes_of(const std::string& spelling) {
    std::string bytes;
    for (size_t at = 0; at < spelling.size();) {
        const Character letter = character_at(spelling, at);
        if (byte_of(letter.code) < 0) return spelling;
        bytes += (char)byte_of(letter.code), at += letter.bytes;
    }
    return bytes;
}

// object[field], which has to be a `kind`.
inline const VocabJson& member(const std::string& name, const VocabJson& object, const std::string& where, const char* field, const char* kind) {
    const auto found = object.is_object() ? object.find(field) : object.end();
    const char* is = found == object.end() ? "not there" : found->type_name();
    if (strcmp(is, kind) != 0) refuse("%s: %s%s is %s; expected %s", name.c_str(), where.c_str(), field, is, kind);
    return *found;
}

// ==== a vocabulary and its merges ====================================================================================

// vocab: {spelling: id}, of `name`; merges: "a b" or ["a", "b"] by rank, of `merges_name`; added: as in tokenizer.json.
inline Tokenizer tokenizer_of(const std::string& name, const VocabJson& vocab, const std::string& merges_name, const VocabJson& merges, const VocabJson& added) {
    size_t count = vocab.size();
    auto place_of = [](const char* list, size_t i) { return format("%s[%zu]", list, i); };
    for (size_t i = 0; i < added.size(); i++)
        count += !vocab.contains(member(name, added[i], place_of("added_tokens", i) + ".", "content", "string").get<std::string>());
    if (std::max(count, merges.size()) > MOST_TOKENS) refuse("%s: %zu tokens, %zu merges; expected at most %zu", name.c_str(), count, merges.size(), MOST_TOKENS);

    std::vector<std::string> tokens(count);
    std::unordered_map<std::string, int> ids;
    auto add = [&](const std::string& spelling, const VocabJson& id, const std::string& place) {
        auto no = [&](const std::string& why) {
            const std::string is = id.is_number() ? id.dump() : id.type_name();
            refuse("%s: %s: the id of %s is %s; %s", name.c_str(), place.c_str(), quoted(spelling).c_str(), is.c_str(), why.c_str());
        };
        if (spelling.empty()) no("expected a token of one letter or more");
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= count) no(format("expected 0 to %zu", count - 1));
        const auto [own, fresh] = ids.emplace(spelling, id.get<int>());
        std::string& bytes = tokens[id.get<int>()];
        if (own->second != id.get<int>()) no(format("it is %d elsewhere", own->second));
        if (fresh && !bytes.empty()) no("so is another token's");
        if (fresh) bytes = bytes_of(spelling);
    };
    for (const auto& [spelling, id] : vocab.items()) add(spelling, id, "vocab");

    std::vector<int> of_byte;
    for (int byte = 0; byte < 256; byte++) {
        const int letter = letter_of(byte);
        const std::string spelling = letter < 128 ? std::string(1, (char)letter) : std::string{(char)(0xC0 | letter >> 6), (char)(0x80 | (letter & 63))};
        if (!ids.count(spelling)) refuse("%s: vocab has no %s, which is byte %d; expected all 256", name.c_str(), spelling.c_str(), byte);
        of_byte.push_back(ids[spelling]);
    }

    std::vector<Merge> by_rank;
    std::set<std::pair<int, int>> known;
    for (size_t rank = 0; rank < merges.size(); rank++) {
        const VocabJson& merge = merges[rank];
        auto no = [&](const std::string& why) { refuse("%s: %s %s", merges_name.c_str(), place_of("merges", rank).c_str(), why.c_str()); };
        const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
        const std::string both = pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>() : (merge.is_string() ? merge.get<std::string>() : "");
        const size_t space = pair ? merge[0].get_ref<const std::string&>().size() : both.find(' ');
        if (space == std::string::npos || (!pair && both.find(' ', space + 1) != std::string::npos))
            no(format("is %s; expected \"a b\" or [\"a\", \"b\"]", merge.is_string() ? quoted(both).c_str() : merge.type_name()));
        const std::string parts[] = {both.substr(0, space), both.substr(space + 1)};
        for (const std::string& part : {parts[0], parts[1], parts[0] + parts[1]})
            if (!ids.count(part)) no("has " + quoted(part) + ", which is not in the vocabulary");
        by_rank.push_back({ids[parts[0]], ids[parts[1]], ids[parts[0] + parts[1]]});
        if (!known.emplace(by_rank[rank].left, by_rank[rank].right).second) no("is " + quoted(both) + ", as an earlier one is");
    }

    for (size_t i = 0; i < added.size(); i++) {
        const std::string place = place_of("added_tokens", i);
        add(added[i]["content"], member(name, added[i], place + ".", "id", "number"), place);
        for (const char* flag : {"lstrip", "rstrip", "single_word", "special"})
            if (const bool expected = flag[1] == 'p'; added[i].value(flag, VocabJson(false)) != expected) // else Python would find it in text
                refuse("%s: %s.%s is not %s, as in GPT-2", name.c_str(), place.c_str(), flag, expected ? "true" : "false");
    }
    if (ids.size() != count) refuse("%s: added_tokens has a token twice", name.c_str());
    return Tokenizer(std::move(tokens), ids.count(END_OF_TEXT) ? ids[END_OF_TEXT] : -1, std::move(by_rank), std::move(of_byte));
}

// ==== files ==========================================================================================================

inline VocabJson parse_json(const std::string& name, std::string_view text) {
    if (text.size() > MOST_BYTES) refuse("%s: has %zu bytes; expected at most %zu", name.c_str(), text.size(), MOST_BYTES);
    try {
        return VocabJson::parse(text);
    } catch (const VocabJson::exception& e) {
        refuse("%s: is not JSON: %.200s", name.c_str(), e.what());
    }
}

// Of a tokenizer.json. It may be of any tokenizer: one that splits or merges otherwise than GPT-2's is refused.
inline Tokenizer tokenizer_of_json(const std::string& name, std::string_view text) {
    static const VocabJson settings = VocabJson::parse(R"([["/normalizer", null], ["/pre_tokenizer/type", "ByteLevel"],
        ["/pre_tokenizer/add_prefix_space", false], ["/pre_tokenizer/use_regex", true, null], ["/model/type", "BPE", null],
        ["/model/dropout", null, 0.0], ["/model/continuing_subword_prefix", "", null], ["/model/end_of_word_suffix", "", null],
        ["/model/byte_fallback", false, null], ["/model/ignore_merges", false, null]])"); // null: or not there
    const VocabJson json = parse_json(name, text), &model = member(name, json, "", "model", "object");
    for (const VocabJson& setting : settings) {
        const std::string place = setting[0];
        const VocabJson::json_pointer at(place);
        const VocabJson found = json.contains(at) ? json[at] : VocabJson();
        if (std::find(setting.begin() + 1, setting.end(), found) == setting.end())
            refuse("%s: %s is %.60s; expected %s, as in GPT-2", name.c_str(), place.c_str() + 1, found.dump().c_str(), setting[1].dump().c_str());
    }
    return tokenizer_of(name, member(name, model, "model.", "vocab", "object"), name, member(name, model, "model.", "merges", "array"),
                        json.contains("added_tokens") ? member(name, json, "", "added_tokens", "array") : VocabJson::array());
}

// Of a vocab.json and a merges.txt.
inline Tokenizer tokenizer_of_pair(const std::string& name, std::string_view vocab, const std::string& merges_name, std::string_view merges) {
    VocabJson by_rank = VocabJson::array();
    const VocabJson whole = {{"vocab", parse_json(name, vocab)}};
    std::istringstream lines{std::string(merges)};
    for (std::string line; by_rank.size() <= MOST_TOKENS && std::getline(lines, line);) {
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (by_rank.size() || line.compare(0, 8, "#version") != 0) by_rank.push_back(line);
    }
    return tokenizer_of(name, member(name, whole, "", "vocab", "object"), merges_name, by_rank, VocabJson::array());
}

// Of llm.c's gpt2_tokenizer.bin.
inline Tokenizer tokenizer_of_bin(const MappedFile& file) {
    const char* name = file.path.c_str();
    if (file.size < TOKENIZER_HEADER) refuse("%s: is an llm.c tokenizer cut off in its header: %zu bytes of %d", name, file.size, TOKENIZER_HEADER);
    const int version = file.word(1), count = file.word(2), end_of_text = version == 1 ? 50256 : file.word(3);
    if (version != 1 && version != 2) refuse("%s: is an llm.c tokenizer of version %d; expected 1 or 2", name, version);
    if (count < 1 || count > (int)MOST_TOKENS) refuse("%s: its header counts %d tokens; expected 1 to %zu", name, count, MOST_TOKENS);
    if (end_of_text < 0 || end_of_text >= count) refuse("%s: its end of text is %d; expected 0 to %d", name, end_of_text, count - 1);
    std::vector<std::string> tokens;
    size_t at = TOKENIZER_HEADER;
    for (int id = 0; id < count; id++) {
        const size_t length = at < file.size ? file.bytes.get()[at] : 0;
        if (length == 0 || length > file.size - at - 1) refuse("%s: token %d of %d is %s", name, id, count, at < file.size && !length ? "empty" : "cut off");
        tokens.emplace_back((const char*)file.bytes.get() + at + 1, length), at += 1 + length;
    }
    if (at != file.size) refuse("%s: has %zu bytes; expected %zu, as its header counts %d tokens", name, file.size, at, count);
    return Tokenizer(std::move(tokens), end_of_text);
}

// The files that a tokenizer is in: the path itself, or of its folder the first kind above. Empty: there is none.
inline std::vector<std::string> tokenizer_files(const std::string& path) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return {path};
    auto there = [&](const std::string& name) { return access((path + "/" + name).c_str(), F_OK) == 0; };
    if (there("tokenizer.json")) return {path + "/tokenizer.json"};
    if (there("vocab.json")) return {path + "/vocab.json", path + "/merges.txt"};
    if (there("gpt2_tokenizer.bin")) return {path + "/gpt2_tokenizer.bin"};
    return {};
}

// Of a file, or of a folder.
inline Tokenizer load_tokenizer(const std::string& path) {
    auto text = [](const MappedFile& file) { return std::string_view((const char*)file.bytes.get(), file.size); };
    const std::vector<std::string> files = tokenizer_files(path);
    if (files.empty()) refuse("%s: has no tokenizer.json, no vocab.json with merges.txt, and no gpt2_tokenizer.bin", path.c_str());
    const MappedFile file = map_file(files[0]);
    if (files.size() == 1) return file.size >= 4 && file.word(0) == TOKENIZER_MAGIC ? tokenizer_of_bin(file) : tokenizer_of_json(file.path, text(file));
    const MappedFile merges = map_file(files[1]);
    return tokenizer_of_pair(file.path, text(file), merges.path, text(merges));
}

// Those files, to be copied: each with the name by which it is found in a folder. Mapped, they outlive a folder that goes.
using TokenizerFiles = std::vector<std::pair<std::string, MappedFile>>;
inline TokenizerFiles map_tokenizer(const std::string& path) {
    TokenizerFiles mapped;
    const std::vector<std::string> files = path.empty() ? std::vector<std::string>() : tokenizer_files(path);
    for (size_t i = 0; i < files.size(); i++) {
        const MappedFile file = map_file(files[i]);
        const bool llmc = file.size >= 4 && file.word(0) == TOKENIZER_MAGIC;
        mapped.push_back({files.size() == 2 ? (i ? "merges.txt" : "vocab.json") : (llmc ? "gpt2_tokenizer.bin" : "tokenizer.json"), file});
    }
    return mapped;
}
inline void write_tokenizer(const TokenizerFiles& files, const std::string& folder) {
    for (auto& [name, file] : files) write_whole(folder + "/" + name, std::string((const char*)file.bytes.get(), file.size));
}

// ==== data through a tokenizer =======================================================================================

// The text of a file as 16-bit tokens.
inline Tokens tokenised(const std::string& path, const Tokenizer& t) {
    const MappedFile file = map_file(path);
    if (kind_of(file) != TokenFile::text) refuse("%s: is %s; expected text, as a tokenizer reads it", path.c_str(), name_of(kind_of(file)));
    const std::vector<int> ids = t.encode_documents(std::string((const char*)file.bytes.get(), file.size));
    auto owner = std::make_shared<const std::vector<uint16_t>>(ids.begin(), ids.end());
    return Tokens({owner, (const uint8_t*)owner->data()}, ids.size(), 2); // little-endian, as in files
}

// Text is what the tokenizer makes of it.
inline void speak(Data& data, std::shared_ptr<const Tokenizer> t) {
    data.start = t->end_of_text() >= 0 ? t->end_of_text() : 0;
    if (t->can_encode()) data.encode = [t](const std::string& text) { return t->encode(text); };
    data.decode = [t](const std::vector<int>& tokens) {
        std::vector<int> known; // a vocabulary may be padded
        std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(known), [&](int id) { return id < t->size(); });
        return t->decode(known);
    };
}

// load_data, with text read by the tokenizer of a folder or file; of files that are tokens already it only writes the samples.
inline Data load_data(const std::string& path, const std::string& val_path, int vocab, const std::string& tokenizer) {
    if (tokenizer.empty()) return load_data(path, val_path, vocab);
    if (path.empty()) refuse("--tokenizer %s needs --data: the embedded stories are read as bytes", tokenizer.c_str());
    const auto t = std::make_shared<const Tokenizer>(load_tokenizer(tokenizer));
    Data data;
    if (kind_of(map_file(path)) == TokenFile::text) {
        if (!t->can_encode()) refuse("--tokenizer %s only decodes: it has no merges, with which text becomes tokens", tokenizer.c_str());
        data.vocab = vocab ? vocab : t->size();
        if (t->size() > data.vocab || data.vocab > 65536) refuse("--tokenizer %s has %d tokens, the vocabulary %d: expected no more than that, and 65536 at most", tokenizer.c_str(), t->size(), data.vocab);
        if (val_path.empty()) split(data, tokenised(path, *t));
        else data.train = tokenised(path, *t), data.validation = val_path == path ? data.train.slice(0, data.train.count()) : tokenised(val_path, *t);
        describe(data, path + (val_path.empty() ? "" : " and " + val_path) + " (text by " + tokenizer + ")");
    } else {
        data = load_data(path, val_path, vocab);
        if (t->size() > data.vocab) refuse("--tokenizer %s has %d tokens, %s a vocabulary of %d", tokenizer.c_str(), t->size(), path.c_str(), data.vocab);
    }
    speak(data, t);
    return data;
}
