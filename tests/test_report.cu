// test_report.cu -- report.h: a made-up run with planted facts, and where its page and its picture show them.
#include "report.h"
#include "stb_png.h"
#include <doctest/doctest.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
size_t count_of(const std::string& text, const std::string& what) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) n++;
    return n;
}

// A folder that a run might have left; gone with the test. Its numbers are Gaussian with a standard deviation of 2^centre.
struct FakeRun {
    fs::path out;
    Rules rules;
    PolicyState state;
    std::vector<std::string> names;               // of tensors, then of parameters
    std::vector<TensorState> plain;               // the tensors of a recipe without FP8, which nothing is decided on
    std::map<int, std::pair<size_t, int>> spikes; // at this step this tensor's numbers are that many binades larger
    std::map<int, size_t> not_numbers;            // ... or NaN
    std::ofstream log, decisions, looks;
    int every = 16;

    FakeRun(const char* name, int layers, const char* recipe = "fp8", fs::path at = {}) {
        out = at.empty() ? fs::temp_directory_path() / format("fewbits_report_%d_%s", (int)getpid(), name) : at;
        fs::create_directories(out);
        std::ofstream(out / "config.json") << Json{{"recipe", recipe}, {"data", ""}, {"layers", layers}, {"channels", 64}, {"context", 160}, {"batch", 16}, {"accumulate", 1}, {"seed", 1}, {"reference", true}, {"tolerance", 0.0}}.dump(2);
        log.open(out / "log.jsonl"), decisions.open(out / "decisions.jsonl"), looks.open(out / "shadow.jsonl");
        const bool fp8 = std::string(recipe) == "fp8";
        const char* const linears[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
        for (const char* what : {" input", " gradient", ".weight"})
            for (int l = 0; l < layers; l++)
                for (const char* linear : linears) {
                    names.push_back(format("h.%d.%s%s", l, linear, what));
                    const bool gradient = what[1] == 'g';
                    (fp8 ? state.tensors : plain).emplace_back(!fp8 ? BF16 : gradient ? E5M2
                                                                                      : E4M3,
                                                               gradient ? Role::gradient : what[1] == 'i' ? Role::input
                                                                                                          : Role::weight);
                }
        for (int l = 0; l < layers; l++)
            for (const char* linear : linears) names.push_back(format("h.%d.%s.weight", l, linear)), state.parameters.push_back({0, 0, 0, 0, BF16});
    }
    ~FakeRun() { fs::remove_all(out); }

    const TensorState& tensor(size_t i) const { return plain.empty() ? state.tensors[i] : plain[i]; }
    std::vector<std::string> decided() const { return {names.begin() + plain.size(), names.end()}; }
    size_t place(const std::string& name) const { return std::find(names.begin(), names.end(), name) - names.begin(); }
    double centre(size_t i, int step) const {
        const auto spike = spikes.find(step);
        return (tensor(i).role == Role::gradient ? -20 : -2) + (double)(i % 5) * 0.5 - step / 200.0 + (spike != spikes.end() && spike->second.first == i ? spike->second.second : 0);
    }
    // Counts from 2^-60 on. Gradients have heavy tails: the mean of five Gaussians.
    std::vector<int64_t> histogram(size_t i, int step) const {
        std::vector<int64_t> counts;
        const bool gradient = tensor(i).role == Role::gradient;
        for (int e = -60; e < 20; e++) {
            double share = 0;
            for (int tail = 0; tail < 5; tail++) {
                const double sigma = std::exp2(centre(i, step) - (gradient ? 2.4 * tail : 0)) * std::sqrt(2.0);
                share += (std::erf(std::exp2(e + 1) / sigma) - std::erf(std::exp2(e) / sigma)) / 5;
            }
            counts.push_back(std::llround(160000 * share + 0.3 * std::sin(7.0 * e + i + step)));
        }
        while (counts.back() <= 0) counts.pop_back();
        return counts;
    }
    Evidence seen(size_t i, int step) const {
        const std::vector<int64_t> counts = histogram(i, step);
        Evidence e;
        e.amax_bits = bits_as<uint32_t>((float)std::ldexp(1.3, (int)counts.size() - 61));
        const TensorState& t = tensor(i);
        const Limits at = limits_of(t.format, cast_exponent(rules, t, e.amax_bits));
        for (int j = 0; j < (int)counts.size(); j++)
            if (counts[j] > 0) e.nonzero += counts[j], (j - 60 < at.zero ? e.flushed : e.saturated) += (j - 60 < at.zero || j - 60 > at.top) * counts[j];
        if (const auto bad = not_numbers.find(step); bad != not_numbers.end() && bad->second == i) e.nan = 3;
        return e;
    }

    std::string look(int step) const {
        Json line = {{"step", step}, {"tensors", Json::array()}};
        for (size_t i = 0; i < state.tensors.size() + plain.size(); i++) {
            const TensorState& t = tensor(i);
            const std::vector<int64_t> counts = histogram(i, step);
            const int k = cast_exponent(rules, t, bits_as<uint32_t>((float)std::ldexp(1.3, (int)counts.size() - 61)));
            Json narrower, wider;
            if (!is_fp8(t.format)) narrower = {{"format", "E4M3"}, {"k", 5}, {"snr", 3010}, {"flushed", 12}, {"nonzero", 4096}};
            else wider = {{"format", "BF16"}, {"k", 0}, {"snr", 5612}};
            line["tensors"].push_back({{"tensor", names[i]}, {"format", name_of(t.format)}, {"k", k}, {"snr", is_fp8(t.format) ? 3021 : 20000}, {"narrower", narrower}, {"wider", wider}, {"zeros", 5}, {"first", -60}, {"counts", counts}});
        }
        return line.dump();
    }
    std::vector<UpdateEvidence> updates(int step) const {
        std::vector<UpdateEvidence> all;
        for (size_t i = 0; i < state.parameters.size(); i++) {
            UpdateEvidence u;
            for (int b = 0; b < u.BINS; b++) {
                const double z = (b - u.ZERO - 3.5 + std::min(step / 60.0, 9.0) + i % 3) / 1.7;
                u.bins[b] = std::llround(4000 * std::exp(-z * z / 2)), u.updates += u.bins[b];
                if (b - u.ZERO < -1) u.lost += u.bins[b];
            }
            u.realised = 1000 - (int)(700 * u.lost / u.updates), all.push_back(u);
        }
        return all;
    }
    static double loss_at(int step) { return 0.9 + 4.6 * std::exp(-step / 25.0) + 0.02 * std::sin(step * 12.9898); }
    static Json line_at(int step, double loss, bool skipped) { return {{"step", step}, {"loss", loss}, {"grad_norm", 0.5}, {"lr", 1e-3}, {"loss_scale", 1.0}, {"skipped", skipped}, {"seconds", step * 0.1}}; }

    // Takes the steps that a run would take: attempts until one is applied.
    void steps(int n) {
        log << Json{{"step", 0}, {"val_loss", 5.54}}.dump() << "\n";
        decisions << header_of(rules, state, decided()).dump() << "\n";
        for (int step = 1; step <= n;) {
            StepEvidence e;
            for (size_t i = 0; i < state.tensors.size(); i++) e.tensors.push_back(seen(i, step));
            const bool looked = step % every == 0;
            const std::string line = looked ? look(step) : ""; // with the scales that the casts had
            Decision d = decide(rules, state, e);
            if (looked && d.verdict == Verdict::apply) looks << line << std::endl, e.updates = updates(step), give_masters(rules, state, e.updates, d);
            decisions << line_of(e, d, state, decided()).dump() << "\n";
            const bool applied = d.verdict == Verdict::apply, dropped = !applied && state.retrying == 0;
            log << line_at(step, dropped ? NAN : loss_at(step), !applied).dump() << "\n";
            if (dropped) not_numbers.erase(step);
            step += applied;
            if (applied && (step - 1) % 50 == 0) log << Json{{"step", step - 1}, {"val_loss", loss_at(step - 1) + 0.05}}.dump() << "\n";
        }
        decisions.flush(), log.flush(), looks.flush();
    }
    void twins(int n) {
        for (const char* name : {"fp32", "fp32 in another order"}) {
            fs::create_directories(out / name);
            std::ofstream file(out / name / "log.jsonl");
            for (int step = 1; step <= n; step++) file << line_at(step, loss_at(step) * (1 - 0.003 * std::sin(step * (name[4] ? 3.1 : 1.7)) - (name[4] ? 0 : 0.002)), false).dump() << "\n";
        }
        std::vector<Claim> claims = {{"C1", "no applied step overflowed", "0 numbers saturated or not finite", true}, {"C2", "what was lost is listed", "0 batches dropped, 3 steps replayed", true}, {"C3", "matches FP32: training loss within 0.01", "training loss 0.9021 against 0.9003: 0.2 %", true}, {"C4", "the decisions can be computed again", "all attempts", true}};
        std::ofstream(out / "claims.json") << json_of(claims, {0.01, 0.01}, {}).dump(2);
    }
    void costs() { log << R"({"cost": {"seconds": 81.2, "shadow_seconds": 0.9, "decision_seconds": 0.3, "replay_seconds": 0.4, "memory_bytes": 123456, "shadow_bytes": 987654321}})" << std::endl; }
    std::string report() {
        write_report(out);
        return read_file(out / "report.html");
    }
};

// What is wrong with a page that is to be XML too; empty: nothing.
std::string fault_in(const std::string& page) {
    std::vector<std::string> open;
    size_t at = page.find('>') + 1; // after <!DOCTYPE html>
    try {
        (void)Json(page).dump(); // throws where it is not UTF-8
    } catch (const Json::exception& e) {
        return e.what();
    }
    for (size_t end; at < page.size(); at = end) {
        if (page[at] != '<') {
            end = std::min(page.find('<', at), page.size());
            const std::string text = page.substr(at, end - at);
            if (!open.empty() && open.back() == "style") continue;
            if (text.find('>') != std::string::npos) return "a bare > in " + text;
            for (size_t a = 0; (a = text.find('&', a)) != std::string::npos; a++)
                if (const std::string name = text.substr(a, text.find(';', a) - a + 1); name != "&amp;" && name != "&lt;" && name != "&gt;" && name != "&#39;" && name != "&quot;") return "the entity " + name;
            for (char c : text)
                if ((unsigned char)c < ' ' && c != '\n') return format("byte %d", c);
            continue;
        }
        end = page.find('>', at) + 1;
        std::string tag = page.substr(at + 1, end - at - 2);
        const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
        if (tag[0] == '/') {
            if (open.empty() || "/" + open.back() != tag) return "<" + tag + "> closes <" + (open.empty() ? "" : open.back()) + ">";
            open.pop_back();
            continue;
        }
        if (tag.back() == '/') tag.pop_back();
        else open.push_back(name);
        for (size_t a = name.size(); a < tag.size();) { // attribute='value'
            if (tag[a] != ' ') return "attributes of <" + tag + ">";
            const size_t quote = tag.find("='", a), last = quote == std::string::npos ? quote : tag.find('\'', quote + 2);
            if (last == std::string::npos) return "attributes of <" + tag + ">";
            const std::string key = tag.substr(a + 1, quote - a - 1), value = tag.substr(quote + 2, last - quote - 2);
            if (value.find('<') != std::string::npos) return "a bare < in " + value;
            for (const char* bad : {"nan", "inf", "?"})
                if (key != "aria-label" && key != "content" && value.find(bad) != std::string::npos) return key + "='" + value + "'";
            a = last + 1;
        }
    }
    return open.empty() ? "" : "<" + open.back() + "> stays open";
}

// The figure of a tensor, or of a parameter.
std::string figure(const std::string& page, const std::string& section, int layer, const std::string& name) {
    size_t at = page.find("<section id='" + section + "'>");
    at = page.find(format("<b>layer %d</b>", layer), at);
    at = page.find("<figcaption><b>" + html(name) + "</b>", at);
    REQUIRE(at != std::string::npos);
    return page.substr(at, page.find("</figure>", at) - at);
}
// The shade of a strip's cell at a step and exponent: below 0 where numbers were lost, 0 where there were none.
int shade_at(const std::string& figure, int step, int exponent) {
    for (const char* kind : {"kept", "lost"})
        for (int level = 1; level <= 8; level++) {
            const size_t at = figure.find(format("<path class='%s s%d' d='", kind, level));
            if (at == std::string::npos) continue;
            for (size_t m = figure.find('M', at), end = figure.find("'/>", at); m < end; m = figure.find('M', m + 1)) {
                int from, e, length;
                REQUIRE(sscanf(&figure[m], "M%d %dh%d", &from, &e, &length) == 3);
                if (e == exponent && from < step && step <= from + length) return kind[0] == 'k' ? level : -level;
            }
        }
    return 0;
}
bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

struct Picture {
    int width = 0, height = 0;
    std::vector<Colour> pixels;
    explicit Picture(const fs::path& path) {
        int channels;
        unsigned char* rgb = stbi_load(path.c_str(), &width, &height, &channels, 3);
        REQUIRE(rgb != nullptr);
        for (int i = 0; i < width * height; i++) pixels.push_back((Colour)rgb[3 * i] << 16 | (Colour)rgb[3 * i + 1] << 8 | rgb[3 * i + 2]);
        stbi_image_free(rgb);
    }
    // How many pixels are more orange than blue, and how many more blue than orange.
    std::pair<int, int> colours(int left, int top, int right, int bottom) const {
        std::pair<int, int> n;
        for (int y = top; y < bottom; y++)
            for (int x = left; x < right; x++) {
                const Colour c = pixels[(size_t)y * width + x];
                const int red = c >> 16, blue = c & 255;
                n.first += red > blue + 20, n.second += blue > red + 20;
            }
        return n;
    }
};

} // namespace

