// test_data.cu -- every kind of token file is written here byte by byte, read back, and spoiled in every way we know.
#include "data.h"
#include "temp_dir.h"
#include <algorithm>
#include <initializer_list>
#include <type_traits>

namespace {

namespace fs = std::filesystem;

std::string little_endian(uint32_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; i++) text += (char)(value >> 8 * i & 255);
    return text;
}
std::string uint16s(const std::vector<int>& tokens) {
    std::string text;
    for (int token : tokens) text += little_endian(token, 2);
    return text;
}
std::string llmc_header(int magic, int version, int ntok) {
    std::string header = little_endian(magic, 4) + little_endian(version, 4) + little_endian(ntok, 4);
    header.resize(1024, '\0');
    return header;
}
std::string shard(const std::vector<int>& tokens) { return llmc_header(20240520, 1, tokens.size()) + uint16s(tokens); }

std::vector<int> counting(int n, int modulus) {
    std::vector<int> tokens;
    for (int i = 0; i < n; i++) tokens.push_back(i * 7919 % modulus);
    return tokens;
}
std::vector<int> list(const Tokens& tokens) {
    std::vector<int> values;
    for (size_t i = 0; i < tokens.count(); i++) values.push_back(tokens[i]);
    return values;
}
std::vector<int> part(const std::vector<int>& all, size_t begin, size_t end) {
    return std::vector<int>(all.begin() + begin, all.begin() + end);
}
Tokens ramp(int n) { // token i is i, for i below 256
    std::string text;
    for (int i = 0; i < n; i++) text += (char)i;
    return Tokens(text);
}

// The call is refused as the user's mistake (status 2), in one line that has every one of these parts.
template <class Call>
void check_refused(Call call, std::initializer_list<std::string> parts) {
    try {
        call();
        FAIL_CHECK("not refused");
    } catch (const Error& error) {
        std::string message = error.what();
        CAPTURE(message);
        CHECK(error.status == 2);
        CHECK(message.find('\n') == std::string::npos);
        for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, part);
    }
}
void check_file_refused(const std::string& path, int vocab, std::initializer_list<std::string> parts) {
    check_refused([&] { load_data(path, "", vocab); }, {path});
    check_refused([&] { load_data(path, "", vocab); }, parts);
}

} // namespace

// ==== files that are read ============================================================================================

TEST_CASE("without a path the data are the embedded stories and their questions") {
    Data data = load_data("", "", 0);
    Stories stories = make_stories();
    CHECK(data.vocab == 256);
    REQUIRE(data.train.count() == stories.train.size());
    REQUIRE(data.validation.count() == stories.validation.size());
    bool same = true;
    for (size_t i = 0; i < stories.train.size(); i++) same &= data.train[i] == stories.train[i];
    for (size_t i = 0; i < stories.validation.size(); i++) same &= data.validation[i] == stories.validation[i];
    CHECK(same);
    CHECK(data.questions.size() == stories.questions.size());
    CHECK(data.questions.at(0).prompt == stories.questions.at(0).prompt);
    CHECK(data.description.find("stories") != std::string::npos);
    CHECK(data.description.find(std::to_string(stories.train.size())) != std::string::npos);
    CHECK(load_data("", "", 128).vocab == 128);
}

TEST_CASE("a text is read as bytes, all 256 of them, and its last tenth is for validation") {
    TempDir dir;
    std::string text;
    for (int i = 0; i < 1005; i++) text += (char)(i * 37);
    Data data = load_data(dir.write("text.txt", text), "", 0);
    CHECK(data.vocab == 256);
    CHECK(data.questions.empty());
    std::vector<int> all;
    for (char c : text) all.push_back((uint8_t)c);
    CHECK(list(data.train) == part(all, 0, 904)); // floor(904.5)
    CHECK(list(data.validation) == part(all, 904, 1005));
    CHECK(data.description.find("text.txt") != std::string::npos);
    CHECK(data.description.find("904") != std::string::npos);
    CHECK(data.description.find("101") != std::string::npos);
}

TEST_CASE("a text of one byte is a text, and too short for any context") {
    TempDir dir;
    Data data = load_data(dir.write("a", "a"), "", 0);
    CHECK(data.train.count() + data.validation.count() == 1);
    check_refused([&] { check_context(data, 1); }, {"--context 1"});
}

