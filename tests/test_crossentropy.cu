// test_crossentropy.cu -- crossentropy.cuh against its formula and its derivative in double, and at the ends of its range.
#include "bounds.h"
#include "crossentropy.cuh"
#include <algorithm>

namespace {

struct Row {
    double loss, loss_error;
    std::vector<double> p, p_error;
    // log-sum-exp of V logits in double, and how far FP32 may be off. e^(l - largest): the subtraction, and e^x's own
    // error. The sum: V - 1 roundings. p = e^(...) * (dloss / sum): a division, a product.
    Row(const double* logits, int V, int target) : p(V), p_error(V) {
        const double largest = *std::max_element(logits, logits + V);
        double sum = 0, sum_error = 0;
        for (int v = 0; v < V; v++) {
            double d = logits[v] - largest;
            p[v] = std::exp(d), p_error[v] = p[v] * (std::expm1(U * -d) + EXP_ERROR) + (d < -87 ? SMALLEST_NORMAL : 0);
            if (d < -700) p_error[v] = SMALLEST_NORMAL; // 0 here as there
            sum += p[v], sum_error += p_error[v];
        }
        sum_error += gamma_fp32(V - 1) * (sum + sum_error);
        const double log_sum = std::log(sum), below = largest - logits[target], off = sum_error / sum / (1 - sum_error / sum);
        loss = log_sum + below;
        loss_error = off + LOG_ERROR * (log_sum + off) + U * below;
        loss_error += U * (loss + loss_error);
        for (int v = 0; v < V; v++) {
            p[v] /= sum, p_error[v] /= sum;
            p_error[v] += off * (p[v] + p_error[v]);
            p_error[v] += gamma_fp32(2) * (p[v] + p_error[v]);
        }
    }
};

std::vector<int> draw_targets(int rows, int V) {
    const Rng rng(9, Stream::test);
    std::vector<int> t(rows);
    for (int r = 0; r < rows; r++) t[r] = (int)rng.below(r, V);
    t[0] = V - 1;
    if (rows > 1) t[1] = 0; // both ends
    return t;
}

template <class T>
struct Data {
    int rows, V;
    std::vector<int> target;
    Owned<float> logits, loss;
    Owned<T> dlogits;
    Buffer target_memory;
    Data(int rows, int V, const std::vector<float>& values, const std::vector<int>& target)
        : rows(rows), V(V), target(target), logits(rows, V, values), loss(rows, 1), dlogits(rows, V, std::vector<float>((size_t)rows * V, 3)),
          target_memory(rows * sizeof(int)) {
        copy_to_machine((int*)target_memory.data(), target.data(), target.size());
    }
    void run(float dloss) { crossentropy<T>(loss, dlogits, logits, (const int*)target_memory.data(), dloss); }

    void check_all(float dloss) {
        run(dloss);
        const auto l = logits.get(), got_loss = loss.get(), got = dlogits.get();
        Worst worst_loss, worst, worst_sum;
        for (int r = 0; r < rows; r++) {
            const Row row(&l[(size_t)r * V], V, target[r]);
            worst_loss.see(r, got_loss[r], row.loss, row.loss_error);
            double sum = 0, sum_error = 0;
            for (int v = 0; v < V; v++) {
                const size_t i = (size_t)r * V + v;
                double want = (row.p[v] - (v == target[r])) * dloss, off = row.p_error[v] * dloss;
                if (v == target[r]) off += U * (std::fabs(want) + off); // the subtraction
                off += rounding_error<T>(std::fabs(want) + off);
                worst.see(i, got[i], want, off);
                sum += got[i], sum_error += off;
            }
            worst_sum.see(r, sum, 0, sum_error); // sum p = 1, so a row of gradients is 0 but for the roundings of its elements
        }
        check("loss", worst_loss, 1), check("dlogits", worst, V), check("sum of a row of dlogits", worst_sum, 1);
    }
};

} // namespace

TEST_CASE_TEMPLATE("crossentropy: loss is the formula, dlogits its derivative, and a row of dlogits adds up to 0", T, float, bf16, fp16) {
    for_each_size([](int rows, int V) { Data<T>(rows, V, normals((size_t)rows * V, 1, 3), draw_targets(rows, V)).check_all(1.0f / rows); });
}

TEST_CASE("crossentropy: dlogits is the slope of the loss, by finite differences") {
    for (int V : {1, 2, 17}) {
        CAPTURE(V);
        const int rows = 3;
        const float dloss = 0.3f;
        Data<float> data(rows, V, normals(rows * V, 2, 2), draw_targets(rows, V));
        data.run(dloss);
        auto l = data.logits.get();
        const auto got = data.dlogits.get();
        Worst worst;
        for (int i = 0; i < rows * V; i++) {
            const int r = i / V;
            auto loss = [&] { return (double)dloss * Row(&l[r * V], V, data.target[r]).loss; };
            Slope s = slope(loss, l[i], 20); // |loss| < 20
            double off = Row(&l[r * V], V, data.target[r]).p_error[i % V];
            worst.see(i, got[i], s.value, s.error + off + U * std::fabs(s.value));
        }
        check("dlogits", worst, V);
    }
}

