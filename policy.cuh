// policy.cuh -- the precision procedure: does this step count, and which scale and format does each tensor get next?
//
//   decide(rules, state, evidence of a step) -> verdict, reasons; the state moves
//
//   spike rule     NaN or Inf: drop the batch.   A cast saturated: shrink its scale and replay the batch, up to three times.
//   scale rule     fits = the largest k with (amax of the window) * 2^k <= the format's largest, less a margin
//                  k' = fits        if fits < k, at once
//                  k' = fits - 1    if fits >= k + deadband, every `interval` steps
//   format rule    E4M3 | E5M2 -> BF16 -> FP32 on a window's evidence, back at most once, latched when it flaps
//   storage rule   an FP32 master for a parameter whose updates are smaller than its format's steps
//
// Source   arXiv:2209.05433 (amax scaling), arXiv:1710.03740 (skipped steps), arXiv:2010.06192 (swamped updates);
//          replay, deadband, format rule and storage rule are this project's own
// Units    k in binades, windows and intervals in applied steps, shares in 1/1000, SNRs in 1/100 dB
// Formats  integers only: whoever has the log can compute every decision again and get the same, on any machine
// Why      "keep a scale unless the new one differs by a factor 2" is no hysteresis: two different powers of two always
//          do, so an amax that alternates between 1.74 and 1.76 moves an E4M3 scale every time. Shrinking cannot wait,
//          for a number that saturates is wrong; growing can: hence a deadband for growing alone, 2 binades wide.
//          There is no scale 448 / amax: it would be no integer, and rounds what 2^k leaves exact.
// Tests    tests/test_policy.cu
#pragma once
#include <climits>
#include <cstring>
#include <vector>
#include "recipes.cuh"
#include "scaling.cuh"

// clang-format off
// delayed: from amaxes of past steps. current: from the tensor's own, with no margin. global: delayed, one for all of a role.
enum class Scaling { delayed, current, global, none };
enum class Role : int { input, weight, gradient }; // a weight's amax comes with AdamW: its scale is always current

struct Rules {
    Scaling scaling = Scaling::delayed;
    int window = 16;             // steps whose amaxes a scale covers, and whose evidence decides a format; up to 64
    int margin = 1;              // binades left free above the window's amax
    int interval = 16;           // steps from one chance to grow to the next
    int deadband = 2;            // binades; 1 is none
    bool guard = true;           // off: the first scale is 1 and saturated steps count, as in plain delayed scaling
    int replays = 3;             // of a batch. A clipped cast hides how large the casts after it will be: one replay may not be enough
    int skip_limit = 8;          // dropped batches in a row that stop the run
    bool promote = true;         // off: formats stay
    int spikes_to_promote = 2;   // batches in a window in which the tensor saturated: at once
    int flushed_to_promote = 50; // 1/1000 of the non-zero numbers, more than that at every step of a window
    int snr_to_promote = 2000;   // 1/100 dB, less than that in two samples in a row. A Gaussian has 31.5 dB in E4M3, 25.6 in E5M2
    int clean_to_demote = 8;     // windows in a row whose shadow casts to the narrower format were all good:
    int flushed_to_demote = 10;  // 1/1000, less than that
    int snr_to_demote = 2400;    // 1/100 dB, more than that
    int latch_after = 2;         // promotions
    bool grants_masters = true;    // off: a parameter that starts without a master stays without
    int lost_to_master = 500;    // 1/1000 of a parameter's updates, at least that at every step of a window
};
// clang-format on

// ==== evidence: what is logged =======================================================================================

constexpr int NOT_MEASURED = INT_MAX; // an SNR nobody asked for

// Of one tensor in one attempt of a step: of all its casts, in all micro-batches and on all ranks.
struct Evidence {
    uint32_t amax_bits = 0; // of the finite |x|; 0: the tensor was not cast, or is all zeros
    int64_t nan = 0, inf = 0, saturated = 0;
    int64_t flushed = 0, subnormal = 0, nonzero = 0; // x != 0 and q == 0; q subnormal; x != 0
    // Of shadow casts, which nothing is computed with: SNRs in its own, the next narrower and the next wider format.
    int snr = NOT_MEASURED, snr_narrower = NOT_MEASURED, snr_wider = NOT_MEASURED;
    int64_t flushed_narrower = 0, nonzero_narrower = 0;
};

