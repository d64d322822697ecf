// test_sampling.cu -- sampling.cuh: which token is drawn, and what a text goes on with. (Logits of a cached text: test_gpt.cu.)
#include "training.cuh"
#include "bounds.h"
#include <numeric>
#include <set>

namespace {

Sampling at(double temperature, int top_k = 0, double top_p = 1) { return {temperature, top_k, top_p, 1}; }

const Shape SHAPE = {2, 2, 12, 8, 64};

template <class T>
std::vector<int> continued(GPT<T>& gpt, const std::vector<int>& text, int count, const Sampling& how, int context = SHAPE.context) {
    std::vector<int> tokens;
    generate(gpt, text, count, context, how, [&](int token) { return tokens.push_back(token), true; });
    return tokens;
}

// body(gpt) with an initial model of each recipe.
template <class F>
void each_model(F body) {
    for (const Recipe& r : RECIPES) {
        CAPTURE(std::string(r.name));
        with_stored(r.stored, [&](auto zero) {
            GPT<decltype(zero)> gpt(SHAPE, r, 1, SHAPE.context, false, Pass::read);
            gpt.initialise(1);
            body(gpt);
        });
    }
}

} // namespace

// ==== drawing a token ================================================================================================

TEST_CASE("sampling: a draw at temperature 0 is the largest logit, whatever the uniform number; of equals the first") {
    for (float u : {0.0f, 0.5f, 1 - 0x1p-24f}) {
        CHECK(draw({0.5f, -1, 3, 2.9f}, at(0), u) == 2);
        CHECK(draw({-5, -4, -4, -6}, at(0), u) == 1);
        CHECK(draw({0}, at(0), u) == 0);
        CHECK(draw({-1e30f, 1e30f}, at(0), u) == 1);
    }
}

TEST_CASE("sampling: each token has its own interval of the uniform number, as wide as its probability") {
    const float small = std::log(1.0f), large = std::log(2.0f);
    const float eps = 0x1p-20f;                              // more than the logits' own rounding can move a border
    const std::vector<float> logits = {small, large, small}; // 1/4, 1/2, 1/4
    for (const std::pair<float, int>& i : std::vector<std::pair<float, int>>{{0, 0}, {0.125f, 0}, {0.25f - eps, 0}, {0.25f + eps, 1}, {0.5f, 1}, {0.75f - eps, 1}, {0.75f + eps, 2}, {1 - 0x1p-24f, 2}})
        CHECK_MESSAGE(draw(logits, at(1), i.first) == i.second, i.first);
    // At temperature 1/2 probabilities are squared: 1/6, 4/6, 1/6.
    for (const std::pair<float, int>& i : std::vector<std::pair<float, int>>{{1 / 6.0f - eps, 0}, {1 / 6.0f + eps, 1}, {5 / 6.0f - eps, 1}, {5 / 6.0f + eps, 2}})
        CHECK_MESSAGE(draw(logits, at(0.5), i.first) == i.second, i.first);
    // A temperature near 0 is as 0 is, and no size of logits overflows.
    for (float u : {0.0f, 0.5f, 1 - 0x1p-24f}) {
        CHECK(draw({1, 2, 1.5f}, at(1e-300), u) == 1);
        CHECK(draw({-3e38f, 3e38f, 0}, at(1), u) == 1);
        CHECK(draw({-INFINITY, 5, -INFINITY}, at(1), u) == 1); // what has no probability is never drawn
    }
}

TEST_CASE("sampling: the frequencies of 100,000 draws are those of softmax, within five standard deviations") {
    const int n = 100000;
    const Rng rng(3, Stream::sampling);
    for (double temperature : {0.5, 0.8, 1.0, 3.0}) {
        const auto logits = normals(7, 4, 1.5f);
        std::vector<double> p;
        std::vector<int> count(7);
        double sum = 0;
        for (float l : logits) p.push_back(std::exp(l / temperature)), sum += p.back();
        for (int i = 0; i < n; i++) count.at(draw(logits, at(temperature), rng.uniform(i)))++;
        for (int v = 0; v < 7; v++) {
            const double expected = n * p[v] / sum, deviation = std::sqrt(expected * (1 - p[v] / sum));
            CHECK_MESSAGE(std::fabs(count[v] - expected) <= 5 * deviation,
                          format("temperature %g, token %d: %d, expected %.1f", temperature, v, count[v], expected));
        }
    }
}

TEST_CASE("sampling: top-k draws from the k largest, with those that tie with the last of them") {
    const std::vector<float> logits = {0, std::log(4.0f), std::log(2.0f), 0, std::log(8.0f)}; // 1 4 2 1 8, of 16
    auto drawn = [&](int k) {
        std::vector<int> tokens;
        for (int i = 0; i < 1600; i++)
            if (const int token = draw(logits, at(1, k), (i + 0.5f) / 1600); tokens.empty() || tokens.back() != token) tokens.push_back(token);
        return tokens;
    };
    CHECK(drawn(0) == std::vector<int>{0, 1, 2, 3, 4});
    CHECK(drawn(1) == std::vector<int>{4});
    CHECK(drawn(2) == std::vector<int>{1, 4});
    CHECK(drawn(3) == std::vector<int>{1, 2, 4});
    CHECK(drawn(4) == std::vector<int>{0, 1, 2, 3, 4}); // 0 and 3 tie
    CHECK(drawn(5) == drawn(0));
    CHECK(drawn(1 << 30) == drawn(0));
    CHECK(draw(logits, at(1, 2), 1 / 3.0f - 1e-5f) == 1); // 4 and 8, of 12
    CHECK(draw(logits, at(1, 2), 1 / 3.0f + 1e-5f) == 4);
}

