// test_attention.cu -- attention.cuh against double loops over (b, h, t, j), forward and backward, and what causal means.
#include "attention.cuh"
#include "bounds.h"

namespace {

// Matrix products round each product and each addition of a sum at most once; a fused or paired dot product not more.
double product_error(int n) { return gamma_fp32(2 * n); }

// The library generates a product for a shape and a number of threads, and keeps it: forget them all.
void forget_products() {
#if defined(ON_CPU)
    OneDnn::library() = OneDnn();
#endif
}

// Attention in double on the numbers that T holds, and how far every result may be off. P, dS and the results are
// rounded to T on the way: that is in the bounds, not in the values.
struct Truth {
    int B, length, heads, hs, C;
    std::vector<double> y, y_error, p, p_error, dqkv, dqkv_error;

    size_t at(int part, int b, int t, int h) const { return ((size_t)(b * length + t) * 3 + part) * C + h * hs; }

    template <class T>
    Truth(T, const std::vector<double>& qkv, const std::vector<double>& dy, int B, int length, int heads, int hs)
        : B(B), length(length), heads(heads), hs(hs), C(heads * hs), y((size_t)B * length * C), y_error(y), p((size_t)B * heads * length * length),
          p_error(p), dqkv(qkv.size()), dqkv_error(dqkv) {
        const double scale = 1 / std::sqrt(hs);
        std::vector<double> dqkv_size(dqkv.size()); // sums of |terms|, with the terms' errors
        for (int b = 0; b < B; b++)
            for (int h = 0; h < heads; h++)
                for (int t = 0; t < length; t++) {
                    const double *q = &qkv[at(0, b, t, h)], *dy_t = &dy[(size_t)(b * length + t) * C + h * hs];
                    double* p_t = &p[((size_t)(b * heads + h) * length + t) * length];
                    double* p_t_error = &p_error[((size_t)(b * heads + h) * length + t) * length];
                    // S, and its softmax. The largest score cancels in the quotient, but for the roundings of
                    // scale (a root, a division), S - largest, times scale.
                    std::vector<double> score(t + 1), score_error(t + 1);
                    double largest = -HUGE_VAL, sum = 0, worst = 0;
                    for (int j = 0; j <= t; j++) {
                        const double* k = &qkv[at(1, b, j, h)];
                        double size = 0;
                        for (int c = 0; c < hs; c++) score[j] += q[c] * k[c] * scale, size += std::fabs(q[c] * k[c]) * scale;
                        score_error[j] = product_error(hs) * size;
                        largest = std::fmax(largest, score[j]);
                    }
                    for (int j = 0; j <= t; j++) {
                        p_t[j] = std::exp(score[j] - largest), sum += p_t[j];
                        // the largest, as computed, may belong to a neighbour: off by its own error
                        double z = largest - score[j] + 2 * score_error[j];
                        p_t_error[j] = std::expm1(score_error[j] + gamma_fp32(4) * z) + EXP_ERROR; // relative
                        worst = std::fmax(worst, p_t_error[j]);
                    }
                    const double sum_error = (1 + worst) * (1 + gamma_fp32(t)) - 1;
                    for (int j = 0; j <= t; j++) {
                        p_t[j] /= sum;
                        double off = p_t[j] * ((1 + p_t_error[j]) / (1 - sum_error) * (1 + gamma_fp32(2)) - 1) + SMALLEST_NORMAL;
                        p_t_error[j] = off + rounding_error<T>(p_t[j] + off);
                    }
                    // y = P v
                    for (int c = 0; c < hs; c++) {
                        const size_t i = (size_t)(b * length + t) * C + h * hs + c;
                        double size = 0;
                        for (int j = 0; j <= t; j++) {
                            double v = qkv[at(2, b, j, h) + c];
                            y[i] += p_t[j] * v, y_error[i] += p_t_error[j] * std::fabs(v), size += (p_t[j] + p_t_error[j]) * std::fabs(v);
                        }
                        y_error[i] += product_error(length) * size;
                        y_error[i] += rounding_error<T>(std::fabs(y[i]) + y_error[i]);
                    }
                    // dP = dy v^T, and mean = sum_j P dP
                    std::vector<double> dp(t + 1), dp_error(t + 1);
                    double mean = 0, mean_error = 0, mean_size = 0;
                    for (int j = 0; j <= t; j++) {
                        const double* v = &qkv[at(2, b, j, h)];
                        double size = 0;
                        for (int c = 0; c < hs; c++) dp[j] += dy_t[c] * v[c], size += std::fabs(dy_t[c] * v[c]);
                        dp_error[j] = product_error(hs) * size;
                        mean += p_t[j] * dp[j], mean_size += (p_t[j] + p_t_error[j]) * (std::fabs(dp[j]) + dp_error[j]);
                        mean_error += p_t_error[j] * std::fabs(dp[j]) + (p_t[j] + p_t_error[j]) * dp_error[j];
                    }
                    mean_error += gamma_fp32(t + 1) * mean_size;
                    // dS = P (dP - mean) scale: the difference, two products, scale's own two; then dq, dk, and dv
                    for (int j = 0; j <= t; j++) {
                        double in = dp[j] - mean, in_error = dp_error[j] + mean_error, ds = p_t[j] * in * scale;
                        double off = (p_t_error[j] * std::fabs(in) + (p_t[j] + p_t_error[j]) * in_error) * scale;
                        off += gamma_fp32(5) * (std::fabs(ds) + off);
                        off += rounding_error<T>(std::fabs(ds) + off);
                        for (int c = 0; c < hs; c++) {
                            const size_t q_c = at(0, b, t, h) + c, k_c = at(1, b, j, h) + c, v_c = at(2, b, j, h) + c;
                            auto add = [&](size_t i, double a, double a_error, double x) {
                                dqkv[i] += a * x, dqkv_error[i] += a_error * std::fabs(x), dqkv_size[i] += (std::fabs(a) + a_error) * std::fabs(x);
                            };
                            add(q_c, ds, off, qkv[k_c]), add(k_c, ds, off, qkv[q_c]), add(v_c, p_t[j], p_t_error[j], dy_t[c]);
                        }
                    }
                }
        for (size_t i = 0; i < dqkv.size(); i++) {
            dqkv_error[i] += product_error(length) * dqkv_size[i];
            dqkv_error[i] += rounding_error<T>(std::fabs(dqkv[i]) + dqkv_error[i]);
        }
    }
};

template <class T>
struct Data {
    int B, length, heads, hs, C;
    Owned<T> qkv, dy, y, p, dqkv, ds;
    Owned<float> s, dp;
    Data(int B, int length, int heads, int hs)
        : B(B), length(length), heads(heads), hs(hs), C(heads * hs), qkv(B * length, 3 * C, normals((size_t)B * length * 3 * C, 1)),
          dy(B * length, C, normals((size_t)B * length * C, 2)), y(B * length, C), p(B * heads * length, length), dqkv(B * length, 3 * C),
          ds(B * heads * length, length), s(B * heads * length, length), dp(B * heads * length, length) {}
    void forward() { attention_forward<T>(y, p, s, qkv, length, heads); }
    void backward() { attention_backward<T>(dqkv, dy, p, qkv, dp, ds, length, heads); }
    Truth truth() const { return Truth(T(), qkv.get(), dy.get(), B, length, heads, hs); }
    std::string result() const { return bytes(y) + bytes(p) + bytes(dqkv); }

