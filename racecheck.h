// racecheck.h -- compute-sanitizer's racecheck and initcheck on a laptop: who touched this word before, and what lies between?
//
//   Two accesses race if they are of one launch, of different threads, touch the same byte, at least one of them writes, not both
//   are atomic, and nothing orders them:
//       in one block         a __syncthreads lies between them: the block's epoch, which each one advances, differs
//                            or both threads are of one warp and a __syncwarp lies between: the warp's epoch differs
//       in different blocks  nothing ever does
//   Shuffles, mma and ldmatrix make lanes wait for each other, but order no memory.
//   A read of shared memory that its block has not written is reported too: its value is whatever the last block left there.
//
// How      With -fsanitize=thread the compiler puts a call in front of every access, such as __tsan_read4(address). The library
//          those calls are meant for, ThreadSanitizer's, would see one OS thread and be content. It is not linked; its functions
//          are defined here. Each looks up what is known of the word, compares, and remembers the access.
//          Beside each 4-byte word of shared and global memory lies a Word: the last few accesses, each with the bytes it
//          touched, so that two threads may write the two halves. Memory that only one thread can know (its stack) has none.
//          Blocks run one at a time: two that touch the same global word race, whichever comes first.
// Limits   Of more than 4 accesses to a word the oldest are forgotten: a race may be missed, none is invented. Thread-fence
//          protocols between blocks look like races; this project has none.
//          g++ and GNU ld on Linux.
// Source   Serebryany, Iskhodzhanov 2009, "ThreadSanitizer"; the compiler's calls: llvm, tsan_interface.h
// Tests    tests/test_racecheck.cu
#pragma once
#include <cstdio>
#include <link.h>
#include <unistd.h>
#include "simulator.h"
#if defined(__clang__)
#error "racecheck.h is for g++: make racecheck CXX=g++" // clang instruments the entry even of what it is told to leave alone
#endif

#define INLINED __attribute__((always_inline, no_sanitize("thread"))) inline // what every access runs

