// decisions.h -- the run's decisions on formats and scales, written down with all that they were made from, and made again.
//
//   OUT/decisions.jsonl   first the rules and the tensors; then for each attempt of a step its evidence, the decision in
//                         words, and a hash of the state that it left
//   --replay OUT          reads this, computes every decision again, and fails at the first that differs
//   OUT/shadow.jsonl      what looks at the tensors saw, one line for each
//
// Units    evidence in counts; amaxes as the bits of their FP32 numbers
// Why      policy.cuh decides by integers alone, so whoever has these has the decisions: on another machine, without the
//          model, years later. A log that a run wrote and nobody can check would prove nothing. It is read without trust:
//          every number has a range, and a line that is not, byte for byte, what a run writes of it is refused.
// Tests    tests/test_train_gpt.cu, tests/test_decisions.cu, fuzz/fuzz_decisions.cpp
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include "shadow.cuh"

using Json = nlohmann::ordered_json;
// As a log is read: in a map, where an object of many keys takes no quadratic time.
using Logged = nlohmann::json;
inline double number_of(const Json& j) { return j.is_null() ? NAN : j.get<double>(); } // JSON has no NaN: null stands for it

// f(name, field, least, most) for every rule: as numbers.
template <class F>
void each_rule(Rules& r, F f) {
    int scaling = (int)r.scaling, guard = r.guard, promote = r.promote, grants_masters = r.grants_masters;
    f("scaling", scaling, 0, (int)Scaling::none), f("window", r.window, 1, MAX_WINDOW), f("margin", r.margin, 0, K_LIMIT);
    f("interval", r.interval, 1, INT_MAX), f("deadband", r.deadband, 1, 2 * K_LIMIT), f("guard", guard, 0, 1);
    f("replays", r.replays, 0, INT_MAX), f("skip_limit", r.skip_limit, 0, INT_MAX), f("promote", promote, 0, 1);
    f("spikes_to_promote", r.spikes_to_promote, 0, INT_MAX), f("flushed_to_promote", r.flushed_to_promote, 0, 1000);
    f("snr_to_promote", r.snr_to_promote, INT_MIN, INT_MAX), f("clean_to_demote", r.clean_to_demote, 0, INT_MAX);
    f("flushed_to_demote", r.flushed_to_demote, 0, 1000), f("snr_to_demote", r.snr_to_demote, INT_MIN, INT_MAX);
    f("latch_after", r.latch_after, 0, INT_MAX), f("grants_masters", grants_masters, 0, 1), f("lost_to_master", r.lost_to_master, 0, 1000);
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
    each_rule(r, [&](const char* name, int field, int, int) { header["rules"][name] = field; });
    auto name = names.begin();
    for (const TensorState& t : s.tensors) header["tensors"].push_back({{"name", *name++}, {"format", (int)t.first}, {"role", (int)t.role}});
    for (const StorageState& p : s.parameters) header["parameters"].push_back({{"name", *name++}, {"storage", p.format}, {"master", p.master}});
    return header;
}

// f(name, field) for each number of the evidence; the last five are there only if the tensor was looked at.
template <class E, class F>
void each_count(E& e, bool looked_at, F f) {
    f("amax_bits", e.amax_bits), f("nan", e.nan), f("inf", e.inf), f("saturated", e.saturated);
    f("flushed", e.flushed), f("subnormal", e.subnormal), f("nonzero", e.nonzero);
    if (!looked_at) return;
    f("snr", e.snr), f("snr_narrower", e.snr_narrower), f("snr_wider", e.snr_wider);
    f("flushed_narrower", e.flushed_narrower), f("nonzero_narrower", e.nonzero_narrower);
}
template <class U, class F>
void each_count(U& u, F f) {
    f("updates", u.updates), f("lost", u.lost), f("realised", u.realised);
    for (auto& n : u.bins) f("bins", n);
}

