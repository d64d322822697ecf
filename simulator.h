// simulator.h -- a CUDA block on a computer without a GPU: each thread is a fiber, 32 of them are a warp.
//
//   a fiber runs until it meets others: at a barrier, a shuffle, a vote, a tensor-core instruction. The last lane to
//   arrive at a warp's meeting does the work for all 32; a block's barrier opens when every thread waits at it.
//   Blocks are shared among the OpenMP threads; a block runs whole on one of them.
//
// What it checks and a GPU does not
//   a barrier that some threads never reach, or that they reach at different lines     a meeting with missing lanes
//   a shuffle from a lane that takes no part      copies that were not waited for: cp.async writes NaN until it is
//   waited for, and dynamic shared memory starts as NaN      more shared memory than a block has      bank conflicts
//   a missing barrier, by running lanes and warps in another order: FEWBITS_LANE_ORDER=1, 2, ...
//   races, and reads of shared memory that nobody wrote: racecheck.h, when built with it; out of bounds: ASan
//   It is stricter than a GPU, which lets the rest of a warp meet without the lanes that have returned.
//
// Source   CUDA C++ Programming Guide, "Warp Shuffle Functions" and neighbours; PTX ISA, "cp.async"
// Why      Boost.Context switches in about 6 ns (ucontext: a microsecond), and meeting costs each lane about 10 ns: a tensor-core
//          instruction spends as long on meeting as on arithmetic. Stacks start at different cache sets, not all 64 KiB apart.
//          The lane that completes a meeting runs on; the others follow in turn. A lane that waits for another's write without
//          a meeting or barrier (a spin lock) waits forever: fibers do not interrupt each other.
// Tests    tests/test_simulator.cu: each check with a planted fault
#pragma once
#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <omp.h>
#include <string>
#include <type_traits>
#include <vector>
#include "errors.h"

#if defined(__has_feature) // what clang says for gcc's __SANITIZE_ADDRESS__
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

constexpr int WARP = 32, BLOCK = 256;
#define __global__
#define __host__
#define __device__
#define __launch_bounds__(...)
#if defined(FEWBITS_RACECHECK) || defined(__SANITIZE_ADDRESS__)
#define FEWBITS_ONE_BLOCK_AT_A_TIME // so that shared memory can be plain statics, which ASan surrounds with red zones
#define __shared__ static
#else
#define __shared__ static thread_local // a block runs whole on one OS thread
#endif
#if defined(FEWBITS_RACECHECK)
#define UNCHECKED __attribute__((no_sanitize("thread"), noinline)) // the simulator's own accesses are no thread's
#define SWITCHES UNCHECKED
#else
#define UNCHECKED
#define SWITCHES __attribute__((always_inline)) // a processor predicts where `return` goes by the calls it has seen; after a
#endif                                          // switch it is wrong. So what switches is part of the kernel and returns nowhere

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim, gridDim;

#if defined(FEWBITS_RACECHECK)
namespace racecheck {
void watch(const void* data, size_t bytes, bool shared); // accesses of kernels to this memory are compared
void forget(const void* data);
void at_barrier(std::string& failure);
} // namespace racecheck
#endif

