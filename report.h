// report.h -- a run's report: what became of its loss and of its numbers, on one page of HTML; and the heat strips as a PNG.
//
//   loss, its difference from FP32 with the tolerance as a band -> strips of every tensor -> strips of updates -> claims -> costs
//
// Units    steps, nats per token, differences in %, SNRs in dB
// Why      Everything is read from OUT's files: an old run's report can be drawn again, and shows nothing that they do not
//          say. No script, no font, no network: the page will open in twenty years.
// Tests    tests/test_report.cu; in a browser, scripts/check_report.sh
#pragma once
#include "strips.h"

// ==== curves =========================================================================================================

// The mean of each of at most `most` groups of neighbours, or with `band` the least and the largest.
inline Path thin(const Series& s, bool band = false, size_t most = 360) {
    Path path;
    const size_t n = s.x.size(), each = n / most + 1;
    for (size_t i = 0; i < n; i += each) {
        double x = 0, y = 0, lo = INFINITY, hi = -INFINITY;
        size_t end = std::min(i + each, n), there = 0;
        for (size_t j = i; j < end; j++)
            if (x += s.x[j] / (end - i); std::isfinite(s.y[j])) y += s.y[j], lo = std::min(lo, s.y[j]), hi = std::max(hi, s.y[j]), there++;
        if (band && there && each > 1) path.push_back({x, lo}), path.push_back({x, hi});
        else path.push_back({x, there ? y / there : NAN});
    }
    return path;
}
inline Series smooth(Series s, int parts) {
    s.y = moving_average(s.y, std::max(1, (int)s.y.size() / parts));
    return s;
}

struct Curves { // a chart in the making: one viewBox unit is a pixel on a wide screen
    static constexpr int LEFT = 72, RIGHT = 1060, TOP = 14;
    int height;
    Axis x, y;
    std::string inside = {}, around = {};
    Curves(int steps, double lo, double hi, int height) : height(height), x{0, (double)std::max(steps, 1), LEFT, RIGHT}, y{lo, hi, height - 30.0, TOP} {}
    void add(const char* kind, Path path) {
        for (Point& p : path) p = {x.pixel(p.x), std::clamp(y.pixel(p.y), -1e4, 1e4)}; // a NaN stays one
        inside += cat("<path class='curve ", kind, "' d='", path_of(path), "'/>");
    }
    void tick(double at, const std::string& label) {
        around += cat("<path class='grid' d='M", LEFT, " ", y.pixel(at), "H", RIGHT, "'/><text class='end' x='", LEFT - 8, "' y='", y.pixel(at) + 4, "'>", label, "</text>");
    }
    std::string svg(const std::string& label, const std::vector<Mark>& marks) {
        const std::vector<double> at = ticks(x.lo, x.hi, 6);
        for (size_t i = 0; i < at.size(); i++) around += cat("<text class='mid' x='", x.pixel(at[i]), "' y='", height - 10, "'>", tick_labels(at)[i], "</text>");
        double last = -INFINITY;
        std::string glyphs;
        for (const Mark& m : marks) {
            const double px = x.pixel(m.step);
            if (px < last + 3 && m.kind != 'd') continue; // one mark tells as much as ten on top of each other
            last = px, glyphs += glyph(px, TOP - 6, m.kind, cat("step ", m.step, ": ", m.text));
            inside += cat("<path class='line at ", std::string(1, m.kind), "' d='M", px, " ", TOP, "V", height - 30, "'/>");
        }
        return cat("<svg class='wide' viewBox='0 0 1080 ", height, "' role='img' aria-label='", html(label), "'>", around, "<svg x='", LEFT, "' y='", TOP, "' width='", RIGHT - LEFT, "' height='", height - 30 - TOP,
                   "' viewBox='", LEFT, " ", TOP, " ", RIGHT - LEFT, " ", height - 30 - TOP, "'>", inside, "</svg>", glyphs, "</svg>");
    }
};