TEST_CASE("report: a page that is well-formed, with every section, and without anything to load or run") {
    FakeRun run("whole", 2);
    run.steps(64), run.twins(64), run.costs();
    const std::string page = run.report();
    CHECK(fault_in(page) == "");
    for (const char* id : {"loss", "numbers", "updates", "claims", "costs"}) CHECK(count_of(page, format("<section id='%s'>", id)) == 1);
    for (const char* bad : {"<script", "http:", "https:", "url(", "@import", "<img", "<link"}) CHECK(!has(page, bad));
    CHECK(count_of(page, "role='img'") == 2 + 24 + 8);
    CHECK(count_of(page, "aria-label=") == 2 + 24 + 8);
    CHECK(has(page, "✓ 4 of 4"));
    CHECK(has(page, "<td>0.9 s</td><td>1.11 %</td>"));
    CHECK(has(page, "<b>987.7 MB</b>"));
    CHECK(count_of(page, " open=''") == 2); // the first layer of the numbers, and of the updates
    CHECK(page == run.report());            // the same files give the same bytes
    CHECK(!fs::exists(run.out / "report.html.part"));
}

TEST_CASE("report: a replay, a spike and a promotion are where they happened") {
    FakeRun run("planted", 2);
    const size_t spiked = run.place("h.0.mlp.c_fc input"), promoted = run.place("h.1.attn.c_proj gradient");
    run.spikes = {{32, {spiked, 6}}, {36, {promoted, 6}}, {40, {promoted, 14}}};
    run.steps(96);
    const std::string page = run.report();
    CHECK(fault_in(page) == "");
    CHECK(has(page, "<b>3</b> steps replayed"));
    CHECK(has(page, "<b>1</b> promotion<"));
    CHECK(has(page, "<li>step 32: replay: h.0.mlp.c_fc input saturated</li>"));
    CHECK(has(page, "<li>step 40: h.1.attn.c_proj gradient: promote E5M2 -&gt; BF16</li>"));

    const std::string strip = figure(page, "numbers", 0, "mlp.c_fc input"), wide = figure(page, "numbers", 1, "attn.c_proj gradient");
    CHECK(count_of(strip, "<path class='mark r'") == 1);
    CHECK(has(strip, "<path class='line at r' d='M31.5 "));
    CHECK(has(strip, "<title>step 32: replay: h.0.mlp.c_fc input saturated</title>"));
    CHECK(count_of(wide, "<path class='mark p'") == 1);
    CHECK(has(wide, "<path class='line at p' d='M39.5 "));
    CHECK(has(wide, "BF16 from step 40</title>")); // the second attempt of step 40 is its first
    CHECK(!has(wide, "BF16 from step 41</title>"));
    CHECK(has(wide, "E5M2 × 2"));
    CHECK(count_of(figure(page, "numbers", 1, "attn.c_proj input"), "<path class='mark") == 0);

    // The look at step 32 has the spike, and those before and after do not. While k is small for its sake, small numbers are lost.
    const int top = (int)run.histogram(spiked, 32).size() - 61, usual = (int)run.histogram(spiked, 16).size() - 61;
    REQUIRE(top > usual);
    CHECK(shade_at(strip, 32, top) > 0);
    CHECK(shade_at(strip, 17, top) > 0); // a look stands for the steps since the one before
    CHECK(shade_at(strip, 16, top) == 0);
    CHECK(shade_at(strip, 33, top) == 0);
    CHECK(shade_at(strip, 16, usual - 3) >= 6);
    const int flushed = (int)limits_of(E4M3, scale_exponent(E4M3, std::ldexp(1.3f, top), 1)).zero - 1;
    CHECK(shade_at(strip, 48, flushed) < 0); // cast with the spike's k
    CHECK(shade_at(strip, 16, flushed) > 0);
    // k of the steps before the spike: 448 / 2^k is where the upper line begins.
    const int k = scale_exponent(E4M3, std::ldexp(1.3f, (int)run.histogram(spiked, 1).size() - 61), 1);
    CHECK(has(strip, cat("<path class='line top' d='M0 ", std::log2(448.0) - k, "h0L")));
    CHECK(has(page, cat("<tr><td>mlp.c_fc input</td><td>E4M3</td><td>", power(run.state.tensors[spiked].k), "</td><td>30.2</td><td>–</td><td>BF16 56.1</td>")));
}