// Maxima, minima and sums: whatever the order of micro-batches and ranks, the result is the same.
inline Evidence combine(const Evidence& a, const Evidence& b) {
    return {std::max(a.amax_bits, b.amax_bits), a.nan + b.nan, a.inf + b.inf, a.saturated + b.saturated, a.flushed + b.flushed,
            a.subnormal + b.subnormal, a.nonzero + b.nonzero, std::min(a.snr, b.snr), std::min(a.snr_narrower, b.snr_narrower),
            std::min(a.snr_wider, b.snr_wider), a.flushed_narrower + b.flushed_narrower, a.nonzero_narrower + b.nonzero_narrower};
}

// Of one parameter in one applied step, for the 16-bit format f that it would be kept in without a master: w' = round_f(w + d).
struct UpdateEvidence {
    static constexpr int BINS = 32, ZERO = 16;
    int64_t updates = 0, lost = 0; // d != 0; of these w' == w
    int realised = 0;              // 1/1000: sum (w' - w) d over sum d^2
    int64_t bins[BINS] = {};       // of the updates, by floor(log2(|d| / ulp_f(w))): -16 and less in the first, 15 and more in the last
};

struct StepEvidence {
    bool loss_finite = true, norm_finite = true;
    std::vector<Evidence> tensors;            // in the order in which a step casts them: the first with a NaN is where it came from
    std::vector<UpdateEvidence> updates = {}; // of all parameters, or of none: they come after the decision, and not from every step
};

inline StepEvidence combine(StepEvidence a, const StepEvidence& b) {
    ENSURE(a.tensors.size() == b.tensors.size(), "evidence of %zu and of %zu tensors", a.tensors.size(), b.tensors.size());
    a.loss_finite &= b.loss_finite, a.norm_finite &= b.norm_finite;
    for (size_t i = 0; i < a.tensors.size(); i++) a.tensors[i] = combine(a.tensors[i], b.tensors[i]);
    return a;
}

// ==== state: what a decision may remember ============================================================================

constexpr int MAX_WINDOW = 64;

// All of it 32-bit integers without padding: its bytes are what is saved and compared.
struct TensorState {
    Format format, first; // now, and at the start of the run
    Role role;
    int k = 0, measured = 0;          // measured: k is of a tensor that was seen
    int seen = 0, head = 0;           // amaxes in the window, up to its length; where the next one goes
    uint32_t window[MAX_WINDOW] = {}; // their bits: for positive floats the order of bits is the order of values
    // Of the window of evidence that is running, in applied steps, vetoed batches (spiked: this one is counted) and shadow samples:
    int steps = 0, flushing = 0, spikes = 0, spiked = 0, low_snr = 0, good_narrower = 0, bad_narrower = 0;
    int clean_windows = 0, promotions = 0, demoted = 0, latched = 0; // of the run
    TensorState(Format f = FP32, Role role = Role::input) : format(f), first(f), role(role) {}
};
static_assert(std::has_unique_object_representations_v<TensorState>);
inline bool operator==(const TensorState& a, const TensorState& b) { return memcmp(&a, &b, sizeof a) == 0; }

// Of a parameter: does it have an FP32 master?
struct StorageState {
    int steps = 0, losing = 0, below = 0; // of the running window: steps measured; lost share too large; median below one ulp
    int master = 0;                       // once 1, for good: a learning rate that decays makes it only worse
    int format = BF16;                    // what it is kept in without
    bool operator==(const StorageState& b) const { return memcmp(this, &b, sizeof b) == 0; }
};

struct PolicyState {
    std::vector<TensorState> tensors;
    std::vector<StorageState> parameters;
    int applied = 0, drops = 0, retrying = 0; // steps; batches dropped in a row; attempts at this batch that were taken back
    bool operator==(const PolicyState& b) const {
        return tensors == b.tensors && parameters == b.parameters && applied == b.applied && drops == b.drops && retrying == b.retrying;
    }
};

// ==== what was decided, in words =====================================================================================

// clang-format off
enum class Verdict { apply, replay, drop, stop };
enum class Cause { none, saturated, not_finite, loss, norm };
enum class Change { first_scale, shrink, grow, promote, demote, latch, master };
// clang-format on