TEST_CASE("sampling: top-p draws from the fewest tokens that have that probability, after temperature and top-k") {
    const std::vector<float> logits = {0, std::log(4.0f), std::log(2.0f), 0, std::log(8.0f)};
    auto drawn = [&](const Sampling& how) {
        std::set<int> tokens;
        for (int i = 0; i < 1600; i++) tokens.insert(draw(logits, how, (i + 0.5f) / 1600));
        return tokens;
    };
    CHECK(drawn(at(1, 0, 0)) == std::set<int>{4});
    CHECK(drawn(at(1, 0, 0.49)) == std::set<int>{4});
    CHECK(drawn(at(1, 0, 0.51)) == std::set<int>{1, 4});
    CHECK(drawn(at(1, 0, 0.74)) == std::set<int>{1, 4});
    CHECK(drawn(at(1, 0, 0.76)) == std::set<int>{1, 2, 4});
    CHECK(drawn(at(1, 0, 0.88)) == std::set<int>{0, 1, 2, 4}); // of equals the first
    CHECK(drawn(at(1, 0, 1)).size() == 5);
    CHECK(drawn(at(0.5, 0, 0.74)) == std::set<int>{4});      // 64 of 86
    CHECK(drawn(at(0.5, 0, 0.75)) == std::set<int>{1, 4});
    CHECK(drawn(at(1, 2, 0.66)) == std::set<int>{4});        // 8 of 12
    CHECK(drawn(at(1, 2, 0.67)) == std::set<int>{1, 4});
}

TEST_CASE("sampling: logits that are not finite are an error, not a token") {
    for (double temperature : {0.0, 1.0}) {
        CHECK_THROWS_WITH_AS(draw({1, NAN, 2}, at(temperature), 0.5f), doctest::Contains("hold a NaN or an Inf"), Error);
        CHECK_THROWS_AS(draw({NAN, 1, 2}, at(temperature), 0.5f), Error);
        CHECK_THROWS_AS(draw({1, INFINITY}, at(temperature), 0.5f), Error);
        CHECK_THROWS_AS(draw({-INFINITY, -INFINITY}, at(temperature), 0.5f), Error);
    }
}

// ==== a text, continued ==============================================================================================

TEST_CASE("sampling: the same text for the same seed, and at temperature 0 for every seed; it can be stopped") {
    each_model([](auto& gpt) {
        Sampling other = at(1);
        other.seed = 2;
        const auto text = continued(gpt, {1, 2}, 20, at(1)); // beyond the context of 8
        CHECK(text.size() == 20);
        for (int token : text) CHECK((token >= 0 && token < SHAPE.vocab));
        CHECK(continued(gpt, {1, 2}, 20, at(1)) == text);
        CHECK(continued(gpt, {1, 2}, 20, other) != text);
        CHECK(continued(gpt, {1, 2}, 5, at(1)) == std::vector<int>(text.begin(), text.begin() + 5));
        CHECK(continued(gpt, {1, 2}, 0, at(1)).empty());
        other.temperature = 0;
        CHECK(continued(gpt, {1, 2}, 20, other) == continued(gpt, {1, 2}, 20, at(0)));
        std::vector<int> three;
        generate(gpt, {1, 2}, 20, SHAPE.context, at(1), [&](int token) { return three.push_back(token), three.size() < 3; });
        CHECK(three == std::vector<int>(text.begin(), text.begin() + 3));
        CHECK_THROWS_WITH_AS(continued(gpt, {}, 1, at(1)), doctest::Contains("a text of 0 tokens"), Error);
    });
}

TEST_CASE("sampling: each token is drawn from what follows those before it; a full cache goes on with its later half") {
    GPT<float> gpt(SHAPE, recipe_fp32, 1, SHAPE.context, false, Pass::read), whole(SHAPE, recipe_fp32, 1, SHAPE.context);
    for (GPT<float>* g : {&gpt, &whole})
        for (Parameter& p : g->parameters) { // unlike initial weights, they make each token's logits their own
            const auto values = normals(p.size(), 7, 0.3f);
            copy_to_machine(p.master, values.data(), values.size());
        }
    gpt.follow_masters(), whole.follow_masters();
    for (int given : {1, 3, 8, 11})
        for (int context : {1, 2, 5, 8}) {
            INFO("given " << given << ", context " << context);
            std::vector<int> text(given);
            std::iota(text.begin(), text.end(), 20);
            const auto tokens = continued(gpt, text, 20, at(1), context);
            int seen = std::min(given, context);
            for (int i = 0; i < 20; i++) {
                const auto logits = next_logits(whole, {{text.end() - seen, text.end()}}, SHAPE.context)[0];
                const float u = Rng(1, Stream::sampling).uniform(i);
                const int token = draw(logits, at(1), u); // the cached logits differ in their last bits: u must not be at a border
                const bool clear = draw(logits, at(1), std::max(0.0f, u - 1e-5f)) == token && draw(logits, at(1), u + 1e-5f) == token;
                if (clear) CHECK(tokens[i] == token);
                text.push_back(tokens[i]);
                seen = seen == context ? std::max(1, context / 2) : seen + 1;
            }
        }
}
