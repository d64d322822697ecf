// decisions.h -- the run's decisions on formats and scales, written down with all that they were made from, and made again.
//
//   OUT/decisions.jsonl   first the rules and the tensors; then for each attempt of a step its evidence, the decision in
//                         words, and a hash of the state that it left
//   --replay OUT          reads this, computes every decision again, and fails at the first that differs
//
// Units    evidence in counts; amaxes as the bits of their FP32 numbers
// Why      policy.cuh decides by integers alone, so whoever has these has the decisions: on another machine, without the
//          model, years later. A log that a run wrote and nobody can check would prove nothing.
// Tests    tests/test_train_gpt.cu, tests/test_decisions.cu
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include "policy.cuh"

using Json = nlohmann::ordered_json;

// f(name, field) for every rule: as numbers.
template <class F>
void each_rule(Rules& r, F f) {
    int scaling = (int)r.scaling, guard = r.guard, promote = r.promote;
    f("scaling", scaling), f("window", r.window), f("margin", r.margin), f("interval", r.interval), f("deadband", r.deadband);
    f("guard", guard), f("skip_limit", r.skip_limit), f("promote", promote), f("spikes_to_promote", r.spikes_to_promote);
    f("flushed_to_promote", r.flushed_to_promote), f("snr_to_promote", r.snr_to_promote), f("clean_to_demote", r.clean_to_demote);
    f("flushed_to_demote", r.flushed_to_demote), f("snr_to_demote", r.snr_to_demote), f("latch_after", r.latch_after);
    f("lost_to_master", r.lost_to_master);
    r.scaling = (Scaling)scaling, r.guard = guard, r.promote = promote;
}

inline uint32_t fnv1a(const void* data, size_t n, uint32_t hash = 2166136261u) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char*)data)[i]) * 16777619u;
    return hash;
}
// Of all that a state remembers.
inline uint32_t hash_of(const PolicyState& s) {
    uint32_t hash = fnv1a(nullptr, 0);
    for (const TensorState& t : s.tensors) hash = fnv1a(&t, sizeof t, hash);
    for (int x : {s.applied, s.drops, s.retrying}) hash = fnv1a(&x, sizeof x, hash);
    return hash;
}

inline Json header_of(Rules r, const PolicyState& s, const std::vector<std::string>& names) {
    Json header = {{"rules", Json::object()}, {"tensors", Json::array()}};
    each_rule(r, [&](const char* name, int& field) { header["rules"][name] = field; });
    for (size_t i = 0; i < s.tensors.size(); i++)
        header["tensors"].push_back({{"name", names[i]}, {"format", (int)s.tensors[i].first}, {"role", (int)s.tensors[i].role}});
    return header;
}

inline Json line_of(const StepEvidence& e, const Decision& d, const PolicyState& after, const std::vector<std::string>& names) {
    Json tensors = Json::array();
    for (const Evidence& t : e.tensors) tensors.push_back({t.amax_bits, t.nan, t.inf, t.saturated, t.flushed, t.subnormal, t.nonzero});
    return {{"loss_finite", e.loss_finite}, {"norm_finite", e.norm_finite}, {"tensors", tensors}, {"decision", text(d, names)}, {"state", hash_of(after)}};
}

// What a file of decisions holds: how many attempts, and how many of each verdict.
struct Replayed {
    int attempts = 0, verdicts[4] = {}, reasons = 0;
};

// Computes every decision of the file again, and shows each to visit(evidence, decision, the state after it, the line) once it
// is found to be the run's. Refuses a file that is none; throws (status 1) where a decision differs.
template <class F>
Replayed replay(const std::string& path, F visit) {
    std::ifstream file(path);
    if (!file) refuse("--replay: cannot read %s: %s", path.c_str(), strerror(errno));
    Rules rules;
    PolicyState state;
    std::vector<std::string> names;
    Replayed r;
    std::string line;
    int number = 1;
    try {
        std::getline(file, line);
        const Json header = Json::parse(line);
        each_rule(rules, [&](const char* name, int& field) { field = header.at("rules").at(name); });
        for (const Json& t : header.at("tensors")) {
            const int f = t.at("format"), role = t.at("role");
            if (f < FP32 || f > E5M2 || role < 0 || role > 2) refuse("%s:1: format %d, role %d", path.c_str(), f, role);
            state.tensors.emplace_back((Format)f, (Role)role), names.push_back(t.at("name"));
        }
        while (std::getline(file, line)) {
            number++;
            const Json logged = Json::parse(line);
            StepEvidence e = {logged.at("loss_finite"), logged.at("norm_finite"), {}};
            for (const Json& t : logged.at("tensors")) {
                Evidence x;
                x.amax_bits = t.at(0), x.nan = t.at(1), x.inf = t.at(2), x.saturated = t.at(3), x.flushed = t.at(4), x.subnormal = t.at(5), x.nonzero = t.at(6);
                if (x.amax_bits >= 0x7F800000) refuse("%s:%d: %u are not the bits of a finite amax", path.c_str(), number, x.amax_bits);
                e.tensors.push_back(x);
            }
            const Decision d = decide(rules, state, e);
            const std::string now = text(d, names), then = logged.at("decision");
            if (now != then) throw Error(1, format("%s:%d: the run decided '%s', its evidence decides '%s'", path.c_str(), number, then.c_str(), now.c_str()));
            if (hash_of(state) != logged.at("state").get<uint32_t>())
                throw Error(1, format("%s:%d: after '%s' the state is %08x, the run's was %08x", path.c_str(), number, now.c_str(), hash_of(state), logged.at("state").get<uint32_t>()));
            visit(e, d, (const PolicyState&)state, logged);
            r.attempts++, r.verdicts[(int)d.verdict]++, r.reasons += d.reasons.size();
        }
    } catch (const nlohmann::json::exception& e) {
        refuse("%s:%d: not a file of decisions: %s", path.c_str(), number, e.what());
    }
    return r;
}
inline Replayed replay(const std::string& path) {
    return replay(path, [](auto&&...) {});
}