namespace simulator {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr size_t STACK = 64 << 10, STAGGER = 17 * 64;
constexpr uint64_t STACK_END = 0x5354414b454e4421; // at each stack's lowest address: still there when the block ends?
constexpr unsigned EVERY_LANE = 0xffffffffu;

// ==== a block ========================================================================================================

struct Copy { // cp.async
    void* to;
    const void* from;
    int bytes, valid, group; // `valid` bytes are read, the rest of `bytes` becomes zero
};

struct Together { // cp.async: what 8 neighbouring lanes write in one turn
    const void* to[8];
    int lanes = 0;
};

struct Meeting { // lanes of one warp that wait for the rest of `mask`
    const char* what;
    unsigned mask, arrived;
    void* brought[WARP];
};

struct Lane;
struct Warp {
    Lane* lanes = nullptr;                // its first
    unsigned char lane[WARP], turn[WARP]; // the lane whose turn is the i-th, and back: another order finds a missing barrier
    unsigned ready = 0;                   // bit i: the lane of turn i can run, and does not
    unsigned next = 0;                    // the turn to look at first
    Meeting meetings[WARP];
    int n_meetings = 0;
    unsigned epoch = 0; // how often its lanes were ordered: by __syncwarp or by a barrier
    std::vector<Together> copied_to[WARP / 8];
};

struct Lane { // one thread; also the scheduler itself, which is none
    fcontext_t context = nullptr;
    dim3 index;
    int id = -1; // in the block; its lane is id % WARP
    Warp* warp = nullptr;
    bool done = false;
    std::vector<Copy> copies = {}; // issued and not waited for
    int groups = 0;                // of copies: committed so far
    size_t issued = 0;             // copies so far
    const void* pc = nullptr;      // where it last called copy_async, meet, ...: for racecheck.h
    unsigned depth = 0;            // ... and how many functions it is in
    const void* stack = nullptr;   // its lowest address
    size_t stack_bytes = STACK;
    void* fake_stack = nullptr; // ASan's
};

struct Block {
    Lane scheduler;
    std::vector<Lane> lanes;
    std::vector<Warp> warps;
    std::unique_ptr<char[]> stacks;
    size_t n_stacks = 0;
    char* stack(size_t i) { return stacks.get() + i * (STACK + STAGGER) + STAGGER; } // STAGGER bytes below each are nobody's
    std::unique_ptr<unsigned char, decltype(&free)> shared{nullptr, free};           // dynamic shared memory: exactly its bytes, for ASan
    size_t shared_bytes = 0;
    void (*body)(const void*) = nullptr; // calls the kernel with its arguments
    const void* arguments = nullptr;
    std::string failure;
    size_t done = 0, waiting = 0;       // threads that have returned; that wait at the barrier
    const char* barrier_file = nullptr; // where they wait
    int barrier_line = 0;
    unsigned epoch = 0;              // how often its threads met at a barrier
    unsigned launch = 0, number = 0; // the block's number in its launch's grid
    bool quiet = false;              // the simulator accesses memory now, not the thread
};
inline thread_local Block* block = nullptr;  // the one that this OS thread runs now
inline thread_local Lane* current = nullptr; // ... and its lane that runs now

// Which order lanes and warps run in: 0 is ascending, any other number shuffles.
UNCHECKED inline unsigned& lane_order() {
    static unsigned order = getenv("FEWBITS_LANE_ORDER") ? (unsigned)atoi(getenv("FEWBITS_LANE_ORDER")) : 0;
    return order;
}
// The compute capability that is simulated: kernels choose their instructions by it. (On the heap, because a static variable
// that a kernel reads is shared memory to racecheck.h.)
UNCHECKED inline int& capability() {
    static int& capability = *new int(getenv("FEWBITS_CAPABILITY") ? atoi(getenv("FEWBITS_CAPABILITY")) : 90);
    return capability;
}
// Bytes of shared memory that a block can have: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
inline size_t shared_limit() {
    const int c = capability();
    size_t kibibytes = 227;
    if (c < 80) kibibytes = 64;
    else if (c == 80 || c == 87) kibibytes = 163;
    else if (c < 90 || c >= 120) kibibytes = 99;
    return kibibytes << 10;
}
inline unsigned hash(uint64_t x) {
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return (unsigned)((x ^ x >> 29) * 0xBF58476D1CE4E5B9u >> 32);
}

// ==== switching ======================================================================================================

// Runs `to` until it, or whoever it switches to, switches back here.
SWITCHES inline void switch_to(Lane& to) {
    Lane& from = *current;
    current = &to;
    threadIdx = to.index;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from.done ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
    transfer_t arrival = jump_fcontext(to.context, &from.context);
    *(fcontext_t*)arrival.data = arrival.fctx; // whoever jumped here can be jumped back to
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The warp's next lane that can run, or nullptr.
UNCHECKED inline Lane* take_turn(Warp& warp) {
    if (!warp.ready) return nullptr;
    const unsigned ahead = warp.ready >> warp.next | warp.ready << (-warp.next & 31);
    const unsigned turn = (warp.next + __builtin_ctz(ahead)) % WARP;
    warp.ready &= ~(1u << turn), warp.next = (turn + 1) % WARP;
    return warp.lanes + warp.lane[turn];
}

// The calling lane waits, or is done: another of its warp runs, or the scheduler if none can.
SWITCHES inline void give_way() {
    Lane* next = take_turn(*current->warp);
    switch_to(next ? *next : block->scheduler);
}

// Ends the launch with an error: no thread of this block runs again. Nobody unwinds this stack, so nothing on it may own memory.
UNCHECKED [[noreturn]] inline void fail(std::string message) {
    block->failure = format("block (%u,%u,%u), thread (%u,%u,%u): %s", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, message.c_str());
    std::string().swap(message);
    switch_to(block->scheduler);
    abort();
}

inline std::string lane_list(unsigned lanes) {
    std::string text;
    for (int l = 0; l < WARP; l++)
        if (lanes >> l & 1) text += (text.empty() ? "" : " ") + std::to_string(l);
    return text;
}

UNCHECKED inline void thread_begins(transfer_t arrival) {
    *(fcontext_t*)arrival.data = arrival.fctx;
#if defined(__SANITIZE_ADDRESS__)
    const void* from;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &from, &bytes);
    if (!block->scheduler.stack) block->scheduler.stack = from, block->scheduler.stack_bytes = bytes; // the first to begin comes from it
#endif
    block->body(block->arguments);
    current->done = true, block->done++;
    give_way();
}

// An access that no compiler sees, in the name of lane `lane` of the calling warp: for racecheck.h.
enum class Kind { read,
                  write,
                  atomic };
#if defined(FEWBITS_RACECHECK)
void note(int lane, const void* address, int bytes, Kind kind);
#else
inline void note(int, const void*, int, Kind) {}
#endif
inline void note_read(int lane, const void* address, int bytes) { note(lane, address, bytes, Kind::read); }

// ==== where threads meet =============================================================================================

// The calling lane is at the meeting `what` of the lanes in `mask` and brings `mine`. Returns whether all are there now; if so,
// brought[l] is what lane l brought, and all can run.
UNCHECKED inline bool arrive(const char* what, unsigned mask, void* mine, void** brought) {
    Warp& warp = *current->warp;
    const int lane = current->id % WARP;
    if (!(mask >> lane & 1)) fail(format("%s: lane %d calls it with mask %08x, which leaves it out", what, lane, mask));
    int i = 0;
    for (; i < warp.n_meetings; i++)
        if (warp.meetings[i].mask == mask && (warp.meetings[i].what == what || !strcmp(warp.meetings[i].what, what))) break;
    Meeting& meeting = warp.meetings[i];
    if (i == warp.n_meetings) warp.n_meetings++, meeting = {what, mask, 0, {}};
    meeting.arrived |= 1u << lane, meeting.brought[lane] = mine;
    if (meeting.arrived != mask) return false;

    memcpy(brought, meeting.brought, sizeof meeting.brought); // nullptr where the mask has no lane
    meeting = warp.meetings[--warp.n_meetings];
    for (int l = 0; l < WARP; l++) warp.ready |= (l != lane && mask >> l & 1u) << warp.turn[l];
    return true;
}

// All lanes of `mask` meet here; the last to arrive calls work(what each lane brought), an array of 32 pointers.
template <class T, class Work>
SWITCHES inline void meet(const char* what, unsigned mask, T* mine, Work work) {
    current->pc = __builtin_return_address(0);
    void* brought[WARP];
    if (!arrive(what, mask, mine, brought)) return give_way();
    block->quiet = true;
    work((T**)brought);
    block->quiet = false;
}

SWITCHES inline void barrier(const char* file, int line) {
    if (!block->barrier_file) block->barrier_file = file, block->barrier_line = line;
    if (block->barrier_line != line || strcmp(block->barrier_file, file))
        fail(format("__syncthreads at %s:%d, while other threads of the block wait at the one at %s:%d", file, line, block->barrier_file, block->barrier_line));
    block->waiting++;
    give_way();
}

// ==== shared memory: asynchronous copies, banks ======================================================================

// Shared memory has 32 banks, and a bank gives one 4-byte word per turn. Lanes that together access 128 bytes take one turn
// if they want all banks once; each further piece in the busiest banks is a conflict: one turn more.
struct BankCount {
    std::atomic<uint64_t> accesses{0}, conflicts{0};
    // Each of `lanes` lanes accesses `bytes` bytes (4, 8 or 16), a multiple of which its address is.
    void count(const void* const* address, int lanes, int bytes) {
        uintptr_t pieces[WARP]; // those wanted so far, each once: one turn serves all who want the same
        int n = 0, most = 1;
        for (int l = 0; l < lanes; l++) {
            const uintptr_t piece = (uintptr_t)address[l] / bytes;
            int turns = 1, i = 0;
            for (; i < n && pieces[i] != piece; i++) turns += (pieces[i] - piece) % (4 * WARP / bytes) == 0; // of the same banks
            if (i < n) continue;
            pieces[n++] = piece;
            most = turns > most ? turns : most;
        }
        accesses.fetch_add(1, std::memory_order_relaxed);
        if (most > 1) conflicts.fetch_add(most - 1, std::memory_order_relaxed);
    }
    void reset() { accesses = conflicts = 0; }
};
inline BankCount ldmatrix_banks, copy_banks;

// cp.async: `valid` of `bytes` are copied, the rest is zero. Until it is waited for, the destination holds NaN: a GPU writes
// it at any moment between this call and the wait, here both ends of that time are writes.
UNCHECKED inline void copy_async(void* to, const void* from, int bytes, int valid) {
    Lane& me = *current;
    me.pc = __builtin_return_address(0);
    if (valid < 0 || valid > bytes) fail(format("cp.async of %d of %d bytes", valid, bytes));
    if ((uintptr_t)to % bytes || (valid && (uintptr_t)from % bytes))
        fail(format("cp.async of %d bytes from %p to %p: both must be multiples of %d", bytes, from, to, bytes));
    note(me.id % WARP, to, bytes, Kind::write);
    block->quiet = true;
    memset(to, 0xff, bytes);
    block->quiet = false;
    me.copies.push_back({to, from, bytes, valid, me.groups});
    std::vector<Together>& copies = me.warp->copied_to[me.id % WARP / 8];
    if (me.issued == copies.size()) copies.emplace_back();
    Together& with = copies[me.issued++];
    with.to[with.lanes++] = to;
    if (with.lanes == 8) copy_banks.count(with.to, 8, bytes);
}
UNCHECKED inline void commit_copies() { current->groups++; }

// Waits for all but the newest `pending` groups of the calling thread's copies.
UNCHECKED inline void wait_copies(int pending) {
    Lane& me = *current;
    me.pc = __builtin_return_address(0);
    size_t n = 0;
    for (; n < me.copies.size() && me.copies[n].group < me.groups - pending; n++) {
        const Copy& c = me.copies[n];
        note(me.id % WARP, c.from, c.valid, Kind::read), note(me.id % WARP, c.to, c.bytes, Kind::write);
        block->quiet = true;
        memcpy(c.to, c.from, c.valid);
        memset((char*)c.to + c.valid, 0, c.bytes - c.valid);
        block->quiet = false;
    }
    me.copies.erase(me.copies.begin(), me.copies.begin() + n);
}

// ==== running a block ================================================================================================

// Runs every warp until none of its lanes can go on; then, if all threads wait at the barrier, opens it.
inline void run_block(unsigned order) {
    const size_t n = block->lanes.size();
    while (true) {
        for (size_t i = 0; i < block->warps.size(); i++) {
            const size_t w = (i + order) % block->warps.size();
            Warp& warp = block->warps[w];
            if (Lane* lane = take_turn(warp)) switch_to(*lane);
            if (!block->failure.empty()) return;
            for (int m = 0; m < warp.n_meetings; m++) // nobody is left to come
                block->failure += format("%sblock (%u,%u,%u), warp %zu, %s: lanes %s wait and these never come: %s", m ? "; and " : "", blockIdx.x, blockIdx.y, blockIdx.z, w,
                                         warp.meetings[m].what, lane_list(warp.meetings[m].arrived).c_str(), lane_list(warp.meetings[m].mask & ~warp.meetings[m].arrived).c_str());
            if (!block->failure.empty()) return;
        }
#if defined(FEWBITS_RACECHECK)
        racecheck::at_barrier(block->failure);
        if (!block->failure.empty()) return;
#endif
        if (block->done == n) break;
        if (block->waiting < n) {
            block->failure = format("block (%u,%u,%u): %zu threads wait at __syncthreads at %s:%d, which the other %zu never reach", blockIdx.x, blockIdx.y, blockIdx.z,
                                    block->waiting, block->barrier_file, block->barrier_line, block->done);
            return;
        }
        block->epoch++, block->waiting = 0, block->barrier_file = nullptr;
        for (Warp& w : block->warps) w.epoch++;
        for (Lane& l : block->lanes) l.warp->ready |= 1u << l.warp->turn[l.id % WARP];
    }
    for (Lane& l : block->lanes)
        if (*(const uint64_t*)l.stack != STACK_END)
            block->failure = format("block (%u,%u,%u), thread (%u,%u,%u): its local variables and calls need more than its stack of %zu bytes", blockIdx.x, blockIdx.y,
                                    blockIdx.z, l.index.x, l.index.y, l.index.z, STACK);
}

// Makes the threads of one block and runs them.
inline void start_block(dim3 threads, size_t shared_bytes) {
    const size_t n = (size_t)threads.x * threads.y * threads.z;
    if (block->n_stacks < n) {
        block->stacks.reset(new char[n * (STACK + STAGGER)]); // not cleared: pages that no fiber reaches stay untouched
        block->n_stacks = n;
    }
    if (block->shared_bytes != shared_bytes) {
        void* memory = nullptr;
        if (shared_bytes && posix_memalign(&memory, 128, shared_bytes)) throw Error(1, "out of memory for a block's shared memory");
#if defined(FEWBITS_RACECHECK)
        if (block->shared) racecheck::forget(block->shared.get());
        if (memory) racecheck::watch(memory, shared_bytes, true);
#endif
        block->shared.reset((unsigned char*)memory);
        block->shared_bytes = shared_bytes;
    }
    if (shared_bytes) memset(block->shared.get(), 0xff, shared_bytes); // NaN in every format
    block->epoch = 0, block->barrier_file = nullptr, block->failure.clear(), block->done = block->waiting = 0, block->quiet = false;
    block->warps.resize((n + WARP - 1) / WARP);
    block->lanes.resize(n);
    const unsigned order = lane_order() ? hash((uint64_t)lane_order() << 40 ^ (uint64_t)block->launch << 20 ^ block->number) : 0;
    for (size_t w = 0; w < block->warps.size(); w++) {
        Warp& warp = block->warps[w];
        warp.lanes = &block->lanes[w * WARP], warp.n_meetings = 0, warp.epoch = 0, warp.ready = 0, warp.next = 0;
        for (auto& copies : warp.copied_to) copies.clear();
        const unsigned mine = order ? hash((uint64_t)order << 8 ^ w) : 0, flip = mine % 32, stride = mine / 32 % 16 * 2 + 1, add = mine / 1024 % 32;
        for (unsigned turn = 0; turn < WARP; turn++) {
            const unsigned lane = ((turn ^ flip) * stride + add) % WARP; // each lane once: the stride is odd
            warp.lane[turn] = (unsigned char)lane, warp.turn[lane] = (unsigned char)turn;
        }
    }
    for (size_t i = 0; i < n; i++) {
        Lane& lane = block->lanes[i];
        lane.index = dim3(i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y);
        lane.id = (int)i, lane.warp = &block->warps[i / WARP], lane.done = false;
        lane.copies.clear(), lane.depth = 0, lane.groups = 0, lane.issued = 0, lane.stack = block->stack(i), lane.fake_stack = nullptr;
        memcpy(block->stack(i), &STACK_END, sizeof STACK_END);
        lane.context = make_fcontext(block->stack(i) + STACK, STACK, thread_begins);
        lane.warp->ready |= 1u << lane.warp->turn[i % WARP];
    }
    current = &block->scheduler;
    run_block(order);
    current = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    if (!block->failure.empty()) __asan_unpoison_memory_region(block->stacks.get(), block->n_stacks * (STACK + STAGGER)); // stacks left as they were
#endif
}

inline unsigned next_launch() {
    static std::atomic<unsigned> launches{0};
    return ++launches;
}

} // namespace simulator

