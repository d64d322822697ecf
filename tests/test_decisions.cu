// test_decisions.cu -- decisions.h: what is written down is all that was decided from, and reading it gives it back.
#include "decisions.h"
#include <doctest/doctest.h>
#include <filesystem>
#include <sstream>

namespace {

// A log of our own, gone with the test.
struct Log {
    std::string path = (std::filesystem::temp_directory_path() / format("fewbits_decisions_%d.jsonl", (int)getpid())).string();
    std::vector<std::string> names = {"h.0.mlp.c_fc input", "h.0.mlp.c_fc gradient", "wte.weight", "ln_f.weight"};
    Rules rules;
    PolicyState state;
    std::vector<std::string> lines;
    Log() {
        state.tensors = {TensorState(E4M3, Role::input), TensorState(E5M2, Role::gradient)};
        state.parameters = {{0, 0, 0, 1, BF16}, {0, 0, 0, 0, BF16}};
    }
    ~Log() { std::filesystem::remove(path); }
    void begin() { lines = {header_of(rules, state, names).dump()}; }
    Decision attempt(const StepEvidence& e) {
        Decision d = decide(rules, state, e);
        give_masters(rules, state, e.updates, d);
        lines.push_back(line_of(e, d, state, names).dump());
        return d;
    }
    std::string all() const {
        std::string text;
        for (const std::string& line : lines) text += line + "\n";
        return text;
    }
    void save() const { std::ofstream(path) << all(); }
    // With one line changed. The lines after it are the run's.
    std::string with(size_t line, const std::string& from, const std::string& to) const {
        Log copy = *this;
        std::string& s = copy.lines[line];
        REQUIRE(s.find(from) != std::string::npos);
        s.replace(s.find(from), from.size(), to);
        return copy.all();
    }
};
// A log is refused: status and message, one line of a sane length. "": it is not.
std::string refusal(const std::string& text) {
    std::istringstream log(text);
    try {
        replay(log, "log", [](auto&&...) {});
    } catch (const Error& e) {
        const std::string message = format("%d %s", e.status, e.what());
        CHECK(message.find('\n') == std::string::npos);
        CHECK(message.size() < 1000);
        return message;
    }
    return "";
}
UpdateEvidence updates(int64_t n, int64_t lost, int bin) {
    UpdateEvidence u;
    u.updates = n, u.lost = lost, u.realised = -7, u.bins[bin] = n;
    return u;
}
Evidence evidence(float amax) {
    Evidence e;
    e.amax_bits = bits_as<uint32_t>(amax), e.flushed = 1, e.subnormal = 2, e.nonzero = 1ll << 40;
    return e;
}

} // namespace

TEST_CASE("decisions: evidence is read back as it was, with and without a look and updates") {
    StepEvidence e = {true, false, {evidence(1), evidence(2)}, {updates(100, 60, 3), updates(5, 0, 31)}};
    e.tensors[0].nan = 3, e.tensors[0].inf = 4, e.tensors[0].saturated = 5;
    e.tensors[1].snr = 3100, e.tensors[1].snr_wider = EXACT, e.tensors[1].flushed_narrower = 6, e.tensors[1].nonzero_narrower = 7;
    Log log;
    const Json line = Json::parse(line_of(e, {}, log.state, log.names).dump());
    CHECK(line["tensors"][0].size() == 7);
    CHECK(line["tensors"][1].size() == 12);
    const StepEvidence read = evidence_of(line);
    CHECK(read.loss_finite);
    CHECK(!read.norm_finite);
    CHECK(line_of(read, {}, log.state, log.names).dump() == line.dump());
    CHECK(read.tensors[0].nonzero == 1ll << 40);
    CHECK(read.tensors[1].snr_narrower == NOT_MEASURED);
    CHECK(read.tensors[1].snr_wider == EXACT);
    CHECK(read.updates[0].realised == -7);
    CHECK(read.updates[1].bins[31] == 5);
}