namespace racecheck {

using simulator::Kind;
using simulator::Lane;
constexpr const char* KIND[] = {"read", "write", "atomic"};

struct Access {
    unsigned launch, number; // number: of the block
    unsigned epoch, warp_epoch;
    uint32_t pc[3]; // where, its function's caller, and that one's; counted from the executable's start
    uint16_t thread;
    uint8_t bytes; // of the word: a bit each
    Kind kind;
};
struct Word {
    Access seen[4];
    unsigned oldest;
    unsigned launch, number; // the block that
    uint8_t written;         // ... wrote these bytes; of shared memory only
};

// ==== which memory is watched ========================================================================================

struct Region {
    uintptr_t begin, end; // begin: a multiple of 4
    bool shared;
    Word* words; // from calloc: pages that nobody touches cost nothing
    Region* next;
};
inline Region* region(const void* data, size_t bytes, bool shared, Region* next) {
    const uintptr_t begin = (uintptr_t)data & ~(uintptr_t)3, end = (uintptr_t)data + bytes;
    Word* words = (Word*)calloc((end - begin) / 4 + 1, sizeof(Word));
    if (!words) throw Error(1, format("out of memory: racecheck wants %zu bytes to watch %zu", (end - begin) / 4 * sizeof(Word), bytes));
    return new Region{begin, end, shared, words, next};
}
// Those of the latest accesses first. From the start there are the executable's own variables: `__shared__ float x[32]` is one.
extern "C" char __data_start, _end; // as GNU ld names where they begin and end
inline Region* regions = region(&__data_start, &_end - &__data_start, true, nullptr);

inline void watch(const void* data, size_t bytes, bool shared) { regions = region(data, bytes, shared, regions); }
inline void forget(const void* data) {
    for (Region** r = &regions; *r; r = &(*r)->next)
        if ((*r)->begin == ((uintptr_t)data & ~(uintptr_t)3)) {
            Region* gone = *r;
            *r = gone->next;
            free(gone->words);
            delete gone;
            return;
        }
}
UNCHECKED inline Region* region_of(uintptr_t address) {
    for (Region** r = &regions; *r; r = &(*r)->next)
        if (address >= (*r)->begin && address < (*r)->end) {
            Region* found = *r;
            *r = found->next, found->next = regions, regions = found; // to the front
            return found;
        }
    return nullptr;
}

// ==== where: source lines from addresses =============================================================================

inline uintptr_t executable_start() {
    static uintptr_t start = 0;
    if (!start)
        dl_iterate_phdr([](dl_phdr_info* info, size_t, void* to) { return *(uintptr_t*)to = info->dlpi_addr, 1; }, &start); // the first is the executable
    return start;
}

// "gpu.cuh:127, called at layernorm.cuh:33"
inline std::string place(const Access& a) {
    char executable[4096] = {}, line[4096];
    if (readlink("/proc/self/exe", executable, sizeof executable - 1) < 0) return "an unknown line";
    std::string command = format("addr2line -i -s -e '%s'", executable), lines;
    for (uint32_t pc : a.pc)
        if (pc) command += format(" 0x%x", pc - 1); // a call's return address; the call is before it
    FILE* answer = popen((command + " 2>/dev/null").c_str(), "r");
    while (answer && fgets(line, sizeof line, answer)) {
        const std::string at(line, strcspn(line, " \n")); // without "(discriminator 2)"
        if (at[0] == '?' || at.find("simulator.h:") == 0) continue;
        lines += (lines.empty() ? "" : ", called at ") + at;
    }
    if (answer) pclose(answer);
    return lines.empty() ? format("address 0x%x", a.pc[0]) : lines;
}

inline std::string who(const Access& a, bool name_block) {
    const dim3 &b = blockDim, &g = gridDim;
    std::string text = format("%s by thread (%u,%u,%u)", KIND[(int)a.kind], a.thread % b.x, a.thread / b.x % b.y, a.thread / b.x / b.y);
    if (name_block) text += format(" of block (%u,%u,%u)", a.number % g.x, a.number / g.x % g.y, a.number / g.x / g.y);
    return text + " at " + place(a);
}

// ==== one access =====================================================================================================

INLINED bool ordered(const Access& a, const Access& b) { // within one block
    return a.epoch != b.epoch || (a.thread / WARP == b.thread / WARP && a.warp_epoch != b.warp_epoch);
}

// A block's first read of shared memory that it has not written. If the write comes before the next barrier it is a race, which
// says more; so it is reported when all threads have come to the barrier.
inline Access unwritten = {};
inline bool same_block(const Access& a, unsigned launch, unsigned number) { return a.launch == launch && a.number == number; }
inline void at_barrier(std::string& failure) {
    if (same_block(unwritten, simulator::block->launch, simulator::block->number))
        failure = format("block (%u,%u,%u): shared memory that nobody wrote: ", blockIdx.x, blockIdx.y, blockIdx.z) + who(unwritten, false);
}

UNCHECKED inline void check_word(Word& word, const Access& a, bool shared) {
    if (shared) {
        if (word.launch != a.launch || word.number != a.number) word.launch = a.launch, word.number = a.number, word.written = 0;
        if (a.kind != Kind::write && a.bytes & ~word.written && !same_block(unwritten, a.launch, a.number)) unwritten = a;
        if (a.kind != Kind::read) word.written |= a.bytes;
    }
    Access* free = nullptr; // what `a` may take the place of
    for (Access& b : word.seen) {
        const bool one_block = a.number == b.number;
        if (b.launch != a.launch || (shared && !one_block)) { // nothing, or of a time before
            if (!free) free = &b;
            continue;
        }
        const bool same_thread = one_block && a.thread == b.thread, before = one_block && ordered(a, b);
        const bool conflict = a.bytes & b.bytes && (a.kind == Kind::write || b.kind == Kind::write || a.kind != b.kind);
        if (conflict && !same_thread && !before)
            simulator::fail(format("race on %s memory: %s and %s: %s", shared ? "shared" : "global", who(b, !one_block).c_str(), who(a, !one_block).c_str(),
                                   one_block ? "no barrier between" : "nothing orders two blocks"));
        if ((same_thread || before) && !(b.bytes & ~a.bytes) && (a.kind == b.kind || a.kind == Kind::write)) free = &b; // whoever races with b will with a
    }
    *(free ? free : &word.seen[word.oldest++ % 4]) = a;
}

inline const void* calls[1024][16]; // of each thread: where the functions it is in were called; the innermost 16

UNCHECKED inline void check(const Lane& lane, const void* address, size_t bytes, Kind kind, const void* pc) {
    const uintptr_t begin = (uintptr_t)address;
    if (begin - (uintptr_t)lane.stack < simulator::STACK) return; // a local variable
    Region* region = bytes ? region_of(begin) : nullptr;
    if (!region) return;
    const uintptr_t start = executable_start(), end = begin + bytes < region->end ? begin + bytes : region->end;
    const simulator::Block& block = *simulator::block;
    Access a = {block.launch, block.number, block.epoch, lane.warp->epoch, {(uint32_t)((uintptr_t)pc - start)}, (uint16_t)lane.id, 0, kind};
    for (unsigned i = 1; i < 3 && i <= lane.depth; i++) a.pc[i] = (uint32_t)((uintptr_t)calls[lane.id][(lane.depth - i) % 16] - start);
    for (uintptr_t word = begin & ~(uintptr_t)3; word < end; word += 4) {
        a.bytes = 0;
        for (int b = 0; b < 4; b++) a.bytes |= (word + b >= begin && word + b < end) << b;
        check_word(region->words[(word - region->begin) / 4], a, region->shared);
    }
}

// Whether a lane runs, and its own code rather than the simulator's or ours.
INLINED bool in_a_kernel() { return simulator::current && simulator::current->id >= 0 && !simulator::block->quiet; }

UNCHECKED inline void seen(const void* address, size_t bytes, Kind kind, const void* pc) {
    simulator::block->quiet = true; // our own accesses are instrumented too where they are in a function of the standard library
    check(*simulator::current, address, bytes, kind, pc);
    simulator::block->quiet = false;
}

} // namespace racecheck

