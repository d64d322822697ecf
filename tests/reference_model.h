// reference_model.h -- GPT-2 in plain double-precision loops: the truth that the trainer is tested against.
//
//   x = wte[token] + wpe[t]
//   for each block:   x += c_proj(attention(c_attn(ln_1(x))))          x += c_proj(gelu(c_fc(ln_2(x))))
//   logits = ln_f(x) wte^T          loss = mean over tokens of -log softmax(logits)[y]
//
// Source   Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; parameter names of its release
//          Loshchilov, Hutter 2017, "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2
// Shapes   activations (BT, channels), row bt = b*T + t          weights (out, in)          biases (1, out)
// Formats  double everywhere: a difference from the trainer is the trainer's rounding
// Why      Each function is a textbook's formula and remembers only its input, under its name: input["h.0.ln_1"].
//          Slow; for models of a few thousand parameters. Parameter gradients accumulate (+=), the rest is assigned.
// Tests    tests/test_reference_model.cu (finite differences, hand arithmetic, PyTorch's losses)
#pragma once
#include "rng.h"
#include <map>

struct ReferenceModel {
    using Doubles = std::vector<double>;
    struct Parameter {
        std::string name;
        bool is_matrix; // two dimensions: drawn at random at the start, and subject to weight decay
        int rows, cols;
        Doubles value, grad, m, v; // m, v: AdamW's running means of the gradient and of its square
    };

    int layers, heads, channels, context, vocab;
    std::vector<Parameter> parameters; // in the order the constructor declares them
    // Of the last loss():
    int B = 0, T = 0;
    std::vector<int> tokens, targets;     // (BT) each
    std::map<std::string, Doubles> input; // what each layer was given
    Doubles logits, prob;                 // (BT, vocab), and its softmax

    ReferenceModel(int layers, int heads, int channels, int context, int vocab)
        : layers(layers), heads(heads), channels(channels), context(context), vocab(vocab) {
        ENSURE(channels % heads == 0, "%d channels do not split into %d heads", channels, heads);
        const int C = channels;
        auto declare = [&](const std::string& name, bool is_matrix, int rows, int cols) {
            Doubles zero((size_t)rows * cols);
            parameters.push_back({name, is_matrix, rows, cols, zero, zero, zero, zero});
        };
        auto add_linear = [&](const std::string& name, int out, int in) {
            declare(name + ".weight", true, out, in), declare(name + ".bias", false, 1, out);
        };
        auto add_layernorm = [&](const std::string& name) {
            declare(name + ".weight", false, 1, C), declare(name + ".bias", false, 1, C);
        };
        declare("wte.weight", true, vocab, C);
        declare("wpe.weight", true, context, C);
        for (int i = 0; i < layers; i++) {
            const std::string h = "h." + std::to_string(i);
            add_layernorm(h + ".ln_1");
            add_linear(h + ".attn.c_attn", 3 * C, C);
            add_linear(h + ".attn.c_proj", C, C);
            add_layernorm(h + ".ln_2");
            add_linear(h + ".mlp.c_fc", 4 * C, C);
            add_linear(h + ".mlp.c_proj", C, 4 * C);
        }
        add_layernorm("ln_f");
    }
    Parameter& operator[](const std::string& name) {
        for (Parameter& p : parameters)
            if (p.name == name) return p;
        throw Error(1, "there is no parameter " + name);
    }

    // The trainer's start, bit for bit: matrices N(0, 0.02), the projections onto the residual stream
    // N(0, 0.02 / sqrt(2 layers)), biases 0, layernorm weights 1. Element e of tensor i is number (i << 40 | e).
    void init(uint32_t seed) {
        auto is = [](const Parameter& p, const char* part) { return p.name.find(part) != std::string::npos; };
        Rng rng(seed, Stream::weights);
        for (size_t i = 0; i < parameters.size(); i++) {
            Parameter& p = parameters[i];
            float deviation = is(p, "c_proj.weight") ? (float)(0.02 / std::sqrt(2.0 * layers)) : 0.02f;
            for (size_t e = 0; e < p.value.size(); e++)
                p.value[e] = p.is_matrix ? deviation * rng.normal((uint64_t)i << 40 | e) : is(p, ".weight");
        }
    }

