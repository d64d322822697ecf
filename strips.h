// strips.h -- what a run left in its folder, read and drawn as heat strips: of every tensor, where its numbers lay in its format.
//
//   strip   steps to the right, floor(log2|x|) upwards, darkness for the share of the numbers that are not 0:
//           blue what the format kept, orange what it lost
//   kept    smallest subnormal / 2 < |x| 2^k <= largest      an update is kept where |d| >= ulp / 2
//
// Units    steps, binades, shares
// Formats  SVG in the units of the data: a cell "M32 -7h16" is |x| from 2^-7 to 2^-6 in steps 33 to 48; the same as pixels
// Why      underflow and saturation at a glance: numbers leave a format at its lower edge or at its upper one, and a scale that
//          follows them is a line that one can see follow
// Tests    tests/test_report.cu
#pragma once
#include <filesystem>
#include <map>
#include "claims.h"
#include "plot.h"

// ==== text ===========================================================================================================

// As HTML, whatever bytes it holds.
inline std::string html(const std::string& raw) {
    static const std::map<char, std::string> escapes = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&quot;"}};
    const std::string text = Json::parse(Json(raw).dump(-1, ' ', false, Json::error_handler_t::replace));
    std::string s;
    for (char c : text)
        if (const auto e = escapes.find(c); e != escapes.end()) s += e->second;
        else s += (unsigned char)c < ' ' || c == 127 ? ' ' : c;
    return s;
}
inline std::string word(const std::string& s) { return s; }
inline std::string word(double x) { // "3", "-7.5"; never "nan"
    std::string s = std::isfinite(x) ? format("%.1f", x) : "?";
    if (s.size() > 2 && s.substr(s.size() - 2) == ".0") s.resize(s.size() - 2);
    return s == "-0" ? "0" : s;
}
template <class... A>
std::string cat(const A&... a) {
    return (word(a) + ... + std::string());
}
inline std::string power(int e) { // 2 with e as superscript
    static const char* const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    std::string s = e < 0 ? "2⁻" : "2";
    for (char c : std::to_string(std::abs(e))) s += digits[c - '0'];
    return s;
}
inline std::string percent(double share) {
    if (share > 0 && share < 1e-4) return "under 0.01 %";
    return share == 0 ? "0" : format(std::abs(share) < 0.1 ? "%.2f %%" : "%.0f %%", 100 * share);
}
inline std::string bytes(double n) { return n < 1e6 ? format("%.1f kB", n / 1e3) : format(n < 1e9 ? "%.1f MB" : "%.4g GB", n / (n < 1e9 ? 1e6 : 1e9)); }
inline std::string count(int n, const std::string& what) { return cat(n, " ", what, n == 1 ? "" : "s"); }

// ==== what strips hold ===============================================================================================

// In binades of |x|: above `top` a cast saturates, below `normal` it gives subnormal numbers, below `zero` it gives 0.
struct Limits {
    double top, normal, zero;
};
inline Limits limits_of(Format f, int k) {
    return with_type(f, [&](auto x) {
        using L = Layout<decltype(x)>;
        return Limits{std::log2((double)largest_of(f)) - k, 1.0 - L::bias - k, 0.0 - L::bias - L::mantissa_bits - k};
    });
}
constexpr Limits HALF_ULP = {1e3, 0, -1}; // of updates, in binades of |d| / ulp

struct Column { // of a heat strip: the looks up to `step`
    int step;
    std::map<int, double> counts; // of |x| by exponent
    double total = 0;
    int lowest, highest; // exponents that were kept
    Column(int step, Limits l) : step(step), lowest((int)l.zero), highest((int)std::floor(l.top)) {}
    void put(int e, double n) {
        if (n > 0) counts[e] += n, total += n;
    }
    void merge(const Column& b) {
        step = b.step, lowest = std::max(lowest, b.lowest), highest = std::min(highest, b.highest);
        for (auto [e, n] : b.counts) put(e, n);
    }
};
struct Stretch { // steps from + 1 to `to` had one format and scale
    int from, to;
    Format format;
    int k;
    Limits at;
};
struct Mark {
    int step;
    char kind; // p: promoted or demoted, r: replayed, d: dropped, m: master given
    std::string text;
};

