// test_tokenizer.cu -- bpe.h and tokenizer.h: the ids that Python's tokenizers gives, every byte back again, and spoiled files.
#include "tokenizer.h"
#include "tests/tiny_tokenizer.h"
#include "temp_dir.h"
#include <chrono>

namespace {

namespace fs = std::filesystem;

Tokenizer tiny() { return tokenizer_of_json("tiny", TINY_TOKENIZER); }
VocabJson tiny_json() { return VocabJson::parse(TINY_TOKENIZER); }
std::string merges_txt(const VocabJson& json, const std::string& first = "#version: 0.2\n", const std::string& end = "\n") {
    std::string text = first;
    for (const VocabJson& merge : json["model"]["merges"]) text += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + end;
    return text;
}
std::string word32(uint32_t value) { return {(char)value, (char)(value >> 8), (char)(value >> 16), (char)(value >> 24)}; }
std::string bin(int version, int count, int end_of_text, const std::vector<std::string>& tokens) {
    std::string file = word32(20240328) + word32(version) + word32(count) + word32(end_of_text);
    file.resize(1024, '\0');
    for (const std::string& token : tokens) file += (char)token.size() + token;
    return file;
}

std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> found;
    for (size_t begin = 0, end; begin < text.size(); begin = end) end = end_of_word(text, begin), found.push_back(text.substr(begin, end - begin));
    return found;
}

// The call is refused as the user's mistake (status 2), in one line that has every one of these parts.
template <class Call>
void check_refused(Call call, std::vector<std::string> parts) {
    try {
        call();
        FAIL_CHECK("not refused: expected " << parts.back());
    } catch (const Error& error) {
        std::string message = error.what();
        CAPTURE(message);
        CHECK(error.status == 2);
        CHECK(message.find('\n') == std::string::npos);
        CHECK(message.size() < 400);
        for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, part);
    }
}
// So is tiny_tokenizer.h with a JSON merge patch: {"model": {"type": "WordPiece"}}; null removes.
void check_patch_refused(const char* patch, std::vector<std::string> parts) {
    VocabJson json = tiny_json();
    json.merge_patch(VocabJson::parse(patch));
    parts.push_back("some.json: ");
    check_refused([&] { tokenizer_of_json("some.json", json.dump()); }, parts);
}

double seconds(std::chrono::steady_clock::time_point since) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count(); }

} // namespace

// ==== words ==========================================================================================================

TEST_CASE("a text is cut into words as GPT-2's pattern cuts it") {
    using Words = std::vector<std::string>;
    CHECK(words("Hello, world!") == Words{"Hello", ",", " world", "!"});
    CHECK(words("it's we're I'LL") == Words{"it", "'s", " we", "'re", " I", "'", "LL"});
    CHECK(words("!'s 's") == Words{"!'", "s", " '", "s"});
    CHECK(words("a   b") == Words{"a", "  ", " b"});
    CHECK(words("a \n b  ") == Words{"a", " \n", " b", "  "});
    CHECK(words("a\nb\n") == Words{"a", "\n", "b", "\n"});
    CHECK(words("a\t\tb") == Words{"a", "\t", "\t", "b"}); // only a space joins what follows
    CHECK(words(" ") == Words{" "});
    CHECK(words("x2y \u0663\u2167") == Words{"x", "2", "y", " \u0663\u2167"});
    CHECK(words("\u00a0\u3000x") == Words{"\u00a0", "\u3000", "x"});
    CHECK(words("e\u0301") == Words{"e", "\u0301"}); // a combining mark is no letter
}

