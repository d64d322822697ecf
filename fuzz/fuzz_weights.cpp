// fuzz_weights.cpp -- weights.h on any bytes: refused in one line, or every number of every parameter is there and finite.
//
//   first byte   0  the rest is an llm.c model, after its magic
//                1  the rest is a config.json, for tensors that are as the fixed one below says
//                2  the rest is a safetensors, with the fixed config.json          (modulo 3)
//
//   clang++ -x c++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas -I. fuzz/fuzz_weights.cpp -o build/fuzz_weights
//   build/fuzz_weights -max_len=4096 CORPUS fuzz/corpus/weights                  what is new goes to CORPUS, an empty folder
//
// Found    anything that is no Error of status 2, a crash and a leak included; and numbers without a place in the file
#include "weights.h"

static void require(bool good) {
    if (!good) abort();
}

static const char CONFIG[] = R"({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2, "n_positions": 3, "vocab_size": 5})";

// Tensors of that shape: each number is its place.
static std::string tensors() {
    std::string header = "{", data;
    for (const Parameter& p : declare_parameters({1, 1, 2, 3, 5}, recipe_fp32)) {
        const std::vector<size_t> shape = shape_of(p, true);
        header += format("%s\"%s\":{\"dtype\":\"BF16\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", data.empty() ? "" : ",", p.name.c_str(), nlohmann::json(shape).dump().c_str(), data.size(), data.size() + 2 * p.size());
        for (size_t i = 0; i < p.size(); i++) data += (char)i, data += '\x40';
    }
    header += "}";
    std::string file;
    for (int i = 0; i < 8; i++) file += (char)(header.size() >> 8 * i);
    return file + header + data;
}

static Weights opened(int kind, std::string& bytes) {
    static const std::string fixed = tensors();
    if (kind == 0) {
        bytes.insert(0, "\x26\xD6\x34\x01"); // 20240326
        return weights_of_llmc({"fuzz", bytes.size(), {(const uint8_t*)bytes.data(), [](auto*) {}}});
    }
    const std::string& file = kind == 1 ? fixed : bytes;
    return weights_of_safetensors("fuzz", std::make_shared<SafeTensors>("fuzz", file.data(), file.size()), "config.json", kind == 1 ? bytes : CONFIG);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
    static volatile float sum;
    if (size == 0) return 0;
    std::string bytes((const char*)input + 1, size - 1);
    try {
        const Weights w = opened(input[0] % 3, bytes);
        require(w.tokens.empty() || w.tokens == "bytes");
        for (const Parameter& p : declare_parameters(w.shape, recipe_fp32)) {
            const std::vector<float> x = w.of(p);
            require(x.size() == p.size() && 2 * x.size() <= std::max<size_t>(bytes.size(), 4096)); // in 2 bytes each at least
            for (float number : x) require(std::isfinite(number)), sum = sum + number;
        }
    } catch (const Error& e) {
        require(e.status == 2 && !strchr(e.what(), '\n') && strlen(e.what()) < 1000);
    }
    return 0;
}

// Hardly any bytes would get past the header of an llm.c file, or the length of a safetensors' header: three times of four they are mended.
extern "C" size_t LLVMFuzzerMutate(uint8_t* bytes, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* bytes, size_t size, size_t most, unsigned seed) {
    size = LLVMFuzzerMutate(bytes, size, most);
    if (size < 10 || seed % 4 == 0) return size;
    if (bytes[0] % 3 == 2) {
        size_t end = size;
        while (end > 9 && bytes[end - 1] != '}') end--;
        for (int i = 0; i < 8 && end > 9; i++) bytes[1 + i] = (uint8_t)((end - 9) >> 8 * i);
    }
    if (bytes[0] % 3 == 0 && size > LLMC_HEADER) { // each word within a byte, and the file as long as that says, where it can be
        for (int i = 0; i < 32; i += 4) bytes[1 + i + 1] = bytes[1 + i + 2] = bytes[1 + i + 3] = 0;
        const uint8_t* word = bytes + 1; // version, context, vocabulary, layers, heads, channels, padded vocabulary
        const size_t T = word[4], layers = word[12], C = word[20], padded = word[24], width = word[0] == LLMC_FP32 ? 4 : 2;
        const size_t whole = 1 + LLMC_HEADER - 4 + width * (padded * C + T * C + layers * (12 * C * C + 13 * C) + 2 * C);
        if (whole <= most) {
            if (whole > size) memset(bytes + size, 0, whole - size);
            size = whole;
        }
    }
    return size;
}