struct HeatStrip {
    static constexpr int MOST = 96; // columns, stretches, peaks
    std::string name;
    std::vector<Column> columns = {};
    int each = 1, filled = 0; // looks in a column; in the last
    std::vector<Stretch> stretches = {};
    std::vector<Mark> marks = {};
    std::map<int, Point> peaks = {}; // largest |x|: the step and its log2
    double worst = 0;                // share lost in a step or look
    int worst_step = 0;
    Json last = {};                    // look
    double zeros = 0;                  // share of its numbers
    double lost = NAN, realised = NAN; // shares of updates, at the last measurement
    explicit HeatStrip(const std::string& name) : name(name) {}

    void lose(int step, double share) {
        if (share > worst) worst = share, worst_step = step;
    }
    void look(const Column& c) {
        double gone = 0;
        for (auto [e, n] : c.counts) gone += (e < c.lowest || e > c.highest) * n;
        lose(c.step, c.total > 0 ? gone / c.total : 0);
        if (filled < each && !columns.empty()) return columns.back().merge(c), (void)filled++;
        if (columns.size() == MOST) { // half as many, twice as wide
            for (int i = 0; i < MOST; i++) i % 2 ? columns[i / 2].merge(columns[i]) : (void)(columns[i / 2] = columns[i]);
            columns.erase(columns.begin() + MOST / 2, columns.end()), each *= 2;
        }
        columns.push_back(c), filled = 1;
    }
    void cast(int from, int steps, Format f, int k, Limits at) {
        Stretch* last = stretches.empty() ? nullptr : &stretches.back();
        if (last && last->format == f && (last->k == k || from - last->from < steps / MOST)) return last->k = k, (void)(last->at = at);
        if (last) last->to = from;
        stretches.push_back({from, steps, f, k, at});
    }
    void peak(int step, double log2, int steps) {
        Point& p = peaks.emplace((int)((int64_t)step * MOST / std::max(steps, MOST)), Point{0, -INFINITY}).first->second;
        if (log2 > p.y) p = {step - 0.5, log2};
    }
    int layer() const { // INT_MAX: none
        int n;
        return sscanf(name.c_str(), "h.%d.", &n) == 1 ? n : INT_MAX;
    }
    std::string short_name() const { return layer() == INT_MAX ? name : name.substr(name.find('.', 2) + 1); }
};

// ==== reading ========================================================================================================

struct Run {
    Json config, claims;
    std::map<std::string, double> cost;
    std::vector<Series> losses; // of the run, its evaluations, the FP32 twin, that in another order
    std::vector<HeatStrip> tensors, parameters;
    std::vector<Mark> events;
    int steps = 0, verdicts[4] = {}, promotions = 0, masters = 0;
    bool looked = false;
};

// visit(JSON) for up to `most` lines of a file, each ended by `end`. A line that it cannot use is refused by its number.
template <class F>
void each_line(const std::filesystem::path& path, F visit, int most = INT_MAX, char end = '\n') {
    std::ifstream file(path);
    if (!file) refuse("cannot read %s: %s", path.c_str(), strerror(errno));
    std::string line;
    int number = 0;
    while (number < most && std::getline(file, line, end)) try {
            number++;
            visit(Json::parse(line));
        } catch (const std::exception& e) {
            refuse("%s:%d: %s", path.c_str(), number, e.what());
        }
    if (file.bad()) refuse("cannot read %s", path.c_str()); // a folder
    if (most == 1 && number == 0) refuse("%s:1: expected JSON, found nothing", path.c_str());
}

inline void read_log(Run& run, const std::filesystem::path& path, Series& losses, Series* evaluations) {
    each_line(path, [&](const Json& line) {
        if (line.contains("cost")) {
            for (auto& [name, value] : line["cost"].items())
                if (evaluations) run.cost[name] = number_of(value);
            return;
        }
        const int step = line.at("step");
        if (step < 0 || step > 1 << 30) refuse("step %d", step);
        if (evaluations) run.steps = std::max(run.steps, step);
        if (line.contains("val_loss") && evaluations) evaluations->x.push_back(step), evaluations->y.push_back(number_of(line["val_loss"]));
        if (line.contains("loss") && !line.at("skipped").get<bool>()) losses.x.push_back(step), losses.y.push_back(number_of(line["loss"]));
    });
}

