// test_flash_attention.cu -- flash_attention.cuh against double loops and against attention.cuh; what tiles must not change.
#include "flash_attention.cuh"
#include "bounds.h"
#if !defined(ON_CPU)

namespace {

// A tensor core's sum of n products, 16 at a time: products are exact, and each of them, and the sum so far at each
// instruction, is rounded or cut once.
double product_error(int n) { return gamma_fp32(2 * (n + ceil_div(n, 16))); }

// Attention in double on the numbers that T holds, and how far every result may be off.
struct Truth {
    int B, length, heads, hs, C;
    std::vector<double> y, y_error, lse, lse_error, dqkv, dqkv_error;

    size_t at(int part, int b, int t, int h) const { return ((size_t)(b * length + t) * 3 + part) * C + h * hs; }

    template <class T>
    Truth(T, const std::vector<double>& qkv, const std::vector<double>& dy, int B, int length, int heads, int hs)
        : B(B), length(length), heads(heads), hs(hs), C(heads * hs), y((size_t)B * length * C), y_error(y), lse((size_t)B * heads * length),
          lse_error(lse), dqkv(qkv.size()), dqkv_error(dqkv) {
        const double scale = 1 / std::sqrt(hs);
        const int tiles = length / 32 + 1;          // as often, at most, a row's sums are rescaled
        std::vector<double> dqkv_size(dqkv.size()); // sums of |terms|, with the terms' errors
        std::vector<double> z(length), z_error(z), w(z), w_error(z);
        for (int b = 0; b < B; b++)
            for (int h = 0; h < heads; h++)
                for (int t = 0; t < length; t++) {
                    const double *q = &qkv[at(0, b, t, h)], *dy_t = &dy[(size_t)(b * length + t) * C + h * hs];
                    // scores in nats
                    double largest = -HUGE_VAL, size_z = 0, worst = 0;
                    for (int j = 0; j <= t; j++) {
                        const double* k = &qkv[at(1, b, j, h)];
                        double sum = 0, size = 0;
                        for (int c = 0; c < hs; c++) sum += q[c] * k[c], size += std::fabs(q[c] * k[c]);
                        z[j] = sum * scale, z_error[j] = product_error(hs) * size * scale;
                        largest = std::fmax(largest, z[j]), size_z = std::fmax(size_z, std::fabs(z[j])), worst = std::fmax(worst, z_error[j]);
                    }
                    // w = e^(z - largest): what the maximum is off is common to all. The exponent's way down from it is rounded
                    // (in one step, or in one per rescaling: together not longer), and so is log2_scale.
                    double sum = 0, sum_error = 0;
                    for (int j = 0; j <= t; j++) {
                        const double off = z_error[j] + gamma_fp32(2) * (largest - z[j] + 2 * worst) + (tiles + 1) * (EXP_ERROR + U);
                        w[j] = std::exp(z[j] - largest), w_error[j] = w[j] * std::expm1(off) + SMALLEST_NORMAL;
                        sum += w[j], sum_error += w_error[j];
                    }
                    sum_error += gamma_fp32(t + 1) * (sum + sum_error);
                    // y = sum w v / sum w, with w rounded to T
                    for (int c = 0; c < hs; c++) {
                        const size_t i = (size_t)(b * length + t) * C + h * hs + c;
                        double top = 0, top_error = 0, size = 0;
                        for (int j = 0; j <= t; j++) {
                            const double v = qkv[at(2, b, j, h) + c], w_off = w_error[j] + rounding_error<T>(w[j] + w_error[j]);
                            top += w[j] * v, top_error += w_off * std::fabs(v), size += (w[j] + w_off) * std::fabs(v);
                        }
                        top_error += product_error(t + 1) * size;
                        y[i] = top / sum;
                        y_error[i] = (top_error + std::fabs(y[i]) * sum_error) / (sum - sum_error);
                        y_error[i] += gamma_fp32(2) * (std::fabs(y[i]) + y_error[i]);
                        y_error[i] += rounding_error<T>(std::fabs(y[i]) + y_error[i]);
                    }
                    // lse: log2_scale, the maximum and ln 2 and their product, the last addition
                    const size_t r = (size_t)(b * heads + h) * length + t;
                    const double log_off = -std::log1p(-sum_error / sum);
                    lse[r] = largest + std::log(sum);
                    lse_error[r] = log_off + LOG_ERROR * (std::log(sum) + log_off) + gamma_fp32(5) * (size_z + worst + std::log(sum));

                    // delta = sum dy y
                    double delta = 0, delta_error = 0, delta_size = 0;
                    for (int c = 0; c < hs; c++) {
                        const size_t i = (size_t)(b * length + t) * C + h * hs + c;
                        delta += dy_t[c] * y[i], delta_error += std::fabs(dy_t[c]) * y_error[i], delta_size += std::fabs(dy_t[c]) * (std::fabs(y[i]) + y_error[i]);
                    }
                    delta_error += gamma_fp32(hs + 1) * delta_size;
                    // P = 2^(log2_scale S - lse log2 e), dP, dS = P (dP - delta); then dq, dk, dv
                    for (int j = 0; j <= t; j++) {
                        const double *k = &qkv[at(1, b, j, h)], *v = &qkv[at(2, b, j, h)], p = w[j] / sum;
                        const double off = z_error[j] + lse_error[r] + gamma_fp32(3) * (std::fabs(lse[r]) + lse_error[r] + std::fabs(z[j]) + z_error[j]) + EXP_ERROR;
                        const double p_error = p * std::expm1(off) + SMALLEST_NORMAL, p_rounded_error = p_error + rounding_error<T>(p + p_error);
                        double dp = 0, dp_size = 0;
                        for (int c = 0; c < hs; c++) dp += dy_t[c] * v[c], dp_size += std::fabs(dy_t[c] * v[c]);
                        const double in_error = product_error(hs) * dp_size + delta_error, ds = p * (dp - delta);
                        double ds_error = p_error * std::fabs(dp - delta) + (p + p_error) * in_error;
                        ds_error += gamma_fp32(2) * (std::fabs(ds) + ds_error);
                        ds_error += rounding_error<T>(std::fabs(ds) + ds_error);
                        for (int c = 0; c < hs; c++) {
                            auto add = [&](size_t i, double a, double a_error, double x) {
                                dqkv[i] += a * x, dqkv_error[i] += a_error * std::fabs(x), dqkv_size[i] += (std::fabs(a) + a_error) * std::fabs(x);
                            };
                            add(at(0, b, t, h) + c, ds, ds_error, k[c]), add(at(1, b, j, h) + c, ds, ds_error, q[c]), add(at(2, b, j, h) + c, p, p_rounded_error, dy_t[c]);
                        }
                    }
                }
        for (size_t i = 0; i < dqkv.size(); i++) {
            const double factor = (int)(i / C) % 3 < 2 ? scale : 1; // dq and dk; dv
            dqkv[i] *= factor, dqkv_error[i] = factor * (dqkv_error[i] + product_error(length) * dqkv_size[i]);
            dqkv_error[i] += gamma_fp32(2) * (std::fabs(dqkv[i]) + dqkv_error[i]);
            dqkv_error[i] += rounding_error<T>(std::fabs(dqkv[i]) + dqkv_error[i]);
        }
    }
};

struct Ratios {
    double y = 0, lse = 0, dqkv = 0;
};

// Everything starts `shift` elements after a 256-byte boundary.
template <class T>
struct Data {
    int B, length, heads, hs, C, BT, shift;
    Owned<T> qkv_memory, dy_memory, y_memory, dqkv_memory;
    Owned<float> lse, delta;
    Data(int B, int length, int heads, int hs, int shift = 0)
        : B(B), length(length), heads(heads), hs(hs), C(heads * hs), BT(B * length), shift(shift), qkv_memory(1, shift + BT * 3 * C), dy_memory(1, shift + BT * C),
          y_memory(1, shift + BT * C), dqkv_memory(1, shift + BT * 3 * C), lse(B * heads, length), delta(B * heads, length) {
        set(qkv_memory, normals((size_t)BT * 3 * C, 1)), set(dy_memory, normals((size_t)BT * C, 2));
        set(y_memory, std::vector<float>((size_t)BT * C, NAN)), set(dqkv_memory, std::vector<float>((size_t)BT * 3 * C, NAN));
    }
    void set(Owned<T>& memory, std::vector<float> values) {
        values.insert(values.begin(), shift, NAN);
        memory.set(values);
    }
    std::vector<double> get(const Owned<T>& memory) const {
        std::vector<double> values = memory.get();
        values.erase(values.begin(), values.begin() + shift);
        return values;
    }
    Tensor<T> rows(const Owned<T>& memory, int cols) const { return {memory.view().data + shift, BT, cols}; }
    Tensor<T> qkv() const { return rows(qkv_memory, 3 * C); }
    Tensor<T> dqkv() const { return rows(dqkv_memory, 3 * C); }
    Tensor<T> y() const { return rows(y_memory, C); }
    Tensor<T> dy() const { return rows(dy_memory, C); }