TEST_CASE_TEMPLATE("crossentropy: logits of +-10000", T, float, bf16, fp16) {
    const int V = 17;
    for (int top : {0, 8, 16})
        for (int target : {0, 8, 16}) {
            std::vector<float> l(V, -10000);
            l[top] = 10000;
            Data<T> data(1, V, l, {target});
            data.check_all(1);
            CHECK(data.loss.get()[0] == (top == target ? 0 : 20000));
            const auto d = data.dlogits.get();
            int wrong = 0;
            for (int v = 0; v < V; v++) wrong += d[v] != (v == top) - (v == target);
            CHECK(wrong == 0);
        }
    // all huge, nearly equal: what counts is the difference
    Data<T> data(2, 3, {10000, 10001, 9999, -10000, -10001, -9999}, {1, 0});
    data.check_all(1);
}

TEST_CASE_TEMPLATE("crossentropy: equal logits give log V, 1 / V and nothing else, whatever they are equal to", T, float, bf16, fp16) {
    for (int V : {1, 2, 1000, 4096})
        for (float value : {0.0f, 5.5f, -10000.0f}) {
            CAPTURE(V);
            Data<T> data(1, V, std::vector<float>(V, value), {V - 1});
            data.check_all(1);
            CHECK(data.loss.get()[0] == doctest::Approx(std::log((double)V)).epsilon(1e-6));
        }
}

TEST_CASE("crossentropy: why not in FP16: e^12 is Inf, and a sum of 4096 ones is 2048") {
    auto rounded = [](float v) { return to_float(round_to<fp16>(v)); };
    CHECK(rounded(std::exp(12.0f)) == INFINITY); // a naive softmax: Inf / Inf
    CHECK(rounded(std::exp(11.0f)) < INFINITY);
    CHECK(rounded(std::exp(11.0901f)) < INFINITY);
    CHECK(rounded(std::exp(11.0902f)) == INFINITY);

    Data<fp16> data(1, 4, {12, 11, 10, -INFINITY}, {3}); // an impossible fourth, to be the target: p is what is stored
    data.run(1);
    const auto p = data.dlogits.get();
    CHECK(p[0] == doctest::Approx(0.665039).epsilon(1e-6)); // the nearest FP16 to the truth
    CHECK(p[1] == doctest::Approx(0.244751).epsilon(1e-6));
    CHECK(p[2] == doctest::Approx(0.0900269).epsilon(1e-6));

    float sum = 0;
    for (int i = 0; i < 4096; i++) sum = rounded(sum + 1);
    CHECK(sum == 2048); // probabilities of 1/2048 each, which add up to 2
    Data<fp16> equal(1, 4096, std::vector<float>(4096, 1), {0});
    equal.run(1);
    double total = 1; // the target's gradient is p - 1
    for (double d : equal.dlogits.get()) total += d;
    CHECK(total == doctest::Approx(1).epsilon(unit_roundoff<fp16>()));
}

TEST_CASE("crossentropy: a logit of -Inf is a probability of 0, and costs an infinite loss only as the target") {
    Data<float> data(2, 3, {1, -INFINITY, 1, 1, -INFINITY, 1}, {0, 1});
    data.run(1);
    const auto loss = data.loss.get(), d = data.dlogits.get();
    CHECK(loss[0] == doctest::Approx(std::log(2.0)).epsilon(1e-6));
    CHECK(loss[1] == INFINITY);
    CHECK(d[1] == 0);
    CHECK(d[4] == -1);
}

TEST_CASE_TEMPLATE("crossentropy: without dlogits the losses are the same bytes, and nothing else is written", T, float, bf16, fp16) {
    Data<T> data(17, 257, normals(17 * 257, 1), draw_targets(17, 257));
    const std::string untouched = bytes(data.dlogits);
    crossentropy<T>(data.loss, Tensor<T>(), data.logits, (const int*)data.target_memory.data(), 1);
    const std::string alone = bytes(data.loss);
    CHECK((bytes(data.dlogits) == untouched));
    data.run(1);
    CHECK((bytes(data.loss) == alone));
    CHECK((bytes(data.dlogits) != untouched));
}