TEST_CASE("report: what saturates unguarded is lost, above the format's end") {
    FakeRun run("unguarded", 1);
    const size_t spiked = run.place("h.0.mlp.c_fc input");
    run.rules.guard = false, run.spikes = {{32, {spiked, 6}}};
    run.steps(48);
    const std::string page = run.report(), strip = figure(page, "numbers", 0, "mlp.c_fc input"), gradient = figure(page, "numbers", 0, "mlp.c_fc gradient");
    const int top = (int)run.histogram(spiked, 32).size() - 61;
    CHECK(shade_at(strip, 32, top) < 0);
    CHECK(shade_at(strip, 32, top - 6) > 0);
    CHECK(count_of(strip, "<path class='mark") == 0);
    CHECK(has(gradient, "100 % lost")); // its first scale was 1
    CHECK(has(page, " gradient</b> at step 1.</p>"));
}

TEST_CASE("report: what updates would lose, and who was given a master") {
    FakeRun run("updates", 1);
    run.rules.window = 2; // of measurements
    run.steps(16 * 40);
    REQUIRE(run.state.parameters[2].master == 1);
    const std::string page = run.report(), strip = figure(page, "updates", 0, "mlp.c_fc.weight");
    CHECK(has(page, "FP32 masters given: <b>4</b>"));
    CHECK(count_of(strip, "<path class='mark m'") == 1);
    const UpdateEvidence u = run.updates(640)[2];
    CHECK(has(strip, cat("lost ", percent((double)u.lost / u.updates), ", realised ", percent(u.realised / 1000.0))));
    for (int e = -3; e <= 15; e++) {
        const int shade = shade_at(strip, 640, e);
        CHECK((shade != 0) == (u.bins[e + u.ZERO] > 0));
        CHECK((shade < 0) == (e < -1 && shade)); // below half an ulp
    }
}

