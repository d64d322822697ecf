// test_claims.cu -- claims.h: what logs say, and which claims they carry.
#include "claims.h"
#include <doctest/doctest.h>
#include <filesystem>

namespace {

Json step(double loss, bool skipped = false) { return {{"loss", loss}, {"skipped", skipped}}; }
Json evaluation(double loss) { return {{"val_loss", loss}}; }

// A file of decisions of our own, with one FP8 tensor, gone with the test.
struct Decisions {
    std::string path = (std::filesystem::temp_directory_path() / format("fewbits_claims_%d.jsonl", (int)getpid())).string();
    std::vector<std::string> names = {"h.0.mlp.c_fc gradient"};
    Rules rules;
    PolicyState state;
    std::ofstream file{path};
    explicit Decisions(Rules r = {}) : rules(r) {
        state.tensors = {TensorState(E5M2, Role::gradient)};
        file << header_of(rules, state, names).dump() << std::endl;
    }
    ~Decisions() { std::filesystem::remove(path); }
    Verdict attempt(Evidence e, bool loss_finite = true) {
        const StepEvidence seen = {loss_finite, true, {e}};
        const Decision d = decide(rules, state, seen);
        file << line_of(seen, d, state, names).dump() << std::endl;
        return d.verdict;
    }
};
Evidence evidence(float amax, int saturated, int flushed, int nonzero) {
    Evidence e;
    e.amax_bits = bits_as<uint32_t>(amax), e.saturated = saturated, e.flushed = flushed, e.nonzero = nonzero;
    return e;
}
Ending ending(int applied, double loss, double metric) { return {applied, loss, metric}; }

} // namespace

TEST_CASE("a run ends with the mean of its last fifth of applied steps and its last evaluation") {
    Json log = Json::array({evaluation(9)});
    for (int i = 1; i <= 10; i++) log.push_back(step(i)), log.push_back(step(1e9, true)); // skipped steps do not count
    log.push_back(evaluation(2.5));
    log.push_back({{"step", 10}, {"cost", {{"shadow_seconds", 0.5}}}});
    const Ending e = ending_of(log);
    CHECK(e.applied == 10);
    CHECK(e.loss == 9.5);
    CHECK(e.metric == 2.5);
    CHECK(json_of({}, {0.01, 0.01}, e.cost)["cost"]["shadow_seconds"] == 0.5);
    CHECK(ending_of(Json::array({step(3)})).loss == 3);
    CHECK(std::isnan(ending_of(Json::array({step(3)})).metric));
    CHECK(ending_of(Json::array()).applied == 0);
}

TEST_CASE("what was lost: attempts by verdict, overflow in applied steps alone, and the tensor that flushed most") {
    Decisions d;
    CHECK(d.attempt(evidence(1, 0, 3, 100)) == Verdict::apply);
    CHECK(d.attempt(evidence(9, 5, 0, 100)) == Verdict::replay); // of no applied step
    CHECK(d.attempt(evidence(9, 0, 20, 100)) == Verdict::apply);
    CHECK(d.attempt(evidence(9, 0, 0, 100), false) == Verdict::drop);
    const Losses l = losses_of(d.path);
    CHECK(l.attempts == 4);
    CHECK(l.replays == 1);
    CHECK(l.drops == 1);
    CHECK(l.overflowed == 0);
    CHECK(l.worst_flushed == 0.2);
    CHECK(l.worst_tensor == "h.0.mlp.c_fc gradient");
}

TEST_CASE("claims hold where the evidence carries them, and fail one by one where it does not") {
    const Tolerances t = {0.01, 0.01};
    auto holds = [&](const Ending& run, const Ending& twin, const Decisions& d) {
        std::string text;
        for (const Claim& c : claims_of(t, run, twin, ending(10, 2, 2), d.path)) text += c.holds ? c.name : "--";
        return text;
    };
    Decisions good;
    good.attempt(evidence(1, 0, 0, 10));
    const Ending twin = ending(10, 2, 2);
    CHECK(holds(ending(10, 2.01, 1.99), twin, good) == "C1C2C3C4");
    CHECK(holds(ending(10, 2.03, 2), twin, good) == "C1C2--C4");              // training loss
    CHECK(holds(ending(10, 2, 1.97), twin, good) == "C1C2--C4");              // better than FP32 is not the same as FP32
    CHECK(holds(ending(9, 2, 2), twin, good) == "C1C2--C4");                  // another number of steps
    CHECK(holds(ending(10, NAN, 2), twin, good) == "C1C2--C4");               // a loss that is none
    CHECK(holds(ending(10, 2, NAN), ending(10, 2, NAN), good) == "C1C2C3C4"); // never evaluated: nothing is said about it

    Rules unguarded;
    unguarded.guard = false;
    Decisions bad(unguarded);
    CHECK(bad.attempt(evidence(1, 3, 0, 10)) == Verdict::apply);
    CHECK(holds(twin, twin, bad) == "--C2C3C4");
    bad.file << line_of({true, true, {evidence(1, 0, 0, 10)}}, Decision{Verdict::drop, Cause::none, -1, {}}, bad.state, bad.names).dump() << std::endl;
    CHECK(holds(twin, twin, bad) == "--C2C3--"); // nobody decides so
}

TEST_CASE("tolerances are known before step 0: by recipe or as given, and their hash is of their text") {
    CHECK(tolerances_for(recipe_fp8, 0).loss == 0.01);
    CHECK(tolerances_for(recipe_bf16, 0).loss == 0.0025);
    CHECK(tolerances_for(recipe_fp16, 0).metric == 0.0025);
    CHECK(tolerances_for(recipe_fp8, 0.5).loss == 0.5);
    CHECK(Tolerances{0.01, 0.01}.hash() == Tolerances{0.01, 0.01}.hash());
    CHECK(Tolerances{0.01, 0.01}.hash() != Tolerances{0.01, 0.011}.hash());
}