TEST_CASE("decisions: a look is written with the exponents of its numbers: 1 has 0, 0.75 has -1") {
    Shadow s;
    s.own = {BF16, 0, EXACT}, s.exponents.assign(EXPONENTS, 0);
    for (float x : {1.0f, 0.75f, 0.5f, 4.0f}) s.exponents[bits_as<uint32_t>(x) >> 23]++;
    s.exponents[0] = 7;
    const Json j = json_of("x", s);
    CHECK(j["first"] == -1);
    CHECK(j["counts"] == Json({2, 1, 0, 1}));
    CHECK(j["zeros"] == 7);
    CHECK(j["snr"] == EXACT);
    CHECK(j["narrower"].is_null());
}

TEST_CASE("decisions: a run that promotes, demotes and gives masters is decided again; a changed count or SNR is found") {
    Log log;
    log.rules.window = 4, log.rules.clean_to_demote = 2;
    log.begin();
    std::string all;
    for (int t = 0; t < 24; t++) {
        StepEvidence e = {true, true, {evidence(1), evidence(1e-6f)}};
        if (t == 2 || t == 3) e.tensors[1].snr = 1500; // two samples in a row
        if (t > 3) e.tensors[1].snr_narrower = 2560, e.tensors[1].nonzero_narrower = 1000;
        e.updates = {updates(100, 0, 20), updates(100, 70, 3)};
        const Decision d = log.attempt(e);
        all += text(d, log.names) + "\n";
    }
    CHECK(all.find("h.0.mlp.c_fc gradient: promote E5M2 -> BF16") != std::string::npos);
    CHECK(all.find("h.0.mlp.c_fc gradient: demote BF16 -> E5M2") != std::string::npos);
    CHECK(all.find("ln_f.weight: master BF16 -> FP32") != std::string::npos);
    CHECK(all.find("wte.weight: master") == std::string::npos); // it had one
    log.save();
    int visited = 0;
    const Replayed r = replay(log.path, [&](const Attempt& a) {
        visited++;
        CHECK(a.evidence.updates.size() == 2);
        CHECK(a.before.applied == visited - 1);
        CHECK(a.after.applied == visited);
        CHECK(Json::parse(log.lines[visited])["state"] == hash_of(a.after));
        CHECK(a.names == log.names);
    });
    CHECK(r.attempts == 24);
    CHECK(visited == 24);

    CHECK(refusal(log.with(4, "1500", "2500")) == "1 log:5: the run decided 'h.0.mlp.c_fc gradient: promote E5M2 -> BF16; ln_f.weight: master BF16 -> FP32', "
                                                  "its evidence decides 'ln_f.weight: master BF16 -> FP32'"); // from where they differ
    CHECK(refusal(log.with(2, "100,70,", "100,20,")).find("1 log:3: after 'apply' the state is ") == 0);
}

// ==== logs that no run wrote =========================================================================================

namespace {

// Two tensors, two parameters; a look at the first, and updates.
struct Small : Log {
    Small() {
        begin();
        StepEvidence e = {true, true, {evidence(1), evidence(2)}, {updates(100, 60, 3), updates(5, 0, 31)}};
        e.tensors[0].snr = 3100;
        attempt(e);
        attempt({true, true, {evidence(1), evidence(2)}});
    }
};

} // namespace

