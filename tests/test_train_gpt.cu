// test_train_gpt.cu -- the program from outside: what it refuses and how, what it prints, what it leaves in its folder.
// The program is the one that FEWBITS_PROGRAM names, or ./train_gpt. Models are tiny: a run is some milliseconds.
#include "config.h"
#include "rng.h"
#include "safetensors.h"
#include "temp_dir.h"
#include "tiny_tokenizer.h"
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <csignal>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Args = std::vector<std::string>;

// A folder of our own, gone with the test. Its name has what shells and parsers stumble over.
struct Folder {
    fs::path path;
    Folder() {
        std::string pattern = (fs::temp_directory_path() / "fewbits test '%s' \xC3\xBC_XXXXXX").string();
        REQUIRE(mkdtemp(&pattern[0]) != nullptr);
        path = pattern;
    }
    ~Folder() { fs::remove_all(path); }
    std::string operator/(const std::string& name) const { return (path / name).string(); }
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path / name, std::ios::binary) << bytes;
        return *this / name;
    }
};

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::stringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

// ==== running it =====================================================================================================

std::string quoted(const std::string& word) {
    std::string text = "'";
    for (char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
    return text + "'";
}

struct Outcome {
    int status; // 128 + n for signal n, as a shell has it
    std::string out, err;
};

Outcome run(const Args& args, int threads = 1) {
    Folder streams;
    const char* program = getenv("FEWBITS_PROGRAM");
    std::string command = format("OMP_NUM_THREADS=%d OMP_WAIT_POLICY=passive ", threads) + quoted(program ? program : "./train_gpt");
    for (const std::string& a : args) command += " " + quoted(a);
    command += " <" + quoted("/dev/null") + " >" + quoted(streams / "out") + " 2>" + quoted(streams / "err");
    const int status = std::system(command.c_str());
    REQUIRE_MESSAGE((!WIFEXITED(status) || (WEXITSTATUS(status) != 126 && WEXITSTATUS(status) != 127)), "cannot run: " << command);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(streams / "out"), read(streams / "err")};
}

Args operator+(Args a, const Args& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
const Args TINY = {"--layers", "1", "--heads", "2", "--channels", "16", "--context", "16"};
const Args BRIEF = {"--batch", "2", "--eval-batches", "1", "--tokens", "4"};
const Args QUIET = {"--batch", "2", "--eval-batches", "0", "--tokens", "0"}; // nothing but the steps

// 3,000 bytes of which no two stretches are alike.
std::string some_text() {
    std::string text;
    const Rng rng(1, Stream::test);
    for (int i = 0; i < 3000; i++) text += (char)(rng.bits(i) % 5 ? 'a' + rng.bits(i) / 5 % 26 : ' ');
    return text;
}

// A tiny model trained on a text; the folder of the run is `out` within ours.
struct Run : Folder {
    Outcome outcome;
    std::vector<Json> log, steps, evaluations;
    Json cost;
    explicit Run(const Args& args, int threads = 1) {
        outcome = run(TINY + Args{"--data", write("text", some_text()), "--out", *this / "out"} + args, threads);
        for (const std::string& line : lines_of(read(*this / "out/log.jsonl"))) {
            Json parsed = Json::parse(line);
            if (parsed.contains("cost")) {
                cost = parsed["cost"];
                continue;
            }
            log.push_back(parsed);
            if (log.back().contains("val_loss"))
                evaluations.push_back(log.back());
            else
                steps.push_back(log.back());
        }
    }
    std::vector<double> numbers(const char* key) const {
        std::vector<double> x;
        for (const Json& line : steps) x.push_back(line.at(key).is_null() ? NAN : (double)line.at(key));
        return x;
    }
    // The log without what a clock had a say in.
    std::string timeless() const {
        std::string text;
        for (Json line : log) line.erase("tokens_per_second"), line.erase("seconds"), text += line.dump() + "\n";
        return text;
    }
    std::string sample() const { // what is printed between the last evaluation and the last line
        const std::string& text = outcome.out;
        const size_t end = text.rfind("\n\n"), begin = text.find("\n\n", text.rfind("validation loss"));
        return begin < end ? text.substr(begin + 2, end - begin - 2) : "";
    }
};
#define REQUIRE_GOOD(r) REQUIRE_MESSAGE(((r).outcome.status == 0 && (r).outcome.err == ""), (r).outcome.err)

// One line on stderr, which has all of these parts.
void check_line(const Outcome& o, const Args& parts) {
    CHECK(o.err.substr(0, 11) == "train_gpt: ");
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK(o.err.size() < 500);
    for (const std::string& part : parts) CHECK_MESSAGE(contains(o.err, part), part << " in: " << o.err);
}
// Refused as the user's mistake: status 2, such a line, and nothing written.
void check_refused(const Args& args, const Args& parts) {
    Folder folder;
    const bool own_out = std::any_of(args.begin(), args.end(), [](const std::string& a) { return a == "--out" || a == "--resume"; });
    const Outcome o = run(own_out ? args : Args{"--out", folder / "out"} + args);
    CAPTURE(o.err);
    CHECK(o.status == 2);
    check_line(o, parts);
    CHECK(!fs::exists(folder / "out"));
}

// The same command given to another program: of another machine.
struct Instead {
    std::string before;
    explicit Instead(const char* program) : before(getenv("FEWBITS_PROGRAM") ? getenv("FEWBITS_PROGRAM") : "./train_gpt") { setenv("FEWBITS_PROGRAM", program, 1); }
    ~Instead() { setenv("FEWBITS_PROGRAM", before.c_str(), 1); }
};

// ==== what it says about itself ======================================================================================

TEST_CASE("--help names every option with its default, on stdout, and does nothing else") {
    const Outcome o = run({"--help"});
    CHECK(o.status == 0);
    CHECK(o.err == "");
    Config c;
    each_option(c, [&](const char* name, auto& field, const char* what, auto...) {
        CAPTURE(name);
        CHECK(contains(o.out, std::string("  ") + name + " "));
        CHECK(contains(o.out, what));
        std::stringstream text;
        text << field;
        bool found = text.str().empty() || std::is_same_v<decltype(field), bool&>; // these have none to name
        for (const std::string& line : lines_of(o.out))
            found |= contains(line, std::string("  ") + name + " ") && contains(line + " ", "=" + text.str() + " ");
        CHECK_MESSAGE(found, "default " << text.str());
    });
    CHECK(run({"-h"}).out == o.out);
}

TEST_CASE("--formats prints the facts of the four narrow formats, as the standards have them") {
    const Outcome o = run({"--formats"});
    CHECK(o.status == 0);
    CHECK(o.err == "");
    const std::vector<Args> rows = {
        {"FP16", "16", "1/5/10", "15", "65504", "2^-14", "2^-24", "2^-10", "7C00", "7C01-7FFF", "2^-25", "65520"},
        {"BF16", "16", "1/8/7", "127", "3.38953139e+38", "2^-126", "2^-133", "2^-7", "7F80", "7F81-7FFF", "2^-134", "3.39617753e+38"},
        {"E4M3", "8", "1/4/3", "7", "448", "2^-6", "2^-9", "0.125", "none", "7F", "2^-10", "464.0000305"},
        {"E5M2", "8", "1/5/2", "15", "57344", "2^-14", "2^-16", "0.25", "7C", "7D-7F", "2^-17", "61440"},
    };
    for (const Args& row : rows) {
        bool found = false;
        for (const std::string& line : lines_of(o.out)) {
            std::stringstream stream(line);
            Args words;
            for (std::string word; stream >> word;) words.push_back(word);
            found |= words == row;
        }
        CHECK_MESSAGE(found, row[0] << " in\n"
                                    << o.out);
    }
}

TEST_CASE("--machine prints one line: what the program runs on") {
    const Outcome o = run({"--machine"});
    CHECK(o.status == 0);
    CHECK(o.err == "");
    CHECK(lines_of(o.out).size() == 1);
    CHECK(o.out.substr(0, 9) == "machine: ");
}

// ==== options that are refused =======================================================================================

TEST_CASE("an unknown option, a stray word or a missing value is refused by name") {
    check_refused({"--bogus"}, {"--bogus", "--help"});
    check_refused({"train"}, {"train", "--help"});
    check_refused({"--steps"}, {"--steps", "required INT missing", "--help"});
    check_refused({"--steps", "1", "--steps", "2"}, {"--steps", "--help"});
}

TEST_CASE("each numeric option refuses what it cannot be, and says what it can") { // test_config.cu tries many more values
    Config c;
    each_option(c, [&](const char* name, auto&, const char*, auto... bounds) {
        if constexpr (sizeof...(bounds) == 2) {
            const std::pair<double, double> range(bounds...);
            const std::string expected = format("from %.10g to %.10g", range.first, range.second);
            for (const std::string& bad : {format("%.0f", range.first - 1), std::string("nan"), std::string("1e300")}) check_refused({name, bad}, {name, "'" + bad + "'", expected});
        }
    });
    check_refused({"--steps", ""}, {"--steps: ''", "whole number"});
    check_refused({"--lr", "fast"}, {"--lr: 'fast'", "number"});
    check_refused({"--layers", "0"}, {"--layers: '0'", "from 1"});
    check_refused({"--layers", "010"}, {"--layers: '010'"});
}

TEST_CASE("a recipe, a loss scale or a pair of options that make no sense are refused before anything is written") {
    check_refused({"--recipe", "int8"}, {"--recipe int8", "fp32, bf16, fp16 or fp8"});
    check_refused({"--channels", "10", "--heads", "4"}, {"--channels 10", "--heads 4", "multiple"});
    check_refused({"--lr", "1e-3", "--min-lr", "1e-2"}, {"--min-lr 0.01", "--lr 0.001"});
    check_refused({"--min-lr", "-0.5"}, {"--min-lr -0.5 is negative", "-1, or 0 and above"});
    check_refused({"--out", ""}, {"--out", "folder"});
    Folder folder;
    const std::string text = folder.write("text", some_text());
    for (const char* bad : {"abc", "0", "-1", "nan", "inf", "", "1e39"})
        check_refused(TINY + Args{"--data", text, "--loss-scale", bad}, {std::string("--loss-scale ") + bad, "none, dynamic, auto or a positive number"});
    const std::string tokens = folder.write("nano.bin", std::string(2000, '\0'));
    check_refused(TINY + Args{"--data", tokens, "--vocab", "300", "--sample", "Once"}, {"--sample Once", "300 kinds of tokens"});
    check_refused(TINY + Args{"--data", text, "--vocab", "123", "--sample", "caf\xC3\xA9"}, {"--sample holds byte 195", "vocabulary of 123"});
}

TEST_CASE("a model too large for the memory is refused in one line that names the bytes, before any is allocated") {
    Folder folder;
    const std::string text = folder.write("text", some_text());
    const Args few = {"--data", text, "--context", "16", "--steps", "0"};
    check_refused(few + Args{"--channels", "65536", "--layers", "1000"}, {"--recipe bf16 needs 9", "bytes", "--layers", "--channels", "--batch"});
    check_refused(few + Args{"--vocab", "1073741824"}, {"bytes"});
    check_refused({"--data", text, "--batch", "1048576", "--context", "1048576"}, {"--batch 1048576", "--context 1048576", "2147483647"});
    check_refused(few + Args{"--channels", "65536", "--layers", "1000", "--compare"}, {"--recipe fp32 needs", "bytes"});
}

// ==== data that is refused ===========================================================================================

std::string little_endian(uint32_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; i++) text += (char)(value >> 8 * i & 255);
    return text;
}
std::string uint16s(int n, int modulus) {
    std::string text;
    for (int i = 0; i < n; i++) text += little_endian(i * 7919 % modulus, 2);
    return text;
}
std::string shard(int n, int modulus, int magic = 20240520) {
    std::string header = little_endian(magic, 4) + little_endian(1, 4) + little_endian(n, 4);
    header.resize(1024, '\0');
    return header + uint16s(n, modulus);
}