    void forward() { flash_attention_forward<T>(y(), lse, qkv(), length, heads); }
    void backward() { flash_attention_backward<T>(dqkv(), dy(), y(), lse, delta, qkv(), length, heads); }
    Truth truth() const { return Truth(T(), get(qkv_memory), get(dy_memory), B, length, heads, hs); }
    std::string result() const { return bytes(y_memory) + bytes(lse) + bytes(dqkv_memory); }

    Ratios check_all() {
        INFO("B=" << B << " T=" << length << " heads=" << heads << " hs=" << hs << " shift=" << shift);
        forward(), backward();
        const Truth want = truth();
        const auto got_y = get(y_memory), got_lse = lse.get(), got = get(dqkv_memory);
        Worst worst_y, worst_lse, worst;
        for (size_t i = 0; i < got_y.size(); i++) worst_y.see(i, got_y[i], want.y[i], want.y_error[i]);
        for (size_t i = 0; i < got_lse.size(); i++) worst_lse.see(i, got_lse[i], want.lse[i], want.lse_error[i]);
        for (size_t i = 0; i < got.size(); i++) worst.see(i, got[i], want.dqkv[i], want.dqkv_error[i]);
        check("y", worst_y, C), check("lse", worst_lse, length), check("dq | dk | dv", worst, 3 * C);
        return {worst_y.ratio, worst_lse.ratio, worst.ratio};
    }
};

} // namespace

