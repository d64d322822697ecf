// plot.h -- pictures of curves: a PNG of a few series, with axes, legend and title, and no Python.
//
// Source   Okabe, Ito 2008, "Color universal design": colours that differ for every kind of eye
// Units    values are the caller's; sizes and places are in pixels
// Why      The legend stands above the frame, where no curve can be: no corner has to be guessed.
// Tests    tests/test_plot.cu
#pragma once
#include "canvas.h"

// One curve. A point whose x or y is NaN or infinite is a gap; a point alone between gaps is a dot.
struct Series {
    std::string name; // empty: not in the legend
    std::vector<double> x = {}, y = {};
    int colour = -1;    // index into PALETTE; -1: the one after the previous series' colour
    bool faint = false; // thin and pale, under the others: the raw values of a smoothed curve
};

struct Chart {
    std::string title, x_label, y_label;
    std::vector<Series> series;
    int width = 1280, height = 800;   // pixels
    double y_low = NAN, y_high = NAN; // where to cut the y axis; NaN: to fit the values
};

// ==== numbers ========================================================================================================

// y[i] = the mean of the values at most window / 2 places from i, less the gaps; a gap where none is left.
inline std::vector<double> moving_average(const std::vector<double>& values, int window) {
    ENSURE(window > 0, "window is %d", window);
    const int n = (int)values.size(), half = window / 2;
    std::vector<double> y(n, NAN), sum(n + 1, 0), count(n + 1, 0); // of the values before each place
    for (int i = 0; i < n; i++) {
        const bool there = std::isfinite(values[i]);
        sum[i + 1] = sum[i] + (there ? values[i] : 0), count[i + 1] = count[i] + there;
    }
    for (int i = 0; i < n; i++) {
        const int first = std::max(0, i - half), end = std::min(n, i + half + 1);
        if (count[end] > count[first]) y[i] = (sum[end] - sum[first]) / (count[end] - count[first]);
    }
    return y;
}

// The multiples of 1, 2 or 5 times a power of ten that lie in [lo, hi]: at most `most` steps between them.
inline std::vector<double> ticks(double lo, double hi, int most = 10) {
    if (!(lo < hi)) return {lo};
    double power = std::pow(10, std::floor(std::log10((hi - lo) / most))), step = 10 * power;
    for (double digit : {5, 2, 1})
        if (digit * power * most >= (hi - lo) * (1 - 1e-9)) step = digit * power;
    std::vector<double> marks;
    for (double k = std::ceil(lo / step - 1e-9); k <= hi / step + 1e-9; k++) marks.push_back(k * step);
    return marks;
}

// What is written at the ticks: as many digits as tell them apart, the same number at each.
inline std::vector<std::string> tick_labels(const std::vector<double>& marks) {
    double largest = std::max(std::abs(marks.front()), std::abs(marks.back()));
    double step = marks.size() > 1 ? marks[1] - marks[0] : largest;
    auto exponent = [](double v) { return v > 0 ? (int)std::floor(std::log10(v) + 1e-9) : 0; }; // of 10
    int unit = exponent(step), top = exponent(largest);
    std::vector<std::string> labels;
    for (double mark : marks)
        if (mark == 0) labels.push_back(format("%.*f", unit < -5 || top > 6 ? 0 : std::max(0, -unit), 0.0)); // never "-0"
        else if (unit < -5 || top > 6) labels.push_back(format("%.*e", std::max(0, top - unit), mark));
        else labels.push_back(format("%.*f", std::max(0, -unit), mark));
    return labels;
}

// ==== the chart ======================================================================================================

constexpr Colour PALETTE[] = {0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7, 0xE69F00, 0x56B4E9, 0x7F7F7F};
constexpr Colour AXIS = 0x8C8C8C, GRID = 0xE8E8E8;
constexpr double TITLE = 23, LABEL = 18, PLOT_MARGIN = 32, GAP = 16, SWATCH = 44; // pixels; of text, the height of capitals
constexpr double LEGEND_ROW = 2.2 * LABEL;

// A direction of the chart: the values lo .. hi stand at the pixels first .. last.
struct Axis {
    double lo, hi, first = 0, last = 0;
    std::vector<double> marks = {};
    std::vector<std::string> labels = {};
    double pixel(double value) const { return first + (value - lo) / (hi - lo) * (last - first); }
};

// Where everything is: the axes, the colour of each series, and the place in the legend of each that has a name.
struct PlotArea {
    Axis x, y;
    std::vector<Colour> colours;
    std::vector<Point> legend;
};

inline bool drawable(double x, double y) { return std::abs(x) < 1e300 && std::abs(y) < 1e300; } // false for NaN

// From the smallest to the largest value, and a share `more` of that on both sides. A constant gets room too.
inline Axis axis_over(const std::vector<double>& values, double more) {
    if (values.empty()) return {0, 1};
    auto [lo, hi] = std::minmax_element(values.begin(), values.end());
    double size = std::max(std::abs(*lo), std::abs(*hi)), spread = *hi - *lo;
    double room = spread > 1e-12 * size && spread > 1e-290 ? more * spread : (size > 1e-290 ? 0.1 * size : 1);
    return {*lo - room, *hi + room};
}

