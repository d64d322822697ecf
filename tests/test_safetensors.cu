// test_safetensors.cu -- safetensors.h: what is written is read back, as Python's library reads and writes it; a file that breaks
// a rule is refused, and a writer that fails leaves what was there.
#include "safetensors.h"
#include "temp_dir.h"
#include <csignal>
#include <sys/resource.h>

namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
// A file of this header, without padding, and these data; the length of the header is what is said, or true.
std::string file_of(const std::string& header, const std::string& data = "", uint64_t length = UINT64_MAX) {
    std::string bytes;
    for (int i = 0; i < 8; i++) bytes += (char)((length == UINT64_MAX ? header.size() : length) >> 8 * i);
    return bytes + header + data;
}
std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string data_of(const SafeTensors& file, const std::string& name) {
    const auto [data, size] = file.bytes(name);
    return {(const char*)data, size};
}
std::string counting(size_t n, int from) {
    std::string bytes;
    for (size_t i = 0; i < n; i++) bytes += (char)(from + 37 * i);
    return bytes;
}
// The bytes come in pieces that have nothing to do with the tensors.
void save(const std::string& path, const std::vector<TensorEntry>& tensors, const std::string& data, const StringMap& metadata = {}, size_t piece = 5) {
    SafeTensorsWriter out(path, tensors, metadata);
    for (size_t i = 0; i < data.size(); i += piece) out.write(&data[i], std::min(piece, data.size() - i));
    out.commit();
}

// The call fails with this status, in one line that has every one of these parts.
template <class Call>
void check_fails(int status, const std::vector<std::string>& parts, Call call) {
    try {
        call();
        FAIL_CHECK("did not fail: " << parts.back());
    } catch (const Error& error) {
        std::string message = error.what();
        CAPTURE(message);
        CHECK(error.status == status);
        CHECK(message.find('\n') == std::string::npos);
        for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, part);
    }
}
void check_refused(const std::string& bytes, std::vector<std::string> parts) {
    parts.push_back("x.safetensors: ");
    check_fails(2, parts, [&] { SafeTensors("x.safetensors", bytes.data(), bytes.size()); });
}

// What Python's safetensors 0.8.0 wrote:
//   save({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "h": np.array([1, -2], dtype=np.float16), "scalar": np.array(7, dtype=np.int64),
//         "empty": np.zeros((0, 4), np.int32), "é\"µ\n": np.array([1, 2, 255], dtype=np.uint8)}, metadata={"format": "fewbits 1", "step": "12"})
const std::string PYTHON_HEADER =
    R"({"__metadata__":{"format":"fewbits 1","step":"12"},"scalar":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"empty":{"dtype":"I32","shape":[0,4],"data_offsets":[32,32]},)"
    R"("h":{"dtype":"F16","shape":[2],"data_offsets":[32,36]},"é\"µ\n":{"dtype":"U8","shape":[3],"data_offsets":[36,39]}}   )";
const std::string PYTHON_DATA = "\7\0\0\0\0\0\0\0"
                                "\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@"
                                "\0<\0\xc0"
                                "\1\2\xff"s;
const std::vector<TensorEntry> PYTHON_TENSORS = {{"scalar", Dtype::I64, {}}, {"w", Dtype::F32, {2, 3}}, {"empty", Dtype::I32, {0, 4}}, {"h", Dtype::F16, {2}}, {"é\"µ\n", Dtype::U8, {3}}};

} // namespace

