// test_reference_model.cu -- the truth is tested too: against finite differences, hand arithmetic and PyTorch.
#include "reference_model.h"
#include <doctest/doctest.h>

namespace {

// A model whose sizes all differ, every parameter far from its neutral value so that no term of a gradient hides, and a
// batch in which tokens repeat, occur as input and as target, and leave one token and one position out.
struct Small {
    ReferenceModel model{2, 3, 6, 5, 7};
    int B = 2, T = 4;
    std::vector<int> x = {3, 1, 3, 0, 5, 2, 2, 1}, y = {1, 3, 0, 4, 2, 2, 1, 5};
    Small() {
        Rng rng(1, Stream::test);
        uint64_t n = 0;
        for (auto& p : model.parameters)
            for (double& value : p.value) value = 0.4 * rng.normal(n++) + (p.name.find("ln_") != std::string::npos);
    }
    double loss() { return model.loss(x, y, B, T); }
};

doctest::Approx close_to(double value) { return doctest::Approx(value).epsilon(1e-13); }

} // namespace

TEST_CASE("reference model: the parameters of GPT-2, in order") {
    ReferenceModel model(2, 3, 6, 5, 7);
    std::vector<std::string> names;
    size_t elements = 0;
    for (auto& p : model.parameters) names.push_back(p.name), elements += p.value.size();
    REQUIRE(names.size() == 2 + 12 * 2 + 2);
    const std::vector<std::string> first = {
        "wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight",
        "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.0.ln_2.weight", "h.0.ln_2.bias",
        "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias", "h.1.ln_1.weight"};
    CHECK(std::vector<std::string>(names.begin(), names.begin() + 15) == first);
    CHECK(names[26] == "ln_f.weight");
    CHECK(elements == 7 * 6 + 5 * 6 + 2 * (12 * 6 * 6 + 13 * 6) + 2 * 6); // the well-known 12 C^2 + 13 C of a block
    CHECK(model["h.1.mlp.c_fc.weight"].rows == 24);
    CHECK(model["h.1.mlp.c_fc.weight"].cols == 6);
    CHECK_THROWS_AS(model["h.2.ln_1.weight"], Error);
}

TEST_CASE("reference model: every element of every gradient is the central finite difference") {
    Small s;
    s.loss();
    s.model.backward();
    const double h = 1e-5; // the error of the difference is about h^2 + 1e-16 / h
    for (auto& p : s.model.parameters) {
        CAPTURE(p.name);
        double worst = 0, largest = 0;
        for (size_t e = 0; e < p.value.size(); e++) {
            double value = p.value[e];
            p.value[e] = value + h;
            double above = s.loss();
            p.value[e] = value - h;
            double below = s.loss();
            p.value[e] = value;
            worst = std::fmax(worst, std::fabs(p.grad[e] - (above - below) / (2 * h)));
            largest = std::fmax(largest, std::fabs(p.grad[e]));
        }
        CHECK(worst < 1e-9);
        CHECK(largest > 1e-3); // there was something to compare
    }
    // The tied matrix has two sources of gradient: token 6 occurs nowhere, and gets some as a logit nevertheless.
    CHECK(std::fabs(s.model["wte.weight"].grad[6 * 6]) > 1e-4);
    CHECK(s.model["wpe.weight"].grad[4 * 6] == 0); // position 4 is past T
}

TEST_CASE("reference model: gradients accumulate, times the scale") {
    Small s;
    s.loss();
    s.model.backward();
    const auto once = s.model;
    s.loss();
    s.model.backward(0.5);
    double worst = 0;
    for (size_t i = 0; i < once.parameters.size(); i++)
        for (size_t e = 0; e < once.parameters[i].grad.size(); e++)
            worst = std::fmax(worst, std::fabs(s.model.parameters[i].grad[e] - 1.5 * once.parameters[i].grad[e]));
    CHECK(worst < 1e-14);
    CHECK(s.model.grad_norm() == close_to(1.5 * once.grad_norm()));
    s.model.zero_grad();
    CHECK(s.model.grad_norm() == 0);
    s.model["ln_f.bias"].grad[0] = 3, s.model["wte.weight"].grad[5] = -4;
    CHECK(s.model.grad_norm() == 5);
}

