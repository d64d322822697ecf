// tensorcore.cuh -- one warp multiplies two small matrices in one instruction; each lane holds its share of all three.
//
//   D (16 x 8)  +=  A (16 x K) B (K x 8)          K = 16 for BF16 and FP16, 32 for E4M3 and E5M2 in any mix
//
//   lane l: g = l / 4, t = l % 4; a register holds E = 2 or 4 neighbours along k
//   a[0] row g,    k = t E ...          a[2] row g,    k = K/2 + t E ...          d[0], d[1]  row g,     cols 2t, 2t + 1
//   a[1] row g+8,  k = t E ...          a[3] row g+8,  k = K/2 + t E ...          d[2], d[3]  row g + 8, cols 2t, 2t + 1
//   b[0] col g,    k = t E ...          b[1] col g,    k = K/2 + t E ...
//
//   capability      BF16          FP16             E4M3, E5M2
//   7.5             (none)        2 x m16n8k8      decoded to FP16, which holds both exactly
//   8.0 8.6         m16n8k16      m16n8k16         decoded to FP16
//   8.9 12.0        m16n8k16      m16n8k16         m16n8k32
//   9.0 10.0        m16n8k16      m16n8k16         m16n8k32, which ptxas makes of FP16 instructions: no faster than FP16
//
// Source   PTX ISA, "Warp-level matrix instructions": mma.sync, ldmatrix; "cp.async"
// Formats  A, B as named; D in FP32
// Why      C's layout of two neighbouring tiles is A's layout of one: flash attention multiplies with the probabilities
//          it has just computed without moving them between lanes
// Tests    tests/test_tensorcore.cu: one-hot operands through every lane and register
#pragma once
#include "fp8.cuh"
#include "fp16.cuh"

// What the compiler's target can do (nvcc), or the simulated GPU: 75, 80, 86, 89, 90, ...
#if defined(__CUDA_ARCH__)
#define CAPABILITY (__CUDA_ARCH__ / 10)
#elif defined(FEWBITS_SIMULATOR)
#define CAPABILITY simulator::capability()
#else
#define CAPABILITY 0 // nvcc's pass for the host: parsed, never run
#endif

// The instruction's K for operands of type T, and how many of them a 32-bit register holds.
template <class T>
constexpr int MMA_K = 32 / sizeof(T);

// clang-format off
#if defined(FEWBITS_SIMULATOR)

// What every lane brings; the last one multiplies. Codes are put in place first and decoded after, which vectorises.
template <class A, class B, int K>
SWITCHES inline void mma_instruction(const char* what, float* d, const uint32_t* a, const uint32_t* b) {
    struct Share { float* d; const uint32_t *a, *b; } mine = {d, a, b};
    simulator::meet(what, simulator::EVERY_LANE, &mine, [](Share** lanes) {
        typedef float Row __attribute__((vector_size(32)));
        constexpr int E = 4 / sizeof(A);
        A a_codes[16 * K];
        B b_codes[K * 8], codes[E];
        float a_[16 * K];
        union { float numbers[K * 8]; Row rows[K]; } b_;
        for (int l = 0; l < 32; l++)
            for (int h = 0; h < K / (4 * E); h++) { // the halves of k: all of it, where K is 8
                const int g = l / 4, k = h * 4 * E + l % 4 * E;
                memcpy(a_codes + g * K + k, lanes[l]->a + 2 * h, 4);
                memcpy(a_codes + (g + 8) * K + k, lanes[l]->a + 2 * h + 1, 4);
                memcpy(codes, lanes[l]->b + h, 4);
                for (int e = 0; e < E; e++) b_codes[(k + e) * 8 + g] = codes[e];
            }
        for (int i = 0; i < 16 * K; i++) a_[i] = to_float(a_codes[i]);
        for (int i = 0; i < K * 8; i++) b_.numbers[i] = to_float(b_codes[i]);
        for (int m = 0; m < 16; m++) {
            Row row;
            for (int t = 0; t < 4; t++) memcpy((char*)&row + 8 * t, lanes[m % 8 * 4 + t]->d + m / 8 * 2, 8);
            for (int k = 0; k < K; k++) row += a_[m * K + k] * b_.rows[k];
            for (int t = 0; t < 4; t++) memcpy(lanes[m % 8 * 4 + t]->d + m / 8 * 2, (char*)&row + 8 * t, 8);
        }
    });
}