TEST_CASE("report: recipes without FP8, without twin, without looks, without steps") {
    FakeRun bf16("bf16", 1, "bf16");
    bf16.steps(32);
    std::string page = bf16.report();
    CHECK(fault_in(page) == "");
    CHECK(has(page, "not compared with FP32"));
    CHECK(has(page, "does not end with its costs"));
    CHECK(has(figure(page, "numbers", 0, "mlp.c_fc input"), "BF16 from step 1</title>"));

    FakeRun old("old", 1);
    old.every = 1000, old.steps(32);
    fs::remove(old.out / "shadow.jsonl");
    page = old.report();
    CHECK(fault_in(page) == "");
    CHECK(has(page, "There is no shadow.jsonl"));
    CHECK(has(page, "No update was measured"));
    CHECK(has(figure(page, "numbers", 0, "mlp.c_fc input"), "<path class='line top'"));

    FakeRun zeros("zeros", 1, "bf16");
    zeros.steps(16);
    zeros.looks << R"({"step": 16, "tensors": [{"tensor": "h.0.zeros", "format": "BF16", "k": 0, "snr": null, "narrower": null, "wider": null, "zeros": 64, "first": 128, "counts": []}]})" << std::endl;
    page = zeros.report();
    CHECK(fault_in(page) == "");
    CHECK(has(page, "<td>zeros</td><td>BF16</td><td></td><td>–</td><td>–</td><td>–</td><td>100 %</td>"));

    FakeRun empty("empty", 1);
    empty.steps(0);
    page = empty.report();
    CHECK(fault_in(page) == "");
    CHECK(has(page, "applied no step"));
    CHECK(has(page, "No tensor was looked at"));
    CHECK(Picture(empty.out / "heat.png").width > 1000);
}