// A swatch and a name for each: of a curve, cell or line by its classes, of a mark by its one letter.
inline std::string key(const std::vector<std::pair<std::string, std::string>>& entries) {
    std::string s = "<p class='key'>";
    for (auto& [kind, name] : entries)
        s += "<span>" + (kind.size() == 1 ? "<svg viewBox='0 0 12 12'>" + glyph(6, 6, kind[0], name) : "<svg viewBox='0 0 28 12'><path class='" + kind + "' d='M1 6H27'/>") + "</svg>" + name + "</span>";
    return s + "</p>";
}

// Loss over steps on a logarithmic scale, which shows the end as well as the start.
inline std::string loss_chart(const Run& run, const std::vector<Mark>& vetoes) {
    std::vector<Series> logs = run.losses;
    std::vector<double> all;
    for (Series& s : logs)
        for (double& y : s.y)
            if (y = y > 0 ? std::log10(y) : NAN; std::isfinite(y)) all.push_back(y);
    const Axis fit = axis_over(all, 0.05);
    const double lo = std::pow(10, fit.lo), hi = std::pow(10, fit.hi);
    Curves chart(run.steps, fit.lo, fit.hi, 300);
    std::vector<double> marks = ticks(lo, hi, 6);
    if (hi > 4 * lo) marks.clear();
    for (double decade = std::pow(10, std::floor(fit.lo)); hi > 4 * lo && decade < hi; decade *= 10)
        for (int digit : {1, 2, 5})
            if (digit * decade > lo && digit * decade < hi) marks.push_back(digit * decade);
    for (double m : marks) chart.tick(std::log10(m), format("%g", m));
    chart.add("raw", thin(logs[0], true)), chart.add("twin", thin(smooth(logs[2], 50))), chart.add("run", thin(smooth(logs[0], 50))), chart.add("validation", thin(logs[1]));
    return "<h3>nats per token, on a logarithmic scale</h3>" + chart.svg("training loss over steps", vetoes);
}

// What the run's loss and that of FP32 in another order are away from the twin's, in %.
inline std::string difference_chart(const Run& run, const std::vector<Mark>& vetoes, double tolerance) {
    std::map<double, double> twin;
    for (size_t i = 0; i < run.losses[2].x.size(); i++) twin[run.losses[2].x[i]] = run.losses[2].y[i];
    double reach = 1.5 * tolerance; // the first fifth may leave the frame
    auto apart = [&](const Series& s) {
        Series d;
        for (size_t i = 0; i < s.x.size(); i++)
            if (auto t = twin.find(s.x[i]); t != twin.end()) d.x.push_back(s.x[i]), d.y.push_back(100 * (s.y[i] / t->second - 1));
        d = smooth(d, 20);
        for (size_t i = d.y.size() / 5; i < d.y.size(); i++)
            if (std::isfinite(d.y[i])) reach = std::max(reach, std::min(1.1 * std::abs(d.y[i]), 5 * tolerance));
        return thin(d);
    };
    const Path noise = apart(run.losses[3]), difference = apart(run.losses[0]);
    Curves chart(run.steps, -reach, reach, 220);
    const double top = chart.y.pixel(tolerance);
    chart.inside = cat("<rect class='band' x='", Curves::LEFT, "' y='", top, "' width='", Curves::RIGHT - Curves::LEFT, "' height='", chart.y.pixel(-tolerance) - top, "'/>");
    const std::vector<double> at = ticks(-reach, reach, 5);
    for (size_t i = 0; i < at.size(); i++) chart.tick(at[i], (at[i] > 0 ? "+" : "") + tick_labels(at)[i]);
    chart.add("noise", noise), chart.add("run", difference);
    return "<h3>difference from FP32's loss in %, smoothed</h3>" + chart.svg("difference from the loss of the FP32 twin over steps, in per cent", vetoes);
}

// ==== the page =======================================================================================================

