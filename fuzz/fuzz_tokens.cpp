// fuzz_tokens.cpp -- data.h on any bytes as a file of tokens: refused in one line, or every token of every batch is in the vocabulary.
//
//   first byte   bit 0        the name: a, or a.bin
//                bits 1-3     the vocabulary: as of its kind, 1, 65, 128, 256, 50257, 65535, 65536
//                bits 4-7     T - 1; odd: the second file is a, else a.bin
//   the rest     the file
//
//   clang++ -x c++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas -I. fuzz/fuzz_tokens.cpp -o build/fuzz_tokens
//   build/fuzz_tokens -max_len=4096 CORPUS fuzz/corpus/tokens                    what is new goes to CORPUS, an empty folder
//
// Found    anything that is no Error of status 2, a crash and a leak included
#include "data.h"
#include <climits>
#include <filesystem>
#include <fstream>

static void require(bool good) {
    if (!good) abort();
}

// y is the token after x, and all are in the vocabulary.
static void check_batch(const Batch& batch, int vocab) {
    for (size_t i = 0; i < batch.x.size(); i++) {
        require(0 <= batch.x[i] && batch.x[i] < vocab && 0 <= batch.y[i] && batch.y[i] < vocab);
        if ((i + 1) % batch.T) require(batch.y[i] == batch.x[i + 1]);
    }
}

// What was accepted is what was in the file.
static void check_data(const Data& data, const uint8_t* bytes, size_t size, int T) {
    const size_t all = data.train.count() + data.validation.count(), width = data.bytes ? 1 : 2;
    require(all * width <= size && data.train.count() == all * 9 / 10);
    const uint8_t* first = bytes + (size - all * width);
    for (size_t i = 0; i < all; i++) {
        const int token = i < data.train.count() ? data.train[i] : data.validation[i - data.train.count()];
        require(token == (data.bytes ? first[i] : first[2 * i] | first[2 * i + 1] << 8) && token < data.vocab);
    }
    check_context(data, T);
    for (int step : {0, 1, INT_MAX}) check_batch(train_batch(data.train, 2, T, (uint32_t)size, step, step % 3, 3), data.vocab);
    for (int index : {0, 1, 2}) check_batch(validation_batch(data.validation, 3, T, index, 3), data.vocab);
    require(validation_batch(data.validation, 3, T, 2, 3).y.back() == data.validation[data.validation.count() - 1]);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const int vocabularies[] = {0, 1, 65, 128, 256, 50257, 65535, 65536};
    static const std::string folder = format("/dev/shm/fuzz_tokens_%d", (int)getpid()); // in memory: a disk is thirty times slower
    static const bool made = (atexit([] { std::filesystem::remove_all(folder); }), std::filesystem::create_directory(folder));
    require(made);
    if (size < 2) return 0;
    const int vocab = vocabularies[data[0] >> 1 & 7], T = 1 + (data[0] >> 4);
    const std::string path = folder + (data[0] & 1 ? "/a.bin" : "/a"), other = folder + (T % 2 ? "/a.bin" : "/a");
    data++, size--;
    try { // in memory of exactly its size
        const std::shared_ptr<uint8_t> bytes(new uint8_t[size], [](uint8_t* p) { delete[] p; });
        memcpy(bytes.get(), data, size);
        const MappedFile file = {path, size, bytes};
        Data d;
        const TokenFile kind = kind_of(file);
        d.bytes = kind == TokenFile::text, d.vocab = vocab ? vocab : 65536;
        split(d, tokens_of(file, kind, d.vocab));
        check_data(d, data, size, T);
    } catch (const Error& e) {
        require(e.status == 2 && !strchr(e.what(), '\n') && strlen(e.what()) < 1000);
    }
    try { // as files
        for (const std::string& name : {path, other}) std::ofstream(name, std::ios::binary).write((const char*)data, size);
        const Data d = load_data(path, "", vocab);
        require(d.bytes ? d.decode(d.encode("any")) == "any" : !d.encode);
        check_data(d, data, size, T);
        const Data both = load_data(path, other, vocab); // two files of one kind, or of two
        require(both.train.count() == both.validation.count() && both.train.count() == d.train.count() + d.validation.count());
    } catch (const Error& e) {
        require(e.status == 2 && !strchr(e.what(), '\n') && strlen(e.what()) < 1000);
    }
    return 0;
}
