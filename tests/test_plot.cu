// test_plot.cu -- the pictures are read back: is each curve where its values say, and nowhere else?
#include "../plot.h"
#include "stb_png.h"
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// A file that is gone at the end of the test.
struct TemporaryFile {
    std::string path;
    explicit TemporaryFile(const char* name) {
        const char* folder = getenv("TMPDIR");
        path = format("%s/fewbits_%d_%s", folder ? folder : "/tmp", (int)getpid(), name);
    }
    ~TemporaryFile() { remove(path.c_str()); }
};

bool exists(const std::string& path) {
    FILE* file = fopen(path.c_str(), "rb");
    if (file) fclose(file);
    return file != nullptr;
}

struct Image {
    int width = 0, height = 0;
    std::vector<Colour> pixels;
    Colour at(double x, double y) const { return pixels[(size_t)y * width + (size_t)x]; }
};

// The chart, saved, and read back by another program's decoder.
Image picture_of(const Chart& chart) {
    TemporaryFile file("chart.png");
    save_chart(file.path, chart);
    CHECK(!exists(file.path + ".part"));
    Image image;
    int channels = 0;
    unsigned char* rgb = stbi_load(file.path.c_str(), &image.width, &image.height, &channels, 3);
    REQUIRE(rgb != nullptr);
    CHECK(channels == 3);
    for (size_t i = 0; i < (size_t)image.width * image.height; i++)
        image.pixels.push_back((Colour)rgb[3 * i] << 16 | (Colour)rgb[3 * i + 1] << 8 | rgb[3 * i + 2]);
    stbi_image_free(rgb);
    CHECK(image.width == chart.width);
    CHECK(image.height == chart.height);
    return image;
}

// The box around every pixel inside `where` of exactly this colour, and how many there are.
struct Found {
    int count = 0;
    double left = INFINITY, top = INFINITY, right = -INFINITY, bottom = -INFINITY; // of pixel centres
    double middle() const { return (top + bottom) / 2; }
};
Found find(const Image& image, Colour colour, Box where) {
    Found found;
    for (int y = (int)std::max(0.0, where.top); y < std::min<double>(image.height, where.bottom); y++)
        for (int x = (int)std::max(0.0, where.left); x < std::min<double>(image.width, where.right); x++)
            if (image.at(x, y) == colour) {
                found.count++;
                found.left = std::min(found.left, x + 0.5), found.right = std::max(found.right, x + 0.5);
                found.top = std::min(found.top, y + 0.5), found.bottom = std::max(found.bottom, y + 0.5);
            }
    return found;
}
Box frame_of(const Chart& chart) {
    PlotArea at = lay_out(chart);
    return {at.x.first, at.y.last, at.x.last, at.y.first};
}
Found find_curve(const Image& image, const Chart& chart, int colour) {
    return find(image, PALETTE[colour], frame_of(chart));
}
int ink(const Image& image, Box where) {
    int count = 0;
    for (int y = (int)where.top; y < where.bottom; y++)
        for (int x = (int)where.left; x < where.right; x++) count += image.at(x, y) != WHITE;
    return count;
}

bool near(double a, double b, double error) { return std::abs(a - b) <= error; }

} // namespace