    // The mean cross-entropy, in nats, of x (B, T) against the tokens y (B, T) that follow.
    double loss(const std::vector<int>& x, const std::vector<int>& y, int rows, int time) {
        tokens = x, targets = y, B = rows, T = time;
        ENSURE(T <= context, "T is %d, the context %d", T, context);
        ENSURE(x.size() == (size_t)B * T && y.size() == x.size(), "x %zu, y %zu, B*T %d", x.size(), y.size(), B * T);
        for (const auto& ids : {x, y})
            for (int id : ids) ENSURE(0 <= id && id < vocab, "token %d is outside the vocabulary of %d", id, vocab);
        Doubles res = embedding(), branch;
        for (int i = 0; i < layers; i++) {
            const std::string h = "h." + std::to_string(i);
            branch = layernorm(res, h + ".ln_1");
            branch = linear(branch, h + ".attn.c_attn"); // q | k | v, in each of them the heads side by side
            branch = attention(branch, h + ".attn");
            branch = linear(branch, h + ".attn.c_proj");
            res = sum(res, branch);
            branch = layernorm(res, h + ".ln_2");
            branch = linear(branch, h + ".mlp.c_fc");
            branch = gelu(branch, h + ".mlp.gelu");
            branch = linear(branch, h + ".mlp.c_proj");
            res = sum(res, branch);
        }
        logits = linear(layernorm(res, "ln_f"), "wte"); // the head is the embedding's matrix again
        return crossentropy();
    }

    // grad += scale * d loss / d parameter, at the last loss(): the same lines, bottom to top.
    void backward(double scale = 1) {
        Doubles dlogits = crossentropy_backward(scale);
        Doubles dres = layernorm_backward(linear_backward(dlogits, "wte"), "ln_f"), dbranch;
        for (int i = layers - 1; i >= 0; i--) {
            const std::string h = "h." + std::to_string(i);
            dbranch = linear_backward(dres, h + ".mlp.c_proj");
            dbranch = gelu_backward(dbranch, h + ".mlp.gelu");
            dbranch = linear_backward(dbranch, h + ".mlp.c_fc");
            dbranch = layernorm_backward(dbranch, h + ".ln_2");
            dres = sum(dres, dbranch);
            dbranch = linear_backward(dres, h + ".attn.c_proj");
            dbranch = attention_backward(dbranch, h + ".attn");
            dbranch = linear_backward(dbranch, h + ".attn.c_attn");
            dbranch = layernorm_backward(dbranch, h + ".ln_1");
            dres = sum(dres, dbranch);
        }
        embedding_backward(dres);
    }

    void zero_grad() {
        for (Parameter& p : parameters) p.grad.assign(p.grad.size(), 0);
    }
    double grad_norm() const {
        double square = 0;
        for (const Parameter& p : parameters)
            for (double g : p.grad) square += g * g;
        return std::sqrt(square);
    }

    // Step t = 1, 2, ... of AdamW, on the gradients times grad_scale (clipping is a grad_scale).
    void adamw(double lr, double beta1, double beta2, double eps, double weight_decay, int t, double grad_scale = 1) {
        for (Parameter& p : parameters)
            for (size_t e = 0; e < p.value.size(); e++) {
                double g = p.grad[e] * grad_scale;
                p.m[e] = beta1 * p.m[e] + (1 - beta1) * g;
                p.v[e] = beta2 * p.v[e] + (1 - beta2) * g * g;
                double mhat = p.m[e] / (1 - std::pow(beta1, t)), vhat = p.v[e] / (1 - std::pow(beta2, t));
                if (p.is_matrix) p.value[e] *= 1 - lr * weight_decay;
                p.value[e] -= lr * mhat / (std::sqrt(vhat) + eps);
            }
    }
    // Of step t = 0, 1, ..., steps-1: a straight rise over `warmup` steps, then half a cosine from lr towards min_lr.
    static double learning_rate(int t, int steps, double lr, double min_lr, int warmup) {
        if (t < warmup) return lr * (t + 1) / warmup;
        return min_lr + 0.5 * (1 + std::cos(M_PI * (t - warmup) / (steps - warmup))) * (lr - min_lr);
    }

    // ==== the layers =================================================================================================

    static double dot(const double* x, const double* y, int n) {
        double total = 0;
        for (int i = 0; i < n; i++) total += x[i] * y[i];
        return total;
    }
    static void add(double* y, double factor, const double* x, int n) { // y += factor x
        for (int i = 0; i < n; i++) y[i] += factor * x[i];
    }
    static Doubles sum(Doubles x, const Doubles& y) {
        for (size_t i = 0; i < x.size(); i++) x[i] += y[i];
        return x;
    }
    static void softmax(double* x, int n) { // in place; less the maximum, so that exp cannot overflow
        double largest = x[0], total = 0;
        for (int i = 0; i < n; i++) largest = std::fmax(largest, x[i]);
        for (int i = 0; i < n; i++) total += x[i] = std::exp(x[i] - largest);
        for (int i = 0; i < n; i++) x[i] /= total;
    }