TEST_CASE("reference model: a model that knows nothing loses log V nats") {
    Small s;
    for (auto& p : s.model.parameters) p.value.assign(p.value.size(), 0);
    CHECK(s.loss() == close_to(std::log(7.0)));
    for (double logit : s.model.logits) CHECK(logit == 0);
}

TEST_CASE("reference model: no blocks, by hand") {
    // Two channels: the layernorm of (a, b) with a > b is (r, -r), r = d / sqrt(d^2 + 1e-5), d = (a - b) / 2.
    ReferenceModel model(0, 1, 2, 1, 2);
    model["wte.weight"].value = {3, 0, 1, 4};
    model["wpe.weight"].value = {2, 1};
    model["ln_f.weight"].value = {1, 2};
    model["ln_f.bias"].value = {0.5, 0};
    double loss = model.loss({0}, {1}, 1, 1), r = 2 / std::sqrt(4 + 1e-5); // x = (3, 0) + (2, 1) = (5, 1), d = 2
    double l0 = 3 * (r + 0.5), l1 = (r + 0.5) - 4 * 2 * r;
    CHECK(model.logits[0] == close_to(l0));
    CHECK(model.logits[1] == close_to(l1));
    CHECK(loss == close_to(std::log(std::exp(l0) + std::exp(l1)) - l1));
}

TEST_CASE("reference model: causal, and every row of the batch for itself") {
    Small s;
    s.loss();
    const auto before = s.model.logits;
    for (int t = 0; t < s.T; t++) { // another token at t of row 0
        auto x = s.x;
        x[t] = 6;
        s.model.loss(x, s.y, s.B, s.T);
        for (int bt = 0; bt < s.B * s.T; bt++) {
            bool same = true;
            for (int v = 0; v < 7; v++) same = same && s.model.logits[bt * 7 + v] == before[bt * 7 + v];
            CAPTURE(t);
            CAPTURE(bt);
            CHECK(same == (bt < t || bt >= s.T)); // ... changes the logits of t and after, in row 0
        }
    }
}

TEST_CASE("reference model: two steps of AdamW, by hand") {
    ReferenceModel model(1, 1, 2, 2, 2);
    auto &matrix = model["wpe.weight"], &bias = model["ln_f.bias"];
    matrix.value[3] = 2, matrix.grad[3] = 8;
    bias.value[1] = 2, bias.grad[1] = 8;
    // lr 0.1, beta 0.5 and 0.75, eps 0.5, decay 0.2, gradient 8 * 0.5 = 4:   m = 2, v = 4, mhat = 4, vhat = 16
    model.adamw(0.1, 0.5, 0.75, 0.5, 0.2, 1, 0.5);
    CHECK(matrix.m[3] == 2);
    CHECK(matrix.v[3] == 4);
    CHECK(matrix.value[3] == close_to(2 * (1 - 0.1 * 0.2) - 0.1 * 4 / 4.5)); // matrices decay
    CHECK(bias.value[1] == close_to(2 - 0.1 * 4 / 4.5));                     // vectors do not
    // gradient -2:   m = 2/2 - 2/2 = 0,   v = 3 + 4/4 = 4, so that only the decay moves anything
    matrix.grad[3] = bias.grad[1] = -2;
    double value = matrix.value[3], bias_value = bias.value[1];
    model.adamw(0.1, 0.5, 0.75, 0.5, 0.2, 2);
    CHECK(matrix.m[3] == 0);
    CHECK(matrix.v[3] == 4);
    CHECK(matrix.value[3] == close_to(value * 0.98));
    CHECK(bias.value[1] == bias_value);
    // gradient 1:   m = 1/2, mhat = m / (1 - 1/8),   v = 3 + 1/4, vhat = v / (1 - 27/64)
    bias.grad[1] = 1;
    model.adamw(0.1, 0.5, 0.75, 0.5, 0.2, 3);
    CHECK(bias.value[1] == close_to(bias_value - 0.1 * (0.5 / 0.875) / (std::sqrt(3.25 * 64 / 37) + 0.5)));
}