inline std::string loss_section(const Run& run) {
    std::vector<Mark> vetoes;
    for (const Mark& m : run.events)
        if (m.kind == 'r' || m.kind == 'd') vetoes.push_back(m);
    if (run.losses[0].x.empty()) return "<p>This run applied no step.</p>";
    const bool compared = !run.losses[2].x.empty();
    std::vector<std::pair<std::string, std::string>> entries = {{"curve run", "this run, smoothed"}, {"curve raw", "each step"}, {"curve validation", "validation"}};
    if (compared) entries.push_back({"curve twin", "its FP32 twin"});
    if (!vetoes.empty()) entries.push_back({"r", "a cast saturated: step replayed"}), entries.push_back({"d", "batch dropped"});
    const std::string chart = loss_chart(run, vetoes) + key(entries);
    if (!compared) return chart + "<p>This run was not compared with FP32: <code>--reference</code>.</p>";
    const double tolerance = 100 * tolerances_for(recipe_named(run.config.at("recipe")), run.config.value("tolerance", 0.0)).loss;
    return chart + difference_chart(run, vetoes, tolerance) +
        key({{"curve run", "this run"}, {"curve noise", "FP32 itself, its sums in another order"}, {"curve band", format("the tolerance, %g %%", tolerance)}});
}

inline std::string table(const std::vector<std::vector<std::string>>& rows) { // the first is its head
    std::string s;
    for (const auto& row : rows) {
        s += "<tr>";
        for (const std::string& cell : row) s += &row == &rows[0] ? "<th>" + cell + "</th>" : "<td>" + cell + "</td>";
        s += "</tr>";
    }
    return "<div class='scroll'><table>" + s + "</table></div>";
}

// Strips by layer, the first open. caption(strip) says what each is; after(strips) ends a layer.
template <class F, class G>
std::string layers_of(const std::vector<HeatStrip>& strips, int steps, F caption, G after) {
    std::map<int, std::vector<const HeatStrip*>> layers;
    for (const HeatStrip& s : strips)
        if (!s.stretches.empty()) layers[s.layer()].push_back(&s);
    std::string page;
    for (auto& [layer, members] : layers) {
        const HeatStrip* worst = members[0];
        std::string charts;
        int marks = 0;
        for (const HeatStrip* s : members) {
            worst = s->worst > worst->worst ? s : worst, marks += (int)s->marks.size();
            charts += cat("<figure><figcaption><b>", html(s->short_name()), "</b> <i>", caption(*s), "</i></figcaption>", svg_of(*s, steps), "</figure>\n");
        }
        page += cat("<details", page.empty() ? " open=''" : "", "><summary><b>", layer == INT_MAX ? "outside the layers" : cat("layer ", layer), "</b> ", count((int)members.size(), "tensor"),
                    "; most lost: ", percent(worst->worst), worst->worst > 0 ? ", " + html(worst->short_name()) : "", marks ? "; " + count(marks, "event") : "",
                    "</summary><div class='strips'>", charts, "</div>", after(members), "</details>");
    }
    return page;
}

inline std::string snr_table(const std::vector<const HeatStrip*>& members) {
    auto noise = [](const Json& look, const std::string& format_too) -> std::string {
        if (!look.is_object() || !look.at("snr").is_number()) return "–";
        const double snr = look["snr"];
        return (format_too.empty() ? "" : html(look.at("format")) + " ") + (snr >= EXACT ? "exact" : format("%.1f", snr / 100));
    };
    std::vector<std::vector<std::string>> rows = {{"tensor", "format", "scale", "SNR in dB", "narrower", "wider", "are 0", "most lost"}};
    for (const HeatStrip* s : members)
        if (const Json& look = s->last; look.is_object())
            rows.push_back({html(s->short_name()), html(look.at("format")), is_fp8(s->stretches.back().format) ? power(look.at("k")) : "", noise(look, ""), noise(look.value("narrower", Json()), "f"),
                            noise(look.value("wider", Json()), "f"), percent(s->zeros), percent(s->worst)});
    return rows.size() > 1 ? "<h3>at the last look</h3>" + table(rows) : "";
}