TEST_CASE("plot: ticks are round, inside the range, and few") {
    CHECK(ticks(0, 1, 5) == std::vector<double>{0, 1 * 0.2, 2 * 0.2, 3 * 0.2, 4 * 0.2, 1});
    CHECK(ticks(-5, 5, 5) == std::vector<double>{-4, -2, 0, 2, 4});
    CHECK(ticks(-5, 5, 10) == std::vector<double>{-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5});
    CHECK(ticks(0, 5000, 8) == std::vector<double>{0, 1000, 2000, 3000, 4000, 5000});
    CHECK(ticks(3, 3) == std::vector<double>{3});
    CHECK(!std::signbit(ticks(-1, 1, 2)[1])); // 0, not -0

    std::vector<double> fine = ticks(1.234, 1.235, 5);
    REQUIRE(fine.size() == 6);
    for (int i = 0; i < 6; i++) CHECK(near(fine[i], 1.234 + i * 0.0002, 1e-12));

    for (double scale : {1e-280, 1e-30, 1e-3, 1.0, 7e4, 1e30, 1e280})
        for (double from : {-3.3, 0.0, 0.017, 123.0})
            for (double width : {0.001, 0.35, 1.0, 99.0})
                for (int most : {2, 3, 5, 8, 10, 16}) {
                    double lo = from * scale, hi = (from + width) * scale, step;
                    std::vector<double> marks = ticks(lo, hi, most);
                    REQUIRE(!marks.empty());
                    CHECK((int)marks.size() <= most + 1);
                    if (most >= 5) CHECK((int)marks.size() >= most / 2.5 - 1); // a step is at most 2.5 times the next
                    CHECK(marks.front() >= lo - 1e-6 * (hi - lo));
                    CHECK(marks.back() <= hi + 1e-6 * (hi - lo));
                    if (marks.size() < 2) continue;
                    step = (marks.back() - marks.front()) / (marks.size() - 1);
                    double digit = step / std::pow(10, std::floor(std::log10(step) + 1e-6));
                    CHECK((near(digit, 1, 1e-6) || near(digit, 2, 1e-6) || near(digit, 5, 1e-6)));
                }
}

TEST_CASE("plot: tick labels have as many digits as tell them apart") {
    using Labels = std::vector<std::string>;
    CHECK(tick_labels(ticks(0, 1, 5)) == Labels{"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"});
    CHECK(tick_labels(ticks(0, 3, 3)) == Labels{"0", "1", "2", "3"});
    CHECK(tick_labels(ticks(-0.1, 0.1, 2)) == Labels{"-0.1", "0.0", "0.1"});
    CHECK(tick_labels(ticks(1.234, 1.235, 2)) == Labels{"1.2340", "1.2345", "1.2350"});
    CHECK(tick_labels(ticks(0, 200000, 2)) == Labels{"0", "100000", "200000"});
    CHECK(tick_labels(ticks(0, 2e30, 4)) == Labels{"0", "5.0e+29", "1.0e+30", "1.5e+30", "2.0e+30"});
    CHECK(tick_labels(ticks(0, 3e-30, 3)) == Labels{"0", "1e-30", "2e-30", "3e-30"});
    CHECK(tick_labels({0}) == Labels{"0"});
}

TEST_CASE("plot: moving average is centred and skips gaps") {
    using Values = std::vector<double>;
    CHECK(moving_average({1, 2, 6, 3}, 3) == Values{1.5, 3, 11.0 / 3, 4.5});
    CHECK(moving_average({1, 2, 6, 3}, 1) == Values{1, 2, 6, 3});
    CHECK(moving_average({}, 5) == Values{});
    CHECK(moving_average({1, NAN, 3, INFINITY}, 3) == Values{1, 2, 3, 3});
    CHECK(std::isnan(moving_average({NAN, NAN, 3}, 3)[0]));
    CHECK_THROWS_WITH_AS(moving_average({1}, 0), "moving_average: window is 0", Error);
}