TEST_CASE("data that cannot be read is refused by its name") { // test_data.cu spoils files in more ways
    Folder f;
    const std::string text = f.write("text", some_text());
    auto refused = [&](const Args& args, const Args& parts) { check_refused(TINY + args, parts); };
    refused({"--data", f / "missing"}, {f / "missing", "No such file"});
    refused({"--data", f.write("empty", "")}, {f / "empty", "is empty", "expected text or tokens"});
    refused({"--data", f.path.string()}, {f.path.string(), "is a directory"});
    refused({"--data", f.write("cut.bin", shard(500, 256).substr(0, 1500))}, {f / "cut.bin", "1500 bytes", "expected 2024"});
    refused({"--data", f.write("head.bin", shard(500, 256).substr(0, 600))}, {f / "head.bin", "600 bytes"});
    refused({"--data", f.write("model.bin", shard(500, 256, 20240326))}, {f / "model.bin", "model", "20240326", "expected"});
    refused({"--data", f.write("high.bin", shard(500, 300)), "--vocab", "256"}, {f / "high.bin", "outside the vocabulary of 256"});
    refused({"--data", f.write("nano.bin", uint16s(500, 65))}, {f / "nano.bin", "--vocab"});
    refused({"--data", f.write("odd.bin", uint16s(500, 65) + "x"), "--vocab", "65"}, {f / "odd.bin", "1001 bytes", "even"});
    refused({"--val-data", text}, {"--val-data " + text, "--data"});
    refused({"--data", text, "--val-data", f.write("shard.bin", shard(500, 256))}, {f / "shard.bin", "shard", "expected text"});
    refused({"--data", f.write("short", "too short")}, {"--context 16", "17 tokens", "8 for training", "1 for validation"});
    if (geteuid() != 0) { // root may read everything
        fs::permissions(f.write("secret", "text"), fs::perms::none);
        refused({"--data", f / "secret"}, {f / "secret", "Permission denied"});
    }
}

TEST_CASE("a name of several lines is still refused in one") { check_refused(TINY + Args{"--data", "no\nsuch\nfile"}, {"no such file"}); }

TEST_CASE("text, shards and nanoGPT files train, from paths with spaces, quotes and other alphabets") {
    Folder f;
    const Args few = TINY + BRIEF + Args{"--steps", "1", "--out", f / "\xD0\xB2\xD1\x8B\xD1\x85\xD0\xBE\xD0\xB4 1"};
    const std::string text = f.write("t\xC3\xA9xt \"1\" $HOME", some_text()), tokens = f.write("a shard.bin", shard(900, 300));
    for (const Args& data : {Args{"--data", text}, Args{"--data", text, "--val-data", text}, Args{"--data", tokens},
                             Args{"--data", tokens, "--val-data", tokens, "--vocab", "400"},
                             Args{"--data", f.write("nano gpt.bin", uint16s(900, 65)), "--vocab", "65"}}) {
        const Outcome o = run(few + data);
        CHECK_MESSAGE(o.status == 0, o.err);
        CHECK(contains(o.out, data[1]));
        CHECK(fs::exists(f / "\xD0\xB2\xD1\x8B\xD1\x85\xD0\xBE\xD0\xB4 1/log.jsonl"));
    }
}

TEST_CASE("bytes that are no UTF-8 pass through a name: config.json stays JSON") {
    Folder f;
    const std::string out = f / "\xFF";
    const Outcome o = run(TINY + BRIEF + Args{"--steps", "1", "--data", f.write("text", some_text()), "--out", out});
    if (!fs::exists(out)) return; // a file system that refuses such names
    CHECK_MESSAGE(o.status == 0, o.err);
    CHECK(Json::parse(read(out + "/config.json"))["steps"] == 1);
}

// ==== folders that cannot be written =================================================================================

TEST_CASE("a folder that cannot be made or written to is refused, with the reason") {
    Folder f;
    const Args few = TINY + BRIEF + Args{"--steps", "1", "--data", f.write("text", some_text())};
    const std::string file = f.write("file", "mine");
    check_refused(few + Args{"--out", file}, {"--out " + file, "cannot be made: Not a directory"});
    check_refused(few + Args{"--out", file + "/deeper"}, {"--out " + file, "cannot be made: Not a directory"});
    CHECK(read(file) == "mine");
    fs::create_directories(f / "taken/log.jsonl");
    check_refused(few + Args{"--out", f / "taken"}, {"log.jsonl", "Is a directory"});
    CHECK(!fs::exists(f / "taken/config.json"));
    if (geteuid() != 0) {
        fs::create_directory(f / "locked");
        fs::permissions(f / "locked", fs::perms::owner_read | fs::perms::owner_exec);
        check_refused(few + Args{"--out", f / "locked/out"}, {"--out", "locked/out", "Permission denied"});
    }
    fs::create_directories(f / "picture/loss.png");
    const Outcome o = run(few + Args{"--out", f / "picture"});
    CHECK(o.status == 1); // a run that had to stop, not a mistake of the user's
    check_line(o, {"loss.png"});
    CHECK(!fs::exists(f / "picture/loss.png.part"));
}

TEST_CASE("a refused run leaves the files of the run before as they were") {
    Run r(BRIEF + Args{"--steps", "2"});
    REQUIRE_GOOD(r);
    const std::string out = r / "out";
    const Args names = {"log.jsonl", "config.json", "loss.png"};
    Args before, after;
    for (auto& name : names) before.push_back(read(out + "/" + name));
    const Args few = TINY + Args{"--out", out};
    check_refused(few + Args{"--data", r / "missing"}, {"missing"});
    check_refused(few + Args{"--data", r / "text", "--loss-scale", "x"}, {"--loss-scale x"});
    check_refused(few + Args{"--steps", "-1"}, {"--steps"});
    check_refused({"--channels", "65536", "--layers", "1000", "--data", r / "text", "--out", out}, {"bytes"});
    for (auto& name : names) after.push_back(read(out + "/" + name));
    CHECK(before == after);
}

TEST_CASE("a full disk stops the run with status 1 and says so") {
    if (!fs::exists("/dev/full")) return; // Linux has it
    for (const char* name : {"log.jsonl", "decisions.jsonl", "shadow.jsonl"}) {
        Folder f;
        fs::create_directory(f / "out");
        fs::create_symlink("/dev/full", f / (std::string("out/") + name));
        const Outcome o = run(TINY + BRIEF + Args{"--steps", "2", "--shadow-every", "1", "--data", f.write("text", some_text()), "--out", f / "out"});
        CHECK(o.status == 1);
        check_line(o, {f / "out", name, "cannot be written: No space left on device"});
        CHECK(!fs::exists(f / "out/loss.png"));
    }
}

// ==== a run and what it leaves =======================================================================================

TEST_CASE("every recipe trains: a log of one object per line, the steps in order, a picture, and the options again") {
    for (const Recipe& recipe : RECIPES) {
        CAPTURE(recipe.name);
        Run r(BRIEF + Args{"--recipe", recipe.name, "--steps", "5", "--eval-every", "2", "--seed", "4294967295", "--lr", "0.00123"});
        REQUIRE_GOOD(r);
        std::vector<int> order, expected = {0, 1, 2, 2, 3, 4, 4, 5, 5}; // an evaluation before, at every second step, and at the end
        for (const Json& line : r.log) order.push_back(line["step"]);
        CHECK(order == expected);
        REQUIRE(r.steps.size() == 5);
        REQUIRE(r.evaluations.size() == 4);
        Args keys = {"step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens_per_second", "seconds"};
        if (is_fp8(recipe.input)) keys.insert(keys.end(), {"saturated", "decision"});
        double clock = 0;
        for (const Json& line : r.steps) {
            Args found;
            for (auto& item : line.items()) found.push_back(item.key());
            CHECK(found == keys);
            CHECK(std::fabs((double)line["loss"] - std::log(256.0)) < 0.5); // a model that knows nothing yet
            CHECK((double)line["grad_norm"] > 0);
            CHECK(line["loss_scale"] == (recipe.loss_scaling ? 65536 : 1));
            CHECK(line["skipped"] == false);
            CHECK((double)line["tokens_per_second"] > 0);
            CHECK((double)line["seconds"] >= clock);
            clock = line["seconds"];
        }
        for (const Json& line : r.evaluations) CHECK(line.size() == 2);

        CHECK(read(r / "out/loss.png").substr(0, 16) == std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16));
        CHECK(std::distance(fs::directory_iterator(r / "out"), fs::directory_iterator()) == 8); // with the model, decisions.jsonl, shadow.jsonl, report.html and heat.png, and nothing else

        const std::vector<std::string> looks = lines_of(read(r / "out/shadow.jsonl"));
        REQUIRE(looks.size() == 1); // step 1; the next would be at 17
        const Json seen = Json::parse(looks[0]);
        CHECK(seen["step"] == 1);
        CHECK(seen["tensors"].size() == 12); // of four Linears the input, the gradient and the weight
        for (const Json& t : seen["tensors"]) {
            int64_t n = t["zeros"];
            for (const Json& count : t["counts"]) n += (int64_t)count;
            CHECK(n % 256 == 0); // 32 tokens of 16, 48 or 64 channels, or a weight of 16 x 16 and more
            CHECK((int)t["snr"] > 2000);
        }
        CHECK((double)r.cost["shadow_seconds"] < (double)r.cost["seconds"]);
        CHECK((size_t)r.cost["shadow_bytes"] > 0);

        const Json config = Json::parse(read(r / "out/config.json"));
        Config c;
        each_option(c, [&](const char* name, auto&, const char*, auto...) { CHECK_MESSAGE(config.contains(name + 2), name); });
        CHECK(config["recipe"] == recipe.name);
        CHECK(config["seed"] == 4294967295u);
        CHECK(config["lr"] == 0.00123);
        CHECK(config["heads"] == 2);
        CHECK(config["compare"] == false);
        CHECK(config["out"] == r / "out");
    }
}

TEST_CASE("the learning rate in the log is that of config.h, with --min-lr and without") {
    const Args few = QUIET + Args{"--recipe", "fp32", "--steps", "8", "--warmup", "3", "--lr", "0.01"};
    Run given(few + Args{"--min-lr", "0.001"}), without(few);
    REQUIRE_GOOD(given);
    REQUIRE_GOOD(without);
    Config c;
    c.steps = 8, c.warmup = 3, c.lr = 0.01;
    for (int t = 0; t < 8; t++) CHECK((double)without.steps.at(t)["lr"] == (double)learning_rate(c, t));
    CHECK(Json::parse(read(without / "out/config.json"))["min-lr"] == -1);
    c.min_lr = 0.001;
    for (int t = 0; t < 8; t++) CHECK((double)given.steps.at(t)["lr"] == (double)learning_rate(c, t));
}