struct Reason {
    int tensor; // of a master, the parameter's place after all tensors
    Change change;
    int from, to; // k, or Format
};
struct Decision {
    Verdict verdict = Verdict::apply;
    Cause cause = Cause::none;
    int culprit = -1; // the first tensor with NaN or Inf, or else the first that saturated
    std::vector<Reason> reasons;
};

inline std::string text(const Reason& r, const std::vector<std::string>& names) {
    static const char* changes[] = {"first scale", "shrink", "grow", "promote", "demote", "latch", "master"};
    const std::string what = names.at(r.tensor) + ": " + changes[(int)r.change];
    if (r.change < Change::promote) return what + format(" 2^%d -> 2^%d", r.from, r.to);
    return what + format(" %s -> %s", name_of((Format)r.from), name_of((Format)r.to));
}
inline std::string text(const Decision& d, const std::vector<std::string>& names) {
    static const char* verdicts[] = {"apply", "replay", "drop", "stop"};
    static const char* causes[] = {"", "saturated", "met NaN or Inf", "the loss is not finite", "the gradient norm is not finite"};
    std::string s = verdicts[(int)d.verdict];
    if (d.cause != Cause::none) s += ": " + (d.culprit < 0 ? "" : names.at(d.culprit) + " ") + causes[(int)d.cause];
    for (const Reason& r : d.reasons) s += "; " + text(r, names);
    return s;
}

// ==== the scale rule =================================================================================================

// Whether the state holds the scale. If not, it is the tensor's own at each cast, or there is none.
inline bool keeps_scale(const Rules& r, const TensorState& t) {
    return is_fp8(t.format) && t.role != Role::weight && (r.scaling == Scaling::delayed || r.scaling == Scaling::global);
}

// Whether the tensor must be measured before it is cast: a first scale of 1 would flush a gradient of 1e-6.
inline bool needs_own_amax(const Rules& r, const TensorState& t) {
    if (!is_fp8(t.format) || (r.scaling == Scaling::none && t.role != Role::weight)) return false;
    return !keeps_scale(r, t) || (!t.measured && r.guard);
}

// The k to cast with. own_amax_bits: of the tensor itself, where needs_own_amax; 0 has k = 0. The state does not move, so that
// an evaluation can ask too. On first use (also under global scaling) k is of the first micro-batch, and the step keeps it.
inline int cast_exponent(const Rules& r, const TensorState& t, uint32_t own_amax_bits) {
    if (!needs_own_amax(r, t)) return t.k;
    return own_amax_bits ? scale_exponent(t.format, bits_as<float>(own_amax_bits), keeps_scale(r, t) ? r.margin : 0) : 0;
}

// Shrinks at once, grows by the deadband or more and keeps one binade. See the head of the file.
inline int scale_rule(const Rules& r, int k, int fits, bool may_grow) {
    if (fits < k) return fits;
    return may_grow && fits >= k + r.deadband ? fits - (r.deadband > 1) : k;
}

// The amax that a tensor's scale hears of: its own; under global scaling the largest of its role, so that all have one k.
inline uint32_t amax_for_scale(const Rules& r, const std::vector<TensorState>& all, const StepEvidence& step, size_t i) {
    uint32_t amax = step.tensors[i].amax_bits;
    for (size_t j = 0; r.scaling == Scaling::global && j < all.size(); j++)
        if (all[j].role == all[i].role && keeps_scale(r, all[j])) amax = std::max(amax, step.tensors[j].amax_bits);
    return amax;
}

// After an applied step amax enters the window, and k follows the window's largest. After an attempt that saturated it
// enters no window, the replay's will; but it may shrink k.
inline void rescale(const Rules& r, TensorState& t, uint32_t amax, bool applied, bool may_grow) {
    if (!keeps_scale(r, t)) return;
    if (applied && amax) {
        t.window[t.head] = amax;
        t.head = (t.head + 1) % r.window, t.seen = std::min(t.seen + 1, r.window);
    }
    const uint32_t peak = applied ? *std::max_element(t.window, t.window + r.window) : amax;
    if (!peak) return; // it has not run yet
    const int fits = scale_exponent(t.format, bits_as<float>(peak), r.margin);
    t.k = t.measured ? scale_rule(r, t.k, fits, may_grow && t.seen == r.window) : fits;
    t.measured = 1;
}

