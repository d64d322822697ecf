// test_gelu.cu -- gelu.cuh against its formula and its derivative in double; in 16-bit formats for every number there is.
#include "bounds.h"
#include "gelu.cuh"

namespace {

// gelu and its slope at x in double, and how far each may be off in FP32.
struct Truth {
    double y, y_error, slope, slope_error;
    explicit Truth(double x) {
        const double A = std::sqrt(2 / M_PI), B = 0.044715;
        const double z = 2 * A * (x + B * x * x * x), s = 1 / (1 + std::exp(-z)), rest = 1 / (1 + std::exp(z)); // rest = 1 - s
        // z: B, x x, x, times B, the sum, A, times A; both terms have one sign. 7 roundings.
        // s: e^-z is off by what z is off, and by e^x's own error, of which s feels the share 1 - s; then a sum, a division.
        double exp_error = std::expm1(gamma_fp32(7) * std::fabs(z)) + EXP_ERROR;
        double s_error = s * (rest * exp_error / (1 - exp_error) + gamma_fp32(2)) + SMALLEST_NORMAL;
        if (std::fabs(z) > 100) s_error = SMALLEST_NORMAL; // s is 0 or 1
        double rest_error = s_error + U * (rest + s_error);

        y = x * s;
        y_error = std::fabs(x) * s_error + U * std::fabs(x) * (s + s_error);

        // 2 u': B, 3 B, x x, times 3 B, the sum, A, times A. 7 roundings, and 4 in x s (1 - s) 2 u'.
        double slope_z = 2 * A * (1 + 3 * B * x * x), second = x * s * rest * slope_z;
        double second_size = std::fabs(x) * (s + s_error) * (rest + rest_error) * slope_z;
        double second_error = second_size * (1 + gamma_fp32(11)) - std::fabs(second);
        slope = s + second;
        slope_error = s_error + second_error;
        slope_error += U * (std::fabs(slope) + slope_error);
    }
};

template <class T>
void check_all(const Owned<T>& x, const Owned<T>& dy, const Owned<T>& y, const Owned<T>& dx) {
    const auto x_i = x.get(), dy_i = dy.get(), y_i = y.get(), dx_i = dx.get();
    Worst worst, worst_slope;
    for (size_t i = 0; i < x_i.size(); i++) {
        Truth t(x_i[i]);
        worst.see(i, y_i[i], t.y, t.y_error + rounding_error<T>(std::fabs(t.y) + t.y_error));
        double want = dy_i[i] * t.slope, off = std::fabs(dy_i[i]) * t.slope_error;
        off += U * (std::fabs(want) + off); // times dy
        worst_slope.see(i, dx_i[i], want, off + rounding_error<T>(std::fabs(want) + off));
    }
    check("y", worst, x.cols), check("dx", worst_slope, x.cols);
}

} // namespace

TEST_CASE_TEMPLATE("gelu: y is the formula and dx its derivative, at sizes that divide nothing", T, float, bf16, fp16) {
    for_each_size([](int rows, int cols) {
        const size_t n = (size_t)rows * cols;
        Owned<T> x(rows, cols, normals(n, 1, 3)), dy(rows, cols, normals(n, 2)), y(rows, cols), dx(rows, cols);
        gelu_forward<T>(y, x);
        gelu_backward<T>(dx, dy, x);
        check_all(x, dy, y, dx);
    });
}

TEST_CASE_TEMPLATE("gelu: for every number of a 16-bit format up to 2^40", T, bf16, fp16) {
    std::vector<float> all;
    for (uint32_t code = 0; code < 65536; code++) {
        float v = to_float(T{(uint16_t)code});
        if (std::fabs(v) <= 0x1p40f) all.push_back(v); // not NaN either
    }
    const int n = (int)all.size();
    Owned<T> x(1, n, all), dy(1, n, std::vector<float>(n, 1)), y(1, n), dx(1, n);
    gelu_forward<T>(y, x);
    gelu_backward<T>(dx, dy, x);
    check_all(x, dy, y, dx);
}

TEST_CASE("gelu: the logistic form is 0.5 x (1 + tanh u), whose tail FP32 would lose") {
    const int n = 2001;
    std::vector<float> points(n);
    for (int i = 0; i < n; i++) points[i] = -10 + 0.01f * i;
    Owned<float> x(1, n, points), y(1, n);
    gelu_forward<float>(y, x);
    const auto x_i = x.get(), y_i = y.get();
    Worst worst;
    for (int i = 0; i < n; i++) {
        double v = x_i[i], u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        worst.see(i, y_i[i], 0.5 * v * (1 + std::tanh(u)), Truth(v).y_error + std::fabs(v) * 0x1p-52); // tanh in double, by -1
    }
    check("y", worst, n);

    const float far = -5.5f, u = 0.797884561f * (far + 0.044715f * far * far * far);
    CHECK(0.5f * far * (1 + std::tanh(u)) == 0); // the textbook's way
    Owned<float> x_far(1, 1, {far}), y_far(1, 1);
    gelu_forward<float>(y_far, x_far);
    CHECK(y_far.get()[0] < -1e-9);
}

TEST_CASE("gelu: dx is the slope of the formula, by finite differences") {
    const int n = 241;
    std::vector<float> points(n);
    for (int i = 0; i < n; i++) points[i] = -6 + 0.05f * i;
    Owned<float> x(1, n, points), dy(1, n, normals(n, 3)), dx(1, n);
    gelu_backward<float>(dx, dy, x);
    auto x_i = x.get();
    const auto dy_i = dy.get(), dx_i = dx.get();
    Worst worst;
    for (int i = 0; i < n; i++) {
        Slope s = slope([&] { return dy_i[i] * Truth(x_i[i]).y; }, x_i[i], std::fabs(dy_i[i] * Truth(x_i[i]).y));
        worst.see(i, dx_i[i], s.value, s.error + std::fabs(dy_i[i]) * (Truth(x_i[i]).slope_error + U * std::fabs(Truth(x_i[i]).slope)));
    }
    check("dx", worst, n);
}