    void check_all() {
        forward(), backward();
        const Truth want = truth();
        const auto got_y = y.get(), got_p = p.get(), got = dqkv.get();
        Worst worst_y, worst_p, worst_sum, worst;
        int above_diagonal = 0;
        for (size_t i = 0; i < got_y.size(); i++) worst_y.see(i, got_y[i], want.y[i], want.y_error[i]);
        for (int r = 0; r < p.rows; r++) {
            double sum = 0, off = 0;
            for (int j = 0; j < length; j++) {
                const size_t i = (size_t)r * length + j;
                sum += got_p[i], off += want.p_error[i];
                worst_p.see(i, got_p[i], want.p[i], want.p_error[i]);
                above_diagonal += j > r % length && got_p[i] != 0;
            }
            worst_sum.see(r, sum, 1, off);
        }
        for (size_t i = 0; i < got.size(); i++) worst.see(i, got[i], want.dqkv[i], want.dqkv_error[i]);
        check("y", worst_y, C), check("p", worst_p, length), check("sum of a row of p", worst_sum, 1), check("dq | dk | dv", worst, 3 * C);
        CHECK(above_diagonal == 0);
    }
};

struct Case {
    int B, length, heads, hs;
};
const Case CASES[] = {{1, 1, 1, 1}, {1, 2, 1, 64}, {1, 40, 3, 80}, {3, 1, 2, 5}, {2, 3, 3, 1}, {1, 17, 1, 17}, {3, 7, 2, 3}, {2, 16, 2, 16}, {2, 32, 1, 32}, {1, 33, 3, 8}, {5, 33, 1, 5}, {2, 31, 2, 64}, {1, 257, 2, 9}};

} // namespace

