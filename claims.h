// claims.h -- what a run may say about its result, each claim with its evidence; and what it does not say.
//
//   C1  no applied step overflowed          C2  what was lost: batches dropped, steps replayed, numbers flushed to zero
//   C3  |loss - loss of the wide twin| <= tolerance, and the named metric too       C4  the decisions can be computed again
//
//   loss     mean training loss over the last fifth of the applied steps
//   metric   the last validation loss
//   twin     the same options in FP32: same weights, number of applied steps, and batches, without those that the run dropped
//   noise    another FP32 twin whose sums are added in another order: half the batch, twice the micro-batches
//
// Units    losses in nats per token, tolerances relative
// Source   arXiv:2412.19437 reports FP8 within 0.25 % of BF16's loss; the noise floor is this project's own
// Why      a tolerance chosen after the result proves nothing: it is printed, with its hash, before step 0. One that is
//          below what another order of sums does to FP32 itself means nothing: hence the noise floor beside it.
// Tests    tests/test_claims.cu, tests/test_train_gpt.cu
#pragma once
#include "decisions.h"

// Relative tolerances, fixed before step 0.
struct Tolerances {
    double loss, metric;
    std::string text() const { return format("training loss within %g, validation loss within %g of FP32's, relative", loss, metric); }
    uint32_t hash() const { return fnv1a(text().data(), text().size()); }
};
inline Tolerances tolerances_for(const Recipe& r, double given) {
    const double t = given > 0 ? given : is_fp8(r.input) ? 0.01
                                                         : 0.0025;
    return {t, t};
}

// What a log says about the run's end. NaN: it does not say.
struct Ending {
    int applied = 0;
    double loss = NAN, metric = NAN;
    Json cost = {};                     // of the procedure, as the run measured it
    std::vector<uint64_t> dropped = {}; // batches
};
inline Ending ending_of(const Json& log) {
    Ending e;
    std::vector<double> losses;
    for (const Json& line : log) {
        if (line.contains("val_loss")) e.metric = number_of(line["val_loss"]);
        else if (line.contains("cost")) e.cost = line["cost"];
        else if (line.contains("dropped_batch")) e.dropped.push_back(line["dropped_batch"]);
        else if (line.contains("loss") && !line["skipped"]) losses.push_back(line["loss"]);
    }
    e.applied = (int)losses.size();
    double sum = 0;
    const size_t last = ceil_div<size_t>(losses.size(), 5);
    for (size_t i = losses.size() - last; i < losses.size(); i++) sum += losses[i];
    if (last) e.loss = sum / last;
    return e;
}

// Of the attempts that a run logged, decided again: what its applied steps and its casts lost.
struct Losses {
    int attempts = 0, replays = 0, drops = 0;
    int64_t overflowed = 0;   // numbers that saturated or were NaN or Inf, in applied steps
    double worst_flushed = 0; // of one tensor in one applied step: the share of its non-zero numbers that became 0
    std::string worst_tensor;
    std::string fault; // why it ends before the log does; empty: it does not
};
inline Losses losses_of(const std::string& decisions) {
    Losses l;
    try {
        replay(decisions, [&](const Attempt& a) {
            const Verdict v = a.decision.verdict;
            l.attempts++, l.replays += v == Verdict::replay, l.drops += v == Verdict::drop || v == Verdict::stop;
            for (size_t i = 0; v == Verdict::apply && i < a.evidence.tensors.size(); i++) {
                const Evidence& e = a.evidence.tensors[i];
                l.overflowed += e.nan + e.inf + e.saturated;
                const double share = e.nonzero ? (double)e.flushed / e.nonzero : 0;
                if (share > l.worst_flushed) l.worst_flushed = share, l.worst_tensor = a.names[i];
            }
        });
    } catch (const Error& e) {
        l.fault = e.what();
    }
    return l;
}

struct Claim {
    std::string name, says, evidence;
    bool holds;
};

// `noise` has no steps where no second twin could be run. Decisions are checked where they were logged.
inline std::vector<Claim> claims_of(const Tolerances& t, const Ending& run, const Ending& twin, const Ending& noise, const std::string& decisions) {
    auto apart = [](double a, double b) { return std::fabs(a - b) / std::fabs(b); };
    const Losses lost = losses_of(decisions);
    const double loss = apart(run.loss, twin.loss), metric = apart(run.metric, twin.metric);
    const std::string floor = noise.applied ? format("; FP32 added in another order: %.2g %% and %.2g %%", 100 * apart(noise.loss, twin.loss), 100 * apart(noise.metric, twin.metric))
                                            : "; no noise floor: the batch cannot be halved";
    return {
        {"C1", "no applied step overflowed", format("%lld numbers saturated or not finite in %d applied steps", (long long)lost.overflowed, run.applied), lost.overflowed == 0},
        {"C2", "what was lost is listed",
         format("%d batches dropped, %d steps replayed; at most %.2f %% of a tensor's numbers flushed to zero%s", lost.drops, lost.replays, 100 * lost.worst_flushed,
                lost.worst_tensor.empty() ? "" : (", in " + lost.worst_tensor).c_str()),
         true},
        {"C3", "matches FP32: " + t.text(),
         format("training loss %.4f against %.4f: %.4f %%; validation loss %.4f against %.4f: %.4f %%; applied steps %d and %d%s%s", run.loss, twin.loss, 100 * loss, run.metric,
                twin.metric, 100 * metric, run.applied, twin.applied, lost.drops ? "; without the dropped batches" : "", floor.c_str()),
         run.applied == twin.applied && loss <= t.loss && (std::isnan(run.metric) || metric <= t.metric)},
        {"C4", "the decisions can be computed again", lost.fault.empty() ? format("all of %d attempts", lost.attempts) : lost.fault, lost.fault.empty()}};
}

const char* const NOT_CLAIMED = "not claimed: quality beyond these losses, stability beyond this run's length, any speed";

inline Json json_of(const std::vector<Claim>& claims, const Tolerances& t, const Json& cost) {
    Json j = {{"tolerances", t.text()}, {"hash", format("%08x", t.hash())}, {"claims", Json::array()}, {"not_claimed", NOT_CLAIMED}, {"cost", cost}};
    for (const Claim& c : claims) j["claims"].push_back({{"claim", c.name}, {"says", c.says}, {"holds", c.holds}, {"evidence", c.evidence}});
    return j;
}