TEST_CASE("the same seed gives the same losses, norms and sample, bit for bit; another seed gives others") {
    for (const Recipe& recipe : RECIPES) {
        CAPTURE(recipe.name);
        const Args few = {"--recipe", recipe.name, "--steps", "4", "--batch", "2", "--eval-batches", "1", "--tokens", "12"};
        Run a(few), b(few), c(few + Args{"--seed", "2"});
        REQUIRE_GOOD(a);
        CHECK(a.log.size() == 6);
        CHECK(a.timeless() == b.timeless());
        CHECK(a.sample().size() >= 12);
        CHECK(a.sample() == b.sample());
        for (int i = 0; i < 4; i++) CHECK(a.numbers("loss").at(i) != c.numbers("loss").at(i));
        CHECK(a.sample() != c.sample());
    }
}

TEST_CASE("one thread and two give the same log, bit for bit") {
    for (const Recipe& recipe : RECIPES) {
        CAPTURE(recipe.name);
        const Args few = BRIEF + Args{"--recipe", recipe.name, "--steps", "3"};
        Run one(few, 1), two(few, 2);
        REQUIRE_GOOD(one);
        CHECK(one.timeless() == two.timeless());
        CHECK(one.sample() == two.sample());
    }
}

// With a learning rate of 0 the model stays as it was initialised, and a step's loss says which batch it saw: these
// losses lie about 0.01 apart. A logit here is a sum below 1/2 in magnitude of some products of numbers that were
// rounded a few times, so a recipe may shift a loss, a mean of differences of logits, by 2 u at the very most, with u
// half the spacing at 1 of the stored format. (FP8 products only reach the logits through branches that are 30 times
// smaller than the residual stream, which FP8 leaves in BF16.)
TEST_CASE("every recipe starts from the same weights and sees the same data") {
    const Args few = QUIET + Args{"--steps", "5", "--lr", "0", "--min-lr", "0"};
    Run reference(few + Args{"--recipe", "fp32"});
    REQUIRE_GOOD(reference);
    const std::vector<double> want = reference.numbers("loss");
    for (const Recipe& recipe : RECIPES) {
        CAPTURE(recipe.name);
        Run r(few + Args{"--recipe", recipe.name});
        REQUIRE_GOOD(r);
        const double u = recipe.stored == FP32 ? 0 : recipe.stored == FP16 ? 0x1p-11
                                                                           : 0x1p-8;
        for (int i = 0; i < 5; i++) CHECK(std::fabs(r.numbers("loss").at(i) - want.at(i)) <= 2 * u);
    }
    for (int i = 0; i < 4; i++) CHECK(std::fabs(want[i + 1] - want.at(i)) > 2 * 0x1p-11);
}

// Row n = (step*accumulate + micro)*B + r of the data: two micro-batches of 2 are the rows of one batch of 4. Only the
// order of FP32 sums differs: some roundings of 6e-8 each, of terms that share their sign for the loss.
TEST_CASE("two micro-batches of 2 are one batch of 4, to rounding") {
    const Args few = {"--recipe", "fp32", "--steps", "5", "--eval-batches", "0", "--tokens", "0"};
    Run a(few + Args{"--batch", "2", "--accumulate", "2"}), b(few + Args{"--batch", "4"}), c(few + Args{"--batch", "2"});
    REQUIRE_GOOD(a);
    REQUIRE_GOOD(b);
    for (const char* key : {"loss", "grad_norm"})
        for (int i = 0; i < 5; i++) {
            const double x = a.numbers(key).at(i), y = b.numbers(key).at(i);
            CHECK_MESSAGE(std::fabs(x - y) <= 1e-6 * y, format("%s of step %d: %.12g and %.12g", key, i + 1, x, y));
            CHECK(std::fabs(c.numbers(key).at(i) - y) > 1e-5 * y); // half of the rows is something else
        }
}

// ==== the loss scale =================================================================================================

TEST_CASE("in FP32 a power of two as loss scale changes no bit: scaling and unscaling are exact") {
    const Args few = QUIET + Args{"--recipe", "fp32", "--steps", "20", "--loss-scale-window", "2"};
    Run none(few + Args{"--loss-scale", "none"}), fixed(few + Args{"--loss-scale", "1024"}), dynamic(few + Args{"--loss-scale", "dynamic"});
    REQUIRE_GOOD(none);
    for (const char* key : {"loss", "grad_norm", "lr"}) {
        CHECK(none.numbers(key) == fixed.numbers(key));
        CHECK(none.numbers(key) == dynamic.numbers(key));
    }
    CHECK(fixed.numbers("loss_scale") == std::vector<double>(20, 1024));
    for (int i = 0; i < 20; i++) CHECK(dynamic.numbers("loss_scale").at(i) == std::min(0x1p24, std::ldexp(65536, i / 2))); // doubles, and stops at 2^24
}

// At context 1 the loss is one token's, d loss/d logit nearly 1, and 65536 of it more than FP16 holds.
TEST_CASE("a dynamic loss scale halves at each overflow and training goes on; a dropped step costs no warmup") {
    const Args few = {"--layers", "1", "--heads", "2", "--channels", "16", "--context", "1", "--batch", "1", "--recipe", "fp16", "--steps", "6",
                      "--warmup", "10", "--eval-batches", "0", "--tokens", "0"};
    Folder f;
    const Outcome o = run(few + Args{"--data", f.write("text", some_text()), "--out", f / "out"});
    CHECK(o.status == 0);
    double scale = 65536;
    int applied = 0, skipped = 0;
    Config c;
    c.steps = 6, c.warmup = 10;
    for (const std::string& text : lines_of(read(f / "out/log.jsonl"))) {
        const Json line = Json::parse(text);
        CAPTURE(text);
        if (line.contains("cost")) continue;
        CHECK(line["loss_scale"] == scale);
        CHECK(line["step"] == applied + 1);                             // a skipped step is another try at the same one
        CHECK((double)line["lr"] == (double)learning_rate(c, applied)); // pytorch/pytorch#44511: 1/10 after skips, not 5/10
        CHECK(line["skipped"] == line["grad_norm"].is_null());
        CHECK(line["skipped"] == line.contains("first_bad"));
        if (line["skipped"])
            scale /= 2, skipped++;
        else
            applied++;
    }
    CHECK(applied == 6);
    CHECK(skipped > 0);
    CHECK(scale < 65536);
}