TEST_CASE("an llm.c shard is read: tokens up to 50256, in the vocabulary of GPT-2") {
    TempDir dir;
    std::vector<int> tokens = counting(1000, 50257);
    tokens[17] = 50256;
    Data data = load_data(dir.write("shard.bin", shard(tokens)), "", 0);
    CHECK(data.vocab == 50257);
    CHECK(list(data.train) == part(tokens, 0, 900));
    CHECK(list(data.validation) == part(tokens, 900, 1000));
    CHECK(data.description.find("llm.c shard") != std::string::npos);
    // It is known by its content, whatever its name; and the vocabulary may be said.
    CHECK(load_data(dir.write("shard.txt", shard(tokens)), "", 60000).vocab == 60000);
    CHECK(list(load_data(dir.write("shard.txt", shard({65535})), "", 65536).validation) == std::vector<int>{65535});
}

TEST_CASE("a nanoGPT file is read with the vocabulary it is given") {
    TempDir dir;
    std::vector<int> tokens = counting(500, 65);
    Data data = load_data(dir.write("train.bin", uint16s(tokens)), "", 65);
    CHECK(data.vocab == 65);
    CHECK(list(data.train) == part(tokens, 0, 450));
    CHECK(list(data.validation) == part(tokens, 450, 500));
}

TEST_CASE("a nanoGPT file of one token, shorter than any magic, is read") {
    TempDir dir;
    Data data = load_data(dir.write("one.bin", uint16s({513})), "", 514);
    CHECK(list(data.validation) == std::vector<int>{513});
}

TEST_CASE("a second file is the whole validation split, and the first the whole training split") {
    TempDir dir;
    std::vector<int> train = counting(300, 97), val = counting(40, 89);
    for (bool shards : {false, true}) {
        std::string a = dir.write("train.bin", shards ? shard(train) : uint16s(train));
        std::string b = dir.write("val.bin", shards ? shard(val) : uint16s(val));
        Data data = load_data(a, b, 97);
        CHECK(list(data.train) == train);
        CHECK(list(data.validation) == val);
        CHECK(data.description.find(b) != std::string::npos);
    }
    Data data = load_data(dir.write("a.txt", "train"), dir.write("b.txt", "validation"), 0);
    CHECK(data.train.count() == 5);
    CHECK(data.validation.count() == 10);
}

TEST_CASE("tokens outlive the file's name, move, and do not copy") {
    static_assert(!std::is_copy_constructible<Tokens>::value && std::is_nothrow_move_constructible<Tokens>::value, "");
    std::vector<int> tokens = counting(100, 50257);
    Data moved;
    {
        TempDir dir;
        Data data = load_data(dir.write("shard.bin", shard(tokens)), "", 0);
        moved = std::move(data);
    }
    CHECK(list(moved.train) == part(tokens, 0, 90));
    moved.train = Tokens(); // the validation split still holds the mapping
    CHECK(list(moved.validation) == part(tokens, 90, 100));
}

TEST_CASE("the last split of a file to go unmaps it") {
    TempDir dir;
    auto mapped = [](const void* page) { return msync((void*)page, 1, MS_ASYNC) == 0; };
    MappedFile file = map_file(dir.write("a.txt", "text"));
    const void* page = file.bytes.get();
    Tokens tokens = tokens_of(file, TokenFile::text, 256), slice = tokens.slice(1, 3);
    file = MappedFile(), tokens = Tokens();
    bool while_held = mapped(page);
    slice = Tokens();
    bool after = mapped(page);
    CHECK(while_held);
    CHECK(!after);
}

// ==== files that are refused =========================================================================================

TEST_CASE("a missing file, a directory, an empty file and a file that cannot be reached are refused by name") {
    TempDir dir;
    check_file_refused((dir.path / "missing.txt").string(), 0, {"No such file", "expected"});
    check_file_refused(dir.path.string(), 0, {"is a directory", "expected"});
    check_file_refused(dir.write("empty.txt", ""), 0, {"is empty", "expected"});
    check_file_refused(dir.write("empty.bin", ""), 65, {"is empty"});
    check_file_refused(dir.write("plain", "text") + "/child", 0, {"Not a directory"});
    check_file_refused("/dev/null", 0, {"is not a regular file"});
    std::string fifo = (dir.path / "fifo").string();
    REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
    check_file_refused(fifo, 0, {"is not a regular file"}); // and does not wait for a writer
    if (geteuid() != 0) {                                   // root may read everything
        std::string secret = dir.write("secret.txt", "text");
        fs::permissions(secret, fs::perms::none);
        check_file_refused(secret, 0, {"cannot be opened", "Permission denied"});
    }
}