// kernel<<<blocks, threads, shared_bytes>>>(args...)
template <class... P, class... A>
void launch_shared(void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared_bytes, A... args) {
    const long n = (long)blocks.x * blocks.y * blocks.z, n_threads = (long)threads.x * threads.y * threads.z;
    ENSURE(n_threads >= 1 && n_threads <= 1024 && threads.z <= 64, "a block of %u x %u x %u threads: CUDA allows 1 to 1024, and 64 in z", threads.x, threads.y, threads.z);
    ENSURE(blocks.y <= 65535 && blocks.z <= 65535, "a grid of %u x %u x %u blocks: CUDA allows 65535 in y and z", blocks.x, blocks.y, blocks.z);
    ENSURE(shared_bytes <= simulator::shared_limit(), "%zu bytes of shared memory: a block of compute capability %d.%d has at most %zu", shared_bytes,
           simulator::capability() / 10, simulator::capability() % 10, simulator::shared_limit());
    const unsigned launch = simulator::next_launch();
    auto call = [&] { kernel(args...); };
    std::string failure;
    std::atomic<long> failed{n}; // of all blocks that fail, the first is reported; those after it need not run
#if !defined(FEWBITS_ONE_BLOCK_AT_A_TIME)
#pragma omp parallel for schedule(dynamic) if (n > 1)
#endif
    for (long b = 0; b < n; b++) {
        if (b > failed) continue;
        static thread_local simulator::Block memory;
        simulator::block = &memory;
        gridDim = blocks, blockDim = threads;
        blockIdx = dim3(b % blocks.x, b / blocks.x % blocks.y, b / blocks.x / blocks.y);
        memory.body = [](const void* f) { (*(decltype(call)*)f)(); };
        memory.arguments = &call;
        memory.launch = launch, memory.number = (unsigned)b;
        simulator::start_block(threads, shared_bytes);
        if (memory.failure.empty()) continue;
#pragma omp critical(simulator_failure)
        if (b < failed) failed = b, failure = memory.failure;
    }
    if (!failure.empty()) throw Error(1, "simulated GPU: " + failure);
}
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 blocks, dim3 threads, A... args) {
    launch_shared(kernel, blocks, threads, 0, args...);
}
inline void synchronize() {}