inline void read_decisions(Run& run, const std::filesystem::path& path) {
    replay(path.string(), [&](const Attempt& a) {
        const size_t n = a.after.tensors.size();
        for (size_t i = 0; run.tensors.size() + run.parameters.size() < a.names.size(); i++) (i < n ? run.tensors : run.parameters).emplace_back(a.names[i]);
        const Decision& d = a.decision;
        const bool applied = d.verdict == Verdict::apply;
        const int step = a.after.applied + !applied;
        auto mark = [&](char kind, const std::string& text, int strip) {
            run.events.push_back({step, kind, text});
            if (strip >= 0) (strip < (int)n ? run.tensors[strip] : run.parameters[strip - n]).marks.push_back(run.events.back());
        };
        run.verdicts[(int)d.verdict]++;
        if (!applied) mark(d.verdict == Verdict::replay ? 'r' : 'd', text(Decision{d.verdict, d.cause, d.culprit, {}}, a.names), d.culprit);
        for (size_t i = 0; i < n; i++) {
            const Evidence& e = a.evidence.tensors[i];
            const Format f = a.before.tensors[i].format;
            const int k = cast_exponent(a.rules, a.before.tensors[i], e.amax_bits);
            run.tensors[i].cast(step - 1, run.steps, f, k, limits_of(f, k));
            if (e.amax_bits) run.tensors[i].peak(step, std::log2(bits_as<float>(e.amax_bits)), run.steps);
            if (applied && e.nonzero) run.tensors[i].lose(step, (double)(e.flushed + e.saturated) / e.nonzero);
        }
        for (const Reason& r : d.reasons) {
            run.promotions += r.change == Change::promote, run.masters += r.change == Change::master;
            if (r.change == Change::promote || r.change == Change::demote) mark('p', text(r, a.names), r.tensor);
            if (r.change == Change::master) mark('m', text(r, a.names), r.tensor);
        }
        for (size_t i = 0; i < a.evidence.updates.size(); i++) {
            const UpdateEvidence& u = a.evidence.updates[i];
            if (u.updates <= 0) continue;
            Column c(step, HALF_ULP);
            for (int b = 0; b < u.BINS; b++) c.put(b - u.ZERO, u.bins[b]);
            HeatStrip& s = run.parameters[i];
            s.cast(0, run.steps, (Format)a.after.parameters[i].format, 0, HALF_ULP), s.look(c);
            s.lost = (double)u.lost / u.updates, s.realised = u.realised / 1000.0;
        }
    });
}

inline void read_looks(Run& run, const std::filesystem::path& path) {
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < run.tensors.size(); i++) index[run.tensors[i].name] = i;
    const size_t decided = run.tensors.size();
    int before = 0;
    each_line(path, [&](const Json& line) {
        const int step = line.at("step");
        for (const Json& t : line.at("tensors")) {
            const std::string name = t.at("tensor"), format = t.at("format");
            const size_t i = index.emplace(name, run.tensors.size()).first->second;
            if (i == run.tensors.size()) run.tensors.emplace_back(name);
            Format f = FP32;
            while (format != name_of(f))
                if ((f = Format(f + 1)) > E5M2) refuse("format %s", format.c_str());
            const int k = t.at("k"), first = t.at("first");
            if (std::abs(first) > 1100 || std::abs(k) > 1100) refuse("exponents from %d, k %d", first, k);
            Column c(step, limits_of(f, k));
            for (size_t j = 0; j < t.at("counts").size(); j++) c.put(first + (int)j, t["counts"][j]);
            run.tensors[i].look(c), run.tensors[i].last = t;
            const double zeros = t.at("zeros");
            run.tensors[i].zeros = zeros / std::max(zeros + c.total, 1.0);
            if (i >= decided) run.tensors[i].cast(before, run.steps, f, k, limits_of(f, k));
        }
        before = step, run.looked = true;
    });
}