inline Json line_of(const StepEvidence& e, const Decision& d, const PolicyState& after, const std::vector<std::string>& names) {
    Json line = {{"loss_finite", e.loss_finite}, {"norm_finite", e.norm_finite}, {"tensors", Json::array()}};
    for (const Evidence& t : e.tensors) {
        Json& counts = line["tensors"].emplace_back(Json::array());
        each_count(t, std::min({t.snr, t.snr_narrower, t.snr_wider}) != NOT_MEASURED, [&](const char*, auto n) { counts.push_back(n); });
    }
    for (const UpdateEvidence& u : e.updates) {
        Json& counts = line["updates"].emplace_back(Json::array());
        each_count(u, [&](const char*, auto n) { counts.push_back(n); });
    }
    line["decision"] = text(d, names), line["state"] = hash_of(after);
    return line;
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

// ==== a log is read ==================================================================================================

// object[field], which has to be a `kind`.
inline const Logged& field_of(const Logged& object, const char* field, const char* kind) {
    const auto found = object.is_object() ? object.find(field) : object.end();
    const char* is = found == object.end() ? "not there" : found->type_name();
    if (strcmp(is, kind) != 0) refuse("%s is %s; expected %s", field, is, kind);
    return *found;
}
// x, which has to be an integer from `least` to `most`: left to itself, nlohmann reads 1.5 as 1 and -1 as 4294967295.
inline int64_t integer_of(const char* field, const Logged& x, int64_t least, int64_t most) {
    const bool integer = x.is_number_integer() && (!x.is_number_unsigned() || x.get<uint64_t>() <= INT64_MAX);
    if (!integer || x.get<int64_t>() < least || x.get<int64_t>() > most)
        refuse("%s is %s; expected an integer from %lld to %lld", field, x.is_number() ? x.dump().c_str() : x.type_name(), (long long)least, (long long)most);
    return x.get<int64_t>();
}
inline int64_t integer_at(const Logged& object, const char* field, int64_t least, int64_t most) {
    return integer_of(field, field_of(object, field, "number"), least, most);
}
// visit(item) for all of object[list]; what it cannot use is refused by its place.
template <class F>
void each_item(const Logged& object, const char* list, F visit) {
    size_t i = 0;
    for (const Logged& item : field_of(object, list, "array")) try {
            visit(item);
            i++;
        } catch (const std::exception& e) {
            refuse("%s[%zu]: %s", list, i, e.what());
        }
}

constexpr size_t MOST_TENSORS = 1 << 14; // 1000 layers have 12000; under global scaling a decision takes quadratic time

inline void read_header(const Logged& header, Rules& rules, PolicyState& state, std::vector<std::string>& names) {
    const Logged& logged = field_of(header, "rules", "object");
    each_rule(rules, [&](const char* name, int& field, int least, int most) { field = (int)integer_at(logged, name, least, most); });
    each_item(header, "tensors", [&](const Logged& t) {
        state.tensors.emplace_back((Format)integer_at(t, "format", FP32, E5M2), (Role)integer_at(t, "role", 0, (int)Role::gradient));
        names.push_back(field_of(t, "name", "string"));
    });
    each_item(header, "parameters", [&](const Logged& p) {
        state.parameters.push_back({0, 0, 0, (int)integer_at(p, "master", 0, 1), (int)integer_at(p, "storage", BF16, FP16)});
        names.push_back(field_of(p, "name", "string"));
    });
    if (std::max(state.tensors.size(), state.parameters.size()) > MOST_TENSORS)
        refuse("%zu tensors, %zu parameters; expected at most %zu", state.tensors.size(), state.parameters.size(), MOST_TENSORS);
}

// The evidence of an attempt's line. Ranges go by type: an amax is finite, of a count 1000 times as many fit into 63 bits.
inline StepEvidence evidence_of(const Logged& line) {
    StepEvidence e = {field_of(line, "loss_finite", "boolean"), field_of(line, "norm_finite", "boolean"), {}, {}};
    auto read = [](const Logged& counts, auto& to, auto... looked_at) {
        size_t i = 0;
        each_count(to, looked_at..., [&](const char* name, auto& n) {
            if constexpr (std::is_same_v<decltype(n), uint32_t&>) n = (uint32_t)integer_of(name, counts.at(i++), 0, 0x7F7FFFFF);
            else if constexpr (std::is_same_v<decltype(n), int&>) n = (int)integer_of(name, counts.at(i++), INT_MIN, INT_MAX);
            else n = integer_of(name, counts.at(i++), 0, 1ll << 53);
        });
        if (counts.size() != i) refuse("has %zu numbers; expected %zu", counts.size(), i);
    };
    each_item(line, "tensors", [&](const Logged& counts) { read(counts, e.tensors.emplace_back(), counts.size() > 7); });
    if (line.contains("updates")) each_item(line, "updates", [&](const Logged& counts) { read(counts, e.updates.emplace_back()); });
    return e;
}

// Of a log, in an error: in ASCII, on one line, and not all of it.
inline std::string cited(const std::string& text) {
    std::string s;
    for (unsigned char c : text.substr(0, 100)) s += c >= ' ' && c < 127 ? std::string(1, (char)c) : format("\\x%02x", c);
    return text.size() <= 100 ? s : s + "...";
}
// The same, from the clause on that differs from another text's.
inline std::string cited(const std::string& text, const std::string& other, const std::string& separator) {
    const size_t same = std::mismatch(text.begin(), text.end(), other.begin(), other.end()).first - text.begin();
    const size_t end = same < separator.size() ? std::string::npos : text.rfind(separator, same - separator.size());
    return cited(end == std::string::npos ? text : text.substr(end + separator.size()));
}
// What a run does not write so may say more than we read: a key twice, a rule that we do not know, something after a NUL.
inline void check_written(const std::string& line, const std::string& ours) {
    if (line != ours) refuse("has '%s'; a run writes '%s'", cited(line, ours, ",").c_str(), cited(ours, line, ",").c_str());
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

// Computes every decision of the log again, and shows each to visit(attempt) once it is found to be the run's. Refuses a log
// that is none; throws (status 1) where a decision differs.
template <class F>
Replayed replay(std::istream& log, const std::string& name, F visit) {
    Rules rules;
    PolicyState state;
    std::vector<std::string> names;
    Replayed r;
    std::string line;
    int number = 1;
    try {
        std::getline(log, line);
        read_header(Logged::parse(line), rules, state, names);
        check_written(line, header_of(rules, state, names).dump());
        while (number++, std::getline(log, line)) {
            const Logged logged = Logged::parse(line);
            const StepEvidence e = evidence_of(logged);
            const std::string then = field_of(logged, "decision", "string");
            const uint32_t state_then = (uint32_t)integer_at(logged, "state", 0, UINT32_MAX);
            if (e.tensors.size() != state.tensors.size()) refuse("has evidence of %zu tensors; expected %zu, as in line 1", e.tensors.size(), state.tensors.size());
            if (!e.updates.empty() && e.updates.size() != state.parameters.size())
                refuse("has updates of %zu parameters; expected %zu, as in line 1", e.updates.size(), state.parameters.size());
            const PolicyState before = state;
            Decision d = decide(rules, state, e);
            give_masters(rules, state, e.updates, d);
            const std::string now = text(d, names);
            if (now != then) throw Error(1, format("the run decided '%s', its evidence decides '%s'", cited(then, now, "; ").c_str(), cited(now, then, "; ").c_str()));
            if (hash_of(state) != state_then) throw Error(1, format("after '%s' the state is %08x, the run's was %08x", cited(now).c_str(), hash_of(state), state_then));
            check_written(line, line_of(e, d, state, names).dump());
            visit(Attempt{rules, names, before, state, e, d});
            r.attempts++, r.verdicts[(int)d.verdict]++, r.reasons += d.reasons.size();
        }
        if (log.bad()) refuse("cannot be read");
    } catch (const Logged::exception& e) {
        refuse("%s:%d: not a file of decisions: %.200s", name.c_str(), number, e.what());
    } catch (const Error& e) {
        throw Error(e.status, format("%s:%d: %s", name.c_str(), number, e.what()));
    }
    return r;
}
template <class F>
Replayed replay(const std::string& path, F visit) {
    std::ifstream file(path);
    if (!file) refuse("--replay: cannot read %s: %s", path.c_str(), strerror(errno));
    return replay(file, path, visit);
}
inline Replayed replay(const std::string& path) {
    return replay(path, [](auto&&...) {});
}