inline std::string numbers_section(const Run& run) {
    const HeatStrip* worst = nullptr;
    for (const HeatStrip& s : run.tensors)
        if (!s.stretches.empty() && (!worst || s.worst > worst->worst)) worst = &s;
    if (!worst || !run.steps) return "<p>No tensor was looked at: without FP8 no cast is logged, and there is no shadow.jsonl.</p>";
    std::string page = worst->worst > 0 ? cat("<p>The most that a tensor lost of its numbers in a step: <b>", percent(worst->worst), "</b>, <b>", html(worst->name), "</b> at step ", worst->worst_step, ".</p>")
                                        : "<p>No tensor lost a number that was not 0.</p>";
    if (!run.looked) page += "<p>There is no shadow.jsonl: only the largest |x| of each step is known.</p>";
    page += key({{"kept s2", "kept: few numbers"}, {"kept s8", "many"}, {"lost s3", "lost, saturated above or flushed to zero below: few"}, {"lost s8", "many"}, {"line top", "where the format ends"}, {"line normal", "its smallest normal number"}, {"line peak", "largest |x|"}, {"p", "promoted to a wider format"}, {"r", "saturated: step replayed"}});
    auto caption = [](const HeatStrip& s) { return s.worst > 0 ? percent(s.worst) + " lost" : "nothing lost"; };
    return page + layers_of(run.tensors, run.steps, caption, snr_table);
}

inline std::string updates_section(const Run& run) {
    const HeatStrip* worst = nullptr;
    int half = 0, measured = 0;
    for (const HeatStrip& s : run.parameters)
        if (s.lost >= 0) measured++, half += s.lost >= 0.5, worst = !worst || s.lost > worst->lost ? &s : worst;
    if (!worst) return "<p>No update was measured.</p>";
    auto caption = [](const HeatStrip& s) { return cat("lost ", percent(s.lost), ", realised ", percent(s.realised)); };
    return cat("<p>Kept without an FP32 master, a weight ignores an update below half the spacing of its format. At the last measurement <b>", half, " of ", measured,
               "</b> parameters would lose at least half of their updates; most: <b>", html(worst->name), "</b>, ", percent(worst->lost), ". FP32 masters given: <b>", run.masters, "</b>.</p>",
               key({{"kept s7", "changes the weight"}, {"lost s7", "is lost"}, {"line zero", "half an ulp"}, {"line normal", "one ulp; upwards: |update| / ulp"}, {"m", "FP32 master given"}})) +
        layers_of(run.parameters, run.steps, caption, [](auto&) { return ""; });
}

inline std::string claims_section(const Run& run) {
    if (!run.claims.is_object()) return "<p>Nothing: it was not compared with FP32, <code>--reference</code>.</p>";
    std::vector<std::vector<std::string>> rows = {{"claim", "", "evidence"}};
    for (const Json& c : run.claims.at("claims"))
        rows.push_back({"<b>" + html(c.at("claim")) + "</b> " + html(c.at("says")), c.at("holds").get<bool>() ? "<b class='good'>✓ holds</b>" : "<b class='bad'>✗ fails</b>", html(c.at("evidence"))});
    return table(rows) + "<p>" + html(run.claims.at("not_claimed")) + ".</p><p class='note'>Fixed before step 0: " + html(run.claims.at("tolerances")) + "; hash " + html(run.claims.at("hash")) + ".</p>";
}

inline std::string costs_section(const Run& run) {
    auto cost = [&](const char* name) { return run.cost.count(name) ? run.cost.at(name) : 0; };
    const double all = cost("seconds"), shadow = cost("shadow_seconds"), decisions = cost("decision_seconds"), replays = cost("replay_seconds");
    if (!(all > 0)) return "<p>This run's log does not end with its costs.</p>";
    std::vector<std::vector<std::string>> rows = {{"of the time of all steps", cat(all, " s"), "", ""}};
    for (auto [what, seconds] : {std::pair{"training itself", all - shadow - decisions - replays}, {"looks at tensors", shadow}, {"decisions and their log", decisions}, {"replayed attempts", replays}})
        rows.push_back({what, format("%.1f s", seconds), percent(seconds / all), cat("<svg class='bar' viewBox='0 0 200 12' aria-hidden='true'><rect width='", std::clamp(200 * seconds / all, 0.5, 200.0), "' height='12'/></svg>")});
    return table(rows) + "<p>The procedure keeps <b>" + bytes(cost("memory_bytes")) + "</b> beyond the model; its looks read <b>" + bytes(cost("shadow_bytes")) + "</b> in all.</p>";
}

