// command_line.h -- the command line as a Config, or one line that says what is wrong with it.
//
// Why      the parsing is CLI11's: what it compiles in seconds, only the program itself and one test include
// Tests    tests/test_config.cu, tests/test_train_gpt.cu
#pragma once
#include <CLI/CLI.hpp>
#include "config.h"

// Why `text` is not a number within [low, high], or nothing. A whole number is written as such: 010 is not 8, 1e3 not 1000.
inline std::string complaint(const std::string& text, bool whole, double low, double high) {
    char* end;
    const double x = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && x >= low && x <= high && (!whole || text == format("%.0f", x))) return "";
    return format("'%s' is not a %s from %.10g to %.10g", text.c_str(), whole ? "whole number" : "number", low, high);
}

// The command line as a Config, with what it does not say as in `c`. --help prints and exits; anything wrong is one line that
// names it, and status 2.
inline Config parse_options(int argc, char** argv, Config c = {}) {
    CLI::App app("fewbits: trains a small GPT from scratch in FP32, BF16, FP16 or FP8");
    app.set_help_flag("--help,-h", "print this and stop");
    app.option_defaults()->always_capture_default();
    each_option(c, [&](const char* name, auto& field, const char* what, auto... bounds) {
        if constexpr (std::is_same_v<decltype(field), bool&>) app.add_flag(name, field, what);
        else {
            auto* o = app.add_option(name, field, what);
            if constexpr (sizeof...(bounds) == 2) {
                constexpr bool whole = std::is_integral_v<std::decay_t<decltype(field)>>;
                const std::pair<double, double> range(bounds...);
                o->check([range](const std::string& text) { return complaint(text, whole, range.first, range.second); }, "");
            }
        }
    });
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        printf("%s", app.help().c_str());
        exit(0);
    } catch (const CLI::ParseError& e) {
        std::string message = e.what();
        for (char& ch : message)
            if (ch == '\n') ch = ' ';
        refuse("%s (see --help)", message.c_str());
    }
    recipe_named(c.recipe);
    if (c.from.empty() && c.resume.empty() && c.channels % c.heads) refuse("--channels %d is not a multiple of --heads %d", c.channels, c.heads);
    if (c.min_lr < 0 && c.min_lr != -1) refuse("--min-lr %g is negative; expected -1, or 0 and above", c.min_lr);
    if (c.min_lr > c.lr) refuse("--min-lr %g is above --lr %g", c.min_lr, c.lr);
    if (c.compare && c.reference) refuse("--compare and --reference: expected one of them, not both");
    if (!c.resume.empty() && c.compare) refuse("--resume and --compare: expected one of them; --resume goes on with a single run");
    if (c.out.empty()) refuse("--out is empty; expected the name of a folder");
    if ((int64_t)c.batch * c.heads * c.context > INT32_MAX) // attention has a row for each, and rows are counted in int
        refuse("--batch %d x --heads %d x --context %d is above %d: take more --accumulate, and a smaller --batch", c.batch, c.heads,
               c.context, INT32_MAX);
    return c;
}