// The first applied step is of the same batch and of weights that were initialised alike: what differs is FP16's rounding of each
// number on the way, and of about ten of them in a row.
TEST_CASE("batches that a run dropped are left out of its FP32 twin's too") {
    Folder f;
    const Outcome o = run({"--layers", "1", "--heads", "2", "--channels", "16", "--context", "1", "--batch", "1", "--recipe", "fp16", "--steps", "3", "--warmup", "10",
                           "--eval-batches", "0", "--tokens", "0", "--reference", "--tolerance", "1", "--data", f.write("text", some_text()), "--out", f / "out"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    auto applied = [&](const std::string& log) {
        std::vector<double> losses;
        for (const std::string& line : lines_of(read(f / log)))
            if (const Json j = Json::parse(line); j.contains("loss") && !j["skipped"]) losses.push_back(j["loss"]);
        return losses;
    };
    const std::vector<double> narrow = applied("out/log.jsonl"), wide = applied("out/fp32/log.jsonl");
    CHECK(contains(read(f / "out/log.jsonl"), "\"dropped_batch\":0,")); // the loss scale starts too large
    REQUIRE(narrow.size() == 3);
    REQUIRE(wide.size() == 3);
    CHECK(std::fabs(narrow[0] - wide[0]) < 10 * 0x1p-11 * wide[0]);
    CHECK(std::fabs(narrow[0] - wide[1]) > 10 * 0x1p-11 * wide[0]); // batches are further apart than that
}

TEST_CASE("eight skipped steps in a row stop the run: status 1, the first bad tensor by name, and no weight has moved") {
    const Args few = QUIET + Args{"--recipe", "fp16", "--steps", "20"};
    Run bad(few + Args{"--loss-scale", "1e30", "--lr", "1", "--warmup", "0"}), still(few + Args{"--loss-scale", "none", "--lr", "0", "--min-lr", "0"});
    REQUIRE_GOOD(still);
    CHECK(bad.outcome.status == 1);
    check_line(bad.outcome, {"stopped at step 1", "8 steps in a row", "the first tensor that went bad was gradient of ", ", at step 1", "loss scale now 1e+30"});
    REQUIRE(bad.steps.size() == 8);
    for (int i = 0; i < 8; i++) {
        CHECK(bad.steps.at(i)["skipped"] == true);
        CHECK(bad.steps.at(i)["step"] == 1);
        CHECK(bad.steps.at(i)["grad_norm"].is_null());
        CHECK(contains(bad.steps.at(i)["first_bad"], "gradient of "));
        CHECK(bad.numbers("loss").at(i) == still.numbers("loss").at(i)); // the losses of weights as they were initialised
    }
    CHECK(!fs::exists(bad / "out/loss.png"));
}

TEST_CASE("a learning rate that blows the model up ends likewise, and names the layer") {
    Run r(QUIET + Args{"--recipe", "fp16", "--steps", "20", "--lr", "1000", "--warmup", "0"});
    CHECK(r.outcome.status == 1);
    check_line(r.outcome, {"8 steps in a row", "the first tensor that went bad was activation h.0.", ", at step 2"});
    REQUIRE(r.steps.size() == 9);
    for (int i = 0; i < 9; i++) {
        CHECK(r.steps.at(i)["skipped"] == (i > 0));
        CHECK(r.steps.at(i)["loss_scale"] == (i ? std::ldexp(65536, 1 - i) : 65536));
    }
}

// ==== what else a run can do =========================================================================================

TEST_CASE("into a pipe go whole lines, one for each update: nothing that only a terminal understands") {
    Run r(BRIEF + Args{"--steps", "4", "--eval-every", "1", "--temperature", "0"});
    REQUIRE_GOOD(r);
    CHECK(!contains(r.outcome.out, "\r"));
    CHECK(!contains(r.outcome.out, "\033"));
    int updates = 0, evaluations = 0;
    for (const std::string& line : lines_of(r.outcome.out)) {
        if (line.substr(0, 5) != "step ") continue;
        evaluations += contains(line, " | validation loss ");
        updates += contains(line, "/4 | bf16 | loss ") && contains(line, " | lr ") && contains(line, " tok/s | ");
    }
    CHECK(updates == 4);
    CHECK(evaluations == 5);
}

TEST_CASE("--compare trains the four recipes, each as it would alone, and draws one picture") {
    const Args few = BRIEF + Args{"--steps", "2"};
    Run all(few + Args{"--compare"});
    REQUIRE_GOOD(all);
    CHECK(read(all / "out/compare.png").substr(0, 8) == "\x89PNG\r\n\x1A\n");
    for (const Recipe& recipe : RECIPES) {
        CAPTURE(recipe.name);
        const std::string folder = all / (std::string("out/") + recipe.name);
        for (const char* name : {"/log.jsonl", "/loss.png", "/config.json"}) CHECK(fs::exists(folder + name));
        CHECK(Json::parse(read(folder + "/config.json"))["recipe"] == recipe.name);
        Run alone(few + Args{"--recipe", recipe.name});
        std::vector<double> losses;
        for (const std::string& line : lines_of(read(folder + "/log.jsonl")))
            if (Json::parse(line).contains("loss")) losses.push_back(Json::parse(line)["loss"]);
        CHECK(losses == alone.numbers("loss"));
    }
    CHECK(std::distance(fs::directory_iterator(all / "out"), fs::directory_iterator()) == 5);
}

TEST_CASE("--steps 0 evaluates, samples and draws nothing") {
    Run r(BRIEF + Args{"--steps", "0"});
    REQUIRE_GOOD(r);
    REQUIRE(r.log.size() == 1);
    CHECK(r.log[0]["step"] == 0);
    CHECK(std::fabs((double)r.log[0]["val_loss"] - std::log(256.0)) < 0.5);
    CHECK(r.sample().size() >= 4);
    CHECK(!fs::exists(r / "out/loss.png"));
    Run all(BRIEF + Args{"--steps", "0", "--compare"});
    REQUIRE_GOOD(all);
}

TEST_CASE("--eval-every 0 or --eval-batches 0 never evaluates, which changes no training step; --tokens 0 prints no sample") {
    const Args few = {"--batch", "2", "--steps", "3", "--tokens", "0"};
    Run with(few + Args{"--eval-every", "1", "--eval-batches", "2"}), without(few + Args{"--eval-every", "0"}), none(few + Args{"--eval-batches", "0"});
    REQUIRE_GOOD(with);
    REQUIRE_GOOD(without);
    REQUIRE_GOOD(none);
    CHECK(with.evaluations.size() == 4);
    CHECK(without.evaluations.empty());
    CHECK(none.evaluations.empty());
    CHECK(with.numbers("loss") == without.numbers("loss"));
    CHECK(with.numbers("loss") == none.numbers("loss"));
    CHECK(with.sample() == "");
}

TEST_CASE("--ema logs the loss of the average beside that of the weights, and changes neither training nor the other") {
    for (const Recipe& recipe : RECIPES) {
        CAPTURE(recipe.name);
        const Args few = BRIEF + Args{"--recipe", recipe.name, "--steps", "4", "--eval-every", "2", "--lr", "0.01", "--warmup", "0"};
        Run plain(few), average(few + Args{"--ema", "0.9"});
        REQUIRE_GOOD(average);
        CHECK(plain.numbers("loss") == average.numbers("loss"));
        CHECK(plain.numbers("grad_norm") == average.numbers("grad_norm"));
        CHECK(plain.sample() == average.sample());
        REQUIRE(average.evaluations.size() == 3);
        for (int i = 0; i < 3; i++) {
            CHECK(plain.evaluations.at(i)["val_loss"] == average.evaluations.at(i)["val_loss"]);
            CHECK(!plain.evaluations.at(i).contains("val_loss_ema"));
            const double loss = average.evaluations.at(i)["val_loss"], smooth = average.evaluations.at(i)["val_loss_ema"];
            if (i == 0)
                CHECK(smooth == loss); // both are the initial weights
            else
                CHECK(smooth > loss);                                               // behind, while the loss falls
            CHECK(smooth <= (double)average.evaluations.at(0)["val_loss"] + 1e-12); // but on its way
        }
    }
}

TEST_CASE("--sample begins the sample, whatever its bytes, also when it is longer than the context") {
    for (const char* text : {"Once upon", "d\xC3\xA9j\xC3\xA0 vu: %s%n", "a text that is longer than 16 tokens is cut where the model reads it"}) {
        Run r(BRIEF + Args{"--steps", "1", "--sample", text});
        REQUIRE_GOOD(r);
        CHECK(r.sample().compare(0, strlen(text), text) == 0);
        CHECK(r.sample().size() >= strlen(text) + 4);
    }
}

TEST_CASE("text is read, continued and written through a tokenizer; token files are only written through it") {
    Folder f;
    const std::string tokenizer = f.write("tokenizer.json", TINY_TOKENIZER), text = f.write("text", some_text());
    const Args args = TINY + BRIEF + Args{"--steps", "2", "--sample", "the cat", "--out", f / "out"};
    const Outcome o = run(args + Args{"--data", text, "--tokenizer", f.path.string()});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    CHECK(contains(o.out, "vocabulary 600"));
    CHECK(contains(o.out, "\n\nthe cat"));
    CHECK(!contains(o.out, ": 2700 training")); // of 3000 bytes: merges make fewer tokens
    std::string shard(2 * 400, '\0');           // tokens of 16 bits
    for (int i = 0; i < 400; i++) shard[2 * i] = (char)(i % 200);
    CHECK(run(args + Args{"--data", f.write("tokens.bin", shard), "--vocab", "600", "--tokenizer", tokenizer}).status == 0);
    check_refused(args + Args{"--data", f / "tokens.bin", "--vocab", "300", "--tokenizer", tokenizer}, {"--tokenizer", "600 tokens", "vocabulary of 300"});
    check_refused(args + Args{"--tokenizer", tokenizer}, {"--tokenizer", "needs --data"});
    check_refused(args + Args{"--data", text, "--tokenizer", f / "nothing"}, {"nothing"});
}

TEST_CASE("the built-in stories come with questions: the share that is answered stands last in the log") {
    Folder f;
    const Outcome o = run(TINY + Args{"--batch", "128", "--steps", "1", "--eval-batches", "1", "--tokens", "0", "--recipe", "fp32", "--out", f / "out"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    const Json last = Json::parse(lines_of(read(f / "out/log.jsonl")).back());
    CHECK(last["step"] == 1);
    CHECK(last["questions"] == 400); // as many as are asked; there are more
    CHECK((double)last["answer_accuracy"] >= 0);
    CHECK((double)last["answer_accuracy"] < 0.2); // after one step
    CHECK(contains(o.out, "answer accuracy: "));
}

} // namespace

// ==== the precision procedure ========================================================================================

TEST_CASE("a run's decisions can be computed again from what it logged, and one that was changed is found") {
    for (const char* recipe : {"fp8", "fp16"}) {
        CAPTURE(std::string(recipe));
        Run r(QUIET + Args{"--recipe", recipe, "--steps", "40", "--lr", "0.01"});
        REQUIRE_GOOD(r);
        const Outcome again = run({"--replay", r / "out"});
        CHECK(again.status == 0);
        CHECK(contains(again.out, format("%zu attempts decided again", r.steps.size())));
        CHECK(contains(again.out, "40 applied"));

        std::vector<std::string> lines = lines_of(read(r / "out/decisions.jsonl"));
        REQUIRE(lines.size() == 1 + r.steps.size());
        auto with_line = [&](size_t i, const std::string& from, const std::string& to) {
            std::string all;
            for (size_t l = 0; l < lines.size(); l++) {
                std::string line = lines[l];
                if (l == i) {
                    REQUIRE(contains(line, from));
                    line.replace(line.find(from), from.size(), to);
                }
                all += line + "\n";
            }
            r.write("out/decisions.jsonl", all);
            return run({"--replay", r / "out"});
        };
        Outcome changed = with_line(7, "\"decision\":\"", "\"decision\":\"drop; ");
        CHECK(changed.status == 1);
        check_line(changed, {"decisions.jsonl:8: the run decided 'drop; "});
        changed = with_line(5, "\"state\":", "\"state\":1");
        CHECK(changed.status != 0);
        if (std::string(recipe) == "fp8") {
            Json line = Json::parse(lines[9]);
            line["tensors"][0][0] = (unsigned)line["tensors"][0][0] + (1u << 23); // an amax that was not seen
            changed = with_line(9, lines[9], line.dump());
            CHECK(changed.status == 1);
            check_line(changed, {"decisions.jsonl:"});
        }
        changed = with_line(3, "\"tensors\":[", "\"tensors\":[[4294967295,0,0,0,0,0,0],"); // not a number
        CHECK(changed.status != 0);
        changed = with_line(0, "{", "[");
        CHECK(changed.status == 2);
        check_line(changed, {"decisions.jsonl:1: not a file of decisions"});
    }
    const Outcome none = run({"--replay", "/no/such/folder"});
    CHECK(none.status == 2);
    check_line(none, {"--replay", "/no/such/folder/decisions.jsonl"});
    check_refused({"--scaling", "sometimes"}, {"--scaling sometimes", "delayed, current, global or none"});
    check_refused({"--scale-window", "65"}, {"--scale-window", "65", "64"});
}

TEST_CASE("a run's report can be drawn again from its folder, and is the same; --reference adds twins and claims to it") {
    Run r(QUIET + Args{"--recipe", "fp8", "--steps", "3", "--reference", "--tolerance", "1"});
    REQUIRE_GOOD(r);
    const std::string report = read(r / "out/report.html"), heat = read(r / "out/heat.png");
    CHECK(contains(report, "4 of 4"));
    CHECK(contains(report, "its FP32 twin"));
    CHECK(Json::parse(read(r / "out/claims.json"))["cost"]["seconds"] == r.cost["seconds"]);
    fs::remove(r / "out/report.html"), fs::remove(r / "out/heat.png");
    const Outcome again = run({"--report", r / "out"});
    CHECK(again.status == 0);
    CHECK(read(r / "out/report.html") == report);
    CHECK(read(r / "out/heat.png") == heat);
    check_refused({"--report", "/no/such/folder"}, {"/no/such/folder/config.json"});
}

TEST_CASE("runs without masters train; which parameter is to be given one, and how weights are rounded, is said by name") {
    for (const Args& way : {Args{"--masters", "none"}, Args{"--masters", "measured"}, Args{"--masters", "none", "--rounding", "stochastic"}}) {
        Run r(QUIET + Args{"--recipe", "bf16", "--steps", "20", "--lr", "1e-5", "--warmup", "0"} + way), twice(QUIET + Args{"--recipe", "bf16", "--steps", "20", "--lr", "1e-5", "--warmup", "0"} + way);
        REQUIRE_GOOD(r);
        CHECK(r.timeless() == twice.timeless()); // random numbers too
        CHECK(contains(r.outcome.out, "without FP32 masters, updates of "));
        CHECK(contains(r.outcome.out, way[1] == "none" ? "masters: 0 of 16" : "masters: 9 of 16")); // all but biases, which start at 0
        CHECK(contains(read(r / "out/decisions.jsonl"), "ln_f.weight: master BF16 -> FP32") == (way[1] == "measured"));
        CHECK(run({"--replay", r / "out"}).status == 0);
    }
    Run compared(QUIET + Args{"--recipe", "bf16", "--steps", "2", "--masters", "none", "--reference", "--tolerance", "1"});
    REQUIRE_GOOD(compared);
    for (const char* twin : {"fp32", "fp32 in another order"}) CHECK(Json::parse(read(compared / (std::string("out/") + twin + "/config.json")))["masters"] == "all");
    check_refused({"--masters", "some"}, {"--masters some", "all, none or measured"});
    check_refused({"--rounding", "up"}, {"--rounding up", "nearest or stochastic"});
}

TEST_CASE("every way of scaling trains in FP8; without a guard nothing is replayed") {
    for (const Args& way : {Args{"--scaling", "current"}, Args{"--scaling", "global"}, Args{"--scaling", "none"}, Args{"--no-guard"}, Args{"--no-promote"},
                            Args{"--scale-window", "3", "--scale-margin", "0", "--scale-interval", "1", "--scale-deadband", "1"}}) {
        CAPTURE(way[0] + (way.size() > 1 ? " " + way[1] : ""));
        Run r(QUIET + Args{"--recipe", "fp8", "--steps", "12"} + way);
        REQUIRE_GOOD(r);
        CHECK(r.steps.back()["step"] == 12);
        if (way[0] == "--no-guard") CHECK(r.steps.size() == 12);
        CHECK(run({"--replay", r / "out"}).status == 0);
    }
}

TEST_CASE("--reference trains FP32 twins and says what holds; a claim that fails is status 1") {
    const Args few = {"--batch", "2", "--eval-batches", "1", "--tokens", "0", "--steps", "10", "--recipe", "bf16", "--reference"};
    Run good(few);
    REQUIRE_GOOD(good);
    Json claims = Json::parse(read(good / "out/claims.json"));
    for (const Json& claim : claims["claims"]) CHECK_MESSAGE(claim["holds"] == true, claim.dump());
    CHECK(claims["claims"].size() == 4);
    CHECK(good.outcome.out.find("to be claimed: training loss within 0.0025") < good.outcome.out.find("step "));
    CHECK(contains(good.outcome.out, "hash " + (std::string)claims["hash"]));
    CHECK(contains(good.outcome.out, "C3  holds"));
    for (const char* twin : {"fp32", "fp32 in another order"}) CHECK(fs::exists(good / (std::string("out/") + twin + "/log.jsonl")));

    Run strict(few + Args{"--tolerance", "1e-9"});
    CHECK(strict.outcome.status == 1);
    check_line(strict.outcome, {"claim C3 of this run does not hold", "claims.json"});
    claims = Json::parse(read(strict / "out/claims.json"));
    for (const Json& claim : claims["claims"]) CHECK_MESSAGE(claim["holds"] == (claim["claim"] != "C3"), claim.dump());
    check_refused({"--reference", "--compare"}, {"--compare and --reference"});
}

// ==== checkpoints ====================================================================================================

namespace {

// The bytes of all tensors of a checkpoint, by name: what else is in it a clock has a say in.
std::string tensors_of(const std::string& checkpoint) {
    std::string all;
    for (const char* name : {"/model.safetensors", "/state.safetensors"}) {
        const SafeTensors file(checkpoint + name);
        for (const std::string& tensor : file.names()) all += tensor + std::string((const char*)file.bytes(tensor).first, file.bytes(tensor).second);
    }
    return all;
}
std::string timeless(const std::string& log) {
    std::string text;
    for (const std::string& line : lines_of(read(log))) {
        Json j = Json::parse(line);
        for (const char* key : {"tokens_per_second", "seconds", "cost"}) j.erase(key);
        text += j.dump() + "\n";
    }
    return text;
}
// A copy of a run's folder as it was when it had come to its checkpoint of this step; the logs have what it wrote after that.
void copy_until(const std::string& out, int step, const std::string& to) {
    fs::remove_all(to), fs::copy(out, to, fs::copy_options::recursive);
    for (const auto& entry : std::vector<fs::path>(fs::directory_iterator(to), fs::directory_iterator()))
        if (int of; sscanf(entry.filename().c_str(), "step_%d", &of) == 1 && of > step) fs::remove_all(entry);
}
int parts_in(const std::string& out) { // what a run is in the middle of writing
    int parts = 0;
    for (auto& entry : fs::recursive_directory_iterator(out)) parts += entry.path().extension() == ".part";
    return parts;
}
// Writes fail at this size of a file, as on a full disk; for this process and those that it starts.
struct SmallFiles {
    rlimit old;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    explicit SmallFiles(size_t most) {
        getrlimit(RLIMIT_FSIZE, &old);
        const rlimit small = {(rlim_t)most, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
    }
    ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &old), signal(SIGXFSZ, handler); }
};
// Starts the program, sends these signals one after the other as soon as the file (which has to stay) is there and not empty, and
// waits for its end.
Outcome run_until(const std::string& there, const Args& signals, const Args& args) {
    Folder streams;
    std::string command = "OMP_NUM_THREADS=1 " + quoted(getenv("FEWBITS_PROGRAM") ? getenv("FEWBITS_PROGRAM") : "./train_gpt");
    for (const std::string& a : args) command += " " + quoted(a);
    command += " >" + quoted(streams / "out") + " 2>" + quoted(streams / "err") + " & p=$!; until [ -s " + quoted(there) + " ] || ! kill -0 $p; do sleep 0.01; done; ";
    for (const std::string& signal : signals) command += "kill -" + signal + " $p; ";
    const int status = std::system((command + "wait $p").c_str());
    return {WEXITSTATUS(status), read(streams / "out"), read(streams / "err")};
}

void check_same(const std::string& a, const std::string& b, const Args& checkpoints) {
    for (const std::string& step : checkpoints) {
        CAPTURE(step);
        CHECK((tensors_of(a + "/" + step) == tensors_of(b + "/" + step)));
    }
    CHECK((timeless(a + "/log.jsonl") == timeless(b + "/log.jsonl")));
    for (const char* name : {"/decisions.jsonl", "/shadow.jsonl"}) CHECK((read(a + name) == read(b + name)));
    CHECK(read(a + "/config.json").size() > 100);
}
// A step after which FP8 would grow a scale, in the middle of a loss scale's interval, of a window, of an epoch.
const Args SAVED = {"--batch", "2", "--accumulate", "2", "--steps", "29", "--keep", "100", "--ema", "0.75", "--eval-every", "4", "--eval-batches", "1",
                    "--shadow-every", "3", "--scale-window", "5", "--loss-scale-window", "3", "--tokens", "4"};

} // namespace

TEST_CASE("a run that goes on from any of its checkpoints ends with the same bytes of weights, state and logs") {
#if defined(ON_CPU)
    const std::vector<Args> ways = {{"--recipe", "fp8", "--scale-interval", "4"}, {"--recipe", "fp16"}, {"--recipe", "bf16", "--masters", "measured", "--rounding", "stochastic"}, {"--recipe", "fp32"}};
    const std::vector<int> places = {1, 5, 14, 29};
#else
    const std::vector<Args> ways = {{"--recipe", "fp8", "--scale-interval", "4"}}; // what is saved and read is the host's
    const std::vector<int> places = {14};
#endif
    for (const Args& way : ways) {
        CAPTURE(way[1]);
        Run whole(SAVED + Args{"--save-every", "1", "--lr", "0.01"} + way);
        REQUIRE_GOOD(whole);
        if (way[1] == "fp16") CHECK(contains(timeless(whole / "out/log.jsonl"), "\"skipped\":true"));
        for (int from : places) {
            CAPTURE(from);
            Folder f;
            copy_until(whole / "out", from, f / "out");
            const Outcome o = run({"--resume", f / "out", "--save-every", "7"});
            REQUIRE_MESSAGE(o.status == 0, o.err);
            CHECK(contains(o.out, "going on from "));
            check_same(whole / "out", f / "out", {"step_1", "step_21", "step_29"});
            CHECK(run({"--replay", f / "out"}).status == 0);
        }
    }
}

// An attempt that has to be replayed, or dropped, is none to save after: the next applied one is, and knows what went before.
TEST_CASE("a run goes on after replayed and dropped steps as if it had not stopped") {
    const Args spiky = SAVED + Args{"--save-every", "1", "--recipe", "fp8", "--lr", "0.05", "--warmup", "2", "--scale-margin", "0", "--scale-deadband", "1", "--scale-interval", "1", "--clip", "0"};
    Run whole(spiky);
    REQUIRE_GOOD(whole);
    std::vector<int> after; // applied steps just after one that was taken back
    for (size_t i = 1; i < whole.steps.size(); i++)
        if (whole.steps[i - 1]["skipped"] && !whole.steps[i]["skipped"]) after.push_back(whole.steps[i]["step"]);
    REQUIRE(!after.empty());
#if defined(ON_CPU)
    after.resize(std::min<size_t>(after.size(), 4));
#else
    after.resize(1);
#endif
    for (int from : after) {
        Folder f;
        copy_until(whole / "out", from, f / "out");
        REQUIRE(run({"--resume", f / "out", "--save-every", "29"}).status == 0);
        check_same(whole / "out", f / "out", {"step_29"});
    }
}

TEST_CASE("SIGINT and SIGTERM end the step, save, say how to go on, and are no failure") {
    for (const char* signal : {"INT", "TERM"}) {
        Folder f;
        TempDir plain; // its name needs no quotes
        const bool quotes = signal == "INT"s;
        const std::string text = f.write("text", some_text()), out = quotes ? f / "out" : plain.at("out"), log = out + "/log.jsonl";
        const Args args = TINY + QUIET + Args{"--recipe", "bf16", "--data", text, "--steps", "1000000", "--out", out};
        const Outcome stopped = run_until(log, {signal}, args);
        CHECK(stopped.status == 0);
        CHECK(stopped.err == "");
        CHECK(contains(stopped.out, "stopped by a signal after step "));
        CHECK(contains(stopped.out, "to go on: ./train_gpt --resume " + (quotes ? quoted(out) : out) + "\n")); // for a shell
        const int step = Json::parse(lines_of(read(log)).back())["step"];
        REQUIRE(fs::exists(out + "/step_" + std::to_string(step) + "/state.safetensors"));
        CHECK(fs::exists(out + "/report.html"));

        const std::string last = std::to_string(step + 3);
        const Outcome o = run({"--resume", out, "--steps", last, "--save-every", "3", "--keep", "1"}); // what is given now counts
        REQUIRE_MESSAGE(o.status == 0, o.err);
        CHECK(fs::exists(out + "/step_" + last));
        CHECK(!fs::exists(out + "/step_" + std::to_string(step))); // the newest one is kept
        check_refused(args, {"--out", "holds step_" + last, "--resume"});
    }
}

#if defined(ON_CPU) // signals are the host's
TEST_CASE("a second signal ends the program at once, with status 130, and what was saved is whole") {
    Folder f;
    const Args args = TINY + QUIET + Args{"--recipe", "fp8", "--data", f.write("text", some_text()), "--steps", "400"};
    REQUIRE(run(args + Args{"--save-every", "400", "--out", f / "whole"}).status == 0);
    const Outcome o = run_until(f / "out/step_3/config.json", {"INT", "TERM"}, args + Args{"--save-every", "1", "--keep", "100", "--out", f / "out"});
    CHECK(o.status == 130);
    CHECK(!fs::exists(f / "out/report.html")); // at once
    REQUIRE(run({"--resume", f / "out", "--save-every", "400"}).status == 0);
    check_same(f / "whole", f / "out", {"step_400"});
    CHECK(parts_in(f / "out") == 0);
}

TEST_CASE("a signal during a twin, or a later recipe, says what is finished and what is not") {
    Folder f;
    const std::string text = f.write("text", some_text()), claims = f / "out/claims.json";
    const Args few = TINY + QUIET + Args{"--data", text, "--steps", "600"};
    Outcome o = run_until(f / "out/fp32/log.jsonl", {"INT"}, few + Args{"--reference", "--out", f / "out", "--save-every", "600"});
    CHECK(o.status == 0);
    CHECK(o.err == "");
    CHECK(contains(o.out, "stopped by a signal in the twin fp32"));
    CHECK(contains(o.out, "; the run itself is finished, nothing is claimed; to train its twins again: ./train_gpt --resume " + quoted(f / "out") + "\n"));
    CHECK(fs::exists(f / "out/report.html"));
    CHECK(!fs::exists(claims));
    o = run({"--resume", f / "out"}); // as it said
    CHECK(o.status == 0);
    CHECK(Json::parse(read(claims))["claims"].size() == 4);

    o = run_until(f / "four/bf16/log.jsonl", {"INT"}, few + Args{"--compare", "--out", f / "four"});
    CHECK(o.status == 0);
    CHECK(contains(o.out, "stopped by a signal in recipe bf16, after step "));
    CHECK(contains(o.out, "; finished: fp32; nothing is compared; to go on: ./train_gpt --resume " + quoted(f / "four/bf16") + "\n"));
    CHECK(fs::exists(f / "four/bf16/report.html"));
    CHECK(!fs::exists(f / "four/fp16"));
}
#endif

TEST_CASE("a disk that fills up within a checkpoint or a log leaves the last good checkpoint, and a run that goes on as if nothing had been") {
    Run whole(QUIET + Args{"--recipe", "fp8", "--steps", "9", "--save-every", "3", "--keep", "100"});
    REQUIRE_GOOD(whole);
    const std::string out = whole / "out", at = out + "/step_3/";
    size_t fifth = 0; // where the line of the fourth attempt ends; none is replayed
    for (int line = 0; line < 5; line++) fifth = read(out + "/decisions.jsonl").find('\n', fifth) + 1;
    const std::pair<const char*, size_t> places[] = {{"decisions.jsonl", fifth - 1}, {"model.safetensors", fs::file_size(at + "model.safetensors") - 1}, {"state.safetensors", fs::file_size(at + "state.safetensors") - 1}};
    for (auto& place : places) {
        const char* name = place.first;
        const size_t most = place.second;
        CAPTURE(name);
        Folder f;
        copy_until(out, 3, f / "out");
        Outcome o;
        {
            SmallFiles full(most);
            o = run({"--resume", f / "out"});
        }
        CHECK(o.status == 1);
        check_line(o, {f / "out", name, "cannot be written: File too large"});
        CHECK(parts_in(f / "out") == 0);
        CHECK(!fs::exists(f / "out/step_6"));
        REQUIRE(run({"--resume", f / "out", "--save-every", "9"}).status == 0);
        check_same(out, f / "out", {"step_3", "step_9"});
    }
}

TEST_CASE("what a killed run left half written, half removed or half a line is gone when it goes on, and changes nothing") {
    Run whole(QUIET + Args{"--recipe", "bf16", "--steps", "9", "--save-every", "3", "--keep", "100", "--shadow-every", "1"});
    REQUIRE_GOOD(whole);
    Folder f;
    copy_until(whole / "out", 6, f / "out");
    for (const char* name : {"step_9.part", "step_2.part"}) fs::create_directory(f / (std::string("out/") + name)), f.write(std::string("out/") + name + "/model.safetensors", "half");
    for (const char* name : {"config.json.part", "report.html.part", "heat.png.part", "loss.png.part"}) f.write(std::string("out/") + name, "half");
    for (const char* name : {"notes.part", "step_4.part.mine"}) f.write(std::string("out/") + name, "not a run's");
    for (const char* name : {"log.jsonl", "decisions.jsonl", "shadow.jsonl"}) fs::resize_file(f / (std::string("out/") + name), fs::file_size(f / (std::string("out/") + name)) - 7);
    const Outcome o = run({"--resume", f / "out"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    check_same(whole / "out", f / "out", {"step_6", "step_9"});
    CHECK(parts_in(f / "out") == 1);
    CHECK(read(f / "out/notes.part") + read(f / "out/step_4.part.mine") == "not a run'snot a run's");

    fs::create_directories(f / "new/step_3.part"); // killed within its first checkpoint: there is none to go on from
    check_refused({"--resume", f / "new"}, {"there is no checkpoint"});
    CHECK(run(TINY + QUIET + Args{"--data", f.write("text", some_text()), "--steps", "2", "--save-every", "2", "--out", f / "new"}).status == 0);
    CHECK(parts_in(f / "new") == 0);
    CHECK(fs::exists(f / "new/step_2"));
}

TEST_CASE("a damaged checkpoint is refused by what is wrong with it, and the one before it, if whole, is offered and goes on") {
    Run whole(QUIET + Args{"--recipe", "fp8", "--steps", "6", "--save-every", "2", "--keep", "3"});
    REQUIRE_GOOD(whole);
    Folder f;
    const std::string out = f / "out", newest = out + "/step_6/";
    const std::string offer = "; step_4 before it is whole: remove step_6 to go on from there";
    for (const char* name : {"model.safetensors", "state.safetensors", "config.json"}) {
        CAPTURE(name);
        copy_until(whole / "out", 6, out);
        fs::resize_file(newest + name, fs::file_size(newest + name) - 10);
        check_refused({"--resume", out}, {newest + name, offer});
        fs::resize_file(newest + name, 0);
        check_refused({"--resume", out}, {newest + name, offer});
        fs::remove(newest + name);
        check_refused({"--resume", out}, {newest + name, offer});
    }
    std::string older = out + "/step_4/state.safetensors";
    fs::resize_file(older, 1000);
    check_refused({"--resume", out}, {newest, "; step_2 before it is whole: remove step_6 and step_4 to go on from there"});
    fs::remove_all(out + "/step_6"), fs::remove_all(out + "/step_4"); // as it said
    REQUIRE(run({"--resume", out}).status == 0);
    check_same(whole / "out", out, {"step_4", "step_6"});
    fs::remove_all(out + "/step_2"), fs::resize_file(older, 1000), fs::resize_file(newest + "state.safetensors", 1000);
    check_refused({"--resume", out}, {newest});
    CHECK(!contains(run({"--resume", out}).err, "remove"));
}

TEST_CASE("a bit that flipped in a checkpoint's headers is found, or says nothing") {
    Run whole(QUIET + Args{"--recipe", "fp8", "--steps", "4", "--save-every", "2"});
    REQUIRE_GOOD(whole);
    const Rng rng(2, Stream::test);
    int found = 0;
    for (int i = 0; i < 18; i++) {
        Folder f;
        copy_until(whole / "out", 2, f / "out");
        const char* name = i < 3 ? "config.json" : i < 9 ? "model.safetensors" : "state.safetensors";
        const std::string path = f / (std::string("out/step_2/") + name);
        std::string bytes = read(path);
        size_t header = bytes.size();
        if (i >= 3) header = 8 + (unsigned char)bytes[0] + ((size_t)(unsigned char)bytes[1] << 8) + ((size_t)(unsigned char)bytes[2] << 16);
        const size_t place = header * (rng.bits(2 * i) % 4096) / 4096; // clocks make the header longer or shorter by bytes
        bytes[place] ^= (char)(1 << rng.bits(2 * i + 1) % 8);
        std::ofstream(path, std::ios::binary) << bytes;
        const Outcome o = run({"--resume", f / "out"});
        CAPTURE(name);
        CAPTURE(place);
        CAPTURE(o.err);
        if (o.status == 0) check_same(whole / "out", f / "out", {"step_4"});
        CHECK((o.status == 0 || o.status == 2));
        found += o.status == 2;
    }
    CHECK(found >= 10); // config.json has what only others read
}

TEST_CASE("what is no checkpoint, or another model's, is refused by name and both values") {
    Run r(QUIET + Args{"--recipe", "fp8", "--steps", "3", "--save-every", "3"});
    REQUIRE_GOOD(r);
    const std::string state = r / "out/step_3/state.safetensors", model = r / "out/step_3/model.safetensors", good = read(state);
    check_refused({"--resume", r / "nowhere"}, {"--resume", "nowhere", "no checkpoint"});
    check_refused({"--resume", r / "out", "--out", r / "elsewhere"}, {"--resume", "--out"});
    check_refused({"--resume", r / "out", "--compare"}, {"--resume and --compare"});
    check_refused({"--resume", r / "out", "--channels", "32"}, {"--channels is 32, that run's is 16"});
    check_refused({"--resume", r / "out", "--recipe", "bf16"}, {"--recipe is \"bf16\", that run's is \"fp8\""});
    check_refused({"--resume", r / "out", "--tolerance", "1"}, {"--tolerance is 1"}); // chosen after the result
    auto with_state = [&](const std::string& from, const std::string& to) {
        std::string bytes = good;
        REQUIRE(contains(bytes, from));
        REQUIRE(from.size() == to.size());
        bytes.replace(bytes.find(from), from.size(), to);
        if (contains(bytes, "\"hash\"")) bytes.replace(bytes.find("\"hash\""), 6, "\"hast\""); // as before there was one
        std::ofstream(state, std::ios::binary) << bytes;
    };
    with_state("fewbits checkpoint 1", "fewbits checkpoint 2");
    check_refused({"--resume", r / "out"}, {"state.safetensors", "its format is 'fewbits checkpoint 2'; expected 'fewbits checkpoint 1'"});
    with_state("\\\"batches\\\":3", "\\\"batches\\\":[");
    check_refused({"--resume", r / "out"}, {"state.safetensors", "progress"});
    with_state("m.wte.weight", "m.wtf.weight");
    check_refused({"--resume", r / "out"}, {"state.safetensors", "m.wte.weight", "is not there"});
    for (auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"heads\\\":2", "heads\\\":0"}, {"keep\\\":2", "keep\\\":0"}, {"layers\\\":1", "layers\\\":x"}}) {
        with_state(from, to);
        check_refused({"--resume", r / "out"}, {"state.safetensors", "options"});
    }
    for (auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"applied\\\":3", "applied\\\":4"}, {"loss_scale\\\":1", "loss_scale\\\":0"}, {"batches\\\":3", "batches\\\":2"}}) {
        with_state(from, to);
        check_refused({"--resume", r / "out"}, {"state.safetensors: progress"});
    }
    size_t tables = 8; // where the policy's begin
    for (int i = 0; i < 8; i++) tables += (size_t)(unsigned char)good[i] << 8 * i;
    const size_t row = sizeof(TensorState), parameters = tables + 12 * row;
    for (auto [at, value] : std::vector<std::pair<size_t, int>>{{tables, 2}, {tables + 8, 1}, {tables + row + 12, INT_MIN}, {tables + 24, MAX_WINDOW}, {tables + 24, -1}, {parameters + 12, 2}, {parameters + 16, 1000000}}) {
        INFO("word " << at - tables);
        std::string bytes = good;
        memcpy(&bytes[at], &value, 4);
        std::ofstream(state, std::ios::binary) << bytes;
        check_refused({"--resume", r / "out"}, {"state.safetensors: policy."});
    }
    std::ofstream(state, std::ios::binary) << good.substr(0, good.size() - 1);
    check_refused({"--resume", r / "out"}, {"state.safetensors"});
    std::ofstream(state, std::ios::binary) << good;
    const std::string log = read(r / "out/log.jsonl");
    fs::resize_file(r / "out/decisions.jsonl", 10);
    check_refused({"--resume", r / "out"}, {"decisions.jsonl has 10 bytes; expected the "});
    CHECK(read(r / "out/log.jsonl") == log); // a refused run cuts nothing back
    std::string weights = read(model);
    const float nan = NAN;
    weights.replace(weights.size() - 4, 4, (const char*)&nan, 4);
    std::ofstream(model, std::ios::binary) << weights;
    check_refused({"--resume", r / "out"}, {"model.safetensors: ln_f.bias[15] is nan; expected a finite number"});
}