inline Run read_run(const std::filesystem::path& out) {
    Run run;
    auto whole = [](const std::filesystem::path& path, Json& to) {
        auto keep = [&](const Json& j) { to = j; };
        each_line(path, keep, 1, '\0');
    };
    auto there = [](const std::filesystem::path& path) { return std::filesystem::exists(path); };
    whole(out / "config.json", run.config);
    if (!run.config.is_object()) refuse("%s:1: expected an object", (out / "config.json").c_str());
    const bool reference = run.config.value("reference", false); // else an older run in the same folder had one
    if (reference && there(out / "claims.json")) whole(out / "claims.json", run.claims);
    run.losses = {{"this run"}, {"validation"}, {"FP32"}, {"FP32 in another order"}};
    read_log(run, out / "log.jsonl", run.losses[0], &run.losses[1]);
    for (int i : {2, 3})
        if (const auto path = out / (i == 2 ? "fp32" : "fp32 in another order") / "log.jsonl"; reference && there(path)) read_log(run, path, run.losses[i], nullptr);
    read_decisions(run, out / "decisions.jsonl");
    if (there(out / "shadow.jsonl")) read_looks(run, out / "shadow.jsonl");
    // By layer, then in the order of a forward pass: of each Linear its input, its weight, its gradient.
    auto place = [](const HeatStrip& s) {
        const std::string linear = s.name.substr(0, s.name.find_first_of(' ') == std::string::npos ? s.name.rfind('.') : s.name.find(' '));
        return std::tuple(s.layer(), linear, s.name.find(" gradient") != std::string::npos, s.name.find(" input") == std::string::npos);
    };
    std::stable_sort(run.tensors.begin(), run.tensors.end(), [&](const HeatStrip& a, const HeatStrip& b) { return place(a) < place(b); });
    std::stable_sort(run.parameters.begin(), run.parameters.end(), [](const HeatStrip& a, const HeatStrip& b) { return a.layer() < b.layer(); });
    return run;
}

// ==== strips, as SVG and as pixels ===================================================================================

// The exponents that a strip shows, lo to hi - 1: all that hold a share worth a look, and where its formats end.
struct View {
    int lo = INT_MAX, hi = INT_MIN;
    void show(double from, double to) { lo = (int)std::min<double>(lo, std::floor(from)), hi = std::max(hi, (int)std::ceil(to)); }
};
inline View view_of(const HeatStrip& s) {
    View v;
    for (const Column& c : s.columns)
        for (auto [e, n] : c.counts) v.show(n * 4096 >= c.total ? e : INFINITY, e + 1);
    for (const Stretch& t : s.stretches)
        if (t.at.top - t.at.zero < 60) v.show(t.at.zero - 2, t.at.top + 2);
        else if (t.at.zero == -1) v.show(-3, 1);
    for (auto& [at, p] : s.peaks) v.show(p.y - (s.columns.empty() ? 1 : 0), p.y + 1);
    if (v.lo >= v.hi) return {-8, 8}; // all numbers are 0
    v.lo = std::max(v.lo, v.hi - 64);
    return v;
}

// visit(shade, from, to, e) for the runs of equal darkness: 1 to 8 where numbers were kept, -1 to -8 where they were lost. What
// lies below the view is in its last row.
template <class F>
void each_cell(const HeatStrip& s, View v, F visit) {
    auto shade = [&](const Column& c, int e) {
        double n = 0;
        for (auto i = e == v.lo ? c.counts.begin() : c.counts.lower_bound(e); i != c.counts.end() && i->first <= e; i++) n += i->second;
        const int dark = n > 0 ? std::clamp(9 + (int)std::floor(std::log2(n / c.total) / 1.5), 1, 8) : 0;
        return e < c.lowest || e > c.highest ? -dark : dark;
    };
    for (int e = v.lo; e < v.hi; e++)
        for (int i = 0, n = (int)s.columns.size(), from = 0; i < n;) {
            const int now = shade(s.columns[i], e);
            int to = s.columns[i++].step;
            while (i < n && shade(s.columns[i], e) == now) to = s.columns[i++].step;
            if (now) visit(now, from, to, e);
            from = to;
        }
}

// Where `limit` of a format was, over the steps.
inline Path border(const HeatStrip& s, double Limits::*limit) {
    Path path;
    for (const Stretch& t : s.stretches)
        for (int x : {t.from, t.to}) path.push_back({(double)x, std::clamp(t.at.*limit, -999.0, 999.0)});
    return path;
}

// Points as an SVG path; what is not finite leaves a gap.
inline std::string path_of(const Path& points) {
    std::string d;
    bool pen = false;
    for (Point p : points) {
        const bool there = drawable(p.x, p.y);
        if (there) d += cat(pen ? "L" : "M", p.x, " ", p.y);
        if (there && !pen) d += "h0";
        pen = there;
    }
    return d;
}
inline std::string glyph(double x, double y, char kind, const std::string& title) {
    static const std::map<char, const char*> shapes = {{'p', "m0-5l4.5 8h-9z"}, {'r', "m0 4l4.5-8h-9z"}, {'m', "m-3.5-4h7v7h-7z"}, {'d', "m-3.5-3.5l7 7m0-7l-7 7"}};
    return cat("<path class='mark ", std::string(1, kind), "' d='M", x, " ", y, shapes.at(kind), "'><title>", html(title), "</title></path>");
}