TEST_CASE("tensors of every dtype come back as they were, with their metadata") {
    TempDir dir;
    std::vector<TensorEntry> tensors;
    std::string data;
    for (int d = 0; d < 8; d++) {
        tensors.push_back({"h."s + std::to_string(d) + "." + name_of((Dtype)d), (Dtype)d, {3, (size_t)d + 1}});
        data += counting(3 * (d + 1) * bytes_of((Dtype)d), 11 * d);
    }
    tensors.push_back({"", Dtype::U8, {1, 1, 1, 1, 1, 1, 1, 2}}), data += "ab";
    const StringMap metadata = {{"config", R"({"layers": 4, "recipe": "fp8"})"}, {"step", "900"}, {"", "\"\\\n\x7f é 漢 😀"}};
    save(dir.at("all"), tensors, data, metadata);
    CHECK(dir.files() == 1);

    const SafeTensors file(dir.at("all"));
    CHECK(file.metadata() == metadata);
    REQUIRE(file.names().size() == tensors.size());
    size_t begin = 0;
    for (size_t i = 0; i < tensors.size(); i++) {
        const TensorEntry& t = file.at(tensors[i].name);
        CHECK(file.names()[i] == tensors[i].name);
        CHECK(file.has(tensors[i].name));
        CHECK(t.name == tensors[i].name);
        CHECK(t.dtype == tensors[i].dtype);
        CHECK(t.shape == tensors[i].shape);
        CHECK(t.begin == begin);
        CHECK(data_of(file, t.name) == data.substr(begin, t.end - begin));
        begin = t.end;
    }
    CHECK(begin == data.size());
    CHECK(!file.has("h.9"));
    check_fails(2, {dir.at("all"), "\"h.9\"", "9"}, [&] { file.at("h.9"); });
    check_fails(2, {dir.at("all"), "\"h.9\""}, [&] { file.bytes("h.9"); });
    // The mapping stays with copies, and with a file that was replaced meanwhile.
    SafeTensors copy = file;
    save(dir.at("all"), {}, "");
    CHECK(data_of(SafeTensors(std::move(copy)), tensors[0].name) == data.substr(0, 12));
    CHECK(SafeTensors(dir.at("all")).names().empty());
}

TEST_CASE("scalars, empty tensors, names that are not ASCII, and no tensor at all") {
    TempDir dir;
    const std::vector<TensorEntry> tensors = {{"нуль", Dtype::F32, {5, 0, 3}}, {"scalar", Dtype::F32, {}}, {"重み", Dtype::BF16, {0}}, {"😀 \"\\/\b\x01", Dtype::U8, {1}}, {"last", Dtype::I64, {0}}};
    save(dir.at("odd"), tensors, "abcde");
    const SafeTensors file(dir.at("odd"));
    for (const TensorEntry& t : tensors) CHECK(file.at(t.name).shape == t.shape);
    CHECK(data_of(file, "scalar") == "abcd");
    CHECK(data_of(file, "😀 \"\\/\b\x01") == "e");
    for (const char* name : {"нуль", "重み", "last"}) CHECK(data_of(file, name).empty());
    CHECK(file.metadata().empty());

    save(dir.at("none"), {}, "");
    CHECK(contents(dir.at("none")) == "\10\0\0\0\0\0\0\0{}      "s); // as the library has it
    CHECK(SafeTensors(dir.at("none")).names().empty());
    save(dir.at("metadata"), {}, "", {{"framework", "pt"}});
    CHECK(contents(dir.at("metadata")) == file_of(R"({"__metadata__":{"framework":"pt"}}     )"));
}

TEST_CASE("a file of Python's library is read, and written again byte for byte") {
    TempDir dir;
    const std::string bytes = file_of(PYTHON_HEADER, PYTHON_DATA);
    REQUIRE(bytes.size() == 391);
    const SafeTensors file(dir.write("python", bytes));
    CHECK(file.metadata() == StringMap{{"format", "fewbits 1"}, {"step", "12"}});
    REQUIRE(file.names().size() == 5);
    float w[6];
    REQUIRE(file.bytes("w").second == sizeof w);
    memcpy(w, file.bytes("w").first, sizeof w);
    for (int i = 0; i < 6; i++) CHECK(w[i] == i);
    for (const TensorEntry& t : PYTHON_TENSORS) CHECK((file.at(t.name).dtype == t.dtype && file.at(t.name).shape == t.shape));
    CHECK(data_of(file, "é\"µ\n") == "\1\2\xff");

    save(dir.at("ours"), PYTHON_TENSORS, PYTHON_DATA, file.metadata());
    CHECK(contents(dir.at("ours")) == bytes);
}