TEST_CASE_TEMPLATE("crossentropy: padding columns change nothing, whatever they hold, and get dlogits of 0; in place gives the same bytes", T, float, bf16, fp16) {
    for (int rows : {1, 3, 17})
        for (int V : {1, 7, 31, 33, 64, 257, 1000})
            for (int padding : {0, 1, 3, 50}) {
                CAPTURE(rows);
                CAPTURE(V);
                CAPTURE(padding);
                const int cols = V + padding;
                const std::vector<float> values = normals((size_t)rows * V, 1, 3);
                Data<T> plain(rows, V, values, draw_targets(rows, V));
                plain.run(0.3f);
                std::vector<float> padded((size_t)rows * cols, 1000); // more than any logit, and an Inf or a NaN
                for (int r = 0; r < rows; r++) {
                    std::copy(&values[(size_t)r * V], &values[(size_t)r * V] + V, &padded[(size_t)r * cols]);
                    if (padding) padded[(size_t)r * cols + V] = r % 2 ? NAN : INFINITY;
                }
                Data<T> data(rows, cols, padded, draw_targets(rows, V));
                const int* target = (const int*)data.target_memory.data();
                crossentropy<T>(data.loss, data.dlogits, data.logits, target, 0.3f, V);
                CHECK((bytes(data.loss) == bytes(plain.loss)));
                const auto got = data.dlogits.stored(), want = plain.dlogits.stored();
                int wrong = 0;
                for (int r = 0; r < rows; r++)
                    for (int v = 0; v < cols; v++)
                        wrong += to_float(got[(size_t)r * cols + v]) != (v < V ? to_float(want[(size_t)r * V + v]) : 0);
                CHECK(wrong == 0);

                T* in_place = (T*)data.logits.view().data;
                crossentropy<T>(data.loss, {in_place, rows, cols}, data.logits, target, 0.3f, V);
                CHECK((bytes(data.loss) == bytes(plain.loss)));
                wrong = 0;
                for (int r = 0; r < rows; r++)
                    wrong += bytes_at((float*)in_place + (size_t)r * cols, cols * sizeof(T)) != bytes_at(data.dlogits.view().data + (size_t)r * cols, cols * sizeof(T));
                CHECK(wrong == 0);
            }
}

TEST_CASE_TEMPLATE("crossentropy: a loss scale of 65536 multiplies every gradient exactly", T, float, bf16, fp16) {
    const int rows = 17, V = 257;
    Data<T> one(rows, V, normals(rows * V, 1), draw_targets(rows, V)), scaled(rows, V, normals(rows * V, 1), draw_targets(rows, V));
    const float dloss = 0.75f / rows;
    one.run(dloss), scaled.run(65536 * dloss);
    const auto d = one.dlogits.get(), s = scaled.dlogits.get();
    // Where the unscaled gradient is above T's smallest normal number: below it FP16 has lost bits, which is why we scale.
    const double smallest_normal = std::ldexp(1.0, 1 - Layout<T>::bias);
    int wrong = 0, compared = 0;
    for (size_t i = 0; i < d.size(); i++)
        if (std::fabs(d[i]) > smallest_normal) wrong += s[i] != 65536 * d[i], compared++;
    CHECK(wrong == 0);
    CHECK(compared > rows * V / 4);
    CHECK((bytes(one.loss) == bytes(scaled.loss)));
}

TEST_CASE_TEMPLATE("crossentropy: NaN and Inf are not hidden, and stay in their token", T, float, bf16, fp16) {
    for (float bad : {NAN, -NAN, INFINITY}) {
        CAPTURE(bad);
        auto values = normals(5 * 17, 1);
        values[2 * 17 + 16] = bad;
        Data<T> data(5, 17, values, {0, 1, 2, 3, 4});
        data.run(1);
        const auto loss = data.loss.get(), d = data.dlogits.get();
        int finite_in_row = 0, bad_elsewhere = 0;
        for (int r = 0; r < 5; r++) (r == 2 ? finite_in_row : bad_elsewhere) += std::isfinite(loss[r]) == (r == 2);
        for (int i = 0; i < 5 * 17; i++)
            if (i / 17 != 2) bad_elsewhere += !std::isfinite(d[i]);
        CHECK(finite_in_row == 0);
        CHECK(bad_elsewhere == 0);
        CHECK(std::isnan(d[2 * 17 + 16]));
    }
}

TEST_CASE_TEMPLATE("crossentropy: any number of threads gives the same bytes", T, float, bf16, fp16) {
    check_any_number_of_threads([] {
        Data<T> data(257, 257, normals(257 * 257, 1), draw_targets(257, 257));
        data.run(1);
        return bytes(data.loss) + bytes(data.dlogits);
    });
}

TEST_CASE("crossentropy: shapes that disagree are refused, with their values") {
    Data<float> data(5, 7, std::vector<float>(35), {0, 0, 0, 0, 0});
    Owned<float> four(4, 1), other(5, 8);
    const int* target = (const int*)data.target_memory.data();
    CHECK_THROWS_WITH_AS(crossentropy<float>(four, data.dlogits, data.logits, target, 1), doctest::Contains("4 losses for 5 rows"), Error);
    CHECK_THROWS_WITH_AS(crossentropy<float>(data.loss, data.dlogits, data.logits, target, 1, 8), doctest::Contains("a vocabulary of 8 in 7 columns"), Error);
    CHECK_THROWS_WITH_AS(crossentropy<float>(data.loss, other, data.logits, target, 1), doctest::Contains("dlogits has 40 elements, logits 35"), Error);
}
