// safetensors.h -- files of named tensors, in the safetensors format: read without trust, written whole or not at all.
//
//   8 bytes     N, little-endian
//   N bytes     {"__metadata__": {"step": "12"}, "wte": {"dtype": "F32", "shape": [256, 64], "data_offsets": [0, 65536]}, ...}, then spaces
//   the rest    the tensors; offsets count from here, and every byte is in exactly one of them
//
// Source   github.com/huggingface/safetensors, README.md, "Format"; safetensors/src/tensor.rs for what is checked
// Shapes   row-major, up to MAX_DIMS dimensions; [] is a scalar; a 0 makes the tensor empty
// Formats  little-endian on every machine; of the library's dtypes those that we store
// Why      A header may be 100 MB of anything: what cannot be part of one is refused as it is parsed, before it takes memory;
//          so is a name's second entry, of which a parser would keep one and say nothing. Mapped, not read: no copy. Whoever
//          cuts a mapped file off kills its reader (SIGBUS); the writer below never does, it renames.
// Tests    tests/test_safetensors.cu, fuzz/fuzz_safetensors.cpp
#pragma once
#include "files.h"
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>

// clang-format off
enum class Dtype { F32, BF16, F16, F8_E4M3, F8_E5M2, I32, I64, U8, BOOL };
// clang-format on
constexpr const char* DTYPES[] = {"F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "I32", "I64", "U8", "BOOL"};
constexpr const char* name_of(Dtype d) { return DTYPES[(int)d]; }
constexpr size_t bytes_of(Dtype d) { return "\4\2\2\1\1\4\10\1\1"[(int)d]; } // per element
constexpr size_t MAX_HEADER = 100000000, MAX_DIMS = 8;                     // bytes, the library's limit; ours
using StringMap = std::map<std::string, std::string>;

struct TensorEntry {
    std::string name; // UTF-8
    Dtype dtype = Dtype::F32;
    std::vector<size_t> shape;
    size_t begin = 0, end = 0; // bytes, from the first of the data
};

// The tensors, in the order of their data, of the n bytes of a header that data_size bytes follow. Checks every rule of the format.
inline std::vector<TensorEntry> read_header(const std::string& file, const char* text, size_t n, size_t data_size, StringMap& metadata) {
    using Value = nlohmann::json;
    using Event = Value::parse_event_t;
    auto cited = [](const Value& x) { // it may hold anything: in ASCII, on one line, and not all of it
        const std::string s = x.dump(-1, ' ', true, Value::error_handler_t::replace);
        return s.size() <= 120 ? s : s.substr(0, 120) + "...";
    };
    std::string tensor, field; // that are being read
    auto bad = [&](const std::string& found, const std::string& expected) {
        refuse("%s: header%s%s: %s; expected %s", file.c_str(), tensor.empty() ? "" : (", tensor " + cited(tensor)).c_str(), field.empty() ? "" : (", " + cited(field)).c_str(), found.c_str(), expected.c_str());
    };
    if (n > MAX_HEADER) bad(format("has %zu bytes", n), format("at most %zu", MAX_HEADER));
    if (n == 0 || text[0] != '{') bad("begins with " + cited(std::string(text, n > 0)), "'{'");
    if (memchr(text, 0, n)) bad("has a NUL in it", "JSON, then spaces"); // the parser would stop there
    std::vector<TensorEntry> tensors;
    auto add = [&](const Value& entry) {
        if (entry.size() != 3) bad("is " + cited(entry), "dtype, shape and data_offsets");
        const Value &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
        const auto d = std::find(std::begin(DTYPES), std::end(DTYPES), dtype);
        if (d == std::end(DTYPES)) bad("has dtype " + cited(dtype), "one of " + cited(DTYPES));
        if (!shape.is_array()) bad("has shape " + cited(shape), "a list of integers");
        if (!offsets.is_array() || offsets.size() != 2 || offsets[0] > offsets[1]) bad("has data_offsets " + cited(offsets), "[begin, end], begin <= end");
        const TensorEntry t = {tensor, Dtype(d - DTYPES), shape, offsets[0], offsets[1]};
        size_t bytes = bytes_of(t.dtype), dims = 1;
        for (size_t dim : t.shape) // a 0 hides no overflow: whoever multiplies the other dimensions is safe too
            if (dims *= dim != 0; __builtin_mul_overflow(bytes, std::max(dim, (size_t)1), &bytes)) bad("has shape " + cited(shape), "less than 2^64 bytes");
        if (t.end > data_size || t.end - t.begin != bytes * dims) bad("has data_offsets " + cited(offsets), format("%zu bytes, by dtype and shape, of the %zu after the header", bytes * dims, data_size));
        tensors.push_back(t);
    };
    // Allowed: {tensor: {field: string or list}}, each key once; in a list up to MAX_DIMS integers, in __metadata__ only strings.
    std::set<std::string> keys[2]; // of the header; of the entry
    size_t numbers = 0;            // in the list
    auto allow = [&](int depth, Event event, const Value& x) {
        const bool object = event == Event::object_start, list = event == Event::array_start, scalar = event == Event::value;
        const bool of_metadata = tensor == "__metadata__", good = depth == 2 ? x.is_string() : depth > 2 && x.is_number_unsigned();
        const char* expected = depth < 2 ? "an object" : (of_metadata ? "a string" : "a string or a list of integers from 0 to 2^64 - 1");
        if ((object && depth > 1) || (list && (depth != 2 || of_metadata)) || (scalar && !good)) bad((depth < 3 ? "is " : "has ") + (scalar ? cited(x) : "an object or a list"), expected);
        if (scalar && depth == 3 && ++numbers > MAX_DIMS) bad(format("has %zu integers or more", numbers), format("at most %zu", MAX_DIMS));
        if (scalar && of_metadata) metadata[field] = x;
        if (list) numbers = 0;
        if (object) keys[depth].clear();
        if (event == Event::object_end && depth == 1) return field.clear(), of_metadata ? void() : add(x), false; // forgotten: the parser is quadratic in what it keeps
        if (event != Event::key) return true;
        (depth == 1 ? tensor : field) = x;
        if (!keys[depth - 1].insert(x).second) bad("is there twice", "it once");
        if (depth == 2 && !of_metadata && x != "dtype" && x != "shape" && x != "data_offsets") bad("is there", "only dtype, shape and data_offsets");
        return true;
    };
    const Value all = Value::parse(text, text + n, allow, false);
    if (all.is_discarded()) bad("is not whole, or not JSON", "JSON, then spaces");
    std::sort(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
    size_t covered = 0;
    for (const TensorEntry& t : tensors) {
        if (tensor = t.name; t.begin != covered) bad(format("has data_offsets from %zu, %s", t.begin, t.begin < covered ? "in another tensor" : "after a hole"), format("%zu", covered));
        covered = t.end;
    }
    if (covered != data_size) refuse("%s: file has %zu bytes after its header; expected %zu, the end of its last tensor", file.c_str(), data_size, covered);
    return tensors;
}

class SafeTensors {
    std::string path;
    std::shared_ptr<const uint8_t> file; // mapped
    const uint8_t* data = nullptr;       // of the tensors
    std::map<std::string, TensorEntry> entries;
    std::vector<std::string> order;
    StringMap strings;
    void check(size_t size) {
        size_t n = 0;
        for (int i = 0; i < 8 && size >= 8; i++) n |= (size_t)file.get()[i] << 8 * i;
        if (size < 8 || n > size - 8) refuse("%s: header: has %zu bytes, its file %zu; expected at least 8 more than the header", path.c_str(), n, size);
        data = file.get() + 8 + n;
        for (const TensorEntry& t : read_header(path, (const char*)data - n, n, size - 8 - n, strings)) order.push_back(t.name), entries[t.name] = t;
    }

  public:
    explicit SafeTensors(const std::string& path) : path(path) {
        const int f = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe would wait for its writer
        struct stat status = {};
        const bool opened = f >= 0 && fstat(f, &status) == 0, regular = S_ISREG(status.st_mode);
        const size_t size = status.st_size;
        void* bytes = regular && size ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, f, 0) : MAP_FAILED;
        const int why = errno;
        if (f >= 0) close(f); // the mapping stays
        if (opened && (!regular || !size)) refuse("%s: is %s; expected a file of tensors", path.c_str(), S_ISDIR(status.st_mode) ? "a directory" : (regular ? "empty" : "a device or a pipe"));
        if (bytes == MAP_FAILED) refuse("%s: cannot be read: %s", path.c_str(), strerror(why));
        file = {(const uint8_t*)bytes, [size](const uint8_t* p) { munmap((void*)p, size); }};
        check(size);
    }
    SafeTensors(const std::string& path, const void* bytes, size_t size) : path(path), file((const uint8_t*)bytes, [](auto*) {}) { check(size); } // of memory that outlives it
    bool has(const std::string& name) const { return entries.count(name); }
    const TensorEntry& at(const std::string& name) const {
        if (!has(name)) refuse("%s: tensor \"%s\" is not there; expected it among the %zu", path.c_str(), name.c_str(), entries.size());
        return entries.at(name);
    }
    std::pair<const uint8_t*, size_t> bytes(const std::string& name) const { return {data + at(name).begin, at(name).end - at(name).begin}; } // in place: at any alignment
    const std::vector<std::string>& names() const { return order; }                                                                           // of their data
    const StringMap& metadata() const { return strings; }
};

// A WholeFile of tensors.
class SafeTensorsWriter {
    size_t left = 0; // bytes
    std::unique_ptr<WholeFile> file;

  public:
    // Of each tensor the name, dtype and shape, in the order in which their bytes will come.
    SafeTensorsWriter(const std::string& path, const std::vector<TensorEntry>& tensors, StringMap metadata = {}) {
        std::string header = "length: {";
        try {
            if (!metadata.empty()) header += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
            for (const TensorEntry& t : tensors) {
                const size_t begin = left;
                left += std::accumulate(t.shape.begin(), t.shape.end(), bytes_of(t.dtype), std::multiplies<>());
                header += nlohmann::json(t.name).dump() + ":{\"dtype\":\"" + name_of(t.dtype) + "\",\"shape\":" + nlohmann::json(t.shape).dump() + format(",\"data_offsets\":[%zu,%zu]},", begin, left);
            }
            header.erase(header.size() - (header.back() == ',')) += "}";
            header.resize((header.size() + 7) / 8 * 8, ' '); // the data begin at a multiple of 8
            read_header("read back", &header[8], header.size() - 8, left, metadata);
        } catch (const std::exception& e) { // a name twice or not in UTF-8, or sizes that overflow
            throw Error(1, path + ": cannot be written: " + e.what());
        }
        for (int i = 0; i < 8; i++) header[i] = (char)((header.size() - 8) >> 8 * i);
        file = std::make_unique<WholeFile>(path);
        file->write(header.data(), header.size());
    }

    void write(const void* bytes, size_t n) {
        if (!file->is_open() || n > left) file->fail(format("is given %zu bytes; expected at most %zu, the rest of its tensors", n, file->is_open() ? left : 0));
        file->write(bytes, n), left -= n;
    }
    void commit() {
        if (!file->is_open() || left) file->fail(format("lacks %zu bytes of its tensors, or was ended before", left));
        file->commit();
    }
};