// ==== models from elsewhere ==========================================================================================

namespace {

// A run of two steps with a checkpoint, and its one set of weights as a folder for others and as llm.c's file.
struct Model : Run {
    std::string weights = *this / "out/step_2/model.safetensors", folder = *this / "for others", file = *this / "llm.c's \"x\".bin";
    explicit Model(const Args& args = {}) : Run(QUIET + Args{"--steps", "2", "--save-every", "2", "--lr", "0.05", "--warmup", "0"} + args) {
        REQUIRE_GOOD(*this);
        for (const Args& to : {Args{folder}, Args{file, "--recipe", "fp32"}}) {
            const Outcome o = run(Args{"--from", *this / "out", "--export"} + to);
            REQUIRE_MESSAGE(o.status == 0, o.err);
            CHECK(contains(o.out, to[0] + " holds "));
        }
    }
};
// The loss that --evaluate prints, with its six digits.
std::string loss_of(const std::string& from, const std::string& file, const Args& more = {}) {
    const Outcome o = run(Args{"--from", from, "--evaluate", file} + more);
    REQUIRE_MESSAGE(o.status == 0, o.err);
    REQUIRE(o.out.substr(0, 5) == "loss ");
    CHECK(lines_of(o.out).size() == 1);
    CHECK(contains(o.err, "model: "));
    return o.out.substr(5, o.out.find(" nats") - 5);
}

} // namespace