TEST_CASE_TEMPLATE("attention: y and P are the formula, dq, dk and dv its derivative; P's rows add up to 1, with zeros after t", T, float, bf16, fp16) {
    for (const Case& c : CASES) {
        INFO("B=" << c.B << " T=" << c.length << " heads=" << c.heads << " hs=" << c.hs);
        Data<T>(c.B, c.length, c.heads, c.hs).check_all();
    }
}

TEST_CASE_TEMPLATE("attention: every length from 1 to 33", T, float, bf16) {
    for (int length = 1; length <= 33; length++) {
        CAPTURE(length);
        Data<T>(2, length, 2, 4).check_all();
    }
}

TEST_CASE_TEMPLATE("attention: the last token alone has the last row of the formula, and touches nothing else", T, float, bf16, fp16) {
    for (const Case& c : CASES) {
        if (c.B > 1) continue; // of one text
        INFO("T=" << c.length << " heads=" << c.heads << " hs=" << c.hs);
        Data<T> d(1, c.length, c.heads, c.hs);
        const Truth want = d.truth(); // its bound has a rounding of P to T more
        Owned<T> y(1, d.C);
        const std::string before = bytes(d.qkv);
        attention_of_last<T>(y, d.s, d.qkv, c.heads);
        const auto got = y.get();
        Worst worst;
        for (int i = 0; i < d.C; i++) worst.see(i, got[i], want.y[(size_t)(c.length - 1) * d.C + i], want.y_error[(size_t)(c.length - 1) * d.C + i]);
        check("y", worst, d.C);
        CHECK((bytes(d.qkv) == before));
    }
}

TEST_CASE("attention: dq, dk and dv are the slopes of the formula, by finite differences") {
    const int B = 2, length = 5, heads = 2, hs = 3, C = heads * hs;
    Data<float> data(B, length, heads, hs);
    data.forward(), data.backward();
    auto qkv = data.qkv.get();
    const auto dy = data.dy.get(), got = data.dqkv.get();
    const Truth want = data.truth(); // for how far FP32 may be off
    double size = 0;
    auto loss = [&] { // sum of dy y, by the equations alone
        double sum = 0;
        size = 0;
        for (int b = 0; b < B; b++)
            for (int h = 0; h < heads; h++)
                for (int t = 0; t < length; t++) {
                    std::vector<double> e(t + 1);
                    double total = 0;
                    for (int j = 0; j <= t; j++) {
                        double score = 0;
                        for (int c = 0; c < hs; c++) score += qkv[want.at(0, b, t, h) + c] * qkv[want.at(1, b, j, h) + c];
                        total += e[j] = std::exp(score / std::sqrt(hs));
                    }
                    for (int j = 0; j <= t; j++)
                        for (int c = 0; c < hs; c++) {
                            double term = dy[(size_t)(b * length + t) * C + h * hs + c] * e[j] / total * qkv[want.at(2, b, j, h) + c];
                            sum += term, size += std::fabs(term);
                        }
                }
        return sum;
    };
    loss();
    Worst worst;
    for (size_t i = 0; i < qkv.size(); i++) {
        Slope s = slope(loss, qkv[i], size);
        worst.see(i, got[i], s.value, s.error + want.dqkv_error[i]);
    }
    check("dq | dk | dv", worst, 3 * C);
}

