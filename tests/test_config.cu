// test_config.cu -- config.h: each option with its bounds, the loss scale, and the learning rate of every step.
#include "command_line.h"
#include <doctest/doctest.h>
#include <set>

namespace {

Config parse(std::vector<std::string> args) {
    args.insert(args.begin(), "train_gpt");
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(&a[0]);
    return parse_options((int)argv.size(), argv.data());
}

// Why the call was refused as the user's mistake; "" if it was not.
template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (const Error& e) {
        CHECK(e.status == 2);
        CHECK(std::string(e.what()).find('\n') == std::string::npos);
        return e.what();
    }
    return "";
}
std::string refusal_of(std::vector<std::string> args) {
    return refusal([&] { parse(args); });
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A number as a person types it, exactly.
std::string typed(double x) { return format("%.17g", x); }

// visit(name, what the option is called with, whole, low, high) for each numeric option.
template <class F>
void each_number(F visit) {
    Config c;
    each_option(c, [&](const char* name, auto& field, const char*, auto... bounds) {
        if constexpr (sizeof...(bounds) == 2) {
            const std::pair<double, double> range(bounds...);
            visit(std::string(name), std::is_integral_v<std::decay_t<decltype(field)>>, range.first, range.second);
        }
    });
}

// ==== options ========================================================================================================

TEST_CASE("without options every field keeps the default of Config, and --recipe bf16 is one") {
    Config given = parse({}), plain;
    std::vector<std::string> a, b;
    auto list = [](std::vector<std::string>& to) {
        return [&](const char* name, auto& field, const char*, auto...) {
            if constexpr (std::is_same_v<decltype(field), std::string&>)
                to.push_back(name + field);
            else
                to.push_back(name + typed((double)field));
        };
    };
    each_option(given, list(a)), each_option(plain, list(b));
    CHECK(a == b);
    CHECK(given.recipe == "bf16");
}

TEST_CASE("each option is named once and explained") {
    Config c;
    std::set<std::string> names;
    each_option(c, [&](const char* name, auto&, const char* what, auto...) {
        CAPTURE(name);
        CHECK(names.insert(name).second);
        CHECK(std::string(name).substr(0, 2) == "--");
        CHECK(std::string(what).size() > 5);
    });
    CHECK(names.size() > 20);
}

TEST_CASE("a numeric option takes both of its bounds, and its default lies between them") {
    each_number([](const std::string& name, bool whole, double low, double high) {
        for (double x : {low, high}) {
            CAPTURE(name + " " + typed(x));
            std::vector<std::string> args = {name, whole ? format("%.0f", x) : typed(x)};
            if (name == "--lr") args.insert(args.end(), {"--min-lr", "0"});
            if (name == "--min-lr") args.insert(args.end(), {"--lr", "1000"});
            if (name == "--heads") args.insert(args.end(), {"--channels", "4096"});
            if (name == "--channels") args.insert(args.end(), {"--heads", "1"});
            if (name == "--batch" || name == "--context") args.insert(args.end(), {"--heads", "1"});
            CHECK(refusal_of(args) == "");
        }
    });
    each_number([](const std::string& name, bool, double low, double high) {
        Config c;
        each_option(c, [&](const char* option, auto& field, const char*, auto...) {
            if constexpr (std::is_arithmetic_v<std::decay_t<decltype(field)>>)
                if (name == option) CHECK_MESSAGE((low <= (double)field && (double)field <= high), option);
        });
    });
}

TEST_CASE("a numeric option refuses what lies outside, is no number, or is written as another kind of number") {
    each_number([](const std::string& name, bool whole, double low, double high) {
        std::vector<std::string> bad = {whole ? format("%.0f", low - 1) : typed(low - 1), "-1e300", "1e300", "1e999", "nan", "-nan", "inf", "-inf",
                                        "abc", "", " ", "1x", "1,5", "1 2", "--", "-99999999999999999999",
                                        whole ? format("%.0f", high + 1) : typed(high * 1.001)};
        if (whole) bad.insert(bad.end(), {"1.5", "1.0", "1e1", "0x10", "010", "+1", " 1", "1 ", "2147483648000", "99999999999999999999"});
        for (const std::string& value : bad) {
            CAPTURE(name + "=" + value);
            const std::string message = refusal_of({name + "=" + value});
            CHECK(contains(message, name));
            if (value.empty()) continue; // "--steps=" is a missing value to the parser
            CHECK(contains(message, "'" + value + "'"));
            CHECK(contains(message, whole ? "is not a whole number from" : "is not a number from"));
            CHECK(contains(message, format("from %.10g to %.10g", low, high)));
        }
    });
}

TEST_CASE("an empty value in an argument of its own is refused as a number") {
    each_number([](const std::string& name, bool, double, double) { CHECK(contains(refusal_of({name, ""}), name + ": '' is not a")); });
}

TEST_CASE("an unknown option, a stray word, a missing value and an option given twice are refused by name") {
    CHECK(contains(refusal_of({"--layer", "3"}), "--layer"));
    CHECK(contains(refusal_of({"train"}), "train"));
    CHECK(contains(refusal_of({"--steps"}), "--steps: 1 required INT missing"));
    CHECK(contains(refusal_of({"--steps", "1", "--steps", "2"}), "--steps"));
    CHECK(contains(refusal_of({"--steps", "1", "2"}), "2"));
}

TEST_CASE("values that are wrong only together are refused together") {
    CHECK(refusal_of({"--channels", "10", "--heads", "4"}) == "--channels 10 is not a multiple of --heads 4");
    CHECK(refusal_of({"--heads", "256"}) == "--channels 64 is not a multiple of --heads 256");
    CHECK(refusal_of({"--min-lr", "1", "--lr", "0.5"}) == "--min-lr 1 is above --lr 0.5");
    CHECK(refusal_of({"--min-lr", "0.5", "--lr", "0.5"}) == "");
    CHECK(refusal_of({"--min-lr", "-0.5"}) == "--min-lr -0.5 is negative; expected -1, or 0 and above");
    CHECK(refusal_of({"--min-lr", "-1e-30"}) == "--min-lr -1e-30 is negative; expected -1, or 0 and above");
    CHECK(refusal_of({"--lr", "0"}) == ""); // a fortieth of 0 is not above it
    CHECK(contains(refusal_of({"--out", ""}), "--out is empty"));
    const std::string rows = refusal_of({"--batch", "1048576", "--context", "1048576"}); // 2^42 does not fit into an int
    for (const char* part : {"--batch 1048576", "--heads 4", "--context 1048576", "2147483647"}) CHECK(contains(rows, part));
}

TEST_CASE("--recipe takes the four recipes by name, and no other") {
    for (const Recipe& r : RECIPES) CHECK(parse({"--recipe", r.name}).recipe == r.name);
    for (const char* name : {"int8", "FP8", "fp", "", "fp8 "}) {
        const std::string message = refusal_of({"--recipe", name});
        CHECK(contains(message, std::string("--recipe ") + name));
        CHECK(contains(message, "expected fp32, bf16, fp16 or fp8"));
    }
}

TEST_CASE("text options take any bytes") {
    const std::string strange = "a b\tc\n\xC3\xBC\xFF%s'\"";
    Config c = parse({"--data", strange, "--val-data", strange, "--out", strange, "--sample", strange});
    for (const std::string& field : {c.data, c.val_data, c.out, c.sample}) CHECK(field == strange);
}

// ==== the loss scale =================================================================================================

LossScale scale_of(const std::string& text, const Recipe& r, int window = 2000) {
    Config c;
    c.loss_scale = text, c.loss_scale_window = window;
    return loss_scale_of(c, r);
}

TEST_CASE("--loss-scale auto is dynamic for FP16 and 1 for the others") {
    for (const Recipe& r : RECIPES) {
        CAPTURE(r.name);
        LossScale s = scale_of("auto", r, 7);
        const bool dynamic = r.stored == FP16;
        CHECK(s.value == (dynamic ? 65536 : 1));
        CHECK(s.interval == (dynamic ? 7 : 0));
    }
}

TEST_CASE("--loss-scale none, dynamic or a number means the same for every recipe") {
    for (const Recipe& r : RECIPES) {
        CAPTURE(r.name);
        CHECK(scale_of("none", r).value == 1);
        CHECK(scale_of("none", r).interval == 0);
        CHECK(scale_of("dynamic", r, 3).value == 65536);
        CHECK(scale_of("dynamic", r, 3).interval == 3);
        for (float x : {1.0f, 1024.0f, 0.5f, 3.0f, 1e30f, 3.402823466e38f, 1.17549435e-38f}) {
            LossScale s = scale_of(typed(x), r);
            CHECK(s.value == x);
            s.overflowed(), s.succeeded();
            CHECK(s.value == x); // a static scale is static
            CHECK(std::isfinite(1 / x));
        }
    }
}

TEST_CASE("--loss-scale refuses what is no positive number with a finite reciprocal in FP32") {
    for (const char* text : {"abc", "", "0", "-0", "-1", "nan", "-nan", "inf", "-inf", "1e39", "1e-39", "1e-60", "1x", "1 ", "Dynamic", "1,0"}) {
        CAPTURE(text);
        const std::string message = refusal([&] { scale_of(text, recipe_fp16); });
        CHECK(contains(message, std::string("--loss-scale ") + text));
        CHECK(contains(message, "expected none, dynamic, auto or a positive number"));
    }
}

// ==== the learning rate ==============================================================================================

Config schedule(int steps, int warmup, double lr = 1e-2, double min_lr = 1e-3) {
    Config c;
    c.steps = steps, c.warmup = warmup, c.lr = lr, c.min_lr = min_lr;
    return c;
}

TEST_CASE("warmup is a line: update t of w has (t + 1) / w of the peak, so the first one is not wasted on 0") {
    Config c = schedule(100, 10);
    for (int t = 0; t < 10; t++) CHECK(learning_rate(c, t) == (float)(c.lr * (t + 1) / 10));
    CHECK(learning_rate(c, 9) == (float)c.lr);
    CHECK(learning_rate(c, 10) == (float)c.lr); // where the cosine starts
}

TEST_CASE("after warmup the rate is a cosine from lr to min_lr: half way in the middle, falling everywhere") {
    Config c = schedule(110, 10);
    CHECK(learning_rate(c, 60) == doctest::Approx((c.lr + c.min_lr) / 2).epsilon(1e-7));
    CHECK(learning_rate(c, 35) == doctest::Approx(c.min_lr + (c.lr - c.min_lr) * (1 + std::sqrt(0.5)) / 2).epsilon(1e-7)); // cos 45 degrees
    CHECK(learning_rate(c, 110) == (float)c.min_lr);
    for (int t = 10; t < 110; t++) CHECK(learning_rate(c, t + 1) < learning_rate(c, t));
    for (int t : {111, 1000, INT32_MAX}) CHECK(learning_rate(c, t) == (float)c.min_lr); // and there it stays
}

TEST_CASE("--min-lr -1, the default, is a fortieth of --lr, whichever that is; the option itself stays -1") {
    CHECK(parse({}).min_lr == -1);
    CHECK(parse({"--lr", "0.5"}).min_lr == -1); // and so it stands in config.json: given again, it means the same
    CHECK(parse({"--min-lr", "-1"}).min_lr == -1);
    CHECK(parse({"--min-lr", "0"}).min_lr == 0);
    for (double lr : {0.0, 8e-3, 0.5, 1e3}) {
        Config c = schedule(110, 10, lr, -1), explicitly = schedule(110, 10, lr, lr / 40);
        for (int t = 0; t < 120; t++) CHECK(learning_rate(c, t) == learning_rate(explicitly, t));
        CHECK(learning_rate(c, 110) == (float)(lr / 40));
        CHECK(c.min_lr == -1);
    }
}

TEST_CASE("the rate stays within 0 and lr, whatever steps and warmup are") {
    for (int steps : {0, 1, 2, 3, 50, 1 << 30})
        for (int warmup : {0, 1, 2, 49, 50, 51, 1 << 30})
            for (double min_lr : {0.0, 1e-3, 1e-2})
                for (int t : {0, 1, 2, 3, 48, 49, 50, 51, 1 << 29, 1 << 30}) {
                    Config c = schedule(steps, warmup, 1e-2, min_lr);
                    const float rate = learning_rate(c, t);
                    CHECK_MESSAGE((rate >= 0 && rate <= (float)c.lr), format("steps %d warmup %d min %g t %d: %g", steps, warmup, min_lr, t, rate));
                    if (t >= warmup) CHECK(rate >= (float)min_lr);
                }
}

TEST_CASE("no warmup starts at the peak; lr == min_lr is constant; lr 0 is 0") {
    CHECK(learning_rate(schedule(10, 0), 0) == 1e-2f);
    for (int t = 0; t < 20; t++) CHECK(learning_rate(schedule(10, 0, 3e-3, 3e-3), t) == 3e-3f);
    for (int t = 0; t < 20; t++) CHECK(learning_rate(schedule(10, 5, 0, 0), t) == 0);
}

// Known bug: github.com/pytorch/pytorch/issues/44511. The scheduler was called once per step, also for those that the
// loss scaler had dropped, and part of the warmup was over before the first update. tests/test_train_gpt.cu finds the
// same rule in the log of a run.
TEST_CASE("known bug: four skipped steps and a good one use 1/10 of the peak after a warmup of 10, not 5/10") {
    Config c = schedule(100, 10);
    LossScale scale = LossScale::dynamic(2000);
    int applied = 0;
    std::vector<float> rates;
    for (bool finite : {false, false, false, false, true, false, true}) {
        rates.push_back(learning_rate(c, applied)); // the only argument: updates made, not steps tried
        if (finite)
            scale.succeeded(), applied++;
        else
            scale.overflowed();
    }
    const float first = (float)(c.lr / 10), second = (float)(c.lr * 2 / 10);
    CHECK(rates == std::vector<float>{first, first, first, first, first, second, second});
    CHECK(scale.value == 65536.0f / 32);
}

} // namespace