TEST_CASE("a run that saves no checkpoints leaves its weights all the same; another run in its folder does not pass them off as its own") {
    Run r(QUIET + Args{"--steps", "2", "--lr", "0.05", "--warmup", "0", "--recipe", "fp32"});
    REQUIRE_GOOD(r);
    const Args same = TINY + QUIET + Args{"--data", r / "text", "--lr", "0.05", "--warmup", "0", "--recipe", "fp32"};
    CHECK(run(same + Args{"--steps", "2", "--save-every", "1", "--out", r / "with checkpoints"}).status == 0);
    CHECK(read(r / "out/model/model.safetensors") == read(r / "with checkpoints/step_2/model.safetensors"));
    CHECK(read(r / "out/model/config.json") == read(r / "with checkpoints/step_2/config.json"));
    CHECK(!fs::exists(r / "with checkpoints/model"));
    CHECK(loss_of(r / "out", r / "text") == loss_of(r / "with checkpoints", r / "text"));
    CHECK(run(same + Args{"--steps", "0", "--out", r / "not trained"}).status == 0);
    check_refused({"--from", r / "not trained"}, {"has not come to its end"});

    // A run that was stopped has a checkpoint, which is newer; when it comes to its end, a later one.
    const std::string before = read(r / "out/model/model.safetensors");
    fs::remove(r / "out/decisions.jsonl"); // it comes again with the first step
    CHECK(run_until(r / "out/decisions.jsonl", {"INT"}, same + Args{"--steps", "100000", "--out", r / "out"}).status == 0);
    CHECK(read(r / "out/model/model.safetensors") == before);
    int at = 0;
    for (auto& entry : fs::directory_iterator(r / "out")) sscanf(entry.path().filename().c_str(), "step_%d", &at);
    REQUIRE(at > 0);
    CHECK(contains(run({"--from", r / "out", "--tokens", "1"}).err, "/step_" + std::to_string(at) + "/"));
    const std::string last = std::to_string(at + 2);
    CHECK(run({"--resume", r / "out", "--steps", last}).status == 0);
    CHECK(contains(run({"--from", r / "out", "--tokens", "1"}).err, "/step_" + last + "/"));

    // A folder that is no run's is not written over, nor the model that is read.
    fs::create_directories(r / "mine/model");
    check_refused(same + Args{"--steps", "1", "--out", r / "mine"}, {"--out", "mine", "no run's"});
    check_refused({"--from", r / "out", "--data", r / "text", "--out", r / "out"}, {"--out", "--from reads"});
    check_refused({"--from", r / "with checkpoints/step_2", "--data", r / "text", "--out", r / "mine/../with checkpoints"}, {"--from reads"});
}