    // x = wte[token] + wpe[t]
    Doubles embedding() {
        const int C = channels;
        Doubles x((size_t)B * T * C);
        for (int bt = 0; bt < B * T; bt++) {
            add(&x[bt * C], 1, &parameters[0].value[tokens[bt] * C], C);
            add(&x[bt * C], 1, &parameters[1].value[bt % T * C], C);
        }
        return x;
    }
    void embedding_backward(const Doubles& dx) { // dwte[token] += dx          dwpe[t] += dx
        const int C = channels;
        for (int bt = 0; bt < B * T; bt++) {
            add(&parameters[0].grad[tokens[bt] * C], 1, &dx[bt * C], C);
            add(&parameters[1].grad[bt % T * C], 1, &dx[bt * C], C);
        }
    }

    // y = x w^T + b; the head, which is wte, has no b                     (BT, in) @ (out, in)^T -> (BT, out)
    Doubles linear(const Doubles& x, const std::string& name) {
        input[name] = x;
        const Parameter& w = (*this)[name + ".weight"];
        const Doubles b = name == "wte" ? Doubles(vocab) : (*this)[name + ".bias"].value;
        Doubles y((size_t)B * T * w.rows);
        for (int bt = 0; bt < B * T; bt++)
            for (int o = 0; o < w.rows; o++)
                y[bt * w.rows + o] = dot(&x[bt * w.cols], &w.value[o * w.cols], w.cols) + b[o];
        return y;
    }
    // dx = dy w          dw += dy^T x          db += sum over bt of dy
    Doubles linear_backward(const Doubles& dy, const std::string& name) {
        const Doubles& x = input[name];
        Parameter& w = (*this)[name + ".weight"];
        Doubles none(vocab), &db = name == "wte" ? none : (*this)[name + ".bias"].grad, dx(x.size());
        for (int bt = 0; bt < B * T; bt++)
            for (int o = 0; o < w.rows; o++) {
                const double d = dy[bt * w.rows + o];
                add(&dx[bt * w.cols], d, &w.value[o * w.cols], w.cols);
                add(&w.grad[o * w.cols], d, &x[bt * w.cols], w.cols);
                db[o] += d;
            }
        return dx;
    }

    // xhat = (x - mean) rstd          rstd = 1 / sqrt(mean of (x - mean)^2 + 1e-5)
    struct Normalised {
        double mean = 0, variance = 0, rstd;
        Doubles xhat;
        Normalised(const double* x, int C) : xhat(C) {
            for (int c = 0; c < C; c++) mean += x[c] / C;
            for (int c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / C;
            rstd = 1 / std::sqrt(variance + 1e-5);
            for (int c = 0; c < C; c++) xhat[c] = (x[c] - mean) * rstd;
        }
    };
    // y = xhat w + b
    Doubles layernorm(const Doubles& x, const std::string& name) {
        input[name] = x;
        const int C = channels;
        const Parameter &w = (*this)[name + ".weight"], &b = (*this)[name + ".bias"];
        Doubles y(x.size());
        for (int bt = 0; bt < B * T; bt++) {
            const Normalised n(&x[bt * C], C);
            for (int c = 0; c < C; c++) y[bt * C + c] = n.xhat[c] * w.value[c] + b.value[c];
        }
        return y;
    }
    // dxhat = dy w          dx = (dxhat - mean(dxhat) - xhat mean(dxhat xhat)) rstd
    // dw += sum over bt of dy xhat          db += sum over bt of dy
    Doubles layernorm_backward(const Doubles& dy, const std::string& name) {
        const int C = channels;
        Parameter &w = (*this)[name + ".weight"], &b = (*this)[name + ".bias"];
        Doubles dx(dy.size()), dxhat(C), ones(C, 1);
        for (int bt = 0; bt < B * T; bt++) {
            const Normalised n(&input[name][bt * C], C);
            for (int c = 0; c < C; c++) {
                dxhat[c] = dy[bt * C + c] * w.value[c];
                w.grad[c] += dy[bt * C + c] * n.xhat[c];
                b.grad[c] += dy[bt * C + c];
            }
            const double mean = dot(&dxhat[0], &ones[0], C) / C, mean_xhat = dot(&dxhat[0], &n.xhat[0], C) / C;
            for (int c = 0; c < C; c++) dx[bt * C + c] = (dxhat[c] - mean - n.xhat[c] * mean_xhat) * n.rstd;
        }
        return dx;
    }

