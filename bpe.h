// bpe.h -- text becomes GPT-2's tokens, and tokens become text: byte-level byte pair encoding.
//
//   words    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+     the first that matches, again and again
//   tokens   of each word: its bytes; then, while two neighbours are a merge, the merge of least rank, leftmost first
//
// Source   Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", 2.2; github.com/openai/gpt-2,
//          src/encoder.py; Hugging Face's tokenizers 0.23, whose ids are ours
// Why      decode(encode(x)) is x for all bytes. One that is no UTF-8 is a symbol, as U+FFFD is, which Python puts in its place: the
//          words are the same. A word of n bytes costs n log n: its pairs wait in a heap, its tokens are a linked list.
// Tests    tests/test_tokenizer.cu, fuzz/fuzz_tokenizer.cpp; against Python, scripts/check_tokenizer.py
#pragma once
#include <cstring>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "errors.h"
#include "unicode_tables.h"

// ==== words ==========================================================================================================

struct Character {
    uint32_t code; // 0xFFFFFFFF: a byte that is no UTF-8
    int bytes;
};
// The character that starts at text[at]: not overlong, no surrogate, at most U+10FFFF.
inline Character character_at(std::string_view text, size_t at) {
    const uint32_t first = (uint8_t)text[at], least[] = {0x80, 0x800, 0x10000};
    if (first < 0x80) return {first, 1};
    const int bytes = first < 0xE0 ? 2 : (first < 0xF0 ? 3 : 4);
    if (first < 0xC2 || first > 0xF4 || text.size() - at < (size_t)bytes) return {0xFFFFFFFF, 1};
    uint32_t code = first & (0x7F >> bytes);
    for (int i = 1; i < bytes; i++) {
        if (((uint8_t)text[at + i] & 0xC0) != 0x80) return {0xFFFFFFFF, 1};
        code = code << 6 | ((uint8_t)text[at + i] & 0x3F);
    }
    if (code < least[bytes - 2] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {0xFFFFFFFF, 1};
    return {code, bytes};
}

// Where the word that begins at text[begin] ends.
inline size_t end_of_word(std::string_view text, size_t begin) {
    if (text[begin] == '\'')
        for (std::string_view ending : {"s", "t", "re", "ve", "m", "ll", "d"})
            if (text.compare(begin + 1, ending.size(), ending) == 0) return begin + 1 + ending.size();
    size_t end = begin, last = begin; // last: where the run's last character begins
    auto run = [&](size_t start) {    // of characters of one class
        char kind = 0;
        for (end = last = start; end < text.size();) {
            const Character c = character_at(text, end);
            if (kind && class_of(c.code) != kind) break;
            kind = class_of(c.code), last = end, end += c.bytes;
        }
        return kind;
    };
    if (const char kind = run(begin + (text[begin] == ' ')); kind && kind != 's') return end;
    run(begin);
    return end < text.size() && last > begin ? last : end; // (?!\S) leaves its last space to the next word
}

// ==== the tokenizer ==================================================================================================

constexpr char END_OF_TEXT[] = "<|endoftext|>";

struct Merge {
    int left, right, whole; // ids
};

class Tokenizer {
    std::vector<std::string> tokens_; // the bytes of each id
    std::vector<Merge> merges_;       // by rank
    std::unordered_map<uint64_t, uint32_t> ranks_;
    std::vector<int> of_byte_; // ids; empty: decodes only
    int end_of_text_;

    static uint64_t key(int left, int right) { return (uint64_t)left << 32 | (uint32_t)right; }

    void append_word(std::vector<int>& ids, std::string_view word) const {
        ENSURE(word.size() < 1u << 31, "a word of %zu bytes; expected fewer than 2^31", word.size());
        const int n = (int)word.size();
        std::vector<int> id(n), next(n), previous(n); // a list of tokens: each where its first byte is; -1 in id: merged away
        using Waiting = std::pair<uint32_t, int>;     // rank, place of the left one
        std::priority_queue<Waiting, std::vector<Waiting>, std::greater<Waiting>> pairs;
        auto look = [&](int left) {
            if (left < 0 || next[left] >= n) return;
            if (auto found = ranks_.find(key(id[left], id[next[left]])); found != ranks_.end()) pairs.push({found->second, left});
        };
        for (int i = 0; i < n; i++) id[i] = of_byte_[(uint8_t)word[i]], next[i] = i + 1, previous[i] = i - 1;
        for (int i = 0; i < n; i++) look(i);
        while (!pairs.empty()) {
            const auto [rank, left] = pairs.top();
            const Merge& m = merges_[rank];
            pairs.pop();
            const int right = next[left];
            if (id[left] != m.left || right >= n || id[right] != m.right) continue; // one of the two has grown since
            id[left] = m.whole, id[right] = -1, next[left] = next[right];
            if (next[left] < n) previous[next[left]] = left;
            look(previous[left]), look(left);
        }
        for (int i = 0; i < n; i = next[i]) ids.push_back(id[i]);
    }

    // Words come again and again: each text remembers where it encoded its short ones.
    void append(std::vector<int>& ids, std::string_view text) const {
        ENSURE(can_encode(), "this tokenizer has no merges: it can only decode");
        std::unordered_map<std::string_view, std::pair<size_t, size_t>> seen; // first and last + 1 of the word's ids
        for (size_t begin = 0, end; begin < text.size(); begin = end) {
            end = end_of_word(text, begin);
            const std::string_view word = text.substr(begin, end - begin);
            const auto known = word.size() <= 32 ? seen.find(word) : seen.end();
            const size_t from = ids.size();
            if (known == seen.end()) {
                append_word(ids, word);
                if (word.size() <= 32) seen.emplace(word, std::make_pair(from, ids.size()));
            } else
                for (size_t i = known->second.first; i < known->second.second; i++) ids.push_back(ids[i]);
        }
    }

  public:
    // of_byte: the id of each byte, or nothing. No pair is in `merges` twice.
    Tokenizer(std::vector<std::string> tokens, int end_of_text, std::vector<Merge> merges = {}, std::vector<int> of_byte = {})
        : tokens_(std::move(tokens)), merges_(std::move(merges)), of_byte_(std::move(of_byte)), end_of_text_(end_of_text) {
        for (size_t rank = 0; rank < merges_.size(); rank++) ranks_.emplace(key(merges_[rank].left, merges_[rank].right), (uint32_t)rank);
    }

    int size() const { return (int)tokens_.size(); }
    bool can_encode() const { return !of_byte_.empty(); }
    int end_of_text() const { return end_of_text_; } // -1: none

    // <|endoftext|> in the text is text.
    std::vector<int> encode(const std::string& text) const {
        std::vector<int> ids;
        append(ids, text);
        return ids;
    }
    // <|endoftext|> in the text is that token.
    std::vector<int> encode_documents(const std::string& text) const {
        ENSURE(end_of_text_ >= 0, "this tokenizer has no %s", END_OF_TEXT);
        std::vector<int> ids;
        for (size_t begin = 0;;) {
            const size_t end = text.find(END_OF_TEXT, begin);
            append(ids, std::string_view(text).substr(begin, end - begin));
            if (end == std::string::npos) return ids;
            ids.push_back(end_of_text_), begin = end + strlen(END_OF_TEXT);
        }
    }
    // Aborts (ENSURE) if an id is none of ours.
    std::string decode(const std::vector<int>& ids) const {
        std::string text;
        for (int id : ids) {
            ENSURE(0 <= id && id < size(), "token %d; expected 0 to %d", id, size() - 1);
            text += tokens_[id];
        }
        return text;
    }
};