inline void mma_m16n8k8_fp16(float* d, const uint32_t* a, const uint32_t* b) { mma_instruction<fp16, fp16, 8>("mma.m16n8k8.f16", d, a, b); }
template <class A, class B>
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b) { mma_instruction<A, B, 16>("mma.m16n8k16", d, a, b); }
template <class A, class B>
void mma_m16n8k32(float* d, const uint32_t* a, const uint32_t* b) { mma_instruction<A, B, 32>("mma.m16n8k32", d, a, b); }

#elif defined(__CUDACC__)

__device__ inline void mma_m16n8k8_fp16(float* d, const uint32_t* a, const uint32_t* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#define MMA(shape, A_, B_)                                                                                                   \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." A_ "." B_ ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class A, class B>
__device__ inline void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b) {
    static_assert(std::is_same<A, B>::value, "no instruction multiplies BF16 with FP16");
    if constexpr (std::is_same<A, bf16>::value) MMA("m16n8k16", "bf16", "bf16");
    else MMA("m16n8k16", "f16", "f16");
}
template <class A, class B>
__device__ inline void mma_m16n8k32(float* d, const uint32_t* a, const uint32_t* b) {
    constexpr bool a4 = std::is_same<A, e4m3>::value, b4 = std::is_same<B, e4m3>::value;
    if constexpr (a4 && b4) MMA("m16n8k32", "e4m3", "e4m3");
    else if constexpr (a4) MMA("m16n8k32", "e4m3", "e5m2");
    else if constexpr (b4) MMA("m16n8k32", "e5m2", "e4m3");
    else MMA("m16n8k32", "e5m2", "e5m2");
}
#undef MMA
#endif
// clang-format on

// ==== FP8 as FP16, two codes at once =================================================================================