TEST_CASE("plot: a horizontal line is at the row of its value, from its first x to its last") {
    Chart chart;
    chart.series = {{"zero", {0, 10}, {0, 0}}, {"ten", {0, 10}, {10, 10}}, {"two and a half", {2.5, 5}, {2.5, 2.5}}};
    Image image = picture_of(chart);
    Found zero = find_curve(image, chart, 0), ten = find_curve(image, chart, 1), between = find_curve(image, chart, 2);
    REQUIRE(zero.count > 0);
    REQUIRE(ten.count > 0);
    REQUIRE(between.count > 0);

    // Without a look at the layout: 2.5 is a quarter of the way from 0 to 10, in x as in y.
    CHECK(near(between.middle(), zero.middle() + 0.25 * (ten.middle() - zero.middle()), 1));
    CHECK(near(between.left, zero.left + 0.25 * (zero.right - zero.left), 2));
    CHECK(near(between.right, zero.left + 0.50 * (zero.right - zero.left), 2));
    CHECK(ten.bottom - ten.top <= 4); // 3.5 pixels thick

    // ... and with it.
    PlotArea at = lay_out(chart);
    CHECK(near(between.middle(), at.y.pixel(2.5), 1));
    CHECK(image.at(at.x.pixel(3.7), at.y.pixel(2.5)) == PALETTE[2]);
    CHECK(image.at(at.x.pixel(3.7), at.y.pixel(2.5) + 6) != PALETTE[2]);

    // The value of a tick is on its grid line.
    REQUIRE(std::count(at.y.marks.begin(), at.y.marks.end(), 4) == 1);
    CHECK(image.at(at.x.pixel(2.345), at.y.pixel(4)) == GRID);
}

TEST_CASE("plot: a line two pixels thick between two pixels fills both, and no pixel outside its box") {
    Canvas canvas(40, 40);
    canvas.stroke({{{10, -100}, {10, 100}}, {{-100, 20}, {100, 20}}}, 2, INK, {5, 6, 30, 31});
    for (int y = 0; y < 40; y++)
        for (int x = 0; x < 40; x++) {
            bool on_line = x == 9 || x == 10 || y == 19 || y == 20, inside = x >= 5 && x < 30 && y >= 6 && y < 31;
            CHECK(canvas.pixels[y * 40 + x] == (on_line && inside ? INK : WHITE));
        }
}

TEST_CASE("plot: anti-aliasing conserves ink") {
    for (double thickness : {1.0, 1.5, 3.5, 10.0})
        for (Point to : {Point{150, 50}, Point{50, 150}, Point{140, 120}, Point{57, 150.3}}) {
            Canvas canvas(200, 200);
            canvas.stroke({{{50, 50}, to}}, thickness, 0x000000);
            double sum = 0;
            for (Colour c : canvas.pixels) sum += 1 - (c & 255) / 255.0;
            double area = thickness * std::hypot(to.x - 50, to.y - 50) + 0.785398 * thickness * thickness; // round ends
            INFO("thickness " << thickness << " to " << to.x << "," << to.y << ": ink " << sum << ", area " << area);
            CHECK(near(sum, area, 0.02 * area + 1));
        }
    // One stroke that crosses itself is nowhere darker than its colour, and one that goes there and back adds nothing.
    Canvas once(100, 100), twice(100, 100);
    once.stroke({{{10, 10}, {90, 77}}}, 3, 0x808080);
    twice.stroke({{{10, 10}, {90, 77}, {10, 10}}}, 3, 0x808080);
    CHECK(once.pixels == twice.pixels);
}

TEST_CASE("plot: NaN and infinity leave a gap, a point alone is a dot") {
    for (double hole : {(double)NAN, (double)INFINITY, -(double)INFINITY}) {
        Chart chart;
        chart.series = {{"holed", {0, 1, 2, 3, 4, 5, 6, 7, 8}, {1, 1, 1, hole, 1, hole, 1, 1, 1}},
                        {"all of it a hole", {0, 1, 2}, {hole, hole, hole}},
                        {"hole in x", {0, hole, 2}, {0, 0, 0}}};
        PlotArea at = lay_out(chart);
        Image image = picture_of(chart);
        double row = at.y.pixel(1);
        for (double x : {0.5, 1.9, 6.1, 7.5, 4.0}) CHECK(image.at(at.x.pixel(x), row) == PALETTE[0]);
        Box frame = frame_of(chart);
        for (auto [from, to] : {std::pair{2.1, 3.9}, {4.1, 5.9}})
            CHECK(find(image, PALETTE[0], {at.x.pixel(from), frame.top, at.x.pixel(to), frame.bottom}).count == 0);
        CHECK(find_curve(image, chart, 1).count == 0);
        CHECK(find_curve(image, chart, 2).count > 0); // two dots ...
        CHECK(image.at(at.x.pixel(1), at.y.pixel(0)) != PALETTE[2]);

        Found dot = find(image, PALETTE[0], {at.x.pixel(3.5), frame.top, at.x.pixel(4.5), frame.bottom});
        CHECK(near(dot.middle(), row, 1));
        CHECK(near((dot.left + dot.right) / 2, at.x.pixel(4), 1));
        CHECK(near(dot.right - dot.left, dot.bottom - dot.top, 1.01)); // it is round
        CHECK(dot.right - dot.left >= 6);
    }
}