TEST_CASE("report: twins and claims that an older run left in the folder are not this run's") {
    FakeRun run("older", 1);
    run.steps(16), run.twins(16);
    CHECK(has(run.report(), "✓ 4 of 4"));
    std::ofstream(run.out / "config.json") << Json{{"recipe", "fp8"}, {"reference", false}}.dump();
    const std::string page = run.report();
    CHECK(!has(page, "✓ 4 of 4"));
    CHECK(has(page, "This run was not compared with FP32"));
    CHECK(has(page, "Nothing: it was not compared with FP32"));
}

TEST_CASE("report: NaN and Inf leave gaps, and no number of the page is one") {
    FakeRun run("nan", 1);
    run.not_numbers = {{5, 3}};
    run.steps(20), run.twins(20);
    run.log << R"({"step": 21, "loss": null, "skipped": false})"
            << "\n"
            << R"({"step": 22, "loss": 1e308, "skipped": false})"
            << "\n"
            << R"({"step": 23, "loss": 0, "skipped": false})"
            << "\n"
            << R"({"step": 23, "val_loss": null})"
            << "\n"
            << R"({"cost": {"seconds": null}})" << std::endl;
    const std::string page = run.report();
    CHECK(fault_in(page) == "");
    CHECK(has(page, "<b>1</b> batch dropped"));
    CHECK(has(page, "<title>step 5: drop: "));
}

