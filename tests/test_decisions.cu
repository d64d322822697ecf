// test_decisions.cu -- decisions.h: what is written down is all that was decided from, and reading it gives it back.
#include "decisions.h"
#include <doctest/doctest.h>
#include <filesystem>

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
    void save() const {
        std::ofstream file(path);
        for (const std::string& line : lines) file << line << "\n";
    }
};
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

    auto changed = [&](size_t line, const std::string& from, const std::string& to) {
        Log copy = log;
        std::string& s = copy.lines[line];
        REQUIRE(s.find(from) != std::string::npos);
        s.replace(s.find(from), from.size(), to);
        copy.path += "2";
        copy.save();
        try {
            replay(copy.path);
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    CHECK(changed(4, "1500", "2500").find("2:5: the run decided") != std::string::npos);
    CHECK(changed(2, "100,70,", "100,20,").find("2:3: after 'apply") != std::string::npos);
    CHECK(changed(0, "\"storage\":1", "\"storage\":0").find("2:1: storage 0") != std::string::npos);
}
