// test_layernorm.cu -- layernorm.cuh against its formula and its derivative in double, in every stored format.
#include "bounds.h"
#include "layernorm.cuh"

namespace {

struct Weights {
    Owned<float> gamma, beta, dgamma, dbeta;
    explicit Weights(int C)
        : gamma(1, C, normals(C, 1)), beta(1, C, normals(C, 2)), dgamma(1, C, normals(C, 3)), dbeta(1, C, normals(C, 4)) {}
    LayerNorm view() const { return {gamma, beta, dgamma, dbeta}; }
};

// One row in double, and how far each number may be off in FP32.
struct Row {
    double mean = 0, mean_error, variance = 0, rstd, rstd_error;
    std::vector<double> xhat, xhat_error;
    Row(const double* x, int C) : xhat(C), xhat_error(C) {
        double size = 0; // mean of |x|
        for (int c = 0; c < C; c++) mean += x[c] / C, size += std::fabs(x[c]) / C;
        mean_error = gamma_fp32(C) * size; // C - 1 additions, a division
        for (int c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / C;
        // About another centre a mean square is larger by the square of the distance. Roundings: the subtraction, which
        // counts twice in a square, the square, C - 1 additions, a division.
        double variance_error = mean_error * mean_error + gamma_fp32(C + 3) * (variance + mean_error * mean_error);
        double relative = (1 + variance_error / (variance + 1e-5)) * (1 + gamma_fp32(2)) - 1; // eps is rounded, and added
        rstd = 1 / std::sqrt(variance + 1e-5);
        rstd_error = rstd * ((1 + gamma_fp32(2)) / std::sqrt(1 - relative) - 1); // a root, a division
        for (int c = 0; c < C; c++) {
            double d = x[c] - mean;
            xhat[c] = d * rstd;
            xhat_error[c] = (1 + gamma_fp32(2)) * (std::fabs(d) + mean_error) * (rstd + rstd_error) - std::fabs(xhat[c]);
        }
    }
};

std::vector<Row> rows_of(const std::vector<double>& x, int rows, int C) {
    std::vector<Row> all;
    for (int r = 0; r < rows; r++) all.emplace_back(&x[(size_t)r * C], C);
    return all;
}

template <class T>
struct Data {
    int rows, C;
    Weights w;
    Owned<T> x, y, dy, dx;
    Owned<float> mean, rstd, partial;
    Data(int rows, int C, float scale = 2)
        : rows(rows), C(C), w(C), x(rows, C, normals((size_t)rows * C, 5, scale)), y(rows, C), dy(rows, C, normals((size_t)rows * C, 6)),
          dx(rows, C, normals((size_t)rows * C, 7)), mean(rows, 1), rstd(rows, 1), partial(1, (int)(2 * partial_floats(rows, C))) {}
    void forward() { layernorm_forward<T>(y, mean, rstd, x, w.view()); }
    void backward() { layernorm_backward<T>(dx, w.view(), dy, x, mean, rstd, partial); }

    void check_forward() {
        forward();
        const auto all = rows_of(x.get(), rows, C);
        const auto got = y.get(), got_mean = mean.get(), got_rstd = rstd.get(), gain = w.gamma.get(), shift = w.beta.get();
        Worst worst, worst_mean, worst_rstd;
        for (int r = 0; r < rows; r++) {
            const Row& row = all[r];
            worst_mean.see(r, got_mean[r], row.mean, row.mean_error);
            worst_rstd.see(r, got_rstd[r], row.rstd, row.rstd_error);
            for (int c = 0; c < C; c++) {
                double want = row.xhat[c] * gain[c] + shift[c];
                double off = std::fabs(gain[c]) * (row.xhat_error[c] + U * (std::fabs(row.xhat[c]) + row.xhat_error[c])); // times gamma
                off += U * (std::fabs(want) + off);                                                                       // plus beta
                worst.see((size_t)r * C + c, got[(size_t)r * C + c], want, off + rounding_error<T>(std::fabs(want) + off));
            }
        }
        check("y", worst, C), check("mean", worst_mean, 1), check("rstd", worst_rstd, 1);
    }