TEST_CASE("a truncated shard is refused, naming both sizes; so is one with bytes to spare") {
    TempDir dir;
    std::string whole = shard(counting(100, 50257));
    REQUIRE(whole.size() == 1224);
    check_file_refused(dir.write("a.bin", whole.substr(0, 1223)), 0, {"1223 bytes", "expected 1224", "100 tokens"});
    check_file_refused(dir.write("b.bin", whole.substr(0, 1024)), 0, {"1024 bytes", "expected 1224"});
    check_file_refused(dir.write("c.bin", whole + "\n"), 0, {"1225 bytes", "expected 1224"});
    check_file_refused(dir.write("d.bin", whole + whole), 0, {"2448 bytes", "expected 1224"});
}

TEST_CASE("a shard cut off in its header is refused, naming both sizes") {
    TempDir dir;
    std::string whole = shard(counting(100, 50257));
    for (int size : {4, 8, 11, 1023})
        check_file_refused(dir.write("cut.bin", whole.substr(0, size)), 0,
                           {"cut off in its header", std::to_string(size) + " bytes", "1024"});
}

TEST_CASE("a shard that counts no tokens, or fewer than none, is refused, and so is an unknown version") {
    TempDir dir;
    check_file_refused(dir.write("a.bin", llmc_header(20240520, 1, 0)), 0, {"0 tokens", "1 or more"});
    check_file_refused(dir.write("b.bin", llmc_header(20240520, 1, -5)), 0, {"-5 tokens", "1 or more"});
    check_file_refused(dir.write("c.bin", llmc_header(20240520, 2, 3) + "abcdef"), 0, {"version 2", "version 1"});
    check_file_refused(dir.write("d.bin", llmc_header(20240520, 1, 2147483647)), 0, {"1024 bytes", "4294968318"});
}

TEST_CASE("the other files of llm.c and LLM.Q are refused, saying what they are") {
    TempDir dir;
    std::pair<int, std::string> files[] = {{20240326, "model"}, {20240327, "debug state"}, {20240328, "tokenizer"}, {20240522, "evaluation set"}, {20240801, "Llama-3"}, {20240527, "optimizer state"}};
    for (auto& [magic, what] : files)
        for (int vocab : {0, 65536})
            check_file_refused(dir.write("other.bin", llmc_header(magic, 1, 4) + "12345678"), vocab,
                               {what, std::to_string(magic), "20240520"});
    check_file_refused(dir.write("llmq.bin", "BIN.TOK\n and so on"), 65536, {"LLM.Q"});
}

TEST_CASE("a nanoGPT file without a vocabulary is refused, saying what to do; so is one of odd size") {
    TempDir dir;
    check_file_refused(dir.write("train.bin", uint16s({1, 2, 3})), 0, {"nanoGPT", "add --vocab N"});
    check_file_refused(dir.write("odd.bin", uint16s({1, 2, 3}) + "x"), 65, {"7 bytes", "even"});
}

TEST_CASE("a token outside the vocabulary is refused, naming file, position, token and vocabulary") {
    TempDir dir;
    std::vector<int> tokens = counting(100, 65);
    tokens[97] = 65; // in the validation split
    std::string bad = dir.write("bad.bin", uint16s(tokens));
    check_file_refused(bad, 65, {"token 65", "position 97", "vocabulary of 65", "0 to 64"});
    load_data(bad, "", 66);
    tokens[3] = 50257;
    check_file_refused(dir.write("shard.bin", shard(tokens)), 0, {"token 50257", "position 3", "vocabulary of 50257"});
    check_file_refused(dir.write("a.txt", "abc\xff"), 128, {"token 255", "position 3", "vocabulary of 128"});
    load_data(dir.write("a.txt", "abc\xff"), "", 256);
    CHECK(load_data(dir.write("a.txt", "abc\x7f"), "", 128).vocab == 128);
    CHECK(load_data(dir.write("a.txt", "abc\xff"), "", 300).vocab == 300);
    // ... and in the second file as in the first.
    std::string good = dir.write("good.bin", uint16s({1, 2, 3}));
    check_refused([&] { load_data(good, bad, 65); }, {bad, "token 65", "position 97"});
}