TEST_CASE_TEMPLATE("gelu: nothing at 0, everything far above, nothing far below", T, float, bf16, fp16) {
    const std::vector<float> points = {0, 30, 1000, 65504, -30, -1000, -65504};
    Owned<T> x(1, 7, points), ones(1, 7, std::vector<float>(7, 1)), y(1, 7), dx(1, 7);
    gelu_forward<T>(y, x);
    gelu_backward<T>(dx, ones, x);
    const auto x_i = x.get(), y_i = y.get(), dx_i = dx.get();
    CHECK(y_i[0] == 0);
    CHECK(dx_i[0] == 0.5);
    for (int i = 1; i < 4; i++) {
        CHECK(y_i[i] == x_i[i]);
        CHECK(dx_i[i] == 1);
        CHECK(y_i[i + 3] == 0);
        CHECK(dx_i[i + 3] == 0);
    }
}

TEST_CASE_TEMPLATE("gelu: dx may be dy", T, float, bf16, fp16) {
    const int n = 5000;
    Owned<T> x(1, n, normals(n, 1)), dy(1, n, normals(n, 2)), dx(1, n);
    gelu_backward<T>(dx, dy, x);
    gelu_backward<T>(dy, dy, x);
    CHECK((bytes(dx) == bytes(dy)));
}

TEST_CASE_TEMPLATE("gelu: backward with codes is backward, then quantise: the same dx, codes, transposed codes and statistics", T, float, bf16, fp16) {
    for (int rows : {1, 3, 17, 130})
        for (int cols : {1, 5, 20, 33, 257}) {
            CAPTURE(rows);
            CAPTURE(cols);
            auto values = normals((size_t)rows * cols, 1, 3);
            if (rows * cols > 10) values[3] = NAN, values[7] = INFINITY;
            for (Format f : {E4M3, E5M2})
                for (bool turned : {false, true}) {
                    Owned<T> x(rows, cols, values), dy(rows, cols, normals((size_t)rows * cols, 2, 100)), dx(rows, cols), dx2(rows, cols);
                    Owned<uint8_t> q(rows, cols), q2(rows, cols), qt(cols, rows), qt2(cols, rows);
                    Owned<CastStats> stats(1, 1), stats2(1, 1);
                    gelu_backward<T>(dx, dy, x);
                    quantise<T>(q.view().data, f, 3, stats.view().data, dx, turned ? qt.view().data : nullptr);
                    gelu_backward<T>(dx2, dy, x, q2.view().data, f, 3, stats2.view().data, turned ? qt2.view().data : nullptr);
                    const auto dx_i = dx.get(), dx2_i = dx2.get();
                    int different = 0; // where there is a NaN, its sign is the compiler's choice
                    for (size_t i = 0; i < dx_i.size(); i++) different += dx_i[i] != dx2_i[i] && !(std::isnan(dx_i[i]) && std::isnan(dx2_i[i]));
                    CHECK(different == 0);
                    CHECK((bytes(q) == bytes(q2)));
                    CHECK((bytes(qt) == bytes(qt2)));
                    CHECK((bytes(stats) == bytes(stats2)));
                }
        }
}

TEST_CASE_TEMPLATE("gelu: NaN and Inf are not hidden", T, float, bf16, fp16) {
    Owned<T> x(1, 5, {NAN, INFINITY, -INFINITY, 1, 1}), dy(1, 5, {1, 1, 1, NAN, INFINITY}), y(1, 5), dx(1, 5);
    gelu_forward<T>(y, x);
    gelu_backward<T>(dx, dy, x);
    const auto y_i = y.get(), dx_i = dx.get();
    CHECK(std::isnan(y_i[0]));
    CHECK(y_i[1] == INFINITY);
    CHECK(std::isnan(y_i[2])); // 0 * Inf: the limit would be 0, but an Inf there is a mistake that should be seen
    CHECK(std::isfinite(y_i[3]));
    for (int i : {0, 1, 2, 3}) CHECK(std::isnan(dx_i[i]));
    CHECK(dx_i[4] == INFINITY);
}

TEST_CASE_TEMPLATE("gelu: any number of threads gives the same bytes", T, float, bf16, fp16) {
    const int n = 20001;
    Owned<T> x(1, n, normals(n, 1)), dy(1, n, normals(n, 2));
    check_any_number_of_threads([&] {
        Owned<T> y(1, n), dx(1, n);
        gelu_forward<T>(y, x);
        gelu_backward<T>(dx, dy, x);
        return bytes(y) + bytes(dx);
    });
}

TEST_CASE("gelu: sizes that disagree are refused, with their values") {
    Owned<float> six(2, 3), seven(1, 7);
    CHECK_THROWS_WITH_AS(gelu_forward<float>(seven, six), doctest::Contains("y has 7 elements, x has 6"), Error);
    CHECK_THROWS_WITH_AS(gelu_backward<float>(seven, six, six), doctest::Contains("dx has 7 elements, dy 6, x 6"), Error);
    CHECK_THROWS_WITH_AS(gelu_backward<float>(six, seven, six), doctest::Contains("dx has 6 elements, dy 7, x 6"), Error);
}