// ==== CUDA's own words ===============================================================================================

#define UNROLL
#define DYNAMIC_SHARED(name) unsigned char* name = simulator::block->shared.get()
[[noreturn]] inline void __trap() { simulator::fail("__trap"); }
SWITCHES inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { simulator::barrier(file, line); }
SWITCHES inline void __syncwarp(unsigned mask = simulator::EVERY_LANE) {
    int nothing = 0;
    simulator::meet("__syncwarp", mask, &nothing, [](int**) { simulator::current->warp->epoch++; });
}

namespace simulator {
// x of the lane that `from(own lane)` names.
template <class T, class From>
SWITCHES inline T shuffle(const char* what, unsigned mask, T x, From from) {
    static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "CUDA shuffles 4 or 8 bytes");
    struct Item {
        T in, out;
        int from;
    } mine = {x, x, from(current->id % WARP)};
    meet(what, mask, &mine, [=](Item** lanes) {
        for (int l = 0; l < WARP; l++) {
            if (!lanes[l]) continue;
            if (!lanes[lanes[l]->from]) fail(format("%s with mask %08x: lane %d reads lane %d, which takes no part", what, mask, l, lanes[l]->from));
            lanes[l]->out = lanes[lanes[l]->from]->in;
        }
    });
    return mine.out;
}