TEST_CASE("a run with a tokenizer goes on to its end, whichever of its checkpoints go, also when the tokenizer has moved") {
    Run r(QUIET + Args{"--steps", "6", "--save-every", "1", "--keep", "1", "--lr", "0.05", "--warmup", "0"});
    REQUIRE_GOOD(r);
    fs::create_directories(r / "tokenizer");
    r.write("tokenizer/tokenizer.json", TINY_TOKENIZER);
    const Args args = TINY + QUIET + Args{"--data", r / "text", "--tokenizer", r / "tokenizer", "--save-every", "1"};
    CHECK(run(args + Args{"--steps", "8", "--out", r / "whole"}).status == 0);
    CHECK(run(args + Args{"--steps", "2", "--out", r / "part"}).status == 0); // another schedule: not the same weights
    fs::rename(r / "tokenizer", r / "moved");
    const Outcome o = run({"--resume", r / "part", "--steps", "8", "--keep", "1"});
    CHECK_MESSAGE(o.status == 0, o.err);
    CHECK(read(r / "part/step_8/tokenizer.json") == TINY_TOKENIZER);
    CHECK(run({"--from", r / "part", "--sample", "the", "--tokens", "3"}).status == 0);
}

TEST_CASE("what is only said of training is refused where nothing is trained") {
    Model m;
    for (const Args& more : {Args{"--lr", "0.1"}, Args{"--save-every", "1"}, Args{"--val-data", "x"}, Args{"--steps", "3"}, Args{"--compare"}, Args{"--reference"}, Args{"--ema", "0.5"}})
        check_refused(Args{"--from", m / "out"} + more, {more[0] + " ", "trains nothing"});
    check_refused({"--from", m / "out", "--evaluate", m / "text", "--export", m / "x"}, {"--evaluate and --export"});
    check_refused({"--from", m / "out", "--evaluate", m / "text", "--sample", "x"}, {"--sample x and --evaluate"});
    check_refused({"--from", m / "out", "--evaluate", m / "text", "--data", m / "text"}, {"--data and --evaluate"});
}

TEST_CASE("--from continues a text with nothing else on stdout, the same for the same seed") {
    Model m;
    const Args few = {"--from", m / "out", "--sample", "ab c", "--tokens", "30"};
    const Outcome a = run(few), b = run(few), other = run(few + Args{"--seed", "2"}), greedy = run(few + Args{"--temperature", "0"});
    CHECK(a.status == 0);
    CHECK(a.out.substr(0, 4) == "ab c");
    CHECK(a.out.back() == '\n');
    CHECK(a.out.size() >= 4 + 30 + 1);
    CHECK(a.out == b.out);
    CHECK(a.out != other.out);
    CHECK(run({"--from", m / "out", "--sample", "ab c", "--tokens", "0"}).out == "ab c\n");
    CHECK(run({"--from", m.folder, "--sample", "ab c", "--tokens", "30", "--top-k", "1"}).out == greedy.out);
    CHECK(run({"--from", m.weights, "--sample", "ab c", "--tokens", "30"}).out == a.out); // the file, its folder, or the run's
    CHECK((contains(a.err, "model: " + m.weights + ": 1 layers, 2 heads, 16 channels, context 16, vocabulary 256") && contains(a.err, "30 tokens, ")));
    for (const std::string& token : lines_of(run({"--from", m.file, "--tokens", "3"}).out)) // which does not say that tokens are bytes
        CHECK(token.find_first_not_of("0123456789 ") == std::string::npos);
    check_refused({"--from", m.file, "--sample", "ab c"}, {"--sample ab c", "256 kinds of tokens", "--tokenizer"});
    std::string llmc = little_endian(20240328, 4) + little_endian(2, 4) + little_endian(256, 4);
    llmc.resize(1024, '\0');
    for (int token = 0; token < 256; token++) llmc += "\2" + std::string(1, (char)('a' + token % 26)) + "!"; // which only decodes
    const std::string words = run({"--from", m.file, "--tokens", "3", "--tokenizer", m.write("gpt2_tokenizer.bin", llmc)}).out;
    CHECK((words.size() == 7 && words[1] == '!' && words[5] == '!'));
    CHECK(run({"--from", m.file, "--tokens", "3"}).out == words); // that of its folder is found
    check_refused({"--from", m.file, "--sample", "ab c"}, {"--sample ab c", "only decodes"});
    CHECK(run({"--from", m / "out", "--sample", "ab c", "--tokens", "30"}).out == a.out); // whose tokens are bytes
}