inline std::string head_of(const Run& run) {
    auto option = [&](const char* name) { return run.config.contains(name) ? html(run.config[name].is_string() ? run.config[name].get<std::string>() : run.config[name].dump()) : "?"; };
    int held = 0, claims = 0;
    if (run.claims.is_object())
        for (const Json& c : run.claims.at("claims")) held += c.at("holds").get<bool>(), claims++;
    const int replays = run.verdicts[(int)Verdict::replay], drops = run.verdicts[(int)Verdict::drop] + run.verdicts[(int)Verdict::stop];
    std::string page = cat("<h1>", option("recipe"), ", ", count(run.steps, "step"), "</h1><p>", option("data").empty() ? "built-in stories" : option("data"), " · ", option("layers"), " layers, ", option("channels"),
                           " channels, context ", option("context"), " · batch ", option("batch"), " × ", option("accumulate"), " · seed ", option("seed"), "</p><ul class='tiles'>");
    auto tile = [&](const std::string& kind, const std::string& number, const std::string& what) { page += "<li class='" + kind + "'><b>" + number + "</b> " + what + "</li>"; };
    if (claims) tile(held == claims ? "good" : "bad", cat(held == claims ? "✓ " : "✗ ", held, " of ", claims), "claims hold");
    else tile("", "–", "nothing claimed: no <code>--reference</code>");
    tile("", cat(replays), replays == 1 ? "step replayed" : "steps replayed"), tile(drops ? "bad" : "", cat(drops), drops == 1 ? "batch dropped" : "batches dropped");
    tile("", cat(run.promotions), run.promotions == 1 ? "promotion" : "promotions"), tile("", cat(run.masters), run.masters == 1 ? "FP32 master given" : "FP32 masters given");
    page += "</ul><details class='events'><summary>" + count((int)run.events.size(), "event") + "</summary><ol>";
    for (size_t i = 0; i < std::min<size_t>(run.events.size(), 500); i++) page += cat("<li>step ", run.events[i].step, ": ", html(run.events[i].text), "</li>");
    return page + (run.events.size() > 500 ? "<li>… decisions.jsonl has them all</li>" : "") + "</ol></details>";
}