// What the simulator does in a lane's name: cp.async, ldmatrix, atomics.
UNCHECKED inline void simulator::note(int lane, const void* address, int bytes, Kind kind) {
    const bool quiet = block->quiet;
    block->quiet = true;
    const Lane& l = current->warp->lanes[lane];
    racecheck::check(l, address, bytes, kind, l.pc);
    block->quiet = quiet;
}

// ==== what the compiler calls ========================================================================================
// Weak: every file that is compiled defines them, the linker takes one.

#define HOOK extern "C" __attribute__((weak, noinline, no_sanitize("thread")))
#define SEEN(address, bytes, kind) \
    if (racecheck::in_a_kernel()) racecheck::seen(address, bytes, racecheck::Kind::kind, __builtin_return_address(0))

#define ACCESS(n)                                                     \
    HOOK void __tsan_read##n(void* p) { SEEN(p, n, read); }           \
    HOOK void __tsan_write##n(void* p) { SEEN(p, n, write); }         \
    HOOK void __tsan_unaligned_read##n(void* p) { SEEN(p, n, read); } \
    HOOK void __tsan_unaligned_write##n(void* p) { SEEN(p, n, write); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
HOOK void __tsan_read_range(void* p, size_t n) { SEEN(p, n, read); }
HOOK void __tsan_write_range(void* p, size_t n) { SEEN(p, n, write); }

HOOK void __tsan_func_entry(void* caller) {
    if (racecheck::in_a_kernel()) racecheck::calls[simulator::current->id][simulator::current->depth++ % 16] = caller;
}
HOOK void __tsan_func_exit() {
    if (racecheck::in_a_kernel()) simulator::current->depth--;
}
HOOK void __tsan_init() {}
HOOK void __tsan_vptr_update(void**, void*) {}
HOOK void __tsan_vptr_read(void**) {}

// memcpy and memset of a length that is not known are calls of the C library: the linker's --wrap brings them here.
extern "C" void* __real_memcpy(void*, const void*, size_t);
extern "C" void* __real_memset(void*, int, size_t);
HOOK void* __wrap_memcpy(void* to, const void* from, size_t n) {
    SEEN(from, n, read);
    SEEN(to, n, write);
    return __real_memcpy(to, from, n);
}
HOOK void* __wrap_memset(void* to, int byte, size_t n) {
    SEEN(to, n, write);
    return __real_memset(to, byte, n);
}

// Atomics of the host's code (std::atomic, static variables): done, and of no interest. A kernel's come through simulator::note. 5 is
// __ATOMIC_SEQ_CST.
#define ATOMIC_(bits, T)                                                                                                    \
    HOOK T __tsan_atomic##bits##_load(const volatile void* p, int) { return __atomic_load_n((const volatile T*)p, 5); }     \
    HOOK void __tsan_atomic##bits##_store(volatile void* p, T x, int) { __atomic_store_n((volatile T*)p, x, 5); }           \
    HOOK T __tsan_atomic##bits##_exchange(volatile void* p, T x, int) { return __atomic_exchange_n((volatile T*)p, x, 5); } \
    HOOK T __tsan_atomic##bits##_fetch_add(volatile void* p, T x, int) { return __atomic_fetch_add((volatile T*)p, x, 5); } \
    HOOK T __tsan_atomic##bits##_fetch_sub(volatile void* p, T x, int) { return __atomic_fetch_sub((volatile T*)p, x, 5); } \
    HOOK T __tsan_atomic##bits##_fetch_and(volatile void* p, T x, int) { return __atomic_fetch_and((volatile T*)p, x, 5); } \
    HOOK T __tsan_atomic##bits##_fetch_or(volatile void* p, T x, int) { return __atomic_fetch_or((volatile T*)p, x, 5); }   \
    HOOK T __tsan_atomic##bits##_fetch_xor(volatile void* p, T x, int) { return __atomic_fetch_xor((volatile T*)p, x, 5); } \
    HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile void* p, void* e, T x, int, int) {                      \
        return __atomic_compare_exchange_n((volatile T*)p, (T*)e, x, false, 5, 5);                                          \
    }                                                                                                                       \
    HOOK int __tsan_atomic##bits##_compare_exchange_weak(volatile void* p, void* e, T x, int, int) {                        \
        return __atomic_compare_exchange_n((volatile T*)p, (T*)e, x, true, 5, 5);                                           \
    }
ATOMIC_(8, unsigned char)
ATOMIC_(16, unsigned short)
ATOMIC_(32, unsigned)
ATOMIC_(64, unsigned long)
HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(5); }
#undef INLINED
#undef ATOMIC_
#undef ACCESS
#undef SEEN
#undef HOOK