inline std::string svg_of(const HeatStrip& s, int steps) {
    constexpr int LEFT = 34, TOP = 17, WIDTH = 284, HEIGHT = 100;
    const View v = view_of(s);
    const Axis x = {0, (double)steps, LEFT, LEFT + WIDTH}, y = {(double)v.lo, (double)v.hi, TOP + HEIGHT, TOP};
    std::string label = s.name + ": binades over steps";
    for (const Mark& m : s.marks) label += cat("; step ", m.step, ": ", m.text);
    std::string svg = cat("<svg viewBox='0 0 320 134' role='img' aria-label='", html(label), "'><rect class='outside' x='", LEFT, "' y='", TOP, "' width='", WIDTH, "' height='", HEIGHT, "'/>");

    // The ribbon: which format, when.
    for (size_t i = 0, end; i < s.stretches.size(); i = end) {
        const Format f = s.stretches[i].format;
        int least = INT_MAX, most = INT_MIN;
        for (end = i; end < s.stretches.size() && s.stretches[end].format == f; end++) least = std::min(least, s.stretches[end].k), most = std::max(most, s.stretches[end].k);
        const double from = x.pixel(s.stretches[i].from), to = x.pixel(s.stretches[end - 1].to);
        const std::string scale = !is_fp8(f) ? "" : " × " + power(least) + (most > least ? "…" + power(most) : "");
        svg += cat("<g><title>", name_of(f), scale, " from step ", s.stretches[i].from + 1, "</title><rect class='format f", 8 * (int)bytes_of(f), "' x='", from, "' y='2' width='", std::max(to - from, 0.5), "' height='12'/>");
        if (to - from > 30) svg += cat("<text x='", from + 4, "' y='11.5'>", name_of(f), to - from > 100 ? scale : "", "</text>");
        svg += "</g>";
    }

    // The data, in steps and binades.
    svg += cat("<svg x='", LEFT, "' y='", TOP, "' width='", WIDTH, "' height='", HEIGHT, "' viewBox='0 ", -v.hi, " ", steps, " ", v.hi - v.lo, "' preserveAspectRatio='none'><g transform='scale(1-1)'>");
    for (const Stretch& t : s.stretches) {
        const double lo = std::max(t.at.zero, v.lo - 1.0), hi = std::min(t.at.top, v.hi + 1.0);
        svg += cat("<rect class='inside' x='", t.from, "' y='", lo, "' width='", t.to - t.from, "' height='", std::max(hi - lo, 0.0), "'><title>from step ",
                   t.from + 1, ": ", name_of(t.format), is_fp8(t.format) ? " × " + power(t.k) : "", "</title></rect>");
    }
    std::string cells[17];
    each_cell(s, v, [&](int shade, int from, int to, int e) { cells[shade + 8] += cat("M", from, " ", e, "h", to - from); });
    svg += "<g class='cells' transform='translate(0 .5)'>";
    for (int i = 0; i < 17; i++)
        if (!cells[i].empty()) svg += cat("<path class='", i < 8 ? "lost" : "kept", " s", std::abs(i - 8), "' d='", cells[i], "'/>");
    svg += "</g>";
    Path peaks;
    for (auto& [at, p] : s.peaks) peaks.push_back(p);
    svg += cat("<path class='line peak' d='", path_of(peaks), "'/>");
    for (auto [name, limit] : {std::pair{"top", &Limits::top}, {"normal", &Limits::normal}, {"zero", &Limits::zero}})
        svg += cat("<path class='line ", name, "' d='", path_of(border(s, limit)), "'/>");
    for (const Mark& m : s.marks) svg += cat("<path class='line at ", std::string(1, m.kind), "' d='M", m.step - 0.5, " ", v.lo, "V", v.hi, "'/>");
    svg += "</g></svg>";

    for (double e : ticks(v.lo, v.hi, 5))
        if (e == std::floor(e)) svg += cat("<text class='end' x='", LEFT - 4, "' y='", y.pixel(e) + 3.5, "'>", power((int)e), "</text>");
    for (const Mark& m : s.marks) svg += glyph(x.pixel(m.step - 0.5), TOP + 5, m.kind, cat("step ", m.step, ": ", m.text));
    return svg + cat("<text x='", LEFT, "' y='129'>0</text><text class='end' x='", LEFT + WIDTH, "' y='129'>step ", steps, "</text></svg>");
}