TEST_CASE("two files of different kinds are refused, naming both") {
    TempDir dir;
    std::string text = dir.write("a.txt", "text"), raw = dir.write("b.bin", uint16s({1, 2}));
    std::string s = dir.write("c.bin", shard({1}));
    check_refused([&] { load_data(text, s, 0); }, {text, s, "is an llm.c shard", "expected text"});
    check_refused([&] { load_data(s, text, 0); }, {text, s, "is text", "expected an llm.c shard"});
    check_refused([&] { load_data(s, raw, 0); }, {raw, s, "is nanoGPT tokens"});
    check_refused([&] { load_data(text, raw, 0); }, {text, raw, "is nanoGPT tokens", "expected text"});
    check_refused([&] { load_data(raw, s, 65); }, {raw, s, "expected nanoGPT tokens"});
    check_refused([&] { load_data(text, text + ".missing", 0); }, {text + ".missing", "No such file"});
}

TEST_CASE("options that contradict each other are refused") {
    TempDir dir;
    std::string text = dir.write("a.txt", "text");
    check_refused([&] { load_data("", text, 0); }, {text, "--val-data", "--data"});
    check_refused([&] { load_data(text, "", -1); }, {"--vocab is -1"});
    check_refused([&] { load_data("", "", 65); }, {"--vocab is 65", "128"});
}

TEST_CASE("a split shorter than a context and one more token is refused, naming the counts") {
    TempDir dir;
    Data data = load_data(dir.write("a.txt", std::string(100, 'a')), "", 0); // 90 and 10
    check_context(data, 9);
    check_refused([&] { check_context(data, 10); }, {"--context 10", "11 tokens", "90", "10 for validation"});
    check_refused([&] { check_context(data, 2147483647); }, {"2147483648 tokens"});
    Data swapped = load_data(dir.write("b.txt", std::string(10, 'a')), dir.write("c.txt", std::string(90, 'a')), 0);
    check_context(swapped, 9);
    check_refused([&] { check_context(swapped, 10); }, {"10 for training", "90 for validation"});
}

// ==== batches ========================================================================================================

TEST_CASE("y is the token after x, in every row of every batch") {
    Tokens tokens = ramp(200);
    for (int step = 0; step < 50; step++)
        for (bool training : {true, false}) {
            Batch batch = training ? train_batch(tokens, 3, 7, 1, step, 0, 1)
                                   : validation_batch(tokens, 3, 7, step, 50);
            REQUIRE(batch.B == 3);
            REQUIRE(batch.T == 7);
            REQUIRE(batch.x.size() == 21);
            REQUIRE(batch.y.size() == 21);
            for (int i = 0; i < 21; i++) {
                CHECK(batch.y[i] == batch.x[i] + 1);
                if (i % 7) CHECK(batch.x[i] == batch.x[i - 1] + 1);
            }
        }
}

TEST_CASE("row n of a run starts where the generator's number n says, and nowhere else") {
    Tokens tokens = ramp(250);
    const int B = 4, T = 9, accumulate = 3;
    uint64_t n = 0;
    for (uint64_t step = 0; step < 5; step++)
        for (int micro = 0; micro < accumulate; micro++) {
            Batch batch = train_batch(tokens, B, T, 11, step, micro, accumulate);
            for (int r = 0; r < B; r++, n++)
                CHECK(batch.x[r * T] == (int)Rng(11, Stream::batches).below(n, 250 - T));
        }
    // Steps beyond 2^32 rows do not come round again.
    uint64_t far = (uint64_t)1 << 40;
    CHECK(train_batch(tokens, 1, T, 11, far, 0, 1).x[0] == (int)Rng(11, Stream::batches).below(far, 250 - T));
}