// One value from all lanes' values: combine(so far, lane's, lane).
template <class T, class R, class Combine>
SWITCHES inline R vote(const char* what, unsigned mask, T x, R start, Combine combine) {
    struct Item {
        T in;
        R out;
    } mine = {x, start};
    meet(what, mask, &mine, [=](Item** lanes) {
        R result = start;
        for (int l = 0; l < WARP; l++)
            if (lanes[l]) result = combine(result, lanes[l]->in, l);
        for (int l = 0; l < WARP; l++)
            if (lanes[l]) lanes[l]->out = result;
    });
    return mine.out;
}
} // namespace simulator

// Shuffles. Lanes are numbered within segments of `width`, a power of two; who would read past its segment keeps its own x.
template <class T>
SWITCHES inline T __shfl_sync(unsigned mask, T x, int source, int width = WARP) {
    return simulator::shuffle("__shfl_sync", mask, x, [=](int l) { return l / width * width + (source & (width - 1)); });
}
template <class T>
SWITCHES inline T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = WARP) {
    return simulator::shuffle("__shfl_xor_sync", mask, x, [=](int l) { return (l ^ lanes) / width <= l / width ? l ^ lanes : l; });
}
template <class T>
SWITCHES inline T __shfl_down_sync(unsigned mask, T x, unsigned lanes, int width = WARP) {
    return simulator::shuffle("__shfl_down_sync", mask, x, [=](int l) { return l % width + (int)lanes < width ? l + (int)lanes : l; });
}
template <class T>
SWITCHES inline T __shfl_up_sync(unsigned mask, T x, unsigned lanes, int width = WARP) {
    return simulator::shuffle("__shfl_up_sync", mask, x, [=](int l) { return l % width >= (int)lanes ? l - (int)lanes : l; });
}

