// decisions.h -- the run's decisions on formats and scales, written down with all that they were made from, and made again.
//
//   OUT/decisions.jsonl   first the rules and the tensors; then for each attempt of a step its evidence, the decision in
//                         words, and a hash of the state that it left
//   --replay OUT          reads this, computes every decision again, and fails at the first that differs
//   OUT/shadow.jsonl      what looks at the tensors saw, one line for each
//
// Units    evidence in counts; amaxes as the bits of their FP32 numbers
// Why      policy.cuh decides by integers alone, so whoever has these has the decisions: on another machine, without the
//          model, years later. A log that a run wrote and nobody can check would prove nothing.
// Tests    tests/test_train_gpt.cu, tests/test_decisions.cu
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include "shadow.cuh"

using Json = nlohmann::ordered_json;
inline double number_of(const Json& j) { return j.is_null() ? NAN : j.get<double>(); } // JSON has no NaN: null stands for it

// f(name, field) for every rule: as numbers.
template <class F>
void each_rule(Rules& r, F f) {
    int scaling = (int)r.scaling, guard = r.guard, promote = r.promote, grants_masters = r.grants_masters;
    f("scaling", scaling), f("window", r.window), f("margin", r.margin), f("interval", r.interval), f("deadband", r.deadband);
    f("guard", guard), f("replays", r.replays), f("skip_limit", r.skip_limit), f("promote", promote), f("spikes_to_promote", r.spikes_to_promote);
    f("flushed_to_promote", r.flushed_to_promote), f("snr_to_promote", r.snr_to_promote), f("clean_to_demote", r.clean_to_demote);
    f("flushed_to_demote", r.flushed_to_demote), f("snr_to_demote", r.snr_to_demote), f("latch_after", r.latch_after);
    f("grants_masters", grants_masters), f("lost_to_master", r.lost_to_master);
    r.scaling = (Scaling)scaling, r.guard = guard, r.promote = promote, r.grants_masters = grants_masters;
}

inline uint32_t fnv1a(const void* data, size_t n, uint32_t hash = 2166136261u) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char*)data)[i]) * 16777619u;
    return hash;
}
// Of all that a state remembers.
inline uint32_t hash_of(const PolicyState& s) {
    uint32_t hash = fnv1a(nullptr, 0);
    for (const TensorState& t : s.tensors) hash = fnv1a(&t, sizeof t, hash);
    for (const StorageState& p : s.parameters) hash = fnv1a(&p, sizeof p, hash);
    for (int x : {s.applied, s.drops, s.retrying}) hash = fnv1a(&x, sizeof x, hash);
    return hash;
}

// Names: of the state's tensors, then of its parameters.
inline Json header_of(Rules r, const PolicyState& s, const std::vector<std::string>& names) {
    Json header = {{"rules", Json::object()}, {"tensors", Json::array()}, {"parameters", Json::array()}};
    each_rule(r, [&](const char* name, int& field) { header["rules"][name] = field; });
    auto name = names.begin();
    for (const TensorState& t : s.tensors) header["tensors"].push_back({{"name", *name++}, {"format", (int)t.first}, {"role", (int)t.role}});
    for (const StorageState& p : s.parameters) header["parameters"].push_back({{"name", *name++}, {"storage", p.format}, {"master", p.master}});
    return header;
}

// f(field) for each number of the evidence; the last five are there only if the tensor was looked at.
template <class E, class F>
void each_count(E& e, bool looked_at, F f) {
    f(e.amax_bits), f(e.nan), f(e.inf), f(e.saturated), f(e.flushed), f(e.subnormal), f(e.nonzero);
    if (looked_at) f(e.snr), f(e.snr_narrower), f(e.snr_wider), f(e.flushed_narrower), f(e.nonzero_narrower);
}
template <class U, class F>
void each_count(U& u, F f) {
    f(u.updates), f(u.lost), f(u.realised);
    for (auto& n : u.bins) f(n);
}