TEST_CASE("reference model: the learning rate rises, then follows half a cosine") {
    auto rate = [](int t) { return ReferenceModel::learning_rate(t, 14, 1.0, 0.2, 4); };
    CHECK(rate(0) == 0.25);
    CHECK(rate(3) == 1);
    CHECK(rate(4) == 1);                                                    // the cosine's start
    CHECK(rate(9) == close_to(0.6));                                        // half way between the two
    CHECK(rate(13) == close_to(0.2 + 0.4 * (1 + std::cos(M_PI * 9 / 10)))); // the last step; 0.2 itself is the next
    CHECK(ReferenceModel::learning_rate(0, 10, 3, 1, 0) == 3);              // no warmup
}

TEST_CASE("reference model: the start is the trainer's, exact in FP32") {
    ReferenceModel model(2, 2, 32, 16, 64);
    model.init(5);
    Rng rng(5, Stream::weights);
    CHECK(model["wte.weight"].value[7] == 0.02f * rng.normal(7));
    CHECK(model["h.0.attn.c_proj.weight"].value[9] == 0.01f * rng.normal((uint64_t)6 << 40 | 9)); // 0.02 / sqrt(4)
    for (auto& p : model.parameters) {
        CAPTURE(p.name);
        double mean = 0, square = 0;
        bool exact = true;
        for (double value : p.value) {
            exact = exact && value == (double)(float)value;
            mean += value / p.value.size(), square += value * value / p.value.size();
        }
        CHECK(exact);
        bool projection = p.name.find("c_proj") != std::string::npos;
        if (p.is_matrix)
            CHECK(std::sqrt(square) == doctest::Approx(projection ? 0.01 : 0.02).epsilon(0.1));
        else
            CHECK(mean == (p.name.find(".bias") == std::string::npos)); // layernorm weights 1, biases 0
    }
}

// Ten steps with the weights, batches and settings of scripts/check_against_pytorch.py, and its losses in float64.
TEST_CASE("reference model: the training losses are PyTorch's") {
    const char* words[] = {"the", "cat", "and", "a", "dog", "ran", "to", "see", "one", "small", "red", "bird", "sing"};
    std::string text;
    for (int n = 0; n < 5000; n++) text += (n ? " " : "") + std::string(words[Rng(1, Stream::test).below(n, 13)]);
    const double pytorch[] = {5.551793502677, 5.414281838501, 5.250486429532, 5.103952299525, 5.010974313191,
                              4.830738651950, 4.736131524310, 4.642896683042, 4.564590056949, 4.539353633452};

    const int B = 2, T = 16, accumulate = 2, steps = 10;
    ReferenceModel model(2, 2, 32, T, 256);
    model.init(1);
    for (int step = 0; step < steps; step++) {
        model.zero_grad();
        double loss = 0;
        for (int micro = 0; micro < accumulate; micro++) {
            std::vector<int> x, y;
            for (int r = 0; r < B; r++) {
                uint64_t n = (step * accumulate + micro) * B + r;
                uint64_t offset = Rng(1, Stream::batches).below(n, text.size() * 9 / 10 - T);
                for (int t = 0; t < T; t++) x.push_back(text[offset + t]), y.push_back(text[offset + t + 1]);
            }
            loss += model.loss(x, y, B, T) / accumulate;
            model.backward(1.0 / accumulate);
        }
        double lr = ReferenceModel::learning_rate(step, steps, 3e-3, 3e-4, 3);
        model.adamw(lr, 0.9, 0.95, 1e-8, 0.1, step + 1, std::fmin(1, 2.2 / model.grad_norm())); // two are clipped
        CAPTURE(step);
        CHECK(loss == doctest::Approx(pytorch[step]).epsilon(1e-9));
    }
}

TEST_CASE("reference model: refuses what does not fit") {
    Small s;
    CHECK_THROWS_AS(ReferenceModel(1, 4, 6, 5, 7), Error);                              // heads
    CHECK_THROWS_AS(s.model.loss({0, 1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6}, 1, 6), Error); // context
    CHECK_THROWS_AS(s.model.loss({0, 1}, {1}, 1, 2), Error);                            // sizes
    CHECK_THROWS_AS(s.model.loss({0, 7}, {1, 2}, 1, 2), Error);                         // vocabulary
}