// The codes in bytes 0 and 2 of `codes`, as two FP16 numbers. E5M2 is the upper byte of FP16; E4M3 has one exponent bit
// less and a bias smaller by 8, so its bits are moved into place and the number multiplied by 2^8, subnormals included.
template <class Q>
__device__ inline uint32_t two_fp16(uint32_t codes) {
    if constexpr (std::is_same<Q, e5m2>::value) return (codes & 0x00FF00FF) << 8;
    const uint32_t magnitude = codes & 0x007F007F, nan = ((magnitude + 0x00010001) & 0x00800080) >> 7; // 1 where S.1111.111
    uint32_t halves = (codes & 0x00800080) << 8 | magnitude << 7;
#if defined(__CUDA_ARCH__)
    asm("mul.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x5C005C00)); // 256, 256
#else
    const uint16_t low = round_to<fp16>(256 * to_float(fp16{(uint16_t)halves})).bits, high = round_to<fp16>(256 * to_float(fp16{(uint16_t)(halves >> 16)})).bits;
    halves = low | (uint32_t)high << 16;
#endif
    return halves | nan * 0x7E00;
}

template <class A, class B>
__device__ void mma(float* d, const uint32_t* a, const uint32_t* b);

// d += 16 of FP8's 32 steps along k. Codes 0 and 2 of a register go to one FP16 register, 1 and 3 to the next, of A and
// of B alike: another order of the same k.
template <class A, class B>
__device__ inline void mma_decoded(float* d, const uint32_t* a, const uint32_t* b) {
    const uint32_t wide_a[4] = {two_fp16<A>(a[0]), two_fp16<A>(a[1]), two_fp16<A>(a[0] >> 8), two_fp16<A>(a[1] >> 8)};
    const uint32_t wide_b[2] = {two_fp16<B>(b[0]), two_fp16<B>(b[0] >> 8)};
    mma<fp16, fp16>(d, wide_a, wide_b);
}

// ==== what kernels call ==============================================================================================

// d += the lane's share of A B. One instruction where the GPU has it, else what the table above says.
template <class A, class B>
__device__ inline void mma(float* d, const uint32_t* a, const uint32_t* b) {
    static_assert(sizeof(A) == sizeof(B), "operands of one width");
    if constexpr (sizeof(A) == 1) {
        if (CAPABILITY >= 89) mma_m16n8k32<A, B>(d, a, b);
        else mma_decoded<A, B>(d, a, b), mma_decoded<A, B>(d, a + 2, b + 1);
    } else {
        if (CAPABILITY >= 80) mma_m16n8k16<A, B>(d, a, b);
        else if constexpr (std::is_same<A, fp16>::value) mma_m16n8k8_fp16(d, a, b), mma_m16n8k8_fp16(d, a + 2, b + 1);
        else __trap(); // BF16 in code for 7.5, which a newer GPU can be given too (ARCHES=75): an error, not zeros
    }
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8j + i brings the address of row i of matrix j (16 bytes,
// aligned). Lane l receives of matrix j, in r[j], row l/4, elements 2 (l%4) and the next; transposed: column l/4 instead.
// FP8 rows of 16 codes load the same way, untransposed only: 16 bits are moved at a time.
template <bool TRANSPOSED>
__device__ inline void ldmatrix(uint32_t* r, const void* row) {
#if defined(FEWBITS_SIMULATOR)
    struct Share {
        uint32_t* r;
        const void* row;
    } mine = {r, row};
    simulator::meet(TRANSPOSED ? "ldmatrix.trans" : "ldmatrix", simulator::EVERY_LANE, &mine, [](Share** lanes) {
        for (int j = 0; j < 4; j++) {
            uint16_t matrix[8][8];
            const void* rows[8];
            for (int i = 0; i < 8; i++) {
                rows[i] = lanes[8 * j + i]->row;
                if ((uintptr_t)rows[i] % 16) return simulator::fail(format("ldmatrix: lane %d's row at %p is not aligned to 16 bytes", 8 * j + i, rows[i]));
                simulator::note_read(8 * j + i, rows[i], 16);
                memcpy(matrix[i], rows[i], 16);
            }
            simulator::ldmatrix_banks.count(rows, 8, 16);
            for (int l = 0; l < 32; l++) {
                const int row = l / 4, col = l % 4 * 2;
                lanes[l]->r[j] = TRANSPOSED ? matrix[col][row] | (uint32_t)matrix[col + 1][row] << 16 : matrix[row][col] | (uint32_t)matrix[row][col + 1] << 16;
            }
        }
    });
#elif defined(__CUDACC__)
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
#endif
}

// Copies 16 bytes to shared memory while the kernel goes on; only `valid` of them are read, the rest become zero. Both
// addresses are multiples of 16. Before 8.0 it is an ordinary copy.
__device__ inline void copy_async(void* to, const void* from, int valid) {
#if defined(FEWBITS_SIMULATOR)
    simulator::copy_async(to, from, 16, valid);
#elif defined(__CUDA_ARCH__)
    if constexpr (CAPABILITY >= 80)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(valid) : "memory");
    else {
        uint4 value = valid == 16 ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
        for (int i = 0; i < valid && valid < 16; i++) ((char*)&value)[i] = ((const char*)from)[i];
        *(uint4*)to = value;
    }
#endif
}

// Closes a group of copies; waits until all but the newest PENDING groups of this thread have arrived. Other threads
// see them after the next __syncthreads.
__device__ inline void commit_copies() {
#if defined(FEWBITS_SIMULATOR)
    simulator::commit_copies();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING>
__device__ inline void wait_copies() {
#if defined(FEWBITS_SIMULATOR)
    simulator::wait_copies(PENDING);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