    // y = x/2 (1 + tanh u)          u = sqrt(2/pi) (x + 0.044715 x^3)
    static double tanh_u(double x) { return std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
    Doubles gelu(Doubles x, const std::string& name) {
        input[name] = x;
        for (double& v : x) v = 0.5 * v * (1 + tanh_u(v));
        return x;
    }
    // dx = dy ((1 + tanh u)/2 + x/2 (1 - tanh^2 u) du/dx)          du/dx = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
    Doubles gelu_backward(const Doubles& dy, const std::string& name) {
        Doubles d = input[name];
        for (size_t i = 0; i < d.size(); i++) {
            const double x = d[i], th = tanh_u(x), du_dx = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
            d[i] = dy[i] * (0.5 * (1 + th) + 0.5 * x * (1 - th * th) * du_dx);
        }
        return d;
    }

    // Where the query (part 0), key (1) or value (2) of token t of row b begins for head h, in qkv (BT, 3C).
    size_t at(int part, int b, int t, int h) const {
        return ((size_t)(b * T + t) * 3 + part) * channels + h * (channels / heads);
    }
    // prob_s = softmax over s <= t of q_t k_s / sqrt(hs)
    Doubles attention_prob(const Doubles& qkv, int b, int t, int h) const {
        const int hs = channels / heads;
        Doubles prob(t + 1);
        for (int s = 0; s <= t; s++) prob[s] = dot(&qkv[at(0, b, t, h)], &qkv[at(1, b, s, h)], hs) / std::sqrt(hs);
        softmax(&prob[0], t + 1);
        return prob;
    }
    // y_t = sum over s of prob_s v_s, in each head                        (BT, 3C) -> (BT, C)
    Doubles attention(const Doubles& qkv, const std::string& name) {
        input[name] = qkv;
        const int C = channels, hs = C / heads;
        Doubles y((size_t)B * T * C);
        for (int b = 0; b < B; b++)
            for (int t = 0; t < T; t++)
                for (int h = 0; h < heads; h++) {
                    const Doubles prob = attention_prob(qkv, b, t, h);
                    for (int s = 0; s <= t; s++) add(&y[(b * T + t) * C + h * hs], prob[s], &qkv[at(2, b, s, h)], hs);
                }
        return y;
    }
    // dprob_s = dy_t v_s          dscore_s = prob_s (dprob_s - sum over s of prob_s dprob_s)
    // dq_t += dscore_s k_s / sqrt(hs)          dk_s += dscore_s q_t / sqrt(hs)          dv_s += prob_s dy_t
    Doubles attention_backward(const Doubles& dy, const std::string& name) {
        const Doubles& qkv = input[name];
        const int C = channels, hs = C / heads;
        Doubles d(qkv.size());
        for (int b = 0; b < B; b++)
            for (int t = 0; t < T; t++)
                for (int h = 0; h < heads; h++) {
                    const Doubles prob = attention_prob(qkv, b, t, h);
                    const double* dy_t = &dy[(b * T + t) * C + h * hs];
                    const size_t q = at(0, b, t, h);
                    Doubles dprob(t + 1);
                    for (int s = 0; s <= t; s++) dprob[s] = dot(dy_t, &qkv[at(2, b, s, h)], hs);
                    const double mean = dot(&prob[0], &dprob[0], t + 1);
                    for (int s = 0; s <= t; s++) {
                        const size_t k = at(1, b, s, h), v = at(2, b, s, h);
                        const double dscore = prob[s] * (dprob[s] - mean);
                        add(&d[q], dscore / std::sqrt(hs), &qkv[k], hs);
                        add(&d[k], dscore / std::sqrt(hs), &qkv[q], hs);
                        add(&d[v], prob[s], dy_t, hs);
                    }
                }
        return d;
    }

    // loss = mean over bt of -log softmax(logits)[y]
    double crossentropy() {
        double loss = 0;
        prob = logits;
        for (int bt = 0; bt < B * T; bt++) {
            softmax(&prob[bt * vocab], vocab);
            loss -= std::log(prob[bt * vocab + targets[bt]]) / (B * T);
        }
        return loss;
    }
    // dlogits = scale (softmax(logits) - onehot(y)) / BT
    Doubles crossentropy_backward(double scale) const {
        Doubles d = prob;
        for (int bt = 0; bt < B * T; bt++) d[bt * vocab + targets[bt]] -= 1;
        for (double& v : d) v *= scale / (B * T);
        return d;
    }
};