TEST_CASE_TEMPLATE("flash attention: y and lse are the formula, dq, dk and dv its derivative: lengths around the tiles, every padded head size", T, bf16, fp16) {
    Ratios most;
    int n = 0;
    for (int length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 300})
        for (int hs : {16, 24, 32, 40, 64, 80, 96, 128}) {
            n++;
            const int B = length <= 65 ? n % 3 + 1 : 1, heads = length <= 129 ? n % 2 + 1 : 1;
            const Ratios r = Data<T>(B, length, heads, hs).check_all();
            most = {std::fmax(most.y, r.y), std::fmax(most.lse, r.lse), std::fmax(most.dqkv, r.dqkv)};
        }
    if (getenv("FEWBITS_SHOW_BOUNDS")) MESSAGE("at most " << most.y << " of the bound of y, " << most.lse << " of lse's, " << most.dqkv << " of dqkv's");
}

TEST_CASE_TEMPLATE("flash attention: any head size and any address: rows that do not start on 16 bytes", T, bf16, fp16) {
    for (int hs : {1, 2, 5, 8, 17, 33, 64, 100, 127})
        for (int shift : {0, 1, 8}) Data<T>(2, 67, 3, hs, shift).check_all();
}

TEST_CASE_TEMPLATE("flash attention: the same as attention.cuh in FP32, on numbers that T holds", T, bf16, fp16) {
    // FP32 rounds at most 2 (T + hs) < 2^10 times where T rounds once, and its unit is at least 2^13 times smaller.
    struct Case {
        int B, length, heads, hs;
    };
    for (const Case& c : {Case{2, 5, 2, 3}, Case{1, 64, 2, 32}, Case{2, 129, 1, 64}, Case{1, 200, 2, 80}}) {
        INFO("B=" << c.B << " T=" << c.length << " heads=" << c.heads << " hs=" << c.hs);
        Data<T> data(c.B, c.length, c.heads, c.hs);
        data.forward(), data.backward();
        const Truth truth = data.truth(); // for how far T may be off
        auto floats = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
        Owned<float> qkv(data.BT, 3 * data.C, floats(data.get(data.qkv_memory))), dy(data.BT, data.C, floats(data.get(data.dy_memory)));
        Owned<float> y(data.BT, data.C), dqkv(data.BT, 3 * data.C), p(c.B * c.heads * c.length, c.length), s(p.rows, p.cols), dp(p.rows, p.cols), ds(p.rows, p.cols);
        attention_forward<float>(y, p, s, qkv, c.length, c.heads);
        attention_backward<float>(dqkv, dy, p, qkv, dp, ds, c.length, c.heads);
        const auto y_plain = y.get(), dqkv_plain = dqkv.get(), y_flash = data.get(data.y_memory), dqkv_flash = data.get(data.dqkv_memory);
        Worst worst_y, worst;
        for (size_t i = 0; i < y_plain.size(); i++) worst_y.see(i, y_flash[i], y_plain[i], truth.y_error[i] * 1.125);
        for (size_t i = 0; i < dqkv_plain.size(); i++) worst.see(i, dqkv_flash[i], dqkv_plain[i], truth.dqkv_error[i] * 1.125);
        check("y", worst_y, data.C), check("dq | dk | dv", worst, 3 * data.C);
    }
}