TEST_CASE("the order of a header's keys and its spaces mean nothing; nor does the place of the data") {
    const std::string header = R"( "b" : { "data_offsets":[3,5] , "shape":[ 2 ],"dtype":"U8"},"__metadata__":{"\u0000\u00e9":""},)"
                               R"("e":{"shape":[0],"dtype":"F32","data_offsets":[3,3]},"a":{"dtype":"F8_E5M2","data_offsets":[0,3],"shape":[3,1]} )";
    const std::string bytes = file_of("{" + header + "}\n \t\r", "xyzuv");
    const SafeTensors file("memory", bytes.data(), bytes.size());
    CHECK(file.names() == std::vector<std::string>{"a", "e", "b"});
    CHECK(data_of(file, "a") == "xyz");
    CHECK(data_of(file, "b") == "uv");
    CHECK(file.metadata() == StringMap{{"\0é"s, ""}});
}

TEST_CASE("hostile files are refused, each by its fault") {
    const std::string good = tensor("w", "F32", "[2]", "[0,8]"), data = "12345678";
    const std::string a = tensor("a", "U8", "[4]", "[0,4]");
    auto entry = [](const std::string& fields) { return file_of("{\"w\":{" + fields + "}}", "12345678"); };
    const struct {
        std::string bytes;
        std::vector<std::string> words;
    } table[] = {
        // the frame
        {"", {"header", "its file 0", "at least 8"}},
        {"1234567", {"header", "its file 7", "at least 8"}},
        {file_of("", "", 0), {"header", "begins with \"\"", "'{'"}},
        {file_of("{}", "", 3), {"header", "has 3 bytes", "its file 10"}},
        {file_of("{}", "", UINT64_MAX - 1), {"has 18446744073709551614 bytes", "its file 10"}},
        {file_of("{}", "", (1ull << 63) + 2), {"has 9223372036854775810 bytes"}},
        {file_of("{}", "x"), {"file has 1 bytes after its header", "expected 0"}},
        {file_of("{" + good + "}", data + "9"), {"file has 9 bytes after its header", "expected 8"}},
        {file_of("{" + good + "}", "1234567"), {"tensor \"w\"", "data_offsets [0,8]", "of the 7 after the header"}},
        // JSON
        {file_of(" {}"), {"begins with \" \"", "'{'"}},
        {file_of("\xef\xbb\xbf{}"), {"begins with \"\\ufffd\"", "'{'"}},
        {file_of("[]"), {"begins with \"[\"", "'{'"}},
        {file_of("null"), {"begins with \"n\"", "'{'"}},
        {file_of("{"), {"header", "not whole, or not JSON"}},
        {file_of("{" + good.substr(0, 30), data), {"tensor \"w\"", "not JSON"}},
        {file_of("{\"w"), {"not JSON"}},
        {file_of("{}}"), {"not JSON"}},
        {file_of("{} {}"), {"not JSON"}},
        {file_of("{}/**/"), {"not JSON"}},
        {file_of("{,}"), {"not JSON"}},
        {file_of("{'w':1}"), {"not JSON"}},
        {file_of("{}\0\0\0"s), {"NUL", "spaces"}}, // as some writers pad
        {file_of("{}\0}garbage"s), {"NUL"}},       // where the parser stops, and sees no garbage
        {file_of("{\"\xff\":1}"), {"not JSON"}},
        {file_of("{\"\\ud800\":1}"), {"not JSON"}},
        // entries
        {file_of("{\"w\":1}"), {"tensor \"w\"", "1", "expected an object"}},
        {file_of("{\"w\":null}"), {"tensor \"w\"", "null", "expected an object"}},
        {file_of("{\"w\":[]}"), {"tensor \"w\"", "list", "expected an object"}},
        {file_of("{\"w\":{}}"), {"tensor \"w\"", "{}", "dtype, shape and data_offsets"}},
        {file_of("{" + good + "," + good + "}", data), {"tensor \"w\"", "twice"}},
        {file_of("{" + good + R"(,"\u0077":{}})", data), {"tensor \"w\"", "twice"}}, // the same name, otherwise written
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"shape":[1])"), {"tensor \"w\"", "\"shape\"", "twice"}},
        {entry(R"("dtype":"F32","shape":[2],"offsets":[0,8])"), {"tensor \"w\"", "\"offsets\"", "expected only dtype, shape and data_offsets"}},
        {entry(R"("dtype":"F32","shape":[2])"), {"tensor \"w\"", "{\"dtype\":\"F32\",\"shape\":[2]}", "data_offsets"}},
        {entry(R"("shape":[2],"data_offsets":[0,8])"), {"tensor \"w\"", "expected dtype"}},
        {entry(R"("dtype":"F32","data_offsets":[0,8])"), {"tensor \"w\"", "shape"}},
        // dtype
        {file_of("{" + tensor("w", "F64", "[1]", "[0,8]") + "}", data), {"tensor \"w\"", "dtype \"F64\"", "expected one of", "F8_E4M3"}},
        {file_of("{" + tensor("w", "f32", "[2]", "[0,8]") + "}", data), {"dtype \"f32\""}},
        {file_of("{" + tensor("w", "", "[2]", "[0,8]") + "}", data), {"dtype \"\""}},
        {entry(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"), {"tensor \"w\"", "\"dtype\"", "32", "expected a string"}},
        {entry(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"), {"tensor \"w\"", "\"dtype\"", "\"F32\""}},
        {entry(R"("dtype":[],"shape":[2],"data_offsets":[0,8])"), {"tensor \"w\"", "dtype []"}},
        {entry(R"("dtype":{},"shape":[2],"data_offsets":[0,8])"), {"tensor \"w\"", "\"dtype\"", "an object"}},
        // shape
        {entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), {"tensor \"w\"", "\"shape\"", "2", "list of integers"}},
        {entry(R"("dtype":"F32","shape":"2","data_offsets":[0,8])"), {"tensor \"w\"", "shape \"2\"", "list of integers"}},
        {entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), {"tensor \"w\"", "\"shape\"", "-2", "integers from 0"}},
        {entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), {"\"shape\"", "2.0", "integers from 0"}},
        {entry(R"("dtype":"F32","shape":[2e0],"data_offsets":[0,8])"), {"\"shape\"", "2.0"}},
        {entry(R"("dtype":"F32","shape":[-0],"data_offsets":[0,8])"), {"\"shape\"", "integers from 0"}},
        {entry(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), {"\"shape\"", "\"2\""}},
        {entry(R"("dtype":"F32","shape":[true,2],"data_offsets":[0,8])"), {"\"shape\"", "true"}},
        {entry(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), {"\"shape\"", "list"}},
        {entry(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])"), {"\"shape\"", "1.8446744073709552e+19", "2^64 - 1"}},
        {entry(R"("dtype":"F32","shape":[1e999],"data_offsets":[0,8])"), {"\"shape\"", "not JSON"}},
        {entry(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"), {"\"shape\"", "9 integers", "at most 8"}},
        {entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), {"tensor \"w\"", "shape [4294967296,4294967296]", "less than 2^64"}},
        {entry(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"), {"tensor \"w\"", "less than 2^64"}},
        {entry(R"("dtype":"U8","shape":[4294967297,4294967295,2],"data_offsets":[0,8])"), {"less than 2^64"}},
        {entry(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), {"less than 2^64"}},
        {file_of("{" + tensor("w", "F32", "[3]", "[0,8]") + "}", data), {"tensor \"w\"", "data_offsets [0,8]", "expected 12 bytes"}},
        {file_of("{" + tensor("w", "F32", "[]", "[0,8]") + "}", data), {"tensor \"w\"", "data_offsets [0,8]", "expected 4 bytes"}},
        {file_of("{" + tensor("w", "F32", "[0]", "[0,8]") + "}", data), {"tensor \"w\"", "data_offsets [0,8]", "expected 0 bytes"}},
        // data_offsets
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":8)"), {"\"data_offsets\"", "8"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":"0,8")"), {"data_offsets \"0,8\"", "[begin, end]"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[8])"), {"tensor \"w\"", "data_offsets [8]", "[begin, end]"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), {"data_offsets [0,8,8]", "[begin, end]"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), {"\"data_offsets\"", "-8"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), {"data_offsets [8,0]", "begin <= end"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,0])"), {"data_offsets [18446744073709551608,0]"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551600,18446744073709551608])"), {"data_offsets [18446744073709551600,18446744073709551608]", "of the 8 after the header"}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[1,9])"), {"data_offsets [1,9]", "of the 8 after the header"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), {"tensor \"w\"", "from 4", "hole", "expected 0"}},
        {file_of("{" + a + "," + tensor("b", "U8", "[3]", "[5,8]") + "}", data), {"tensor \"b\"", "from 5", "hole", "expected 4"}},
        {file_of("{" + tensor("b", "U8", "[5]", "[3,8]") + "," + a + "}", data), {"tensor \"b\"", "from 3", "in another tensor", "expected 4"}},
        {file_of("{" + a + "," + tensor("b", "U8", "[4]", "[0,4]") + "}", data), {"from 0", "in another tensor", "expected 4"}},
        {file_of("{" + good + "," + tensor("e", "U8", "[0]", "[3,3]") + "}", data), {"tensor \"e\"", "from 3", "in another tensor"}},
        {file_of("{" + a + "}", data), {"file has 8 bytes", "expected 4"}},
        // metadata
        {file_of(R"({"__metadata__":null})"), {"\"__metadata__\"", "null", "expected an object"}},
        {file_of(R"({"__metadata__":"step 12"})"), {"\"__metadata__\"", "\"step 12\"", "expected an object"}},
        {file_of(R"({"__metadata__":{"step":12}})"), {"\"__metadata__\", \"step\"", "12", "expected a string"}},
        {file_of(R"({"__metadata__":{"config":{}}})"), {"\"__metadata__\", \"config\"", "object", "expected a string"}},
        {file_of(R"({"__metadata__":{"config":["a"]}})"), {"\"__metadata__\", \"config\"", "list", "expected a string"}},
        {file_of(R"({"__metadata__":{"a":"","a":""}})"), {"\"__metadata__\", \"a\"", "twice"}},
        {file_of(R"({"__metadata__":{},"__metadata__":{}})"), {"\"__metadata__\"", "twice"}},
        {file_of("{" + tensor("__metadata__", "U8", "[0]", "[0,0]") + "}"), {"\"__metadata__\", \"shape\"", "list", "expected a string"}},
        // what the message shows of a name is safe to print
        {file_of("{\"\\u001b[2J\\n\\u0000\\u202e\":1}"), {"tensor \"\\u001b[2J\\n\\u0000\\u202e\""}},
    };
    CHECK(std::size(table) >= 25);
    for (auto& row : table) check_refused(row.bytes, row.words);
    MESSAGE(std::size(table) << " hostile files");
}