TEST_CASE("batches are the same in any order of calls, and however a step's rows are divided") {
    Tokens tokens = ramp(256);
    std::vector<std::vector<int>> forward, backward(20);
    for (int step = 0; step < 20; step++) forward.push_back(train_batch(tokens, 4, 16, 5, step, 0, 1).x);
    for (int step = 19; step >= 0; step--) {
        train_batch(tokens, 2, 8, 6, step, 0, 1);
        backward[step] = train_batch(tokens, 4, 16, 5, step, 0, 1).x;
    }
    CHECK(forward == backward);
    CHECK(forward[0] != forward[1]);
    CHECK(forward[0] != train_batch(tokens, 4, 16, 6, 0, 0, 1).x); // another seed
    std::vector<int> halves = train_batch(tokens, 2, 16, 5, 7, 0, 2).x;
    std::vector<int> second = train_batch(tokens, 2, 16, 5, 7, 1, 2).x;
    halves.insert(halves.end(), second.begin(), second.end());
    CHECK(halves == forward[7]); // 1 x 4 rows are 2 x 2 rows
}

TEST_CASE("training reaches every place of the split, the first and the last included") {
    Tokens tokens = ramp(30);
    std::vector<int> reached(30);
    int last = 0;
    for (int step = 0; step < 400; step++) {
        Batch batch = train_batch(tokens, 1, 5, 1, step, 0, 1);
        reached[batch.x[0]]++, last = std::max(last, batch.y[4]);
    }
    for (int start = 0; start < 25; start++) CHECK(reached[start] > 0);
    CHECK(last == 29);
    CHECK(train_batch(ramp(6), 2, 5, 1, 0, 0, 1).x == std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}); // just enough
}

TEST_CASE("validation windows are spread evenly from the first token to the last") {
    Tokens tokens = ramp(200);
    const int B = 3, T = 10, batches = 5, W = B * batches;
    int previous = -1;
    for (int w = 0; w < W; w++) {
        Batch batch = validation_batch(tokens, B, T, w / B, batches);
        int start = batch.x[w % B * T];
        CHECK(start == (int)std::floor(w * 189.0 / 14));
        CHECK(start > previous);
        if (w == 0) CHECK(start == 0);
        if (w == W - 1) CHECK(batch.y[w % B * T + T - 1] == 199);
        previous = start;
    }
    CHECK(validation_batch(tokens, 1, T, 0, 1).x[0] == 0);         // one window
    CHECK(validation_batch(ramp(11), 4, T, 1, 2).y.back() == 10);  // more windows than places
    CHECK(validation_batch(tokens, 1, 199, 0, 1).y.back() == 199); // a window as long as the split
}

TEST_CASE("batches read 16-bit tokens from the file as they read bytes") {
    TempDir dir;
    std::vector<int> tokens = counting(2000, 50257);
    Data data = load_data(dir.write("shard.bin", shard(tokens)), "", 0);
    Batch batch = train_batch(data.train, 2, 8, 3, 4, 0, 1);
    size_t start = Rng(3, Stream::batches).below(9, 1800 - 8);
    CHECK(part(batch.x, 8, 16) == part(tokens, start, start + 8));
    CHECK(part(batch.y, 8, 16) == part(tokens, start + 1, start + 9));
    CHECK(validation_batch(data.validation, 2, 8, 0, 1).y.back() == tokens.back());
}

TEST_CASE("a batch that cannot be cut stops the run, naming the sizes") {
    Tokens tokens = ramp(10);
    CHECK_THROWS_WITH_AS(train_batch(tokens, 1, 10, 1, 0, 0, 1), doctest::Contains("10 tokens"), Error);
    CHECK_THROWS_WITH_AS(validation_batch(tokens, 1, 10, 0, 1), doctest::Contains("10 tokens"), Error);
    CHECK_THROWS_WITH_AS(validation_batch(tokens, 1, 5, 2, 2), doctest::Contains("batch 2 of 2"), Error);
    CHECK_THROWS_WITH_AS(train_batch(tokens, 1, 5, 1, 0, 3, 3), doctest::Contains("micro-batch 3 of 3"), Error);
    CHECK_THROWS_WITH_AS(train_batch(Tokens(), 1, 5, 1, 0, 0, 1), doctest::Contains("0 tokens"), Error);
}