SWITCHES inline unsigned __ballot_sync(unsigned mask, int p) {
    return simulator::vote("__ballot_sync", mask, p, 0u, [](unsigned r, int x, int l) { return r | (unsigned)(x != 0) << l; });
}
SWITCHES inline int __any_sync(unsigned mask, int p) {
    return simulator::vote("__any_sync", mask, p, 0, [](int r, int x, int) { return r | (x != 0); });
}
SWITCHES inline int __all_sync(unsigned mask, int p) {
    return simulator::vote("__all_sync", mask, p, 1, [](int r, int x, int) { return r & (x != 0); });
}
template <class T> // int or unsigned
SWITCHES inline T __reduce_add_sync(unsigned mask, T x) {
    return simulator::vote("__reduce_add_sync", mask, x, T(0), [](T r, T x, int) { return T((unsigned)r + (unsigned)x); });
}
template <class T>
SWITCHES inline T __reduce_max_sync(unsigned mask, T x) {
    return simulator::vote("__reduce_max_sync", mask, x, std::numeric_limits<T>::min(), [](T r, T x, int) { return x > r ? x : r; });
}
template <class T>
SWITCHES inline T __reduce_min_sync(unsigned mask, T x) {
    return simulator::vote("__reduce_min_sync", mask, x, std::numeric_limits<T>::max(), [](T r, T x, int) { return x < r ? x : r; });
}
SWITCHES inline unsigned __reduce_and_sync(unsigned mask, unsigned x) {
    return simulator::vote("__reduce_and_sync", mask, x, ~0u, [](unsigned r, unsigned x, int) { return r & x; });
}
SWITCHES inline unsigned __reduce_or_sync(unsigned mask, unsigned x) {
    return simulator::vote("__reduce_or_sync", mask, x, 0u, [](unsigned r, unsigned x, int) { return r | x; });
}
SWITCHES inline unsigned __reduce_xor_sync(unsigned mask, unsigned x) {
    return simulator::vote("__reduce_xor_sync", mask, x, 0u, [](unsigned r, unsigned x, int) { return r ^ x; });
}