TEST_CASE("report: hostile names are text") {
    CHECK(html("<a href='x'>&\"") == "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
    CHECK(html("\x01\x7f\xff\xc3") == "  \xEF\xBF\xBD\xEF\xBF\xBD");
    FakeRun run("hostile", 1);
    const std::string evil = "h.0.<script>alert('1')</script>\"&\n% input";
    run.names[0] = run.names[run.names.size() - 4] = evil;
    run.spikes = {{9, {0, 6}}};
    run.steps(32);
    std::ofstream(run.out / "config.json") << Json{{"recipe", "fp8"}, {"data", "</h1>\xff'><script>"}}.dump(-1, ' ', false, Json::error_handler_t::replace);
    const std::string page = run.report();
    CHECK(fault_in(page) == "");
    CHECK(!has(page, "<script"));
    CHECK(has(page, html(evil)));
    CHECK(has(page, "&lt;/h1&gt;\xEF\xBF\xBD"));
}

TEST_CASE("report: a file that is missing or malformed is refused by name and line, and nothing is written") {
    struct Case {
        const char *file, *content, *says;
    };
    for (const Case& c : {
             Case{"config.json", nullptr, "config.json: No such file"},
             Case{"config.json", "", "config.json:1: "},
             Case{"config.json", "{\n\"recipe\":", "config.json:1: "},
             Case{"config.json", "[]", "config.json:1: expected an object"},
             Case{"config.json", "{\"recipe\": \"fp9\", \"reference\": true}", "--recipe fp9"},
             Case{"log.jsonl", nullptr, "log.jsonl: No such file"},
             Case{"log.jsonl", "{\"step\": 1, \"loss\": 1, \"skipped\": false}\n{\"step\": 2, \"lo", "log.jsonl:2: "},
             Case{"log.jsonl", "{\"step\": 1, \"loss\": \"much\", \"skipped\": false}\n", "log.jsonl:1: "},
             Case{"log.jsonl", "{\"step\": -1}\n", "log.jsonl:1: step -1"},
             Case{"log.jsonl", "7\n", "log.jsonl:1: "},
             Case{"decisions.jsonl", nullptr, "decisions.jsonl: No such file"},
             Case{"decisions.jsonl", "", "decisions.jsonl:1: "},
             Case{"decisions.jsonl", "{}\n", "decisions.jsonl:1: "},
             Case{"shadow.jsonl", "{\"step\": 16}\n", "shadow.jsonl:1: "},
             Case{"shadow.jsonl", "{\"step\": 16, \"tensors\": [{\"tensor\": \"x\", \"format\": \"E9M9\"}]}\n", "shadow.jsonl:1: "},
             Case{"claims.json", "{}{}", "claims.json:1: "},
             Case{"claims.json", "{\"claims\": [{}]}", "config.json, claims.json or a look"},
             Case{"fp32/log.jsonl", "{\"step\": 1, \"loss\": 1}\n", "fp32/log.jsonl:1: "},
         }) {
        INFO(c.file << " holds " << std::string(c.content ? c.content : "nothing"));
        FakeRun run("malformed", 1);
        run.steps(16), run.twins(16);
        fs::remove(run.out / c.file);
        if (c.content) std::ofstream(run.out / c.file) << c.content;
        try {
            run.report();
            FAIL_CHECK("not refused");
        } catch (const Error& e) {
            CHECK(has(e.what(), c.says));
            CHECK(e.status == 2);
        }
        CHECK(!fs::exists(run.out / "report.html"));
        CHECK(!fs::exists(run.out / "heat.png"));
    }
    FakeRun folder("folder", 1);
    folder.steps(2);
    fs::remove(folder.out / "log.jsonl"), fs::create_directories(folder.out / "log.jsonl");
    CHECK_THROWS_WITH_AS(folder.report(), ("cannot read " + (folder.out / "log.jsonl").string()).c_str(), Error);

    FakeRun blocked("blocked", 1);
    blocked.steps(2);
    fs::create_directories(blocked.out / "report.html" / "full");
    CHECK_THROWS_AS(blocked.report(), Error);
    CHECK(!fs::exists(blocked.out / "report.html.part"));
}

TEST_CASE("report: a hundred looks at a hundred tensors stay below 2 MB; more are merged") {
    FakeRun run("large", 8);
    run.every = 1;
    run.steps(100);
    const std::string page = run.report();
    CHECK(page.size() < 2000000);
    CHECK(has(page, "<b>layer 7</b>"));

    HeatStrip strip("x");
    for (int step = 1; step <= 1000; step++) {
        Column c(step, limits_of(E4M3, step == 500 ? 9 : 0));
        c.put(step % 7, 2), strip.look(c);
    }
    CHECK(strip.columns.size() <= HeatStrip::MOST);
    CHECK(strip.columns.back().step == 1000);
    double total = 0;
    int highest = INT_MAX;
    for (const Column& c : strip.columns) total += c.total, highest = std::min(highest, c.highest);
    CHECK(total == 2000);
    CHECK(strip.worst == 1);
    CHECK(strip.worst_step == 500);
    CHECK(highest == -1); // the worst of a column's looks decides what is called lost
}

TEST_CASE("report: heat.png has a strip for each tensor of the first, middle and last layer") {
    FakeRun run("picture", 5);
    const size_t spiked = run.place("h.0.mlp.c_fc input");
    run.spikes = {{20, {spiked, 12}}};
    run.steps(64);
    run.report();
    const Picture picture(run.out / "heat.png");
    CHECK(picture.width == 1240);
    CHECK(picture.height == 60 + 174 * 12); // 3 layers of 12 tensors, 3 in a row
    for (int i = 0; i < 36; i++) {
        const int left = 10 + i % 3 * 410 + 60, top = 60 + i / 3 * 174 + 24;
        CHECK(picture.colours(left, top, left + 330, top + 116).second > 10000); // blue
    }
    // Its row is the third (c_attn, c_proj, c_fc), its column the first; what the spike flushed lies right of step 20.
    const int left = 70, top = 60 + 2 * 174 + 24, half = 330 * 20 / 64;
    CHECK(picture.colours(left + half + 3, top, left + 330, top + 116).first > picture.colours(left, top, left + half - 2, top + 116).first + 1000);
}