TEST_CASE("every prefix of a file, and every other byte in its header, is refused or read within bounds") {
    const std::string bytes = file_of(PYTHON_HEADER, PYTHON_DATA);
    for (size_t n = 0; n < bytes.size(); n++) {
        const std::vector<char> part(bytes.begin(), bytes.begin() + n); // its end is the allocation's
        check_fails(2, {"cut"}, [&] { SafeTensors("cut", part.data(), n); });
    }
    int accepted = 0;
    for (size_t i = 0; i < bytes.size() - PYTHON_DATA.size(); i++)
        for (int byte = 0; byte < 256; byte++) {
            std::string other = bytes;
            other[i] = (char)byte;
            try {
                const SafeTensors file("other", other.data(), other.size());
                size_t total = 0;
                for (const std::string& name : file.names()) total += data_of(file, name).size();
                CHECK(total == PYTHON_DATA.size());
                accepted++;
            } catch (const Error& e) {
                CHECK(e.status == 2);
            }
        }
    CHECK(accepted > 352); // those that change nothing, and letters of names
}

TEST_CASE("a hostile header takes no memory to speak of: it is refused where its fault begins") {
    TempDir dir;
    const size_t many = 1000000;
    std::string nested = "{\"w\":{\"shape\":" + std::string(many, '['), longest = "{\"w\":{\"shape\":[0", bits = std::string(many, '9');
    for (size_t i = 0; i < many; i++) longest += ",0";
    check_refused(file_of(nested), {"tensor \"w\", \"shape\"", "list"});
    check_refused(file_of("{\"w\":" + std::string(many, '[')), {"tensor \"w\"", "list"});
    check_refused(file_of(longest), {"tensor \"w\", \"shape\"", "9 integers", "at most 8"});
    check_refused(file_of("{\"w\":{\"shape\":[" + bits + "]}}"), {"\"shape\""});
    check_refused(file_of("{\"" + bits + "\":1}"), {"tensor \"999", "..."});
    // Many tensors, and many strings: minutes, for a parser that looks at all that came before each.
    std::string tensors = "{", strings = "{\"__metadata__\":{";
    for (int i = 0; i < 100000; i++) tensors += (i ? "," : "") + tensor(std::to_string(i), "U8", "[0]", "[0,0]"), strings += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
    const std::string file_of_tensors = file_of(tensors + "}"), file_of_strings = file_of(strings + "}}");
    CHECK(SafeTensors("many", file_of_tensors.data(), file_of_tensors.size()).names().size() == 100000);
    CHECK(SafeTensors("many", file_of_strings.data(), file_of_strings.size()).metadata().size() == 100000);
    // A header of more than 100 MB, of a file that has it (and no blocks on the disk).
    const std::string sparse = dir.write("sparse", file_of("{", "", 100000001));
    fs::resize_file(sparse, 100000009);
    check_fails(2, {sparse, "100000001 bytes", "at most 100000000"}, [&] { SafeTensors{sparse}; });
}