// ==== the format rule ================================================================================================

inline Format wider_than(Format f) { return is_fp8(f) ? BF16 : FP32; }
inline Format narrower_than(const TensorState& t) { return t.format == FP32 && is_fp8(t.first) ? BF16 : t.first; }

// An applied step's evidence on the format. A flushed number is held against it only where this step's own amax would have
// had about the same k: after a spike it is the scale that flushes, for as long as the spike stays in the window.
inline void count_evidence(const Rules& r, TensorState& t, const Evidence& e) {
    const bool tight = !is_fp8(t.format) || needs_own_amax(r, t) ||
        scale_exponent(t.format, bits_as<float>(e.amax_bits)) - t.k <= r.margin + r.deadband;
    t.steps++;
    t.flushing += tight && e.flushed * 1000 > e.nonzero * r.flushed_to_promote;
    if (e.snr != NOT_MEASURED) t.low_snr = e.snr < r.snr_to_promote ? t.low_snr + 1 : 0;
    if (e.snr_narrower == NOT_MEASURED) return;
    const bool good = e.snr_narrower > r.snr_to_demote && e.flushed_narrower * 1000 < e.nonzero_narrower * r.flushed_to_demote;
    (good ? t.good_narrower : t.bad_narrower)++;
}

// The format for the next step. Spikes and SNRs decide as soon as they are there, shares at the end of a window.
inline Format format_rule(const Rules& r, const TensorState& t) {
    if (!r.promote) return t.format;
    if (t.spikes >= r.spikes_to_promote || t.low_snr >= 2 || (t.steps == r.window && t.flushing == t.steps)) return wider_than(t.format);
    return t.clean_windows >= r.clean_to_demote && !t.demoted && !t.latched ? narrower_than(t) : t.format;
}

// Ends the window when it is full. A new format starts without evidence, and its scale from the next tensor's own amax.
inline void reformat(const Rules& r, TensorState& t) {
    const bool over = t.steps == r.window;
    if (t.bad_narrower || t.spikes) t.clean_windows = 0;
    else if (over && t.good_narrower) t.clean_windows++; // a window without a sample says nothing
    if (const Format f = format_rule(r, t); f != t.format) {
        TensorState anew(t.first, t.role);
        const bool promoted = f == wider_than(t.format);
        anew.format = f, anew.promotions = t.promotions + promoted, anew.demoted = t.demoted + !promoted;
        anew.latched = anew.promotions >= r.latch_after;
        t = anew;
    } else if (over) t.steps = t.spikes = t.flushing = t.good_narrower = t.bad_narrower = 0;
}

// ==== the spike rule, and all of them ================================================================================

// A step whose numbers cannot be trusted is vetoed before any weight, moment, average or window moves.
inline Decision spike_rule(const Rules& r, const PolicyState& s, const StepEvidence& step) {
    int not_finite = -1, saturated = -1; // the first of each; weights stand last, but were there before any cast
    for (int i = (int)step.tensors.size() - 1; i >= 0; i--) {
        const bool weight_is_bad = not_finite >= 0 && s.tensors[not_finite].role == Role::weight, is_weight = s.tensors[i].role == Role::weight;
        if (step.tensors[i].nan + step.tensors[i].inf && (is_weight || !weight_is_bad)) not_finite = i;
        if (step.tensors[i].saturated) saturated = i;
    }
    const bool repairs = r.guard && r.scaling != Scaling::none; // without scales there is nothing to repair
    const Verdict drop = s.drops + 1 >= r.skip_limit ? Verdict::stop : Verdict::drop;
    if (not_finite >= 0) return {drop, Cause::not_finite, not_finite, {}};
    if (!step.loss_finite) return {drop, Cause::loss, -1, {}};
    if (!step.norm_finite) return {drop, Cause::norm, -1, {}};
    if (saturated >= 0 && repairs) return {s.retrying < r.replays ? Verdict::replay : drop, Cause::saturated, saturated, {}};
    return {};
}