TEST_CASE("decisions: a rule, a tensor or a number of evidence out of its range is refused by line, field, value and range") {
    const Small log;
    CHECK(refusal(log.all()) == "");
    auto rule = [&](const std::string& name, const std::string& value) {
        Json header = Json::parse(log.lines[0]);
        return refusal(log.with(0, "\"" + name + "\":" + header["rules"][name].dump(), "\"" + name + "\":" + value));
    };
    for (const char* bad : {"0", "-1", "65", "1000000000", "1e300", "16.5", "16.0", "4294967312", "18446744073709551615"}) // 4294967312 is 16 in 32 bits
        CHECK(rule("window", bad) == format("2 log:1: window is %s; expected an integer from 1 to 64", Json::parse(bad).dump().c_str()));
    CHECK(rule("window", "null") == "2 log:1: window is null; expected number");
    CHECK(rule("scaling", "4") == "2 log:1: scaling is 4; expected an integer from 0 to 3");
    CHECK(rule("interval", "0").find("interval is 0; expected an integer from 1 to 2147483647") != std::string::npos);
    CHECK(rule("deadband", "2147483647").find("deadband is 2147483647; expected an integer from 1 to 220") != std::string::npos); // + margin overflows
    CHECK(rule("margin", "-1").find("margin is -1; expected an integer from 0 to 110") != std::string::npos);
    CHECK(rule("guard", "2").find("guard is 2; expected an integer from 0 to 1") != std::string::npos);
    CHECK(rule("lost_to_master", "1001").find("lost_to_master is 1001; expected an integer from 0 to 1000") != std::string::npos);

    CHECK(refusal(log.with(0, "\"format\":4", "\"format\":5")) == "2 log:1: tensors[1]: format is 5; expected an integer from 0 to 4");
    CHECK(refusal(log.with(0, "\"role\":2", "\"role\":3")) == "2 log:1: tensors[1]: role is 3; expected an integer from 0 to 2");
    CHECK(refusal(log.with(0, "\"role\":2", "\"rule\":2")) == "2 log:1: tensors[1]: role is not there; expected number");
    CHECK(refusal(log.with(0, "\"storage\":1", "\"storage\":0")) == "2 log:1: parameters[0]: storage is 0; expected an integer from 1 to 2");
    CHECK(refusal(log.with(0, "\"wte.weight\"", "7")) == "2 log:1: parameters[0]: name is number; expected string");
    CHECK(refusal("{\"rules\":[]}") == "2 log:1: rules is array; expected object");

    CHECK(refusal(log.with(1, "1065353216", "-1")) == "2 log:2: tensors[0]: amax_bits is -1; expected an integer from 0 to 2139095039");
    CHECK(refusal(log.with(1, "1065353216", "2139095040")).find("amax_bits is 2139095040") != std::string::npos); // Inf
    CHECK(refusal(log.with(1, "1099511627776", "9007199254740993")) == "2 log:2: tensors[0]: nonzero is 9007199254740993; expected an integer from 0 to 9007199254740992");
    CHECK(refusal(log.with(1, ",0,0,0,1,", ",-3,3,0,1,")) == "2 log:2: tensors[0]: nan is -3; expected an integer from 0 to 9007199254740992"); // -3 NaN and 3 Inf would be none
    CHECK(refusal(log.with(1, "3100", "2147483648")).find("tensors[0]: snr is 2147483648; expected an integer from -2147483648 to 2147483647") != std::string::npos);
    CHECK(refusal(log.with(1, "[100,60,", "[1e2,60,")).find("updates[0]: updates is 100.0; expected") != std::string::npos);
    CHECK(refusal(log.with(1, "\"loss_finite\":true", "\"loss_finite\":1")) == "2 log:2: loss_finite is number; expected boolean");
    CHECK(refusal(log.with(2, "\"state\":", "\"state\":-")).find("2 log:3: state is -") == 0);
    CHECK(refusal(log.with(2, "\"decision\":\"apply\"", "\"decision\":null")) == "2 log:3: decision is null; expected string");
}

TEST_CASE("decisions: a line of other tensors, parameters or numbers than the first line names is refused") {
    const Small log;
    CHECK(refusal(log.with(2, "\"tensors\":[", "\"tensors\":[[0,0,0,0,0,0,0],")) == "2 log:3: has evidence of 3 tensors; expected 2, as in line 1");
    const std::string one = Json{{"updates", {std::vector<int>(35)}}}.dump(); // {"updates":[[0,...]]}
    CHECK(refusal(log.with(2, "\"decision\"", one.substr(1, one.size() - 2) + ",\"decision\"")) == "2 log:3: has updates of 1 parameters; expected 2, as in line 1");
    CHECK(refusal(log.with(2, "\"tensors\":[[", "\"tensors\":[[0,")).find("2 log:3: tensors[0]: ") == 0); // 8 numbers
    CHECK(refusal(log.with(1, "3100,", "3100,0,")) == "2 log:2: tensors[0]: has 13 numbers; expected 12");
    CHECK(refusal(log.with(1, "[5,0,-7,", "[5,0,-7,0,")) == "2 log:2: updates[1]: has 36 numbers; expected 35");
    CHECK(refusal(log.with(1, "[5,0,-7,", "[5,0,")).find("2 log:2: updates[1]: ") == 0);
    CHECK(refusal(log.with(2, "\"tensors\":[[", "\"tensors\":[7,[")).find("2 log:3: tensors[0]: ") == 0);
    CHECK(refusal(log.with(2, "\"tensors\":[[", "\"tensors\":7,\"others\":[[")) == "2 log:3: tensors is number; expected array");
}

