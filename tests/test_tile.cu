// test_tile.cu -- tile.cuh: what load copies and what it does not read, fragments against plain indexing, bank conflicts.
#include "tensors.h"
#include <doctest/doctest.h>
#if !defined(ON_CPU)
#include "tile.cuh"

namespace {

// A matrix in memory of exactly its size, from `shift` elements on: on the simulated GPU ASan sees any access outside.
template <class T>
struct Exactly {
    size_t n;
    int shift;
#if defined(FEWBITS_SIMULATOR)
    std::unique_ptr<T[]> memory;
    Exactly(const std::vector<T>& x, int shift) : n(x.size()), shift(shift), memory(new T[shift + n]) { std::copy(x.begin(), x.end(), memory.get() + shift); }
    T* data() const { return memory.get() + shift; }
#else
    Buffer memory;
    Exactly(const std::vector<T>& x, int shift) : n(x.size()), shift(shift), memory((shift + n) * sizeof(T)) { copy_to_machine(data(), x.data(), n); }
    T* data() const { return (T*)memory.data() + shift; }
#endif
};

constexpr int THREADS = 96; // divides nothing

// The tile as elements, row by row, through granule().
template <class T, int ROWS, int COLS>
__global__ void load_kernel(T* out, const T* from, int64_t stride, int rows, int cols, bool aligned) {
    DYNAMIC_SHARED(shared);
    const Tile<T, ROWS, COLS> tile = {shared};
    tile.template load<THREADS>(from, stride, rows, cols, aligned, threadIdx.x);
    commit_copies();
    wait_copies<0>();
    __syncthreads(); // all parts of the tile are written before any is read
    constexpr int PER_GRANULE = 16 / sizeof(T);
    for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) out[i] = ((T*)tile.granule(i / COLS, i % COLS / PER_GRANULE))[i % PER_GRANULE];
}

enum class Which { a,
                   a_transposed,
                   b,
                   b_transposed };

// out (fragments, 32 lanes, 4 registers): row by row of fragments.
template <class T, int ROWS, int COLS, Which WHICH>
__global__ void fragment_kernel(uint32_t* out, const T* from, int step_rows, int step_cols) {
    DYNAMIC_SHARED(shared);
    const Tile<T, ROWS, COLS> tile = {shared};
    const int lane = threadIdx.x;
    tile.template load<WARP>(from, COLS, ROWS, COLS, true, lane);
    commit_copies();
    wait_copies<0>();
    __syncthreads(); // all parts of the tile are written before any is read
    int f = 0;
    for (int r = 0; r < ROWS; r += step_rows)
        for (int c = 0; c < COLS; c += step_cols, f++) {
            uint32_t registers[4];
            if constexpr (WHICH == Which::a) tile.fragment_a(registers, r, c, lane);
            else if constexpr (WHICH == Which::a_transposed) tile.fragment_a_transposed(registers, c, r, lane);
            else if constexpr (WHICH == Which::b) tile.fragment_b(registers, r, c, lane);
            else tile.fragment_b_transposed(registers, c, r, lane);
            for (int i = 0; i < 4; i++) out[(f * WARP + lane) * 4 + i] = registers[i];
        }
}

template <class T>
T code(uint32_t i) {
    T x;
    x.bits = (decltype(x.bits))(i * 40503u >> 3); // neighbours differ, in both bytes
    return x;
}

void no_conflicts_so_far() {
#if defined(FEWBITS_SIMULATOR)
    CHECK(simulator::ldmatrix_banks.conflicts == 0);
    CHECK(simulator::copy_banks.conflicts == 0);
    CHECK(simulator::ldmatrix_banks.accesses + simulator::copy_banks.accesses > 0); // it did count
#endif
}
void forget_conflicts() {
#if defined(FEWBITS_SIMULATOR)
    simulator::ldmatrix_banks.reset(), simulator::copy_banks.reset();
#endif
}

template <class T, int ROWS, int COLS>
void check_load(int rows, int cols, int64_t stride, int shift, bool aligned) {
    const int there = std::max(0, std::min(rows, ROWS)), across = std::max(0, std::min(cols, COLS));
    std::vector<T> x(there && across ? (there - 1) * stride + across : 0);
    for (size_t i = 0; i < x.size(); i++) x[i] = code<T>((uint32_t)i + 1);
    Exactly<T> from(x, shift);
    Buffer out(ROWS * COLS * sizeof(T));
    launch_shared(load_kernel<T, ROWS, COLS>, 1, THREADS, Tile<T, ROWS, COLS>::BYTES, (T*)out.data(), (const T*)from.data(), stride, rows, cols, aligned);
    synchronize();
    std::vector<T> got(ROWS * COLS);
    copy_to_host(got.data(), (const T*)out.data(), got.size());
    std::string wrong;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            const unsigned want = r < rows && c < cols ? x[r * stride + c].bits : 0, is = got[r * COLS + c].bits;
            if (is != want && wrong.empty()) wrong = format("row %d, column %d: %04x, not %04x", r, c, is, want);
        }
    INFO("tile " << ROWS << " x " << COLS << ", inside " << rows << " x " << cols << ", stride " << stride << ", shift " << shift << ", aligned " << aligned);
    CHECK(wrong == "");
}