TEST_CASE("what is no file of tensors is refused by its path") {
    TempDir dir;
    check_fails(2, {dir.at("none"), "No such file"}, [&] { SafeTensors{dir.at("none")}; });
    check_fails(2, {dir.at(""), "is a directory"}, [&] { SafeTensors{dir.at("")}; });
    check_fails(2, {dir.at("empty"), "is empty"}, [&] { SafeTensors{dir.write("empty", "")}; });
    check_fails(2, {"/dev/null", "is a device or a pipe"}, [&] { SafeTensors{"/dev/null"}; });
    REQUIRE(mkfifo(dir.at("pipe").c_str(), 0600) == 0);
    check_fails(2, {dir.at("pipe"), "is a device or a pipe"}, [&] { SafeTensors{dir.at("pipe")}; }); // and not waited for
    check_fails(2, {dir.at("short"), "its file 3"}, [&] { SafeTensors{dir.write("short", "abc")}; });
}

TEST_CASE("a writer that fails leaves what was there, and no .part") {
    TempDir dir;
    const std::string path = dir.at("good");
    const std::vector<TensorEntry> two = {{"a", Dtype::U8, {4}}, {"b", Dtype::F32, {1}}};
    save(path, two, "aaaabbbb");
    const std::string good = contents(path);
    auto check_kept = [&] {
        CHECK(contents(path) == good);
        CHECK(dir.files() == 1);
    };
    // Nobody commits, before and after all bytes came.
    {
        SafeTensorsWriter out(path, two);
        CHECK(fs::exists(path + ".part"));
        out.write("cccc", 4);
    }
    check_kept();
    {
        SafeTensorsWriter out(path, two);
        out.write("ccccdddd", 8);
    }
    check_kept();
    // Too few bytes, too many, and any after a failure.
    SafeTensorsWriter few(path, two);
    few.write("cccc", 4), few.write("d", 1), few.write(nullptr, 0);
    check_fails(1, {path, "lacks 3 bytes"}, [&] { few.commit(); });
    check_kept();
    check_fails(1, {path, "is given 1 bytes", "at most 0"}, [&] { few.write("e", 1); });
    check_fails(1, {path}, [&] { few.commit(); });
    SafeTensorsWriter many(path, two);
    many.write("ccccddd", 7);
    check_fails(1, {path, "is given 2 bytes", "at most 1"}, [&] { many.write("de", 2); });
    check_kept();
    // Tensors that no file can hold.
    auto check_declared = [&](std::vector<TensorEntry> tensors, StringMap metadata, std::vector<std::string> parts) {
        check_fails(1, parts, [&] { SafeTensorsWriter(path, tensors, metadata); });
        check_kept();
    };
    check_declared({{"a", Dtype::U8, {1}}, {"a", Dtype::F32, {1}}}, {}, {path, "tensor \"a\"", "twice"});
    check_declared({{"__metadata__", Dtype::U8, {1}}}, {}, {path, "__metadata__"});
    check_declared({{"\xff", Dtype::U8, {1}}}, {}, {path, "UTF-8"});
    check_declared({}, {{"step", "\xff"}}, {path, "UTF-8"});
    check_declared({{"a", Dtype::F32, {1ull << 62}}}, {}, {path, "tensor \"a\"", "less than 2^64"});
    check_declared({{"a", Dtype::U8, {1ull << 63}}, {"b", Dtype::U8, {1ull << 63}}}, {}, {path, "tensor \"a\"", "9223372036854775808 bytes"});
    check_declared({{"a", Dtype::U8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}}, {}, {path, "tensor \"a\"", "at most 8"});
    // And once more, all is well.
    SafeTensorsWriter out(path, two);
    out.write("ccccdddd", 8), out.commit();
    CHECK(data_of(SafeTensors(path), "b") == "dddd");
    check_fails(1, {path, "ended before"}, [&] { out.commit(); });
    check_fails(1, {path, "at most 0"}, [&] { out.write("e", 1); });
    CHECK(data_of(SafeTensors(path), "a") == "cccc");
    CHECK(dir.files() == 1);
}