TEST_CASE("bytes that are no UTF-8 are symbols: cut off, overlong, surrogates, beyond U+10FFFF") {
    using Words = std::vector<std::string>;
    for (std::string bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc3", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
                            "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
        CHECK(words(bad) == Words{bad});
        CHECK(words("a" + bad + "b " + bad) == Words{"a", bad, "b", " " + bad});
        CHECK(character_at(bad, 0).bytes == 1);
    }
    CHECK(character_at("\xed\x9f\xbf", 0).code == 0xD7FF);
    CHECK(character_at("\xee\x80\x80", 0).code == 0xE000);
    CHECK(character_at("\xf4\x8f\xbf\xbf", 0).code == 0x10FFFF);
    CHECK(character_at("\xc2\x80", 0).code == 0x80);
    CHECK(character_at("\xe0\xa0\x80", 0).code == 0x800);
    CHECK(character_at("\xf0\x90\x80\x80", 0).code == 0x10000);
}

TEST_CASE("the tables are Unicode 16's") {
    int counts[256] = {};
    for (uint32_t code = 0; code < 0x110000; code++) counts[(uint8_t)class_of(code)]++;
    CHECK(counts['L'] == 141028); // as tokenizers 0.23 counts them
    CHECK(counts['N'] == 1911);
    CHECK(counts['s'] == 25);
    CHECK(class_of(0x1C89) == 'L');  // new in 16
    CHECK(class_of(0x323B0) == '.'); // not yet
    CHECK(class_of(0xFFFFFFFF) == '.');
}

// ==== ids ============================================================================================================

TEST_CASE("awkward strings have the ids that Python's tokenizers gives them") {
    const Tokenizer t = tiny();
    CHECK(t.size() == 600);
    CHECK(t.can_encode());
    CHECK(t.end_of_text() == 0);
    CHECK(AWKWARD.size() >= 100);
    for (const Awkward& a : AWKWARD) {
        CAPTURE(a.text);
        CHECK(t.encode(a.text) == a.ids);
        CHECK(t.decode(a.ids) == a.text);
    }
}

TEST_CASE("any bytes come back: 100,000 random strings, most of them no UTF-8") {
    const Tokenizer t = tiny();
    const std::vector<std::string> pieces = {"'", "'s", " ", "\n", "the", "\xe2\x80", "\x99", "\xf0\x9f", "\x98\x80", "\xff", "\xed\xa0\x80", "\xc3", "\xa9", "1"};
    Rng rng(1, Stream::test);
    uint64_t n = 0;
    int lost = 0;
    for (int i = 0; i < 100000; i++) {
        std::string text;
        for (int left = (int)rng.below(n++, 40); left > 0; left--) {
            const uint64_t which = rng.below(n++, 3);
            if (which == 0) text += (char)rng.below(n++, 256);
            else text += which == 1 ? pieces[rng.below(n++, pieces.size())] : AWKWARD[rng.below(n++, AWKWARD.size())].text.substr(0, 9);
        }
        lost += t.decode(t.encode(text)) != text;
        lost += t.decode(t.encode_documents(text)) != text;
    }
    CHECK(lost == 0);
}

TEST_CASE("<|endoftext|> is that token only when asked for") {
    const Tokenizer t = tiny();
    const std::string end = "<|endoftext|>", text = end + "a" + end + end + "b c";
    const std::vector<int> plain = t.encode(text), documents = t.encode_documents(text);
    CHECK(std::count(plain.begin(), plain.end(), 0) == 0);
    CHECK(documents.size() == 6); // a, b, and " c"
    CHECK(std::count(documents.begin(), documents.end(), 0) == 3);
    CHECK(t.decode(plain) == text);
    CHECK(t.decode(documents) == text);
    CHECK(t.encode_documents("").empty());
    CHECK(t.encode_documents("no end") == t.encode("no end"));
    CHECK(t.encode_documents("<|endoftext|") == t.encode("<|endoftext|"));
    // A space before it stays alone, though a word would have taken it.
    CHECK(t.decode({t.encode_documents("a " + end + "b")[1]}) == " ");
}