template <class T, int ROWS, int COLS>
void check_loads() {
    constexpr int PER_GRANULE = 16 / sizeof(T);
    for (int rows : {-3, 0, 1, 7, ROWS - 1, ROWS, ROWS + 5})
        for (int cols : {-2, 0, 1, PER_GRANULE - 1, PER_GRANULE, PER_GRANULE + 1, COLS - 1, COLS, COLS + 3}) {
            check_load<T, ROWS, COLS>(rows, cols, COLS + 2 * PER_GRANULE, 0, true);
            check_load<T, ROWS, COLS>(rows, cols, COLS + 3, (rows + cols + 5) % PER_GRANULE, false);
        }
    for (int shift = 0; shift < PER_GRANULE; shift++) check_load<T, ROWS, COLS>(ROWS, COLS, COLS + 1, shift, false);
}

// PTX's fragment of A and of B: row and column of element e in register r of a lane, k counted in 16-bit halves or bytes.
template <class T, int ROWS, int COLS, Which WHICH>
void check_fragments() {
    constexpr bool OF_A = WHICH == Which::a || WHICH == Which::a_transposed, TRANSPOSED = WHICH == Which::a_transposed || WHICH == Which::b_transposed;
    constexpr int E = 4 / sizeof(T), K = 32 / sizeof(T), STEP_ROWS = TRANSPOSED ? K : 16, STEP_COLS = TRANSPOSED ? 16 : K;
    std::vector<T> x(ROWS * COLS);
    for (size_t i = 0; i < x.size(); i++) x[i] = code<T>((uint32_t)i);
    Buffer from(x.size() * sizeof(T)), out((size_t)(ROWS / STEP_ROWS) * (COLS / STEP_COLS) * WARP * 4 * 4);
    copy_to_machine((T*)from.data(), x.data(), x.size());
    launch_shared(fragment_kernel<T, ROWS, COLS, WHICH>, 1, WARP, Tile<T, ROWS, COLS>::BYTES, (uint32_t*)out.data(), (const T*)from.data(), STEP_ROWS, STEP_COLS);
    synchronize();
    std::vector<T> got(out.bytes() / sizeof(T));
    copy_to_host(got.data(), (const T*)out.data(), got.size());
    std::string wrong;
    size_t i = 0;
    for (int r0 = 0; r0 < ROWS; r0 += STEP_ROWS)
        for (int c0 = 0; c0 < COLS; c0 += STEP_COLS)
            for (int lane = 0; lane < 32; lane++)
                for (int r = 0; r < 4; r++)
                    for (int e = 0; e < E; e++, i++) {
                        const int group = lane / 4, thread = lane % 4;
                        // A: registers are (rows 0-7, k low), (8-15, low), (0-7, high), (8-15, high). B: (columns 0-7, k low), (0-7, high), (8-15, low), (8-15, high)
                        const bool far = OF_A ? r % 2 == 1 : r >= 2, high = OF_A ? r >= 2 : r % 2 == 1;
                        const int mn = group + (far ? 8 : 0), k = thread * E + e + (high ? K / 2 : 0);
                        const int row = r0 + (TRANSPOSED ? k : mn), col = c0 + (TRANSPOSED ? mn : k);
                        if (got[i].bits != x[row * COLS + col].bits && wrong.empty())
                            wrong = format("at %d, %d: lane %d, register %d, element %d is not row %d, column %d", r0, c0, lane, r, e, row, col);
                    }
    INFO("tile " << ROWS << " x " << COLS);
    CHECK(wrong == "");
}

template <class T, int COLS>
void check_tile() {
    INFO(COLS << " columns");
    forget_conflicts();
    check_loads<T, 16, COLS>(), check_loads<T, 40, COLS>();
    check_fragments<T, 64, COLS, Which::a>(), check_fragments<T, 32, COLS, Which::a>();
    check_fragments<T, 64, COLS, Which::b>(), check_fragments<T, 32, COLS, Which::b>();
    if constexpr (sizeof(T) == 2) {
        check_fragments<T, 64, COLS, Which::a_transposed>(), check_fragments<T, 16, COLS, Which::a_transposed>();
        check_fragments<T, 64, COLS, Which::b_transposed>(), check_fragments<T, 16, COLS, Which::b_transposed>();
    }
    no_conflicts_so_far();
}

} // namespace

TEST_CASE_TEMPLATE("tile: 16-bit formats: loads with edges and at any address, all four fragments, no bank conflicts", T, bf16, fp16) {
    check_tile<T, 16>(), check_tile<T, 32>(), check_tile<T, 64>(), check_tile<T, 128>();
}
TEST_CASE_TEMPLATE("tile: FP8: loads with edges and at any address, both fragments, no bank conflicts", T, e4m3, e5m2) {
    check_tile<T, 32>(), check_tile<T, 64>(), check_tile<T, 128>(), check_tile<T, 256>();
}
#endif