inline Json line_of(const StepEvidence& e, const Decision& d, const PolicyState& after, const std::vector<std::string>& names) {
    Json line = {{"loss_finite", e.loss_finite}, {"norm_finite", e.norm_finite}, {"tensors", Json::array()}};
    for (const Evidence& t : e.tensors) {
        Json& counts = line["tensors"].emplace_back(Json::array());
        each_count(t, std::min({t.snr, t.snr_narrower, t.snr_wider}) != NOT_MEASURED, [&](auto n) { counts.push_back(n); });
    }
    for (const UpdateEvidence& u : e.updates) {
        Json& counts = line["updates"].emplace_back(Json::array());
        each_count(u, [&](auto n) { counts.push_back(n); });
    }
    line["decision"] = text(d, names), line["state"] = hash_of(after);
    return line;
}

// The evidence of such a line.
inline StepEvidence evidence_of(const Json& line) {
    StepEvidence e = {line.at("loss_finite"), line.at("norm_finite"), {}, {}};
    for (const Json& counts : line.at("tensors")) {
        Evidence& t = e.tensors.emplace_back();
        size_t i = 0;
        each_count(t, counts.size() > 7, [&](auto& n) { n = counts.at(i++); });
    }
    if (line.contains("updates"))
        for (const Json& counts : line["updates"]) {
            UpdateEvidence& u = e.updates.emplace_back();
            size_t i = 0;
            each_count(u, [&](auto& n) { n = counts.at(i++); });
        }
    return e;
}

// A tensor as a look saw it: counts[i] numbers with floor(log2 |x|) = first + i, `zeros` that are 0 or below 2^-126.
inline Json json_of(const std::string& name, const Shadow& s) {
    auto json = [](const Noise& n) -> Json {
        if (n.snr == NOT_MEASURED) return nullptr;
        return {{"format", name_of(n.format)}, {"k", n.k}, {"snr", n.snr}, {"flushed", n.flushed}, {"nonzero", n.nonzero}};
    };
    int first = 1, last = EXPONENTS - 2;
    while (first <= last && !s.exponents[first]) first++;
    while (last >= first && !s.exponents[last]) last--;
    Json counts = Json::array();
    for (int e = first; e <= last; e++) counts.push_back(s.exponents[e]);
    return {{"tensor", name}, {"format", name_of(s.own.format)}, {"k", s.own.k}, {"snr", s.own.snr == NOT_MEASURED ? Json() : Json(s.own.snr)}, {"narrower", json(s.narrower)}, {"wider", json(s.wider)}, {"zeros", s.exponents[0]}, {"first", first - 127}, {"counts", counts}};
}

// What a file of decisions holds: how many attempts, and how many of each verdict.
struct Replayed {
    int attempts = 0, verdicts[4] = {}, reasons = 0;
};

// An attempt of a step that was decided again as the run had decided it.
struct Attempt {
    const Rules& rules;
    const std::vector<std::string>& names; // of tensors, then of parameters
    const PolicyState &before, &after;
    const StepEvidence& evidence;
    const Decision& decision;
};

// Computes every decision of the file again, and shows each to visit(attempt) once it is found to be the run's. Refuses a file
// that is none; throws (status 1) where a decision differs.
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
        for (const Json& p : header.at("parameters")) {
            const int f = p.at("storage"), master = p.at("master");
            if ((f != BF16 && f != FP16) || master < 0 || master > 1) refuse("%s:1: storage %d, master %d", path.c_str(), f, master);
            state.parameters.push_back({0, 0, 0, master, f}), names.push_back(p.at("name"));
        }
        while (std::getline(file, line)) {
            number++;
            const Json logged = Json::parse(line);
            const StepEvidence e = evidence_of(logged);
            for (const Evidence& t : e.tensors)
                if (t.amax_bits >= 0x7F800000) refuse("%s:%d: %u are not the bits of a finite amax", path.c_str(), number, t.amax_bits);
            const PolicyState before = state;
            Decision d = decide(rules, state, e);
            give_masters(rules, state, e.updates, d);
            const std::string now = text(d, names), then = logged.at("decision");
            if (now != then) throw Error(1, format("%s:%d: the run decided '%s', its evidence decides '%s'", path.c_str(), number, then.c_str(), now.c_str()));
            if (hash_of(state) != logged.at("state").get<uint32_t>())
                throw Error(1, format("%s:%d: after '%s' the state is %08x, the run's was %08x", path.c_str(), number, now.c_str(), hash_of(state), logged.at("state").get<uint32_t>()));
            visit(Attempt{rules, names, before, state, e, d});
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