inline void explain(std::vector<Reason>& reasons, int i, const TensorState& was, const TensorState& is) {
    if (is.format != was.format) reasons.push_back({i, is.demoted > was.demoted ? Change::demote : Change::promote, was.format, is.format});
    else if (!was.measured && is.measured) reasons.push_back({i, Change::first_scale, was.k, is.k});
    else if (is.k != was.k) reasons.push_back({i, is.k < was.k ? Change::shrink : Change::grow, was.k, is.k});
    if (is.latched > was.latched) reasons.push_back({i, Change::latch, is.format, is.format});
}

// At the end of every attempt of a step. A NaN or Inf moves nothing: the finite numbers beside it may be its debris.
inline Decision decide(const Rules& r, PolicyState& s, const StepEvidence& step) {
    ENSURE(step.tensors.size() == s.tensors.size(), "evidence of %zu tensors, expected %zu", step.tensors.size(), s.tensors.size());
    ENSURE(r.window >= 1 && r.window <= MAX_WINDOW && r.interval >= 1 && r.deadband >= 1,
           "window %d, interval %d, deadband %d: expected 1 to %d, and at least 1 and 1", r.window, r.interval, r.deadband, MAX_WINDOW);
    Decision d = spike_rule(r, s, step);
    const bool applied = d.verdict == Verdict::apply;
    const bool first_try = s.retrying == 0;
    s.retrying = d.verdict == Verdict::replay ? s.retrying + 1 : 0, s.applied += applied;
    s.drops = applied ? 0 : s.drops + (s.retrying == 0);
    if (!applied && d.cause != Cause::saturated) return d;

    const std::vector<TensorState> was = s.tensors;
    for (size_t i = 0; i < was.size(); i++) {
        TensorState& t = s.tensors[i];
        const Evidence& e = step.tensors[i];
        if (first_try) t.spiked = 0;
        if (!applied && e.saturated && !t.spiked) t.spikes++, t.spiked = 1;
        if (applied && (e.amax_bits || !is_fp8(t.format))) count_evidence(r, t, e); // zeros are no evidence; without a cast there are only looks
        rescale(r, t, amax_for_scale(r, was, step, i), applied, s.applied % r.interval == 0);
        reformat(r, t);
        explain(d.reasons, (int)i, was[i], t);
    }
    return d;
}

// ==== the storage rule: does a parameter need an FP32 master? ========================================================

// floor(log2) of the median of |d| / ulp.
inline int median_bin(const UpdateEvidence& e) {
    int b = 0;
    for (int64_t below = e.bins[0]; b + 1 < e.BINS && 2 * below < e.updates; below += e.bins[++b]) {}
    return b - e.ZERO;
}

// True at the step at which the parameter gets its master. Source: arXiv:2010.06192, rounding to nearest cancels updates.
inline bool storage_rule(const Rules& r, StorageState& s, const UpdateEvidence& e) {
    if (s.master || e.updates == 0) return false;
    s.steps++, s.losing += e.lost * 1000 >= e.updates * r.lost_to_master, s.below += median_bin(e) < 0;
    if (s.steps < r.window) return false;
    s.master = s.losing == s.steps || s.below == s.steps;
    s.steps = s.losing = s.below = 0;
    return s.master;
}

// After the updates of an applied step: which parameters get their masters now is added to its decision.
inline void give_masters(const Rules& r, PolicyState& s, const std::vector<UpdateEvidence>& updates, Decision& d) {
    ENSURE(updates.empty() || updates.size() == s.parameters.size(), "updates of %zu parameters, expected %zu", updates.size(), s.parameters.size());
    for (size_t i = 0; r.grants_masters && i < updates.size(); i++)
        if (storage_rule(r, s.parameters[i], updates[i])) d.reasons.push_back({int(s.tensors.size() + i), Change::master, s.parameters[i].format, FP32});
}

// Before step 0: AdamW moves a weight by about lr. In units of the spacing of f at w; below 1/2 nothing moves.
inline double update_in_ulps(Format f, double lr, double w) {
    const int mantissa_bits = with_type(f, [](auto zero) { return Layout<decltype(zero)>::mantissa_bits; });
    return w > 0 ? lr / std::ldexp(1.0, std::ilogb(w) - mantissa_bits) : HUGE_VAL;
}
inline bool predict_swamping(Format f, double lr, double rms_w) { return update_in_ulps(f, lr, rms_w) < 1; }