inline PlotArea lay_out(const Chart& chart) {
    ENSURE(chart.width >= 500 && chart.height >= 300, "%d x %d pixels are too few", chart.width, chart.height);
    std::vector<double> xs, ys;
    for (const Series& s : chart.series) {
        ENSURE(s.x.size() == s.y.size(), "series %s: %zu x, %zu y", s.name.c_str(), s.x.size(), s.y.size());
        for (size_t i = 0; i < s.x.size(); i++)
            if (drawable(s.x[i], s.y[i])) xs.push_back(s.x[i]), ys.push_back(s.y[i]);
    }
    PlotArea layout{axis_over(xs, 0.015), axis_over(ys, 0.04), {}, {}};
    Axis &x = layout.x, &y = layout.y;
    if (std::isfinite(chart.y_low)) y.lo = chart.y_low;
    if (std::isfinite(chart.y_high)) y.hi = chart.y_high;
    ENSURE(y.lo < y.hi, "the y axis would go from %g to %g", y.lo, y.hi);
    x.marks = ticks(x.lo, x.hi, chart.width / 150), x.labels = tick_labels(x.marks);
    y.marks = ticks(y.lo, y.hi, chart.height / 80), y.labels = tick_labels(y.marks);

    double widest = 0;
    for (const std::string& label : y.labels) widest = std::max(widest, Text(label, LABEL).length);
    double left = PLOT_MARGIN + (chart.y_label.empty() ? 0 : 2.3 * LABEL) + widest + GAP, right = chart.width - 1.5 * PLOT_MARGIN;

    // The legend: from left to right, in as many rows as it takes.
    double top = PLOT_MARGIN + (chart.title.empty() ? 0 : TITLE + GAP), next = left;
    int colour = 0, named = 0;
    for (const Series& s : chart.series) {
        colour = s.colour >= 0 ? s.colour : colour;
        layout.colours.push_back(PALETTE[colour++ % std::size(PALETTE)]);
        double length = SWATCH + GAP + Text(s.name, LABEL).length;
        if (!s.name.empty() && named++ && next + length > right) next = left, top += LEGEND_ROW;
        layout.legend.push_back({next, top + LEGEND_ROW / 2});
        if (!s.name.empty()) next += length + 2.5 * GAP;
    }
    top += (named ? LEGEND_ROW : 0) + GAP / 2;

    double below = PLOT_MARGIN + LABEL + GAP + (chart.x_label.empty() ? 0 : LABEL + GAP);
    x.first = std::round(left), x.last = std::round(right);
    y.first = std::round(chart.height - below), y.last = std::round(top); // pixels count downwards
    return layout;
}

inline void draw_grid_and_labels(Canvas& canvas, const Chart& chart, const Axis& x, const Axis& y) {
    const double width = x.last - x.first, height = y.first - y.last;
    std::vector<Path> grid;
    for (double mark : x.marks) { // on whole pixels, where two pixels of ink are crisp
        double at = std::round(x.pixel(mark));
        grid.push_back({{at, y.first}, {at, y.last}});
    }
    for (double mark : y.marks) {
        double at = std::round(y.pixel(mark));
        grid.push_back({{x.first, at}, {x.last, at}});
    }
    canvas.stroke(grid, 2, GRID);
    canvas.stroke({{{x.first, y.last}, {x.first, y.first}, {x.last, y.first}}}, 2, AXIS);

    for (size_t i = 0; i < x.marks.size(); i++)
        write_text(canvas, x.labels[i], {x.pixel(x.marks[i]), y.first + GAP + LABEL}, 0.5, LABEL, width / x.marks.size());
    for (size_t i = 0; i < y.marks.size(); i++)
        write_text(canvas, y.labels[i], {x.first - GAP, y.pixel(y.marks[i]) + LABEL / 2}, 1, LABEL, width);
    write_text(canvas, chart.title, {x.first, PLOT_MARGIN + TITLE}, 0, TITLE, width);
    write_text(canvas, chart.x_label, {x.first + width / 2, canvas.height - PLOT_MARGIN}, 0.5, LABEL, width);
    write_text(canvas, chart.y_label, {PLOT_MARGIN + LABEL, y.last + height / 2}, 0.5, LABEL, height, {0, -1}); // upwards
}

inline void draw_series(Canvas& canvas, const Series& series, const PlotArea& at, Colour colour, Point legend) {
    std::vector<Path> lines(1), dots;
    for (size_t i = 0; i <= series.x.size(); i++) {
        if (i < series.x.size() && drawable(series.x[i], series.y[i])) {
            // A point far outside a cut axis is brought near: 1e5 pixels away a line is as steep as the eye can tell.
            lines.back().push_back({at.x.pixel(series.x[i]), std::clamp(at.y.pixel(series.y[i]), -1e5, 1e5)});
            continue;
        }
        if (lines.back().size() == 1) dots.push_back(lines.back()), lines.pop_back();
        lines.emplace_back();
    }
    const double thickness = series.faint ? 1.5 : 3.5;
    const Box frame{at.x.first, at.y.last, at.x.last, at.y.first};
    if (series.faint) colour = mix(colour, WHITE, 0.6);
    canvas.stroke(lines, thickness, colour, frame);
    canvas.stroke(dots, 3 * thickness, colour, frame);
    if (series.name.empty()) return;
    double text_left = legend.x + SWATCH + GAP;
    canvas.stroke({{legend, {legend.x + SWATCH, legend.y}}}, thickness + 1, colour);
    write_text(canvas, series.name, {text_left, legend.y + LABEL / 2}, 0, LABEL, at.x.last - text_left);
}

// Draws the chart and writes it to `path`, whole or not at all. Refuses a path that cannot be written.
inline void save_chart(const std::string& path, const Chart& chart) {
    PlotArea layout = lay_out(chart);
    Canvas canvas(chart.width, chart.height);
    draw_grid_and_labels(canvas, chart, layout.x, layout.y);
    for (bool faint : {true, false}) // the faint ones first: they lie under the others
        for (size_t i = 0; i < chart.series.size(); i++)
            if (chart.series[i].faint == faint)
                draw_series(canvas, chart.series[i], layout, layout.colours[i], layout.legend[i]);

    save_png(path, canvas);
}
