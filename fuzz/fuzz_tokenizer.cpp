// fuzz_tokenizer.cpp -- any bytes as a tokenizer's file, or as a text: each is refused in one line, or comes back byte for byte.
//
//   first byte   the rest is
//   0            a text, for the tokenizer of tests/tiny_tokenizer.h
//   1            a tokenizer.json
//   2            a vocab.json, a zero byte, a merges.txt
//   3            llm.c's gpt2_tokenizer.bin
//   4            a merge patch (RFC 7386) of tests/tiny_tokenizer.h: other files than random ones
//
// Build    clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas -I. fuzz/fuzz_tokenizer.cpp -o fuzz_tokenizer
// Run      ./fuzz_tokenizer -max_total_time=600 -max_len=4096 NEW_CORPUS fuzz/corpus/tokenizer
#include "tokenizer.h"
#include "tests/tiny_tokenizer.h"

static void check(bool right, const char* what) {
    if (!right) fprintf(stderr, "%s\n", what), abort();
}

static void round_trip(const Tokenizer& t, const std::string& text) {
    for (const std::vector<int>& ids : {t.encode(text), t.end_of_text() < 0 ? t.encode(text) : t.encode_documents(text)}) {
        check(t.decode(ids) == text, "a text did not come back");
        for (int id : ids) check(0 <= id && id < t.size(), "an id out of range");
    }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Tokenizer tiny = tokenizer_of_json("tiny", TINY_TOKENIZER);
    if (size == 0) return 0;
    const std::string rest((const char*)data + 1, size - 1);
    if (data[0] % 5 == 0) {
        round_trip(tiny, rest);
        return 0;
    }
    try {
        Tokenizer t = tiny;
        if (data[0] % 5 == 1) t = tokenizer_of_json("fuzz", rest);
        if (data[0] % 5 == 2) {
            const size_t zero = std::min(rest.find('\0'), rest.size());
            t = tokenizer_of_pair("fuzz", rest.substr(0, zero), "merges", rest.substr(std::min(zero + 1, rest.size())));
        }
        if (data[0] % 5 == 3) { // in memory of exactly its size
            const std::shared_ptr<uint8_t> bytes(new uint8_t[rest.size()], [](uint8_t* p) { delete[] p; });
            memcpy(bytes.get(), rest.data(), rest.size());
            t = tokenizer_of_bin({"fuzz", rest.size(), bytes});
        }
        if (data[0] % 5 == 4) {
            VocabJson json = VocabJson::parse(TINY_TOKENIZER);
            const VocabJson patch = VocabJson::parse(rest, nullptr, false);
            if (patch.is_discarded()) return 0;
            json.merge_patch(patch);
            t = tokenizer_of_json("fuzz", json.dump());
        }
        if (t.can_encode()) round_trip(t, rest + " the <|endoftext|>\xff 's");
        for (int id = 0; id < t.size(); id++) check(!t.decode({id}).empty(), "a token is empty");
    } catch (const Error& error) {
        check(error.status == 2, error.what());
        check(!strchr(error.what(), '\n'), "a message of two lines");
        check(strlen(error.what()) < 1000, "a long message");
    }
    return 0;
}
