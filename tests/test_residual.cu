// test_residual.cu -- residual.cuh: one addition in FP32, one rounding, and what a narrow format loses by it.
#include "bounds.h"
#include "residual.cuh"

TEST_CASE_TEMPLATE("residual: y is the sum in FP32, rounded once, at sizes that divide nothing", T, float, bf16, fp16) {
    for_each_size([](int rows, int cols) {
        const size_t n = (size_t)rows * cols;
        Owned<T> a(rows, cols, normals(n, 1, 5)), b(rows, cols, normals(n, 2, 0.3f)), y(rows, cols);
        residual_forward<T>(y, a, b);
        const auto a_i = a.get(), b_i = b.get(), y_i = y.get();
        Worst worst;
        for (size_t i = 0; i < n; i++) worst.see(i, y_i[i], to_float(round_to<T>((float)(a_i[i] + b_i[i]))), 0);
        check("y", worst, cols);
    });
}

TEST_CASE("residual: the derivative of a sum is 1 on both sides, by finite differences") {
    // The formula has no constants: backward is no code.
    double a = 0.3, b = -1.7;
    Slope da = slope([&] { return a + b; }, a, 2), db = slope([&] { return a + b; }, b, 2);
    CHECK(std::fabs(da.value - 1) <= da.error);
    CHECK(std::fabs(db.value - 1) <= db.error);
}

TEST_CASE_TEMPLATE("residual: y may be a or b", T, float, bf16, fp16) {
    const int n = 5000;
    Owned<T> a(1, n, normals(n, 1)), b(1, n, normals(n, 2)), a2(1, n, normals(n, 1)), y(1, n);
    residual_forward<T>(y, a, b);
    residual_forward<T>(a2, a2, b);
    residual_forward<T>(b, a, b);
    CHECK((bytes(y) == bytes(a2)));
    CHECK((bytes(y) == bytes(b)));
}

TEST_CASE_TEMPLATE("residual: 4096 branches of 1 add up to 256 in BF16, 2048 in FP16, 4096 in FP32", T, float, bf16, fp16) {
    Owned<T> x(1, 3), one(1, 3, {1, 1, 1});
    for (int i = 0; i < 4096; i++) residual_forward<T>(x, x, one);
    const double stops_at = sizeof(T) == 4 ? 4096 : 1 / unit_roundoff<T>(); // there the next integer is half a spacing away
    for (double v : x.get()) CHECK(v == stops_at);
}

TEST_CASE_TEMPLATE("residual: NaN and Inf are not hidden, and an overflow is an Inf", T, float, bf16, fp16) {
    T largest;
    memcpy(&largest, &Layout<T>::max_finite, sizeof(T));
    const float m = to_float(largest);
    Owned<T> a(1, 5, {NAN, 1, INFINITY, INFINITY, m}), b(1, 5, {1, NAN, 1, -INFINITY, m}), y(1, 5);
    residual_forward<T>(y, a, b);
    const auto y_i = y.get();
    CHECK(std::isnan(y_i[0]));
    CHECK(std::isnan(y_i[1]));
    CHECK(y_i[2] == INFINITY);
    CHECK(std::isnan(y_i[3]));
    CHECK(y_i[4] == INFINITY);
}

TEST_CASE_TEMPLATE("residual: any number of threads gives the same bytes", T, float, bf16, fp16) {
    const int n = 20001;
    Owned<T> a(1, n, normals(n, 1)), b(1, n, normals(n, 2));
    check_any_number_of_threads([&] {
        Owned<T> y(1, n);
        residual_forward<T>(y, a, b);
        return bytes(y);
    });
}

TEST_CASE("residual: sizes that disagree are refused, with their values") {
    Owned<float> six(2, 3), seven(1, 7);
    CHECK_THROWS_WITH_AS(residual_forward<float>(seven, six, six), doctest::Contains("y has 7 elements, a 6, b 6"), Error);
    CHECK_THROWS_WITH_AS(residual_forward<float>(six, six, seven), doctest::Contains("y has 6 elements, a 6, b 7"), Error);
}