TEST_CASE_TEMPLATE("attention: a later token changes no bit of an earlier row", T, float, bf16, fp16) {
    for (int length : {2, 17, 33}) {
        const int B = 2, heads = 3, hs = 5, C = heads * hs, changed = length / 2; // of example 0
        CAPTURE(length);
        Data<T> data(B, length, heads, hs), other(B, length, heads, hs);
        auto values = normals((size_t)B * length * 3 * C, 1);
        for (int i = 0; i < 3 * C; i++) values[(size_t)changed * 3 * C + i] = 5 - values[(size_t)changed * 3 * C + i];
        other.qkv.set(values);
        data.forward(), other.forward();
        const auto y = data.y.get(), y2 = other.y.get(), p = data.p.get(), p2 = other.p.get();
        int different = 0, rows_changed = 0;
        for (int bt = 0; bt < B * length; bt++) {
            bool later = bt / length == 0 && bt >= changed, row_differs = false;
            for (int c = 0; c < C; c++) row_differs |= y[(size_t)bt * C + c] != y2[(size_t)bt * C + c];
            for (int h = 0; h < heads; h++)
                for (int j = 0; j < length; j++) {
                    size_t i = ((size_t)(bt / length * heads + h) * length + bt % length) * length + j;
                    row_differs |= p[i] != p2[i];
                }
            (later ? rows_changed : different) += row_differs;
        }
        CHECK(different == 0);
        CHECK(rows_changed == length - changed);
    }
}

TEST_CASE_TEMPLATE("attention: equal scores give the mean of the values so far", T, float, bf16, fp16) {
    const int length = 16, hs = 4;
    Data<T> data(1, length, 1, hs);
    std::vector<float> values(length * 3 * hs); // q = k = 0
    for (int t = 0; t < length; t++)
        for (int c = 0; c < hs; c++) values[t * 3 * hs + 2 * hs + c] = (float)t;
    data.qkv.set(values);
    data.check_all();
    const auto y = data.y.get(), p = data.p.get();
    CHECK(y[0] == 0);
    CHECK(p[15 * length] == 0x1p-4);
    CHECK(y[15 * hs] == 7.5);
}

TEST_CASE_TEMPLATE("attention: scores of 10000 neither overflow nor blur: the largest takes all", T, float, bf16, fp16) {
    const int length = 5, hs = 4;
    Data<T> data(1, length, 1, hs);
    std::vector<float> values(length * 3 * hs);
    for (int t = 0; t < length; t++)
        for (int c = 0; c < hs; c++) {
            values[(t * 3 + 0) * hs + c] = 100, values[(t * 3 + 1) * hs + c] = t == 2 ? 50.0f : -50.0f; // scores of +-10000
            values[(t * 3 + 2) * hs + c] = (float)t;
        }
    data.qkv.set(values);
    data.check_all();
    const auto y = data.y.get();
    CHECK(y[0] == 0);
    CHECK(y[1 * hs] == 0.5);
    for (int t = 2; t < length; t++) CHECK(y[t * hs] == 2);
}