TEST_CASE("plot: title, labels and legend leave ink, each in its place") {
    Chart chart;
    chart.series = {{"", {0, 1}, {0, 1}}};
    Image bare = picture_of(chart);
    Box left_of_ticks{0, 0, PLOT_MARGIN - 4, 800}, under_ticks{0, 800 - PLOT_MARGIN + 8, 1280, 800};
    CHECK(ink(bare, left_of_ticks) == 0);
    CHECK(ink(bare, under_ticks) == 0);
    CHECK(ink(bare, {0, 0, 1280, PLOT_MARGIN}) == 0);

    chart.title = "Title";
    chart.x_label = "steps (g)"; // a g reaches below the base line
    chart.y_label = "loss";
    chart.series[0].name = "a series";
    Image full = picture_of(chart);
    Box frame = frame_of(chart);
    CHECK(find(full, INK, {frame.left, PLOT_MARGIN - 3, frame.left + 200, PLOT_MARGIN + TITLE + 3}).count > 100);
    CHECK(find(full, INK, {600, 800 - PLOT_MARGIN - LABEL, 800, 800 - PLOT_MARGIN + 8}).count > 100);
    Found y_label = find(full, INK, {0, 0, PLOT_MARGIN + LABEL + 6, 800});
    CHECK(y_label.count > 50);
    CHECK(y_label.bottom - y_label.top > 2 * (y_label.right - y_label.left)); // it is written upwards
    CHECK(near(y_label.middle(), (frame.top + frame.bottom) / 2, 4));

    Box legend{0, PLOT_MARGIN + TITLE + 8, 1280, frame.top};
    CHECK(find(full, PALETTE[0], legend).count > 100); // the swatch
    CHECK(find(full, INK, legend).count > 100);        // the name
    CHECK(near(find(full, PALETTE[0], legend).middle(), lay_out(chart).legend[0].y, 1));

    // Names too long for one row take several, and none reaches beyond the frame.
    for (int i = 0; i < 3; i++) chart.series.push_back({std::string(30, 'n'), {0, 1}, {0, 1}});
    PlotArea at = lay_out(chart);
    CHECK(at.legend[1].y == at.legend[0].y);
    CHECK(at.legend[2].y == at.legend[0].y + LEGEND_ROW);
    CHECK(at.legend[2].x == at.legend[0].x);
    Image rows = picture_of(chart);
    CHECK(ink(rows, {at.x.last + 1, 0, 1280, at.y.last}) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(rows.at(at.legend[i].x + SWATCH / 2, at.legend[i].y) == PALETTE[i]);

    Text narrow("iii", LABEL), wide("WWW", LABEL);
    CHECK(narrow.length < wide.length);
    CHECK(near(Text("ab", LABEL).length, Text("a", LABEL).length + Text("b", LABEL).length, 1e-9));
}

TEST_CASE("plot: every printable letter has strokes of its own, within its width") {
    std::vector<std::vector<double>> seen;
    for (char letter = '!'; letter <= '~'; letter++) {
        Text text(std::string(1, letter), 21);
        std::vector<double> numbers;
        for (const Path& path : text.paths)
            for (Point p : path) {
                numbers.push_back(p.x), numbers.push_back(p.y);
                CHECK(p.x >= 0);
                CHECK(p.x <= text.length);
                CHECK(p.y >= -25);
                CHECK(p.y <= 7);
            }
        CHECK(numbers.size() >= 4);
        if (letter == 'l') continue; // is drawn as I is
        for (const std::vector<double>& other : seen) CHECK(numbers != other);
        seen.push_back(numbers);
    }
    CHECK(Text(" ", 21).length > 0);
    CHECK(Text("\n\xc3\xa9", 21).length == Text("???", 21).length); // what it cannot write
}

TEST_CASE("plot: colours follow each other, a faint one is pale and lies under the others") {
    Chart chart;
    Series raw{"raw", {0, 1}, {1, 1}, 3, true}, smooth{"smooth", {0, 1}, {0, 0}, 3}, next{"next", {0, 1}, {2, 2}};
    chart.series = {smooth, raw, next};
    PlotArea at = lay_out(chart);
    CHECK(at.colours == std::vector<Colour>{PALETTE[3], PALETTE[3], PALETTE[4]});
    Image image = picture_of(chart);
    CHECK(image.at(at.x.pixel(0.345), at.y.pixel(0)) == PALETTE[3]);
    CHECK(image.at(at.x.pixel(0.345), at.y.pixel(2)) == PALETTE[4]);
    Box row{at.x.first, at.y.pixel(1) - 5, at.x.last, at.y.pixel(1) + 5};
    CHECK(find(image, PALETTE[3], row).count == 0);
    CHECK(ink(image, row) > 1000);

    chart.series[1].y = {0, 0}; // drawn later, and yet under `smooth`
    image = picture_of(chart), at = lay_out(chart);
    CHECK(image.at(at.x.pixel(0.345), at.y.pixel(0)) == PALETTE[3]);

    chart.series = {{"no such colour", {0, 1}, {0, 1}, 1000}};
    CHECK(find_curve(picture_of(chart), chart, 1000 % std::size(PALETTE)).count > 0);
}

TEST_CASE("plot: whatever the values, the curve is seen, whole and within the frame") {
    struct Values {
        const char* name;
        std::vector<double> x, y;
    };
    std::vector<double> many_x, many_y;
    for (int i = 0; i < 50000; i++) many_x.push_back(i), many_y.push_back(std::sin(i * 0.7) * (i % 7));
    for (const Values& v : {
             Values{"one point", {3}, {4}},
             Values{"constant", {0, 1, 2}, {5, 5, 5}},
             Values{"constant zero", {0, 1, 2}, {0, 0, 0}},
             Values{"constant x", {7, 7}, {1, 2}},
             Values{"tiny", {0, 1}, {1e-30, 3e-30}},
             Values{"huge", {0, 1e30}, {-1e30, 1e30}},
             Values{"subnormal", {0, 1}, {0, 5e-324}},
             Values{"nearly the largest double", {0, 1}, {-9e299, 9e299}},
             Values{"one unit in the last place apart", {0, 1}, {1, 1 + 2.3e-16}},
             Values{"far from zero", {1e9, 1e9 + 1}, {1e6 + 0.25, 1e6 + 0.5}},
             Values{"fifty thousand points", many_x, many_y},
         }) {
        INFO(std::string(v.name));
        Chart chart;
        chart.series = {{v.name, v.x, v.y}};
        Image image = picture_of(chart);
        Box frame = frame_of(chart);
        Found curve = find_curve(image, chart, 0);
        CHECK(curve.count > 0);
        CHECK(curve.left > frame.left + 1); // a whole line: the frame cuts off nothing
        CHECK(curve.right < frame.right - 1);
        CHECK(curve.top > frame.top + 1);
        CHECK(curve.bottom < frame.bottom - 1);
        // Outside the frame nothing has its colour but the legend above it.
        CHECK(find(image, PALETTE[0], {0, frame.bottom, 1280, 800}).count == 0);
        CHECK(find(image, PALETTE[0], {0, frame.top, frame.left, 800}).count == 0);
        CHECK(find(image, PALETTE[0], {frame.right, 0, 1280, 800}).count == 0);
    }
}

TEST_CASE("plot: a cut axis cuts the curve at the frame") {
    Chart chart;
    chart.series = {{"falling", {0, 1, 2, 3}, {1e200, 2, 1, 0.5}}};
    chart.y_low = 0, chart.y_high = 3;
    Image image = picture_of(chart);
    Box frame = frame_of(chart);
    PlotArea at = lay_out(chart);
    CHECK(at.y.pixel(3) == frame.top);
    CHECK(image.at(at.x.pixel(1.5), at.y.pixel(1.5)) == PALETTE[0]);
    Found curve = find_curve(image, chart, 0);
    CHECK(curve.top < frame.top + 2);
    CHECK(find(image, PALETTE[0], {0, at.legend[0].y + 4, 1280, frame.top}).count == 0); // between legend and frame
    chart.y_low = 4;
    CHECK_THROWS_AS(lay_out(chart), Error);
}

TEST_CASE("plot: empty charts, long texts, many series, odd sizes") {
    CHECK(ink(picture_of(Chart{}), {0, 0, 1280, 800}) > 1000); // the axes

    Chart crowded;
    crowded.title = crowded.x_label = crowded.y_label = std::string(300, 'W');
    crowded.width = 501, crowded.height = 401;
    for (int i = 0; i < 6; i++)
        crowded.series.push_back({std::string(40, 'a' + i), {0.0, 1e-9}, {i * 1e9, i * 1e9 + 1}});
    Image image = picture_of(crowded);
    for (int i = 0; i < 6; i++) CHECK(find(image, PALETTE[i], {0, 0, 501, 401}).count > 0);
    for (Box edge : {Box{0, 0, 501, 3}, Box{0, 398, 501, 401}, Box{0, 0, 3, 401}, Box{498, 0, 501, 401}})
        CHECK(ink(image, edge) == 0);

    Chart small;
    small.width = 499;
    CHECK_THROWS_WITH_AS(save_chart("unused.png", small), "lay_out: 499 x 800 pixels are too few", Error);
    Chart ragged;
    ragged.series = {{"ragged", {1, 2, 3}, {1, 2}}};
    CHECK_THROWS_WITH_AS(lay_out(ragged), "lay_out: series ragged: 3 x, 2 y", Error);
}

TEST_CASE("plot: the same chart gives the same bytes") {
    Chart chart;
    chart.title = "twice";
    chart.series = {{"a", {0, 1, 2}, {3, 1, 2}}};
    CHECK(picture_of(chart).pixels == picture_of(chart).pixels);
}

TEST_CASE("plot: a path that cannot be written is refused by name, and nothing is left there") {
    Chart chart;
    try {
        save_chart("/no/such/folder/chart.png", chart);
        FAIL("not refused");
    } catch (const Error& e) {
        CHECK(std::string(e.what()) == "/no/such/folder/chart.png: its folder cannot be opened: No such file or directory");
        CHECK(e.status == 1); // a run that had to stop
    }
    // A folder stands where the picture should go: the picture is written in full, and cannot be renamed.
    TemporaryFile folder("folder");
    REQUIRE(mkdir(folder.path.c_str(), 0700) == 0);
    CHECK_THROWS_AS(save_chart(folder.path, chart), Error);
    CHECK(!exists(folder.path + ".part"));
    rmdir(folder.path.c_str());

    // A picture that was there before is replaced.
    TemporaryFile file("replaced.png");
    for (int width : {640, 800}) {
        chart.width = width;
        save_chart(file.path, chart);
        int w = 0, h = 0, channels = 0;
        CHECK(stbi_info(file.path.c_str(), &w, &h, &channels));
        CHECK(w == width);
    }
}