inline void draw_strip(Canvas& canvas, int left, int top, const HeatStrip& s, int steps) {
    constexpr int MARGIN = 60, WIDTH = 330, HEIGHT = 116;
    constexpr Colour KEPT = 0x0B62A8, LOST = 0xD14900;
    Canvas own(MARGIN + WIDTH + 10, HEIGHT + 50);
    const View v = view_of(s);
    const Axis x = {0, (double)steps, MARGIN, MARGIN + WIDTH}, y = {(double)v.lo, (double)v.hi, HEIGHT + 24, 24};
    auto fill = [&](double from, double to, double low, double high, Colour c) {
        for (int py = std::max(24, (int)y.pixel(high)); py < std::min(HEIGHT + 24, (int)y.pixel(low)); py++)
            for (int px = (int)x.pixel(from); px < (int)x.pixel(to); px++) own.pixels[(size_t)py * own.width + px] = c;
    };
    fill(0, steps, v.lo, v.hi, 0xE6E9EC);
    for (const Stretch& t : s.stretches) fill(t.from, t.to, std::max(t.at.zero, v.lo - 1.0), std::min(t.at.top, v.hi + 1.0), WHITE);
    each_cell(s, v, [&](int shade, int from, int to, int e) { fill(from, to, e, e + 1, mix(WHITE, shade < 0 ? LOST : KEPT, 0.1 + 0.11 * std::abs(shade))); });
    const Box clip = {MARGIN, 24, MARGIN + WIDTH, HEIGHT + 24};
    for (auto [limit, thickness] : {std::pair{&Limits::top, 2.0}, {&Limits::normal, 0.8}, {&Limits::zero, 2.0}}) {
        Path path = border(s, limit);
        for (Point& p : path) p = {x.pixel(p.x), y.pixel(p.y)};
        own.stroke({path}, thickness, INK, clip);
    }
    for (const Mark& m : s.marks) own.stroke({{{x.pixel(m.step - 0.5), 24}, {x.pixel(m.step - 0.5), HEIGHT + 24.0}}}, 2, m.kind == 'p' ? 0x7A2E9E : LOST, clip);
    std::string title = s.name;
    for (size_t i = 0; i < s.stretches.size(); i++)
        if (i == 0 || s.stretches[i].format != s.stretches[i - 1].format) title += format(i ? " > %s" : ": %s", name_of(s.stretches[i].format));
    write_text(own, title, {MARGIN, 17}, 0, 11, WIDTH);
    for (double e : ticks(v.lo, v.hi, 4)) write_text(own, format("2^%.0f", e), {MARGIN - 6, y.pixel(e) + 5}, 1, 10, MARGIN - 8);
    write_text(own, format("step %d", steps), {MARGIN + WIDTH, HEIGHT + 42.0}, 1, 10, WIDTH);
    for (int py = 0; py < own.height; py++) std::copy_n(&own.pixels[(size_t)py * own.width], own.width, &canvas.pixels[(size_t)(top + py) * canvas.width + left]);
}

// Of the first, the middle and the last layer.
inline void save_heat(const std::filesystem::path& path, const Run& run) {
    std::map<int, std::vector<const HeatStrip*>> layers;
    for (const HeatStrip& s : run.tensors)
        if (s.layer() != INT_MAX && !s.stretches.empty() && run.steps) layers[s.layer()].push_back(&s);
    std::vector<const HeatStrip*> chosen;
    int i = 0, n = (int)layers.size();
    for (auto& [layer, strips] : layers)
        if (int at = i++; at == 0 || at == n / 2 || at == n - 1) chosen.insert(chosen.end(), strips.begin(), strips.end());
    Canvas canvas(3 * 410 + 10, 60 + 174 * std::max(1, ceil_div((int)chosen.size(), 3)));
    write_text(canvas, "|x| over the steps, and where its format ends: blue was kept, orange was lost, saturated above or flushed to zero below", {60, 36}, 0, 15, 1150);
    if (chosen.empty()) write_text(canvas, "nothing was measured", {60, 90}, 0, 12, 800);
    for (size_t j = 0; j < chosen.size(); j++) draw_strip(canvas, 10 + (int)(j % 3) * 410, 60 + (int)(j / 3) * 174, *chosen[j], run.steps);
    save_png(path.string(), canvas);
}