// Integer atomics: blocks run on several OS threads. The value before is returned.
namespace simulator {
template <class T, class F>
UNCHECKED T atomic_update(T* p, F f) {
    current->pc = __builtin_return_address(0);
    note(current->id % WARP, p, sizeof(T), Kind::atomic);
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, (T)f(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
} // namespace simulator
template <class T, class X>
T atomicAdd(T* p, X x) {
    static_assert(std::is_integral<T>::value, "no float is ever added atomically: the sum would depend on the order");
    return simulator::atomic_update(p, [=](T old) { return old + (T)x; });
}
template <class T, class X>
T atomicMax(T* p, X x) {
    return simulator::atomic_update(p, [=](T old) { return old > (T)x ? old : (T)x; });
}
template <class T, class X>
T atomicMin(T* p, X x) {
    return simulator::atomic_update(p, [=](T old) { return old < (T)x ? old : (T)x; });
}
template <class T, class X>
T atomicOr(T* p, X x) {
    return simulator::atomic_update(p, [=](T old) { return old | (T)x; });
}
template <class T, class X>
T atomicExch(T* p, X x) {
    return simulator::atomic_update(p, [=](T) { return (T)x; });
}
template <class T, class E, class X>
T atomicCAS(T* p, E expected, X x) {
    return simulator::atomic_update(p, [=](T old) { return old == (T)expected ? (T)x : old; });
}

#if defined(FEWBITS_RACECHECK)
#include "racecheck.h"
#endif