TEST_CASE("attention: why the softmax is in FP32: 12, 11, 10 in FP16") {
    auto rounded = [](float v) { return to_float(round_to<fp16>(v)); };
    CHECK(rounded(std::exp(12.0f)) == INFINITY); // Inf / Inf, then 0 and 0
    Data<fp16> data(1, 3, 1, 1);
    data.qkv.set({1, 12, 0, 1, 11, 0, 1, 10, 0});
    data.forward();
    const auto p = data.p.get();
    CHECK(p[2 * 3 + 0] == doctest::Approx(0.665039).epsilon(1e-6)); // the nearest FP16 to the truth
    CHECK(p[2 * 3 + 1] == doctest::Approx(0.244751).epsilon(1e-6));
    CHECK(p[2 * 3 + 2] == doctest::Approx(0.0900269).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("attention: NaN and Inf are not hidden: their token and all later ones have them, other examples and heads do not", T, float, bf16, fp16) {
    const int B = 2, length = 7, heads = 2, hs = 3, C = heads * hs, where = 3;
    for (float bad : {NAN, INFINITY})
        for (int part = 0; part < 3; part++) {
            CAPTURE(bad);
            CAPTURE(part);
            Data<T> data(B, length, heads, hs);
            auto values = normals((size_t)B * length * 3 * C, 1);
            values[(size_t)(where * 3 + part) * C + hs] = bad; // example 0, head 1
            data.qkv.set(values);
            data.forward();
            const auto y = data.y.get();
            int clean_but_bad = 0, hidden = 0;
            for (int bt = 0; bt < B * length; bt++)
                for (int h = 0; h < heads; h++) {
                    bool finite = true;
                    for (int c = 0; c < hs; c++) finite &= std::isfinite(y[(size_t)bt * C + h * hs + c]);
                    if (bt / length == 1 || h == 0)
                        clean_but_bad += !finite;
                    else if (part == 0 ? bt == where : bt >= where) {
                        // An Inf among the keys is a score of -Inf for a query of the other sign: that token is not looked at.
                        bool score_of_minus_inf = part == 1 && std::isinf(bad) && values[(size_t)bt * 3 * C + hs] < 0;
                        hidden += finite && !score_of_minus_inf;
                    }
                }
            CHECK(clean_but_bad == 0);
            CHECK(hidden == 0);
        }
}

TEST_CASE_TEMPLATE("attention: a NaN in dy reaches dq, dk and dv of its head", T, float, bf16, fp16) {
    const int length = 5, hs = 3;
    Data<T> data(1, length, 1, hs);
    auto values = normals(length * hs, 2);
    values[2 * hs] = NAN;
    data.dy.set(values);
    data.forward(), data.backward();
    const auto d = data.dqkv.get();
    for (int part = 0; part < 3; part++) CHECK(std::isnan(d[(2 * 3 + part) * hs]));
}

TEST_CASE_TEMPLATE("attention: the same bytes at every run with the same number of threads", T, float, bf16, fp16) {
    // oneDNN generates a product for a number of threads, and may add in another order for another: FP32's S does so
    // where B x heads is odd.
    for (const Case& c : {CASES[3], CASES[7], CASES[8], CASES[9]})
        for (int threads : {1, 2}) {
            INFO("B=" << c.B << " T=" << c.length << " heads=" << c.heads << " hs=" << c.hs << " threads=" << threads);
            std::string once, again;
            for (std::string* result : {&once, &again})
                with_threads(threads, [&] {
                    forget_products();
                    Data<T> data(c.B, c.length, c.heads, c.hs);
                    data.forward(), data.backward();
                    *result = data.result();
                });
            CHECK((once == again));
        }
}

TEST_CASE_TEMPLATE("attention: any number of threads gives the same bytes of softmax, forward and backward", T, float, bf16, fp16) {
    const int length = 33, rows = 6 * length;
    Owned<float> dp(rows, length, normals(rows * length, 2));
    check_any_number_of_threads([&] {
        Owned<float> s(rows, length, normals(rows * length, 1)); // the kernel overwrites it
        Owned<T> p(rows, length), ds(rows, length);
        launch(causal_softmax_forward_kernel<T>, row_blocks(rows), row_threads(), p.view().data, s.view().data, 0.5f, rows, length);
        launch(causal_softmax_backward_kernel<T>, row_blocks(rows), row_threads(), ds.view().data, (const float*)dp.view().data,
               (const T*)p.view().data, 0.5f, rows, length);
        return bytes(p) + bytes(ds);
    });
}

TEST_CASE("attention: shapes that disagree are refused, with their values") {
    Data<float> d(2, 3, 2, 5);
    Owned<float> qkv31(6, 31), rows5(5, 30), small(1, 35), y9(6, 9);
    auto contains = [](const char* text) { return doctest::Contains(text); };
    CHECK_THROWS_WITH_AS(attention_forward<float>(d.y, d.p, d.s, qkv31, 3, 2), contains("31 columns of qkv do not split into 3 x 2 heads"), Error);
    CHECK_THROWS_WITH_AS(attention_forward<float>(d.y, d.p, d.s, d.qkv, 3, 4), contains("30 columns of qkv do not split into 3 x 4 heads"), Error);
    CHECK_THROWS_WITH_AS(attention_forward<float>(d.y, d.p, d.s, rows5, 3, 2), contains("5 rows of qkv are not whole examples of 3 tokens"), Error);
    CHECK_THROWS_WITH_AS(attention_forward<float>(d.y, small, d.s, d.qkv, 3, 2), contains("p has 35 elements, s 36"), Error);
    CHECK_THROWS_WITH_AS(attention_forward<float>(y9, d.p, d.s, d.qkv, 3, 2), contains("y is (6,9), qkv is (6,30)"), Error);
    CHECK_THROWS_WITH_AS(attention_backward<float>(qkv31, d.dy, d.p, d.qkv, d.dp, d.ds, 3, 2), contains("dqkv has 186 elements, qkv 180"), Error);
    CHECK_THROWS_WITH_AS(attention_backward<float>(d.dqkv, y9, d.p, d.qkv, d.dp, d.ds, 3, 2), contains("dy is (6,9), qkv is (6,30)"), Error);
    CHECK_THROWS_WITH_AS(attention_backward<float>(d.dqkv, d.dy, d.p, d.qkv, d.dp, small, 3, 2), contains("p has 36 elements, dp 36, ds 35"), Error);
}