TEST_CASE("the merge of least rank comes first, leftmost first, also where ranks are not in the order of growth") {
    // "aaa": the left pair. "abcd": bc before ab, though ab comes first; then bcd; abc is never there.
    VocabJson json = tiny_json();
    json["model"]["merges"] = VocabJson::parse(R"([["b", "c"], ["a", "b"], ["bc", "d"], ["a", "a"], ["aa", "aa"], ["c", "d"], ["ab", "cd"]])");
    int id = 600;
    for (const char* token : {"bc", "ab", "bcd", "aa", "aaaa", "cd", "abcd"})
        if (!json["model"]["vocab"].contains(token)) json["model"]["vocab"][token] = id++;
    const Tokenizer t = tokenizer_of_json("merges", json.dump());
    auto parts = [&](const std::string& text) {
        std::string joined;
        for (int token : t.encode(text)) joined += t.decode({token}) + "|";
        return joined;
    };
    CHECK(parts("aaa") == "aa|a|");
    CHECK(parts("aaaaa") == "aaaa|a|");
    CHECK(parts("aaaaaaa") == "aaaa|aa|a|");
    CHECK(parts("abcd") == "a|bcd|");
    CHECK(parts("abd") == "ab|d|");
    CHECK(parts("bcdbcd") == "bcd|bcd|");
}

TEST_CASE("a decoder refuses ids that are none, and one without merges to encode") {
    const Tokenizer t = tiny();
    CHECK_THROWS_WITH_AS(t.decode({0, 600}), doctest::Contains("token 600; expected 0 to 599"), Error);
    CHECK_THROWS_WITH_AS(t.decode({-1}), doctest::Contains("token -1"), Error);
    CHECK(t.decode({}).empty());
    const Tokenizer d(std::vector<std::string>{"a"}, -1);
    CHECK(!d.can_encode());
    CHECK_THROWS_WITH_AS(d.encode("a"), doctest::Contains("only decode"), Error);
    CHECK_THROWS_WITH_AS(d.encode_documents("a"), doctest::Contains("no <|endoftext|>"), Error);
}

TEST_CASE("a word of a megabyte takes no longer, byte for byte, than many short ones") {
    const Tokenizer t = tiny();
    std::string word;
    for (int i = 0; word.size() < 1 << 20; i++) word += "thereandtheninghe"[i * 7 % 17];
    for (const std::string& text : {word, std::string(1 << 20, 'e'), std::string(1 << 20, ' '), std::string(1 << 20, '\xff'), std::string(1 << 20, '!')}) {
        const auto begin = std::chrono::steady_clock::now();
        CHECK(t.decode(t.encode(text)) == text);
        CHECK(seconds(begin) < 20); // 0.2; quadratic would be minutes
    }
}

// By hand: run_tests -ns -tc="*megabytes*", with FEWBITS_TEXT and FEWBITS_TOKENIZER naming files of yours.
TEST_CASE("megabytes a second" * doctest::skip()) {
    const char *text_name = getenv("FEWBITS_TEXT"), *tokenizer_name = getenv("FEWBITS_TOKENIZER");
    const Tokenizer t = tokenizer_name ? load_tokenizer(tokenizer_name) : tiny();
    std::string text = make_stories().train;
    if (text_name) {
        std::ostringstream all;
        all << std::ifstream(text_name, std::ios::binary).rdbuf();
        text = all.str();
    }
    for (const char* pass : {"first", "repeated"}) {
        const auto begin = std::chrono::steady_clock::now();
        const std::vector<int> ids = t.encode(text);
        const double encoded = seconds(begin);
        CHECK(t.decode(ids) == text);
        printf("%s: %zu bytes, %zu tokens: %.1f MB/s to encode, %.0f to decode\n", pass, text.size(), ids.size(), text.size() / encoded / 1e6, text.size() / (seconds(begin) - encoded) / 1e6);
    }
}

// ==== files that are read ============================================================================================

