// rng.h -- random numbers by counting: the n-th number of a stream is a function of (key, n).
//
//   philox(key, counter): ten rounds of   (hi, lo) = M * counter words;   swap, xor with the key;   key += Weyl constants
//
// Source   Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", SC'11: Philox4x32-10
// Units    uniform in [0, 1), normal with mean 0 and standard deviation 1
// Why      A generator with hidden state depends on who called it before. Here the batch of step 900 or the rounding of
//          weight 12345 at step 7 can be recomputed by anyone, in any order, by any number of threads.
// Tests    tests/test_rng.cu (the paper's known answers)
#pragma once
#include "gpu.cuh"

struct Random4 {
    uint32_t word[4];
};

// Philox4x32-10: 128 bits of counter, 64 bits of key, 128 random bits.
__host__ __device__ inline Random4 philox(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// What a stream of random numbers is for: a part of the key, so that no two uses ever share numbers.
// clang-format off
enum class Stream : uint32_t { weights = 1, batches = 2, stories = 3, sampling = 4, rounding = 5, test = 6 };
// clang-format on

// The numbers of one stream, by index.
struct Rng {
    uint64_t key;
    Rng(uint32_t seed, Stream stream) : key((uint64_t)seed << 32 | (uint32_t)stream) {}

    uint32_t bits(uint64_t n) const { return philox(key, n).word[0]; }
    // Uniform in [0, 1): 24 random bits, so that every value is exact in FP32.
    float uniform(uint64_t n) const { return (float)(bits(n) >> 8) * 0x1p-24f; }
    // Uniform over 0 .. bound-1. The bias is below bound / 2^64.
    uint64_t below(uint64_t n, uint64_t bound) const {
        Random4 r = philox(key, n);
        uint64_t x = (uint64_t)r.word[1] << 32 | r.word[0];
        return (uint64_t)((unsigned __int128)x * bound >> 64);
    }
    // Box-Muller, in double, rounded once.
    float normal(uint64_t n) const {
        Random4 r = philox(key, n);
        double u = ((double)r.word[0] + 1) * 0x1p-32, v = (double)r.word[1] * 0x1p-32; // u in (0, 1]
        return (float)(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
    }
};