TEST_CASE("a disk that is full, a folder that is not there, a place that is taken") {
    TempDir dir;
    const std::string path = dir.at("good");
    save(path, {{"a", Dtype::U8, {4}}}, "aaaa");
    const std::string good = contents(path);
    if (fs::exists("/dev/full")) {
        fs::create_symlink("/dev/full", path + ".part"); // where the writer writes
        check_fails(1, {path, "cannot be written: No space left on device"}, [&] { save(path, {{"a", Dtype::U8, {1}}}, "b"); });
        CHECK(contents(path) == good);
        CHECK(dir.files() == 1);
        CHECK(fs::exists("/dev/full"));
    }
    rlimit old, small = {};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small = old, small.rlim_cur = 4096; // the disk is full after some of the data
    auto handler = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    check_fails(1, {path, "cannot be written: File too large"}, [&] { save(path, {{"a", Dtype::U8, {10000}}}, std::string(10000, 'b'), {}, 10000); });
    setrlimit(RLIMIT_FSIZE, &old), signal(SIGXFSZ, handler);
    CHECK(contents(path) == good);
    CHECK(dir.files() == 1);
    check_fails(1, {dir.at("no/file"), "folder", "No such file or directory"}, [&] { save(dir.at("no/file"), {}, ""); });
    check_fails(1, {path + "/file", "folder", "Not a directory"}, [&] { save(path + "/file", {}, ""); });
    fs::create_directory(dir.at("taken"));
    check_fails(1, {dir.at("taken"), "Is a directory"}, [&] { save(dir.at("taken"), {}, ""); });
    fs::create_directory(path + ".part");
    check_fails(1, {path, ".part cannot be opened", "Is a directory"}, [&] { save(path, {}, ""); });
    CHECK(fs::is_directory(path + ".part")); // it is not ours
    CHECK(contents(path) == good);
    CHECK(dir.files() == 3);
    // What a run that was killed left is written over; a path without a folder is in this one.
    fs::remove(path + ".part");
    dir.write("good.part", std::string(1000, 'x'));
    save(path, {{"a", Dtype::U8, {1}}}, "b");
    CHECK(data_of(SafeTensors(path), "a") == "b");
    CHECK(dir.files() == 2);
    const fs::path here = fs::current_path();
    fs::current_path(dir.path);
    save("plain", {{"a", Dtype::U8, {1}}}, "c");
    fs::current_path(here);
    CHECK(data_of(SafeTensors(dir.at("plain")), "a") == "c");
}