TEST_CASE("every kind of file gives the same tokenizer, by its name or its folder's") {
    TempDir dir;
    VocabJson json = tiny_json();
    const std::string text = AWKWARD.back().text + " The king's 12 men.";
    const std::vector<int> ids = tiny().encode(text);

    CHECK(load_tokenizer(dir.write("any.name", TINY_TOKENIZER)).encode(text) == ids);
    for (VocabJson& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    CHECK(load_tokenizer(dir.write("old.json", json.dump())).encode(text) == ids);

    json = tiny_json();
    dir.write("vocab.json", json["model"]["vocab"].dump());
    for (const char* end : {"\n", "\r\n"})
        for (const char* first : {"#version: 0.2", ""}) {
            dir.write("merges.txt", merges_txt(json, *first ? first + std::string(end) : "", end));
            const Tokenizer t = load_tokenizer(dir.path.string());
            CHECK(t.encode(text) == ids);
            CHECK(t.end_of_text() == 0); // by its name alone
        }
    std::vector<std::string> tokens;
    for (int id = 0; id < 600; id++) tokens.push_back(tiny().decode({id}));
    TempDir other;
    other.write("gpt2_tokenizer.bin", bin(2, 600, 0, tokens));
    const Tokenizer t = load_tokenizer(other.path.string());
    CHECK(t.decode(ids) == text);
    CHECK(t.end_of_text() == 0);
    CHECK(t.size() == 600);
    CHECK(!t.can_encode());
    dir.write("tokenizer.json", TINY_TOKENIZER); // it comes first
    dir.write("merges.txt", "no merges");
    CHECK(load_tokenizer(dir.path.string()).encode(text) == ids);
}

TEST_CASE("version 1 of llm.c's file has its end of text at 50256") {
    TempDir dir;
    std::vector<std::string> tokens(50257, "x");
    CHECK(load_tokenizer(dir.write("a", bin(1, 50257, 0, tokens))).end_of_text() == 50256);
    check_refused([&] { load_tokenizer(dir.write("a", bin(1, 1, 0, {"x"}))); }, {"end of text is 50256", "0 to 0"});
}

TEST_CASE("tokens may be added, a special one in letters that spell no bytes; a token without merges is only decoded") {
    VocabJson json = tiny_json();
    json["added_tokens"].push_back({{"id", 600}, {"content", "<|pad \u2603|>"}, {"special", true}});
    json["model"].erase("type"), json["model"]["dropout"] = 0.0;
    Tokenizer t = tokenizer_of_json("added", json.dump());
    CHECK(t.size() == 601);
    CHECK(t.decode({600}) == "<|pad \u2603|>");
    CHECK(t.decode(t.encode("<|pad \u2603|>")) == "<|pad \u2603|>");
    CHECK(t.encode("<|pad \u2603|>").size() > 1);
    json["added_tokens"] = VocabJson::array(), json["model"]["merges"] = VocabJson::array();
    t = tokenizer_of_json("bytes", json.dump());
    CHECK(t.encode("the").size() == 3);
    CHECK(t.end_of_text() == 0);
    json.erase("added_tokens");
    CHECK(tokenizer_of_json("bytes", json.dump()).size() == 600);
    // One whose letters spell another token's bytes does not take its place.
    json["added_tokens"] = {{{"id", 600}, {"content", " "}, {"special", true}}};
    CHECK(tokenizer_of_json("space", json.dump()).encode(" ") == std::vector<int>{json["model"]["vocab"]["\u0120"].get<int>()});
}

// ==== files that are refused =========================================================================================

TEST_CASE("a missing file, an empty folder and a folder with half of a pair are refused by name") {
    TempDir dir;
    const std::string folder = dir.path.string();
    check_refused([&] { load_tokenizer(folder + "/none"); }, {folder + "/none", "No such file"});
    check_refused([&] { load_tokenizer(folder); }, {folder, "no tokenizer.json", "merges.txt", "gpt2_tokenizer.bin"});
    dir.write("vocab.json", tiny_json()["model"]["vocab"].dump());
    check_refused([&] { load_tokenizer(folder); }, {folder + "/merges.txt", "No such file"});
    check_refused([&] { load_tokenizer(folder + "/vocab.json"); }, {"vocab.json", "model is not there"});
    dir.write("merges.txt", "");
    check_refused([&] { load_tokenizer(folder); }, {"merges.txt", "is empty"});
}

TEST_CASE("what is no JSON, or JSON of another shape, is refused by its field") {
    for (const char* text : {"", "{", "{\"model\": {}", "text\nof two lines", "\xff\xfe", "[1,]", "nul", "{\"model\": \"\xff\"}", "{} {}"})
        check_refused([&] { tokenizer_of_json("some.json", text); }, {"some.json: is not JSON"});
    check_refused([&] { tokenizer_of_json("some.json", std::string((32 << 20) + 1, ' ')); }, {"33554433 bytes; expected at most 33554432"});
    check_refused([&] { tokenizer_of_json("some.json", std::string(5000000, '[')); }, {"is not JSON"});
    for (const char* text : {"[]", "3", "null", "\"model\"", "{}"})
        check_refused([&] { tokenizer_of_json("some.json", text); }, {"some.json: model is not there; expected object"});
    check_refused([&] { tokenizer_of_json("some.json", "{\"model\": [1]}"); }, {"model is array; expected object"});
    check_patch_refused(R"({"model": {"vocab": null}})", {"model.vocab is not there"});
    check_patch_refused(R"({"model": {"vocab": ["a"]}})", {"model.vocab is array; expected object"});
    check_patch_refused(R"({"model": {"merges": null}})", {"model.merges is not there"});
    check_patch_refused(R"({"model": {"merges": {"a": "b"}}})", {"model.merges is object; expected array"});
    check_patch_refused(R"({"added_tokens": {"a": 1}})", {"added_tokens is object; expected array"});
}

TEST_CASE("a tokenizer that works otherwise than GPT-2's is refused by its setting") {
    check_patch_refused(R"({"model": {"type": "WordPiece"}})", {"model/type is \"WordPiece\"; expected \"BPE\""});
    check_patch_refused(R"({"normalizer": {"type": "NFC"}})", {"normalizer is {\"type\":\"NFC\"}; expected null"});
    check_patch_refused(R"({"pre_tokenizer": null})", {"pre_tokenizer/type is null; expected \"ByteLevel\""});
    check_patch_refused(R"({"pre_tokenizer": {"type": "Sequence"}})", {"pre_tokenizer/type is \"Sequence\""});
    check_patch_refused(R"({"pre_tokenizer": {"add_prefix_space": true}})", {"add_prefix_space is true; expected false"});
    check_patch_refused(R"({"pre_tokenizer": {"use_regex": false}})", {"use_regex is false; expected true"});
    check_patch_refused(R"({"model": {"dropout": 0.1}})", {"model/dropout is 0.1"});
    check_patch_refused(R"({"model": {"end_of_word_suffix": "</w>"}})", {"end_of_word_suffix is \"</w>\""});
    check_patch_refused(R"({"model": {"continuing_subword_prefix": "##"}})", {"continuing_subword_prefix"});
    check_patch_refused(R"({"model": {"byte_fallback": true}})", {"byte_fallback is true"});
    check_patch_refused(R"({"model": {"ignore_merges": true}})", {"ignore_merges is true"});
}

TEST_CASE("a vocabulary with ids that are none, twice or missing, or without all bytes, is refused by the token") {
    check_patch_refused(R"({"model": {"vocab": {"he": -1}}})", {"vocab: the id of \"he\" is -1; expected 0 to 599"});
    check_patch_refused(R"({"model": {"vocab": {"he": 600}}})", {"is 600; expected 0 to 599"}); // 600 tokens: a gap
    check_patch_refused(R"({"model": {"vocab": {"he": 18446744073709551615}}})", {"is 18446744073709551615"});
    check_patch_refused(R"({"model": {"vocab": {"he": 4294967297}}})", {"is 4294967297"});
    check_patch_refused(R"({"model": {"vocab": {"he": 1e99}}})", {"is 1e+99"});
    check_patch_refused(R"({"model": {"vocab": {"he": 7.5}}})", {"is 7.5"});
    check_patch_refused(R"({"model": {"vocab": {"he": "7"}}})", {"the id of \"he\" is string"});
    check_patch_refused(R"({"model": {"vocab": {"he": [7]}}})", {"is array"});
    check_patch_refused(R"({"model": {"vocab": {"he": 7}}})", {"is 7; so is another token's"});
    check_patch_refused(R"({"model": {"vocab": {"": 600}}})", {"the id of \"\" is 600; expected a token of one letter or more"});
    check_patch_refused(R"({"model": {"vocab": {"a": null, "new": 65}}})", {"vocab has no a, which is byte 97"});
    check_patch_refused(R"({"model": {"vocab": {"\u0120": null}}})", {"vocab"});
    check_refused([] {
        tokenizer_of_json("some.json", R"({"model": {"vocab": {}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})");
    },
                  {"vocab has no", "byte 0", "all 256"});
    const std::string line_break = R"({"model": {"vocab": {"a\nb\u0000c": -1}}})"; // is quoted
    check_patch_refused(line_break.c_str(), {"\"a\\nb\\u0000c\""});
    check_patch_refused((R"({"model": {"vocab": {")" + std::string(100000, 'x') + "\": -1}}}").c_str(), {"xxx..."});
}

TEST_CASE("a merge that is none, twice, or of tokens that are not there is refused by its place") {
    const std::pair<const char*, const char*> bad[] = {
        {"7", "is number; expected \"a b\""},
        {"null", "is null"},
        {"\"ab\"", "is \"ab\"; expected"},
        {"\"a b c\"", "is \"a b c\""},
        {"\"a  b\"", "is \"a  b\""},
        {"\"a b \"", "is \"a b \""},
        {"[\"a\"]", "is array"},
        {"[\"a\", \"b\", \"c\"]", "is array"},
        {"[\"a\", 1]", "is array"},
        {"[]", "is array"},
        {"\"\"", "is \"\""},
        {"\" \"", "has \"\", which is not"},
        {"\" a\"", "has \"\", which is not"},
        {"[\"\", \"a\"]", "has \"\", which is not"},
        {"[\"q\", \"!?!\"]", "has \"!?!\", which is not in the vocabulary"},
        {"\"q q\"", "has \"qq\", which is not"},
        {"[\"a b\", \"c\"]", "has \"a b\", which is not"},
    };
    for (auto& [merge, message] : bad) {
        VocabJson json = tiny_json();
        json["model"]["merges"][3] = VocabJson::parse(merge);
        check_refused([&] { tokenizer_of_json("some.json", json.dump()); }, {"some.json: merges[3] ", message});
    }
    VocabJson json = tiny_json();
    json["model"]["merges"].push_back(json["model"]["merges"][0]);
    check_refused([&] { tokenizer_of_json("some.json", json.dump()); }, {"merges[343]", "as an earlier one is"});

    json = tiny_json();
    const std::string vocab = json["model"]["vocab"].dump();
    for (const char* line : {"\n", "ab\n", "#version: 0.2\n", "a b c\n", "\xff b\n", " a\n"})
        check_refused([&] { tokenizer_of_pair("v.json", vocab, "m.txt", merges_txt(json) + line); }, {"m.txt: merges[343]"});
    check_refused([&] { tokenizer_of_pair("v.json", vocab, "m.txt", std::string(2000000, '\n')); }, {"v.json: 600 tokens, 1048577 merges; expected at most"});
    check_refused([&] { tokenizer_of_pair("v.json", "[]", "m.txt", ""); }, {"v.json: vocab is array; expected object"});
    check_refused([&] { tokenizer_of_pair("v.json", "{", "m.txt", ""); }, {"v.json: is not JSON"});
}

TEST_CASE("added tokens that are none, contradict the vocabulary or would be found in text are refused") {
    const std::pair<const char*, const char*> bad[] = {
        {"7", "added_tokens[1].content is not there"},
        {"{}", "added_tokens[1].content is not there; expected string"},
        {R"({"content": 7})", "content is number; expected string"},
        {R"({"content": "x!"})", "added_tokens[1].id is not there; expected number"},
        {R"({"content": "x!", "id": "600"})", "id is string; expected number"},
        {R"({"content": "x!", "id": 601, "special": true})", "is 601; expected 0 to 600"},
        {R"({"content": "x!", "id": 5, "special": true})", "is 5; so is another token's"},
        {R"({"content": "<|endoftext|>", "id": 5, "special": true})", "is 5; it is 0 elsewhere"},
        {R"({"content": "", "id": 600, "special": true})", "one letter or more"},
        {R"({"content": "x!", "id": 600, "special": false})", "special is not true"},
        {R"({"content": "x!", "id": 600})", "special is not true"},
        {R"({"content": "x!", "id": 600, "special": 1})", "special is not true"},
        {R"({"content": "x!", "id": 600, "special": true, "lstrip": true})", "lstrip is not false"},
    };
    for (auto& [token, message] : bad) {
        VocabJson json = tiny_json();
        json["added_tokens"].push_back(VocabJson::parse(token));
        check_refused([&] { tokenizer_of_json("some.json", json.dump()); }, {"some.json: added_tokens[1]", message});
    }
    VocabJson json = tiny_json();
    for (int i = 0; i < 2; i++) json["added_tokens"].push_back({{"id", 600}, {"content", "x!"}, {"special", true}});
    check_refused([&] { tokenizer_of_json("some.json", json.dump()); }, {"added_tokens has a token twice"});
}

TEST_CASE("llm.c's file is refused when it is cut off, too long, of another version, or counts what cannot be") {
    TempDir dir;
    const std::string whole = bin(2, 3, 2, {"a", "bc", "<|endoftext|>"});
    CHECK(load_tokenizer(dir.write("a.bin", whole)).decode({1, 0, 2}) == "bca<|endoftext|>");
    auto refused = [&](const std::string& bytes, std::vector<std::string> parts) {
        const std::string file = dir.write("b.bin", bytes);
        parts.push_back(file + ": ");
        check_refused([&] { load_tokenizer(file); }, parts);
    };
    refused(whole.substr(0, 4), {"cut off in its header: 4 bytes of 1024"});
    refused(whole.substr(0, 1023), {"1023 bytes"});
    refused(whole.substr(0, 1024), {"token 0 of 3 is cut off"});
    refused(whole.substr(0, 1025), {"token 0 of 3 is cut off"});
    refused(whole.substr(0, whole.size() - 1), {"token 2 of 3 is cut off"});
    refused(whole + "x", {"has 1044 bytes; expected 1043", "3 tokens"});
    refused(bin(3, 3, 2, {"a", "b", "c"}), {"version 3; expected 1 or 2"});
    refused(bin(2, 0, 0, {}), {"counts 0 tokens"});
    refused(bin(2, -1, 0, {}), {"counts -1 tokens"});
    refused(bin(2, 2147483647, 0, {"a"}), {"counts 2147483647 tokens"});
    refused(bin(2, 1, 1, {"a"}), {"end of text is 1; expected 0 to 0"});
    refused(bin(2, 1, -1, {"a"}), {"end of text is -1"});
    refused(bin(2, 2, 0, {"a", ""}), {"token 1 of 2 is empty"});
}