    void check_backward() {
        forward();
        const Derivative want = derivative();
        backward();
        const auto got = dx.get(), got_dgamma = w.dgamma.get(), got_dbeta = w.dbeta.get();
        Worst worst, worst_dgamma, worst_dbeta;
        for (size_t i = 0; i < got.size(); i++)
            worst.see(i, got[i], want.dx[i], want.dx_error[i] + rounding_error<T>(std::fabs(want.dx[i]) + want.dx_error[i]));
        for (int c = 0; c < C; c++) worst_dgamma.see(c, got_dgamma[c], want.dgamma[c], want.dgamma_error[c]);
        for (int c = 0; c < C; c++) worst_dbeta.see(c, got_dbeta[c], want.dbeta[c], want.dbeta_error[c]);
        check("dx", worst, C), check("dgamma", worst_dgamma, C), check("dbeta", worst_dbeta, C);
    }

    // What backward makes of the present contents, in double, and how far FP32 may be off (before dx is stored as T).
    struct Derivative {
        std::vector<double> dx, dx_error, dgamma, dgamma_error, dbeta, dbeta_error;
    };
    Derivative derivative() const {
        const auto all = rows_of(x.get(), rows, C);
        const auto gain = w.gamma.get(), d = dy.get(), dgamma = w.dgamma.get(), dbeta = w.dbeta.get();
        Derivative want = {dx.get(), std::vector<double>((size_t)rows * C), dgamma, std::vector<double>(C), dbeta, std::vector<double>(C)};
        for (int r = 0; r < rows; r++) {
            const Row& row = all[r];
            const double* d_r = &d[(size_t)r * C];
            double g_mean = 0, g_size = 0, gx_mean = 0, gx_size = 0, gx_error = 0; // means of g, |g|, g xhat, |g xhat|
            for (int c = 0; c < C; c++) {
                double g = d_r[c] * gain[c], size = std::fabs(row.xhat[c]) + row.xhat_error[c];
                g_mean += g / C, g_size += std::fabs(g) / C;
                gx_mean += g * row.xhat[c] / C, gx_size += std::fabs(g) * size / C, gx_error += std::fabs(g) * row.xhat_error[c] / C;
            }
            const double g_error = gamma_fp32(C + 1) * g_size; // the product, C - 1 additions, the division
            gx_error += gamma_fp32(C + 2) * gx_size;           // one product more; xhat_error has its own two
            for (int c = 0; c < C; c++) {
                const size_t i = (size_t)r * C + c;
                double g = d_r[c] * gain[c], in = g - g_mean - row.xhat[c] * gx_mean;
                double xhat_size = std::fabs(row.xhat[c]) + row.xhat_error[c], m_size = std::fabs(gx_mean) + gx_error;
                double size = std::fabs(g) + std::fabs(g_mean) + g_error + xhat_size * m_size;
                // g, the product and two subtractions: at most 3 roundings to each term
                double in_error = g_error + std::fabs(row.xhat[c]) * gx_error + row.xhat_error[c] * m_size + gamma_fp32(3) * size;
                double share = row.rstd * in, error = (row.rstd + row.rstd_error) * in_error + row.rstd_error * std::fabs(in);
                want.dx[i] += share;
                error += U * (std::fabs(share) + error);                        // times rstd
                want.dx_error[i] = error + U * (std::fabs(want.dx[i]) + error); // plus what was there
            }
        }
        for (int c = 0; c < C; c++) {
            double dgamma_size = std::fabs(dgamma[c]), dbeta_size = std::fabs(dbeta[c]);
            for (int r = 0; r < rows; r++) {
                double d_rc = d[(size_t)r * C + c];
                want.dgamma[c] += d_rc * all[r].xhat[c], want.dgamma_error[c] += std::fabs(d_rc) * all[r].xhat_error[c];
                dgamma_size += std::fabs(d_rc) * (std::fabs(all[r].xhat[c]) + all[r].xhat_error[c]);
                want.dbeta[c] += d_rc, dbeta_size += std::fabs(d_rc);
            }
            // one product, up to `rows` additions in the strips and of the strips, and the addition to what was there
            want.dgamma_error[c] += gamma_fp32(rows + 2) * dgamma_size;
            want.dbeta_error[c] = gamma_fp32(rows + 1) * dbeta_size;
        }
        return want;
    }
};

} // namespace

TEST_CASE_TEMPLATE("layernorm: y, mean and rstd are the formula", T, float, bf16, fp16) {
    for_each_size([](int rows, int C) { Data<T>(rows, C).check_forward(); });
}

TEST_CASE_TEMPLATE("layernorm: dx, dgamma and dbeta are the derivative, added to what was there", T, float, bf16, fp16) {
    for_each_size([](int rows, int C) { Data<T>(rows, C).check_backward(); });
}

TEST_CASE_TEMPLATE("layernorm: with codes it is layernorm, then quantise, bit by bit", T, float, bf16, fp16) {
    for (int rows : {1, 3, 17})
        for (int C : {1, 5, 20, 33, 257, 1000}) {
            CAPTURE(rows);
            CAPTURE(C);
            Data<T> d(rows, C);
            if (rows > 1) {
                auto values = normals((size_t)rows * C, 5, 2);
                values[C / 2] = NAN; // a row of NaN
                d.x.set(values);
            }
            Owned<T> y2(rows, C);
            Owned<float> mean2(rows, 1), rstd2(rows, 1);
            for (Format f : {E4M3, E5M2})
                for (bool y_wanted : {false, true}) {
                    Owned<uint8_t> q(rows, C), q2(rows, C);
                    Owned<CastStats> stats(1, 1), stats2(1, 1);
                    layernorm_forward<T>(d.y, d.mean, d.rstd, d.x, d.w.view());
                    quantise<T>(q.view().data, f, 7, stats.view().data, d.y); // 2^7: some saturate
                    y2.set(std::vector<float>((size_t)rows * C));
                    layernorm_forward<T>(y_wanted ? y2.view() : Tensor<T>(), mean2, rstd2, d.x, d.w.view(), q2.view().data, f, 7, stats2.view().data);
                    CHECK((bytes(q) == bytes(q2)));
                    CHECK((bytes(stats) == bytes(stats2)));
                    CHECK((bytes(d.mean) == bytes(mean2)));
                    CHECK((bytes(d.rstd) == bytes(rstd2)));
                    if (y_wanted) CHECK((bytes(d.y) == bytes(y2)));
                }
        }
}

TEST_CASE("layernorm: dx, dgamma and dbeta are the slopes of the formula, by finite differences") {
    for (int C : {1, 3, 17}) {
        CAPTURE(C);
        const int rows = 3;
        Data<float> data(rows, C);
        data.dx.set(std::vector<float>((size_t)rows * C)), data.w.dgamma.set(std::vector<float>(C)), data.w.dbeta.set(std::vector<float>(C));
        data.forward();
        const auto want = data.derivative(); // for how far FP32 may be off
        data.backward();
        auto x = data.x.get(), gain = data.w.gamma.get(), shift = data.w.beta.get();
        const auto dy = data.dy.get();
        double size = 0;
        auto loss = [&] { // sum of dy y
            double sum = 0;
            size = 0;
            for (int r = 0; r < rows; r++) {
                Row row(&x[r * C], C);
                for (int c = 0; c < C; c++) {
                    sum += dy[r * C + c] * (row.xhat[c] * gain[c] + shift[c]);
                    size += std::fabs(dy[r * C + c]) * (std::fabs(row.xhat[c] * gain[c]) + std::fabs(shift[c]));
                }
            }
            return sum;
        };
        loss();
        auto compare = [&](const char* name, const std::vector<double>& got, const std::vector<double>& error, std::vector<double>& variable) {
            Worst worst;
            for (size_t i = 0; i < got.size(); i++) {
                Slope s = slope(loss, variable[i], size);
                worst.see(i, got[i], s.value, s.error + error[i]);
            }
            check(name, worst, C);
        };
        compare("dx", data.dx.get(), want.dx_error, x);
        compare("dgamma", data.w.dgamma.get(), want.dgamma_error, gain);
        compare("dbeta", data.w.dbeta.get(), want.dbeta_error, shift);
    }
}

TEST_CASE("layernorm: a second backward adds the same again") {
    Data<float> data(17, 257);
    data.dx.set(std::vector<float>(17 * 257)), data.w.dgamma.set(std::vector<float>(257)), data.w.dbeta.set(std::vector<float>(257));
    data.forward(), data.backward();
    const auto dx = data.dx.get(), dgamma = data.w.dgamma.get(), dbeta = data.w.dbeta.get();
    data.backward();
    const auto dx2 = data.dx.get(), dgamma2 = data.w.dgamma.get(), dbeta2 = data.w.dbeta.get();
    // Twice a number is exact, except that a fused multiply-add rounds dx + rstd * (...) once where the first call
    // rounded the product alone: one unit of the sum.
    Worst worst, worst_dgamma, worst_dbeta;
    for (size_t i = 0; i < dx.size(); i++) worst.see(i, dx2[i], 2 * dx[i], 2 * U * std::fabs(2 * dx[i]));
    for (int c = 0; c < 257; c++) worst_dgamma.see(c, dgamma2[c], 2 * dgamma[c], 0), worst_dbeta.see(c, dbeta2[c], 2 * dbeta[c], 0);
    check("dx", worst, 257), check("dgamma", worst_dgamma, 257), check("dbeta", worst_dbeta, 257);
}

TEST_CASE_TEMPLATE("layernorm: a token of equal channels becomes beta", T, float, bf16, fp16) {
    for (int C : {1, 4, 64, 256}) { // a power of two: the mean is exact
        CAPTURE(C);
        Data<T> data(3, C);
        data.x.set(std::vector<float>((size_t)3 * C, 1.5f));
        data.forward();
        const auto y = data.y.get(), shift = data.w.beta.get(), rstd = data.rstd.get();
        Worst worst;
        for (size_t i = 0; i < y.size(); i++) worst.see(i, y[i], to_float(round_to<T>((float)shift[i % C])), 0);
        check("y", worst, C);
        CHECK(rstd[0] == doctest::Approx(1 / std::sqrt(1e-5)).epsilon(4 * U)); // eps, a root, a division
    }
}

TEST_CASE_TEMPLATE("layernorm: a mean of 10000 does not hurt a spread of 1, as far as x itself has it", T, float, bf16, fp16) {
    for (int C : {3, 17, 100}) {
        CAPTURE(C);
        Data<T> data(3, C);
        auto x = normals((size_t)3 * C, 8, 100);
        for (float& v : x) v += 10000;
        data.x.set(x);
        data.check_forward();
        data.check_backward();
    }
}

TEST_CASE_TEMPLATE("layernorm: why two passes and FP32 sums: x = 100 + i/2", T, float, bf16, fp16) {
    std::vector<float> x(8);
    for (int i = 0; i < 8; i++) x[i] = 100 + 0.5f * i; // exact in all three formats
    Data<T> data(1, 8);
    data.x.set(x);
    data.check_forward();
    CHECK(data.mean.get()[0] == 101.75);
    CHECK(data.rstd.get()[0] == doctest::Approx(1 / std::sqrt(1.3125 + 1e-5)).epsilon(4 * U)); // every sum is exact here
}

TEST_CASE("layernorm: BF16 sums give a variance of -64 in one pass and 1.375 in two, where the truth is 1.3125") {
    auto rounded = [](float v) { return to_float(round_to<bf16>(v)); };
    float sum = 0, squares = 0, centred_squares = 0;
    for (int i = 0; i < 8; i++) {
        float x = 100 + 0.5f * i;
        sum = rounded(sum + x), squares = rounded(squares + rounded(x * x));
    }
    const float mean = rounded(sum / 8);
    CHECK(rounded(rounded(squares / 8) - rounded(mean * mean)) == -64); // and a NaN from its root
    for (int i = 0; i < 8; i++) {
        float d = rounded(100 + 0.5f * i - mean);
        centred_squares = rounded(centred_squares + rounded(d * d));
    }
    CHECK(rounded(centred_squares / 8) == 1.375f);
}

TEST_CASE("layernorm: one pass fails in FP32 too: 10000 + i/1000") {
    std::vector<float> x(16);
    for (int i = 0; i < 16; i++) x[i] = 10000 + 1e-3f * i;
    volatile float sum = 0, squares = 0; // volatile: in the order written
    for (float v : x) sum = sum + v, squares = squares + v * v;
    volatile float mean = sum / 16, mean_square = squares / 16, square_of_mean = mean * mean;
    float one_pass = mean_square - square_of_mean;
    CHECK(std::fabs(one_pass) >= 8); // the spacing of FP32 at 1e8 is 8

    Data<float> data(1, 16);
    data.x.set(x);
    data.forward();
    const Row row(data.x.get().data(), 16);
    CHECK(row.variance == doctest::Approx(2.1e-5).epsilon(0.05));
    const double rstd = data.rstd.get()[0], variance = 1 / (rstd * rstd) - 1e-5;
    // Each of 15 additions is off by at most half a spacing, 2^-7 near 1.6e5, a 16th of that in the mean; and a mean that
    // is off can only make the variance larger, by the square.
    CHECK(variance > row.variance - 1e-9);
    CHECK(variance < row.variance + 15 * 0x1p-11 * 15 * 0x1p-11 + 1e-9);
}

TEST_CASE_TEMPLATE("layernorm: NaN and Inf are not hidden, and stay in their token", T, float, bf16, fp16) {
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        CAPTURE(bad);
        Data<T> data(5, 17);
        auto x = normals(5 * 17, 5, 2);
        x[2 * 17 + 16] = bad;
        data.x.set(x);
        data.forward(), data.backward();
        const auto y = data.y.get(), dx = data.dx.get(), dgamma = data.w.dgamma.get();
        int finite_in_row = 0, bad_elsewhere = 0, bad_dgamma = 0;
        for (int i = 0; i < 5 * 17; i++) {
            if (i / 17 == 2)
                finite_in_row += std::isfinite(y[i]) + std::isfinite(dx[i]);
            else
                bad_elsewhere += !std::isfinite(y[i]) + !std::isfinite(dx[i]);
        }
        for (double d : dgamma) bad_dgamma += !std::isfinite(d);
        CHECK(finite_in_row == 0);
        CHECK(bad_elsewhere == 0);
        CHECK(bad_dgamma == 17);
    }
}

