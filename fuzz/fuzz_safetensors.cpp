// fuzz_safetensors.cpp -- safetensors.h on any bytes: refused in one line, or every byte that it hands out is there.
//
//   clang++ -x c++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. fuzz/fuzz_safetensors.cpp -o build/fuzz_safetensors
//   build/fuzz_safetensors -max_len=4096 CORPUS fuzz/corpus/safetensors          what is new goes to CORPUS, an empty folder
//
// Found    anything that is no Error of status 2, a crash and a leak included
#include "safetensors.h"

// What a file of tensors that was accepted must be.
static void require(bool good) {
    if (!good) abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    static volatile uint8_t sum;
    try {
        const SafeTensors file("fuzz", bytes, size);
        size_t total = 0;
        for (const std::string& name : file.names()) {
            const TensorEntry& t = file.at(name);
            const auto [data, n] = file.bytes(name);
            size_t expected = bytes_of(t.dtype);
            for (size_t dim : t.shape) expected *= dim;
            require(n == expected && t.shape.size() <= MAX_DIMS && file.has(name) && name_of(t.dtype)[0]);
            require(data >= bytes && (size_t)(data - bytes) + n <= size && (size_t)(data - bytes) >= 8 + total);
            for (size_t i = 0; i < n; i++) sum = sum + data[i];
            total += n;
        }
        for (auto& [key, value] : file.metadata()) sum = sum + key.size() + value.size();
        require(8 + total <= size);
        for (int i = 0; i < 8; i++) require((uint8_t)((size - 8 - total) >> 8 * i) == bytes[i]); // header and tensors are all of it
    } catch (const Error& e) {
        require(e.status == 2 && !strchr(e.what(), '\n') && strlen(e.what()) < 1000);
    }
    return 0;
}

// Three times of four the length is that of a header which ends at the last brace, or hardly anything would get past it.
extern "C" size_t LLVMFuzzerMutate(uint8_t* bytes, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* bytes, size_t size, size_t most, unsigned seed) {
    size_t end = size = LLVMFuzzerMutate(bytes, size, most);
    while (end > 8 && bytes[end - 1] != '}') end--;
    for (int i = 0; i < 8 && end > 8 && seed % 4; i++) bytes[i] = (uint8_t)((end - 8) >> 8 * i);
    return size;
}