TEST_CASE_TEMPLATE("flash attention: a later token changes no bit of an earlier row", T, bf16, fp16) {
    for (int length : {2, 17, 65, 150}) {
        const int B = 2, heads = 2, hs = 24, C = heads * hs, changed = length / 2; // of example 0
        CAPTURE(length);
        Data<T> data(B, length, heads, hs), other(B, length, heads, hs);
        auto values = normals((size_t)B * length * 3 * C, 1);
        for (int i = 0; i < 3 * C; i++) values[(size_t)changed * 3 * C + i] = 5 - values[(size_t)changed * 3 * C + i];
        other.set(other.qkv_memory, values);
        data.forward(), other.forward();
        const auto y = data.y_memory.get(), y2 = other.y_memory.get(), lse = data.lse.get(), lse2 = other.lse.get();
        int different = 0, rows_changed = 0;
        for (int bt = 0; bt < B * length; bt++) {
            bool later = bt / length == 0 && bt >= changed, row_differs = false;
            for (int c = 0; c < C; c++) row_differs |= y[(size_t)bt * C + c] != y2[(size_t)bt * C + c];
            for (int h = 0; h < heads; h++) {
                const size_t r = (size_t)(bt / length * heads + h) * length + bt % length;
                row_differs |= lse[r] != lse2[r];
            }
            (later ? rows_changed : different) += row_differs;
        }
        CHECK(different == 0);
        CHECK(rows_changed == length - changed);
    }
}