const char* const REPORT_STYLE = R"(
:root{color-scheme:light dark;--page:#fff;--ink:#1b2127;--soft:#56616b;--line:#d8dde2;--outside:#e4e8ec;--inside:#fff;--kept:#0b62a8;--lost:#d14900;--good:#18722f;--bad:#b3261e;--p:#7a2e9e}
@media screen and (prefers-color-scheme:dark){:root{--page:#12161a;--ink:#e8ecef;--soft:#a3afba;--line:#343d45;--outside:#262d33;--inside:#12161a;--kept:#62b6ff;--lost:#ff9248;--good:#5fd07c;--bad:#ff8a80;--p:#d59bf6}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}main{max-width:1140px;margin:auto;padding:28px 16px 60px}
h1{font-size:30px;line-height:1.2;margin:0}h2{font-size:21px;margin:44px 0 6px;border-top:1px solid var(--line);padding-top:22px}h3,caption{font-size:14px;font-weight:400;color:var(--soft);margin:14px 0 2px;text-align:left}p{margin:6px 0;max-width:80ch;overflow-wrap:anywhere}header p,.note{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:10px;padding:0;margin:18px 0 8px;list-style:none}.tiles li{border:1px solid var(--line);border-radius:8px;padding:10px 14px;color:var(--soft);font-size:14px}.tiles b{display:block;font-size:24px;line-height:1.3;color:var(--ink)}td .good,td .bad,code{white-space:nowrap}.good,.tiles .good b{color:var(--good)}.bad,.tiles .bad b{color:var(--bad)}
svg{display:block;width:100%;height:auto}svg text{font:10px system-ui,sans-serif;fill:var(--soft)}.wide text{font-size:13px}.end{text-anchor:end}.mid{text-anchor:middle}
.strips{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(320px,100%),1fr));gap:16px 18px;padding:12px 0}figure{margin:0;break-inside:avoid;min-width:0}figcaption{font-size:13px;overflow-wrap:anywhere}figcaption i{font-style:normal;color:var(--soft);float:right}
summary{cursor:pointer;padding:8px 0;border-bottom:1px solid var(--line);font-size:15px;overflow-wrap:anywhere}.events{font-size:14px}.events summary{border:0}
.key{display:flex;flex-wrap:wrap;gap:3px 20px;font-size:13px;color:var(--soft);max-width:none}.key span{display:flex;align-items:center;gap:7px}.key svg{height:12px;width:auto;flex:none}
.outside{fill:var(--outside)}.inside{fill:var(--inside)}.cells{pointer-events:none;shape-rendering:crispEdges}.kept,.lost{fill:none;stroke:var(--kept);stroke-width:1}.lost{stroke:var(--lost)}.key .kept,.key .lost{stroke-width:10}
.s1{stroke-opacity:.12}.s2{stroke-opacity:.2}.s3{stroke-opacity:.3}.s4{stroke-opacity:.42}.s5{stroke-opacity:.55}.s6{stroke-opacity:.7}.s7{stroke-opacity:.85}.lost.s1{stroke-opacity:.2}.lost.s2{stroke-opacity:.35}.lost.s3{stroke-opacity:.5}.lost.s4{stroke-opacity:.62}.lost.s5{stroke-opacity:.72}.lost.s6{stroke-opacity:.82}
.line,.curve{fill:none;stroke:var(--ink);vector-effect:non-scaling-stroke;pointer-events:none}.line{stroke-width:1.4}.normal{stroke-width:1;stroke-dasharray:2 3}.peak{stroke-width:1;stroke:var(--soft)}.at{stroke:var(--p);stroke-dasharray:4 2}.at.r,.at.d,.at.m{stroke:var(--lost)}
.mark{fill:var(--p);stroke:var(--page)}.mark.r,.mark.m{fill:var(--lost)}.mark.d{fill:none;stroke:var(--bad);stroke-width:2}
.format{fill:var(--outside)}.f16{fill:none;stroke:var(--p);stroke-width:1.2}.f32{fill:none;stroke:var(--ink)}
.curve{stroke-width:2;stroke-linecap:round;stroke-linejoin:round}.run{stroke:var(--kept)}.raw{stroke:var(--kept);stroke-opacity:.3;stroke-width:1}.twin{stroke:var(--ink);stroke-dasharray:6 4;stroke-width:1.6}.noise{stroke:var(--soft);stroke-dasharray:2 4}.validation{stroke:var(--p)}.curve.band{stroke-width:10;stroke-opacity:.25;stroke:var(--good);stroke-linecap:butt}rect.band{fill:var(--good);fill-opacity:.14}.grid{stroke:var(--line)}
.bar{width:200px;height:12px;fill:var(--kept)}
table{border-collapse:collapse;font-size:14px;margin:8px 0;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:4px 18px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600;color:var(--soft)}.scroll{overflow-x:auto}
@media(max-width:600px){.wide text{font-size:26px}h1{font-size:25px}.tiles{grid-template-columns:1fr 1fr}}
@media print{main{max-width:none;padding:0}details::details-content{content-visibility:visible;block-size:auto}body{font-size:12px}}
)";

// Reads what the run left in `out`, and writes out/report.html and out/heat.png, each whole or not at all. Refuses what it
// cannot read, by file and line.
inline void write_report(const std::filesystem::path& out) {
    const Run run = read_run(out);
    std::string page;
    try {
        page = "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><meta name='viewport' content='width=device-width,initial-scale=1'/><title>fewbits: " + html(run.config.at("recipe")) + "</title><style>" +
            REPORT_STYLE + "</style></head>\n<body><main><header>" + head_of(run) + "</header>\n";
        auto section = [&](const std::string& id, const std::string& title, const std::string& body) { page += "<section id='" + id + "'><h2>" + title + "</h2>" + body + "</section>\n"; };
        section("loss", "Loss", loss_section(run)), section("numbers", "Every tensor, over time", numbers_section(run)), section("updates", "Updates that weights can hold", updates_section(run));
        section("claims", "What this run may claim", claims_section(run)), section("costs", "What watching cost", costs_section(run));
        page += "</main></body></html>\n";
    } catch (const Json::exception& e) {
        refuse("%s: config.json, claims.json or a look: %s", out.c_str(), e.what());
    }
    write_whole((out / "report.html").string(), page);
    save_heat(out / "heat.png", run);
}
