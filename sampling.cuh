// sampling.cuh -- text, token by token: what the model expects next, a draw from it, and the same again.
//
//   p = softmax(logits / temperature), of the top_k largest, of these the fewest that have top_p of it together
//
// Source   Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751 (top-p); in the order of Hugging Face's generate
// Formats  logits in FP32; probabilities in double
// Why      keys and values of what was read do not change: a new token costs one pass of one row. Each weight is read once for it, and
//          that is what it costs. Positions are learned, so a full cache cannot slide: the later half of it is read again.
// Tests    tests/test_sampling.cu     Times  bench.cu, bench_sampling
#pragma once
#include <numeric>
#include "gpt.cuh"

struct Sampling {
    double temperature = 0.8; // 0: always the most likely token
    int top_k = 0;            // 0: all
    double top_p = 1;
    uint32_t seed = 1;
};

// A token drawn by a uniform number u. Those that tie with the k-th largest stay.
inline int draw(const std::vector<float>& logits, const Sampling& how, float u) {
    const int best = int(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (!std::isfinite(logits[best]) || std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }))
        throw Error(1, "the model's logits hold a NaN or an Inf: no token can be drawn");
    if (how.temperature == 0) return best;
    std::vector<double> p(logits.size());
    for (size_t v = 0; v < p.size(); v++) p[v] = std::exp((logits[v] - logits[best]) / how.temperature);
    auto sum = [&] { return std::accumulate(p.begin(), p.end(), 0.0); };
    if (how.top_k && (size_t)how.top_k < p.size()) {
        std::vector<float> sorted = logits;
        std::nth_element(sorted.begin(), sorted.begin() + how.top_k - 1, sorted.end(), std::greater<>());
        for (size_t v = 0; v < p.size(); v++)
            if (logits[v] < sorted[how.top_k - 1]) p[v] = 0;
    }
    if (how.top_p < 1) {
        std::vector<int> order(p.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
        double left = how.top_p * sum();
        for (int v : order) {
            if (left <= 0) p[v] = 0;
            left -= p[v];
        }
        p[best] = 1; // also with top_p 0
    }
    double left = u * sum();
    for (size_t v = 0; v < p.size(); v++)
        if ((left -= p[v]) < 0) return (int)v;
    return best;
}

// The logits that follow the tokens `text`, which follow what the cache holds.
template <class T>
std::vector<float> read_on(GPT<T>& gpt, Cache<T>& cache, const std::vector<int>& text) {
    gpt_forward(gpt, gpt.upload(text, text, 1, (int)text.size()), Pass::read, &cache);
    std::vector<float> logits(gpt.shape.vocab);
    copy_to_host(logits.data(), (const float*)gpt.now[0].logits.data, logits.size());
    return logits;
}

// Hands each of `count` tokens that continue `text` to emit(token): true goes on. The i-th depends on the seed, on i and on what it sees:
// the last `context` tokens of the text at first, later at least half of that.
template <class T, class F>
void generate(GPT<T>& gpt, std::vector<int> text, int count, int context, const Sampling& how, F emit) {
    ENSURE(!text.empty() && context > 0, "a text of %zu tokens, a context of %d", text.size(), context);
    const Rng rng(how.seed, Stream::sampling);
    Cache<T> cache(gpt.shape, context);
    for (int i = 0; i < count; i++) {
        const bool full = cache.length == context;
        const size_t unread = i == 0 ? std::min<size_t>(text.size(), context) : full ? std::max(1, context / 2)
                                                                                     : 1;
        if (full) cache.length = 0;
        text.push_back(draw(read_on(gpt, cache, {text.end() - unread, text.end()}), how, rng.uniform(i)));
        if (!emit(text.back())) return;
    }
}