TEST_CASE_TEMPLATE("flash attention: equal scores give the mean of the values so far", T, bf16, fp16) {
    const int length = 128, hs = 4;
    Data<T> data(1, length, 1, hs);
    std::vector<float> values(length * 3 * hs); // q = k = 0
    for (int t = 0; t < length; t++)
        for (int c = 0; c < hs; c++) values[t * 3 * hs + 2 * hs + c] = (float)t;
    data.set(data.qkv_memory, values);
    data.check_all();
    const auto y = data.get(data.y_memory), lse = data.lse.get();
    CHECK(y[0] == 0);
    CHECK(y[127 * hs] == 63.5);
    CHECK(lse[0] == 0);
    CHECK(lse[127] == doctest::Approx(7 * std::log(2)).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("flash attention: scores of 10000 neither overflow nor blur: the largest takes all", T, bf16, fp16) {
    const int hs = 64;
    for (int length : {5, 100}) {
        Data<T> data(1, length, 1, hs);
        std::vector<float> values(length * 3 * hs);
        for (int t = 0; t < length; t++)
            for (int c = 0; c < hs; c++) {
                values[(t * 3 + 0) * hs + c] = 25, values[(t * 3 + 1) * hs + c] = t == 2 ? 50.0f : -50.0f; // scores of +-10000
                values[(t * 3 + 2) * hs + c] = (float)t;
            }
        data.set(data.qkv_memory, values);
        data.check_all();
        const auto y = data.get(data.y_memory);
        CHECK(y[0] == 0);
        CHECK(y[1 * hs] == 0.5);
        int wrong = 0;
        for (int t = 2; t < length; t++) wrong += y[t * hs] != 2;
        CHECK(wrong == 0);

        // and at random, with new maxima in later tiles: nothing but finite numbers
        auto random = normals(values.size(), 3, 100);
        Data<T> wild(1, length, 1, hs);
        wild.set(wild.qkv_memory, random);
        wild.forward(), wild.backward();
        int not_finite = 0;
        for (double x : wild.get(wild.y_memory)) not_finite += !std::isfinite(x);
        for (double x : wild.get(wild.dqkv_memory)) not_finite += !std::isfinite(x);
        for (double x : wild.lse.get()) not_finite += !std::isfinite(x);
        CHECK(not_finite == 0);
    }
}

TEST_CASE_TEMPLATE("flash attention: scores up to 1000 at random stay within their bounds", T, bf16, fp16) {
    const int length = 150, hs = 64, C = hs;
    auto values = normals((size_t)length * 3 * C, 4);
    for (size_t i = 0; i < values.size(); i++)
        if (i / C % 3 < 2) values[i] *= 15;
    Data<T> data(1, length, 1, hs);
    data.set(data.qkv_memory, values);
    data.check_all();
}

TEST_CASE_TEMPLATE("flash attention: NaN and Inf are not hidden: their token and all later ones have them, other examples and heads do not", T, bf16, fp16) {
    const int B = 2, length = 70, heads = 2, hs = 3, C = heads * hs, where = 3;
    for (float bad : {NAN, INFINITY})
        for (int part = 0; part < 3; part++) {
            CAPTURE(bad);
            CAPTURE(part);
            Data<T> data(B, length, heads, hs);
            auto values = normals((size_t)B * length * 3 * C, 1);
            values[(size_t)(where * 3 + part) * C + hs] = bad; // example 0, head 1
            data.set(data.qkv_memory, values);
            data.forward();
            const auto y = data.get(data.y_memory);
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

TEST_CASE_TEMPLATE("flash attention: a NaN in dy reaches dq, dk and dv of its head", T, bf16, fp16) {
    const int length = 5, hs = 3;
    Data<T> data(1, length, 1, hs);
    auto values = normals(length * hs, 2);
    values[2 * hs] = NAN;
    data.set(data.dy_memory, values);
    data.forward(), data.backward();
    const auto d = data.get(data.dqkv_memory);
    for (int part = 0; part < 3; part++) CHECK(std::isnan(d[(2 * 3 + part) * hs]));
}

TEST_CASE_TEMPLATE("flash attention: the same bytes at every run, with any number of threads, in any order of lanes and warps; no bank conflicts", T, bf16, fp16) {
    for (int hs : {16, 24, 64, 128}) {
        CAPTURE(hs);
        auto run = [&] {
            Data<T> data(2, 150, 2, hs);
            data.forward(), data.backward();
            return data.result();
        };
        check_any_number_of_threads(run);
#if defined(FEWBITS_SIMULATOR)
        simulator::ldmatrix_banks.reset(), simulator::copy_banks.reset();
        const std::string ascending = run();
        CHECK(simulator::ldmatrix_banks.accesses > 0);
        CHECK(simulator::ldmatrix_banks.conflicts == 0);
        CHECK(simulator::copy_banks.accesses > 0);
        CHECK(simulator::copy_banks.conflicts == 0);
        const unsigned before = simulator::lane_order();
        for (unsigned order : {1, 2}) {
            simulator::lane_order() = order;
            CHECK((run() == ascending));
        }
        simulator::lane_order() = before;
#endif
    }
}

TEST_CASE("flash attention: many examples and heads of one token: y = v") {
    Data<bf16> data(300, 1, 7, 1);
    data.forward();
    const auto y = data.get(data.y_memory), qkv = data.get(data.qkv_memory);
    int wrong = 0;
    for (int b = 0; b < data.B; b++)
        for (int h = 0; h < 7; h++) wrong += y[b * 7 + h] != qkv[(b * 3 + 2) * 7 + h];
    CHECK(wrong == 0);
}

TEST_CASE("flash attention: which formats, head sizes and GPUs it is for, and what is refused, with the values") {
    CHECK(flash_attention_supports<bf16>(64, 80));
    CHECK(flash_attention_supports<fp16>(1, 120));
    CHECK(flash_attention_supports<fp16>(128, 86));
    CHECK(!flash_attention_supports<bf16>(64, 75));
    CHECK(!flash_attention_supports<fp16>(64, 75));
    CHECK(!flash_attention_supports<bf16>(129, 90));
    CHECK(!flash_attention_supports<bf16>(0, 90));
    CHECK(!flash_attention_supports<float>(64, 90));

    auto contains = [](const std::string& text) { return doctest::Contains(text.c_str()); };
    Data<bf16> d(2, 3, 2, 5), wide(1, 3, 1, 129);
    Owned<bf16> qkv31(6, 31), rows5(5, 30), y9(6, 9);
    Owned<float> statistics(4, 2);
    Data<float> floats(2, 3, 2, 5);
    const std::string on = format("on compute capability %d.%d", capability() / 10, capability() % 10);
    CHECK_THROWS_WITH_AS(wide.forward(), contains("no kernel for heads of 129 channels in BF16 " + on), Error);
    CHECK_THROWS_WITH_AS(floats.forward(), contains("no kernel for heads of 5 channels in FP32 " + on), Error);
    CHECK_THROWS_WITH_AS(floats.backward(), contains("no kernel for heads of 5 channels in FP32 " + on), Error);
    CHECK_THROWS_WITH_AS(flash_attention_forward<bf16>(d.y(), d.lse, qkv31, 3, 2), contains("31 columns of qkv do not split into 3 x 2 heads"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_forward<bf16>(d.y(), d.lse, rows5, 3, 2), contains("5 rows of qkv are not whole examples of 3 tokens"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_forward<bf16>(y9, d.lse, d.qkv(), 3, 2), contains("y is (6,9), not (6,10)"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_forward<bf16>(d.y(), statistics, d.qkv(), 3, 2), contains("lse has 8 elements, not 2 x 2 x 3"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_backward<bf16>(qkv31, d.dy(), d.y(), d.lse, d.delta, d.qkv(), 3, 2), contains("dqkv is (6,31), not (6,30)"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_backward<bf16>(d.dqkv(), y9, d.y(), d.lse, d.delta, d.qkv(), 3, 2), contains("dy is (6,9), not (6,10)"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_backward<bf16>(d.dqkv(), d.dy(), y9, d.lse, d.delta, d.qkv(), 3, 2), contains("y is (6,9), not (6,10)"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_backward<bf16>(d.dqkv(), d.dy(), d.y(), statistics, d.delta, d.qkv(), 3, 2), contains("lse has 8 elements, not 2 x 2 x 3"), Error);
    CHECK_THROWS_WITH_AS(flash_attention_backward<bf16>(d.dqkv(), d.dy(), d.y(), d.lse, statistics, d.qkv(), 3, 2), contains("delta has 8 elements, not 2 x 2 x 3"), Error);
#if defined(FEWBITS_SIMULATOR)
    const int before = simulator::capability();
    simulator::capability() = 75;
    CHECK_THROWS_WITH_AS(d.forward(), contains("no kernel for heads of 5 channels in BF16 on compute capability 7.5"), Error);
    simulator::capability() = before;
#endif
}
#endif