TEST_CASE("--evaluate gives the loss that the run logged, where its windows are the run's; in bits per byte, too") {
    Folder f;
    std::string text = some_text();
    const std::string four = f.write("four windows", text.substr(0, 4 * 16 + 1)), all = f.write("all", text); // each window begins with the last one's end
    const Outcome o = run(TINY + Args{"--data", all, "--val-data", four, "--batch", "2", "--eval-batches", "2", "--eval-every", "3", "--steps", "3", "--save-every", "3", "--tokens", "0", "--out", f / "out"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    const double logged = Json::parse(lines_of(read(f / "out/log.jsonl")).at(4))["val_loss"];
    CHECK(loss_of(f / "out", four) == format("%.6f", logged));
    CHECK(loss_of(f / "out", four, {"--batch", "1"}) == format("%.6f", logged));
    const std::string said = run({"--from", f / "out", "--evaluate", four}).out;
    CHECK(contains(said, format("perplexity %.4f, %.4f bits per byte; 64 tokens of %s after the first", std::exp(logged), logged / std::log(2.0), four.c_str())));

    // 2 windows of 16 and one of 5: the mean over 37 tokens of what each window alone has.
    double sum = 0;
    for (auto [at, n] : {std::pair{0, 16}, {16, 16}, {32, 5}}) sum += n * std::stod(loss_of(f / "out", f.write("one", text.substr(at, n + 1))));
    CHECK(std::fabs(std::stod(loss_of(f / "out", f.write("three", text.substr(0, 38)))) - sum / 37) < 2e-6);
    CHECK(loss_of(f / "out", f / "three", {"--context", "7"}) != loss_of(f / "out", f / "three"));
    check_refused({"--from", f / "out", "--evaluate", f.write("one token", "a")}, {"--evaluate", "one token has 1 tokens", "2 or more"});
}

TEST_CASE("a model goes from a run to Hugging Face's format, to llm.c's and back, and every byte and loss stays") {
    Model m;
    const std::string weights = read(m.weights), config = read(m / "out/step_2/config.json");
    CHECK(read(m.folder + "/model.safetensors") == weights);
    CHECK(read(m.folder + "/config.json") == config);
    CHECK(Json::parse(config)["tokens"] == "bytes");
    CHECK(fs::file_size(m.file) == 1024 + 4 * (256 * 16 + 16 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16));
    REQUIRE(run({"--from", m.file, "--export", m / "back/again"}).status == 0); // folders are made
    CHECK(read(m / "back/again/model.safetensors") == weights);
    CHECK(!Json::parse(read(m / "back/again/config.json")).contains("tokens")); // llm.c's file does not say
    REQUIRE(run({"--from", m.folder, "--export", m / "again.bin", "--recipe", "fp32"}).status == 0);
    CHECK(read(m / "again.bin") == read(m.file));

    const std::string tokens = m.write("tokens.bin", shard(100, 256));
    for (const char* recipe : {"fp32", "fp8"}) {
        const std::string loss = loss_of(m / "out", tokens, {"--recipe", recipe});
        for (const std::string& from : {m.folder, m.file}) CHECK(loss_of(from, tokens, {"--recipe", recipe}) == loss);
    }
    REQUIRE(run({"--from", m.folder, "--export", m / "bf16.bin"}).status == 0); // the default recipe
    CHECK(fs::file_size(m / "bf16.bin") - 1024 == (fs::file_size(m.file) - 1024) / 2);
    CHECK(std::fabs(std::stod(loss_of(m / "bf16.bin", tokens)) - std::stod(loss_of(m.file, tokens))) < 0x1p-8); // biases and gains are rounded too
    check_refused({"--from", m.file, "--evaluate", m / "text"}, {m.file, "reads text as bytes: expected --tokenizer", "--tokenizer"});

    check_refused({"--from", m.file, "--export", m / "out"}, {"--export " + (m / "out"), "is a run's folder, with log.jsonl"});
    check_refused({"--from", m.file, "--export", m / "out/step_2"}, {"is a run's folder, with state.safetensors"});
    check_refused({"--from", m.file, "--export", m / "text"}, {"--export " + (m / "text"), "cannot be made a folder", "Not a directory"});
    check_refused({"--from", m.file, "--export", m / "x.safetensors"}, {"--export", "expected a folder"});
    CHECK(read(m.weights) == weights);
    const Outcome nowhere = run({"--from", m.file, "--export", m / "nowhere/x.bin"});
    CHECK(nowhere.status == 1);
    CHECK(contains(nowhere.err, "nowhere/x.bin: its folder cannot be opened: No such file"));
}

TEST_CASE("--from with options that are not the model's, or with data that are not, is refused with both values") {
    Model m;
    const std::string from = m / "out", text = m / "text";
    auto is_fixed = [&](const char* option, const char* value, const char* is, const Args& use) { check_refused(Args{"--from", from, option, value} + use, {std::string(option) + " is " + value, "that of --from " + from + " is " + is}); };
    is_fixed("--layers", "3", "1", {}), is_fixed("--heads", "1", "2", {"--data", text}), is_fixed("--channels", "64", "16", {"--evaluate", text});
    is_fixed("--vocab", "300", "256", {"--export", m / "x"}), is_fixed("--vocab", "0", "256", {"--data", text});
    check_refused({"--from", from, "--context", "17"}, {"--context is 17", "--from", "is 16", "no more"});
    CHECK(run({"--from", from, "--context", "9", "--layers", "1", "--heads", "2", "--channels", "16", "--vocab", "256", "--tokens", "1"}).status == 0); // what is the model's may be said
    check_refused({"--from", from, "--data", m.write("high.bin", shard(500, 300))}, {"high.bin", "token", "outside the vocabulary of 256"});
    check_refused({"--from", from, "--evaluate", m / "high.bin"}, {"high.bin", "outside the vocabulary of 256"});
    check_refused({"--from", m.file, "--data", text}, {m.file, "reads text as bytes: expected --tokenizer"});
    const std::string tokenizer = m.write("tokenizer.json", TINY_TOKENIZER);
    for (const Args& use : {Args{}, Args{"--data", text}, Args{"--evaluate", text}}) check_refused(Args{"--from", from, "--tokenizer", tokenizer} + use, {"600", "256"});
    check_refused({"--evaluate", text}, {"--evaluate", "--from"});
    check_refused({"--export", m / "x"}, {"--export", "--from"});
    check_refused({"--from", from, "--evaluate", text, "--export", m / "x"}, {"--evaluate and --export", "one of them"});
    check_refused({"--from", from, "--evaluate", text, "--data", text}, {"one of them"});
    for (const Args& training : {Args{"--steps", "3"}, Args{"--compare"}, Args{"--reference"}}) check_refused(Args{"--from", from} + training, {"--from " + from, training[0], "trains nothing"});
    check_refused({"--from", m / "nowhere"}, {"nowhere", "is not there"});
    check_refused({"--from", m.path.string()}, {"has no model.safetensors and no checkpoint"});
    check_refused({"--from", text}, {"config.json", "No such file", "shape of " + text});
    check_refused({"--from", m / "high.bin"}, {"high.bin", "shard of tokens", "expected a model"});
    check_refused({"--from", from, "--evaluate", m.file}, {m.file, "is an llm.c model", "expected a shard"});
}

TEST_CASE("a model of another format is trained on from where it was, and that run goes on bit for bit, and by itself") {
    Model m;
    const std::string text = m / "text", two = m.write("two windows", some_text().substr(0, 33));
    for (const Args& way : {Args{m.file, m.write("tokens.bin", shard(600, 256)), m.write("two.bin", shard(33, 256)), "bf16"}, Args{m.folder, text, two, "fp8"}}) {
        const std::string from = way[0], data = way[1], val_data = way[2], recipe = way[3];
        CAPTURE(from);
        Folder f;
        const Outcome o = run({"--from", from, "--data", data, "--val-data", val_data, "--recipe", recipe, "--batch", "2", "--steps", "6", "--lr", "0.01", "--warmup", "0", "--save-every", "3", "--eval-every", "3", "--eval-batches", "1", "--tokens", "0", "--out", f / "out"});
        REQUIRE_MESSAGE(o.status == 0, o.err);
        std::vector<std::string> evaluations;
        for (const std::string& line : lines_of(read(f / "out/log.jsonl")))
            if (const Json j = Json::parse(line); j.contains("val_loss")) evaluations.push_back(format("%.6f", (double)j["val_loss"]));
        REQUIRE(evaluations.size() == 3);
        CHECK(evaluations[0] == loss_of(from, val_data, {"--recipe", recipe}));
        CHECK(evaluations[2] < evaluations[0]); // as text: all have one digit before the point
        copy_until(f / "out", 3, f / "on");
        fs::rename(from, m / "moved"); // what it began with is not needed any more
        const Outcome on = run({"--resume", f / "on"});
        fs::rename(m / "moved", from);
        REQUIRE_MESSAGE(on.status == 0, on.err);
        check_same(f / "out", f / "on", {"step_3", "step_6"});
        CHECK(loss_of(f / "on", val_data) == loss_of(f / "out", val_data));
        check_refused({"--resume", f / "on", "--from", text}, {"--from is ", "that run's is "});
    }
}

TEST_CASE("a run with --tokenizer keeps it with its weights: --from alone reads text, continues it, trains on it and hands it on") {
    Folder f;
    const std::string text = f.write("text", some_text()), tokenizer = f.write("tokenizer.json", TINY_TOKENIZER);
    const Args few = QUIET + Args{"--data", text, "--steps", "1", "--save-every", "1"};
    Outcome o = run(TINY + few + Args{"--tokenizer", tokenizer, "--out", f / "out"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    o = run({"--from", f / "out", "--export", f / "x"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    fs::remove(tokenizer);
    o = run(few + Args{"--from", f / "out", "--out", f / "on"});
    REQUIRE_MESSAGE(o.status == 0, o.err);
    for (const std::string& from : {f / "out", f / "x", f / "on"}) {
        CAPTURE(from);
        CHECK(read(from + (from == f / "x" ? "" : "/step_1") + "/tokenizer.json") == TINY_TOKENIZER);
        o = run({"--from", from, "--sample", "the cat", "--tokens", "5"});
        CHECK(o.out.substr(0, 7) == "the cat");
        CHECK(o.out.size() > 12);
        const std::string said = run({"--from", from, "--evaluate", text}).out;
        CHECK(contains(said, " bits per byte; "));
        CHECK(!contains(said, "2999 tokens")); // merges make fewer
    }
    check_refused({"--from", f / "x", "--tokenizer", "", "--evaluate", text}, {"reads text as bytes: expected --tokenizer"}); // none
    f.write("x/tokenizer.json", "{}");
    check_refused({"--from", f / "x", "--sample", "the cat"}, {"x/tokenizer.json"});
    CHECK(run({"--from", f / "x", "--tokenizer", "", "--tokens", "2"}).status == 0); // as numbers
}

// ==== one source, two machines =======================================================================================

// FEWBITS_CPU_PROGRAM names the CPU's program while another machine's is tested.
// FP32: the machines add in different orders. A sum of up to 200 terms rounds as often, and each update passes on what the
// ones before it got wrong. Narrower formats: another order turns some roundings, so that the two runs may lie on either
// side of FP32's, each as far from it as its roundings take it.
TEST_CASE("ten losses are those of the CPU, as far as another order of sums allows, in every recipe") {
    const char* cpu = getenv("FEWBITS_CPU_PROGRAM");
    if (!cpu || read(cpu) == read(getenv("FEWBITS_PROGRAM"))) return;
    auto losses = [](const std::string& recipe) { return Run(Args{"--recipe", recipe, "--steps", "10"} + QUIET).numbers("loss"); };
    auto furthest = [](const std::vector<double>& a, const std::vector<double>& b) {
        double most = 0;
        for (size_t i = 0; i < a.size(); i++) most = std::fmax(most, std::fabs(a[i] - b[i]));
        return most;
    };
    std::vector<double> fp32;
    for (const char* recipe : {"fp32", "bf16", "fp16", "fp8"}) {
        const std::vector<double> here = losses(recipe);
        std::vector<double> there;
        {
            Instead of(cpu);
            there = losses(recipe);
        }
        REQUIRE(here.size() == 10);
        REQUIRE(there.size() == 10);
        if (fp32.empty()) fp32 = there;
        const double bound = recipe == std::string("fp32") ? 10 * 200 * 0x1p-24 * fp32[0] : 2 * furthest(there, fp32);
        MESSAGE(std::string(recipe), ": ", furthest(here, there), " apart, ", bound, " allowed");
        CHECK(furthest(here, there) <= bound);
    }
}