// ... for it may say more than is read.
TEST_CASE("decisions: a line is refused that is not, byte for byte, what a run writes") {
    const Small log;
    CHECK(refusal(log.with(2, "\"decision\"", "\"decision\":\"drop\",\"decision\"")).find(R"(2 log:3: has '"decision":"drop",)") == 0);
    CHECK(refusal(log.with(0, "\"margin\"", "\"honest\":0,\"margin\"")).find("2 log:1: has '") == 0);
    CHECK(refusal(log.with(0, "\"window\":16", "\"window\":99,\"window\":16")).find("2 log:1: has '") == 0);
    CHECK(refusal(log.with(1, ",60,", ", 60,")).find("2 log:2: has ' 60") == 0);
    CHECK(refusal(log.all().insert(log.all().size() - 1, std::string("\0 not JSON", 10))).find("2 log:3: has '") == 0);
    CHECK(refusal(log.all() + "\n").find("2 log:4: not a file of decisions") == 0);
    CHECK(refusal("").find("2 log:1: not a file of decisions") == 0);
}

TEST_CASE("decisions: what a log says is cited in one line, and not all of it; nor do depth and keys take memory or time") {
    const Small small;
    const std::string much(10000, 'x');
    CHECK(refusal(small.with(2, "\"apply\"", "\"apply\\n" + much + "\"")).find("1 log:3: the run decided 'apply\\x0axxx") == 0);
    CHECK(refusal(small.with(2, "\"apply\"", much)).find("2 log:3: not a file of decisions") == 0);
    Log log;
    log.names[0] = much + "\n\xc3\xa9", log.begin();
    StepEvidence e = {true, true, {evidence(1), evidence(2)}};
    e.tensors[0].inf = 1;
    log.attempt(e);
    CHECK(refusal(log.all()) == "");
    CHECK(refusal(log.with(1, "\"drop: ", "\"stop: ")).find("1 log:2: the run decided 'stop: xxx") == 0);

    CHECK(refusal(std::string(100000, '[')).find("2 log:1: ") == 0);
    CHECK(refusal("{\"rules\":" + std::string(100000, '[') + std::string(100000, ']') + "}") == "2 log:1: rules is array; expected object");
    std::string keys = "{\"rules\":0";
    for (int i = 0; i < 5000; i++) keys += format(",\"%d\":0", i);
    CHECK(refusal(keys + "}") == "2 log:1: rules is number; expected object"); // quadratic in an ordered_json
    std::string tensors = "[";
    for (int i = 0; i < 1 << 14; i++) tensors += "{\"name\":\"\",\"format\":0,\"role\":0},";
    CHECK(refusal(small.with(0, "\"tensors\":[", "\"tensors\":" + tensors)) == "2 log:1: 16386 tensors, 2 parameters; expected at most 16384");
}

TEST_CASE("decisions: the largest rules and numbers that are accepted overflow nothing") {
    Log log;
    each_rule(log.rules, [](const char*, int& field, int, int most) { field = most; });
    log.rules.scaling = Scaling::global, log.rules.window = 1;
    log.begin();
    const int64_t most = 1ll << 53;
    UpdateEvidence u = {most, most, INT_MAX, {}};
    std::fill(std::begin(u.bins), std::end(u.bins), most);
    for (int i = 0; i < 4; i++) {
        const Evidence t = {0x7F7FFFFFu - i % 2 * 0x7F7FFFFEu, i == 2 ? most : 0, i == 2 ? most : 0, i == 3 ? most : 0, most, most, most, INT_MIN, INT_MIN, INT_MIN, most, most};
        log.attempt({true, true, {t, t}, {u, u}});
    }
    CHECK(refusal(log.all()) == "");
}