TEST_CASE_TEMPLATE("layernorm: any number of threads gives the same bytes", T, float, bf16, fp16) {
    check_any_number_of_threads([] {
        Data<T> data(257, 257);
        data.forward(), data.backward();
        return bytes(data.y) + bytes(data.mean) + bytes(data.rstd) + bytes(data.dx) + bytes(data.w.dgamma) + bytes(data.w.dbeta);
    });
}

TEST_CASE("layernorm: shapes that disagree are refused, with their values") {
    Data<float> d(5, 7);
    Owned<float> other(5, 8), short_partial(1, 13), few(4, 1);
    Weights w8(8);
    const LayerNorm w = d.w.view();
    auto contains = [](const char* text) { return doctest::Contains(text); };
    CHECK_THROWS_WITH_AS(layernorm_forward<float>(other, d.mean, d.rstd, d.x, w), contains("y is (5,8), x is (5,7)"), Error);
    CHECK_THROWS_WITH_AS(layernorm_forward<float>(d.y, d.mean, d.rstd, d.x, w8.view()), contains("gamma has 8 channels, x has 7"), Error);
    CHECK_THROWS_WITH_AS(layernorm_forward<float>(Tensor<float>(), d.mean, d.rstd, d.x, w), contains("neither y nor its codes"), Error);
    CHECK_THROWS_WITH_AS(layernorm_forward<float>(d.y, few, d.rstd, d.x, w), contains("4 means and 5 rstds for 5 rows"), Error);
    CHECK_THROWS_WITH_AS(layernorm_backward<float>(other, w, d.dy, d.x, d.mean, d.rstd, d.partial), contains("dx is (5,8), x is (5,7)"), Error);
    CHECK_THROWS_WITH_AS(layernorm_backward<float>(d.dx, w, other, d.x, d.mean, d.rstd, d.partial), contains("dy is (5,8), x is (5,7)"), Error);
    CHECK_THROWS_WITH_AS(layernorm_backward<float>(d.dx, w8.view(), d.dy, d.x, d.mean, d.rstd, d.partial), contains("gamma has 8"), Error);
    CHECK_THROWS_WITH_AS(layernorm_backward<float>(d.dx, w, d.dy, d.x, d.mean, few, d.partial), contains("5 means and 4 rstds"), Error);
    CHECK_THROWS_WITH_AS(layernorm_backward<float>(d.dx, w, d.dy, d.x, d.mean, d.rstd, short_partial), contains("scratch of 13 floats, 14 needed"), Error);
}
