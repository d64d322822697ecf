// fuzz_decisions.cpp -- decisions.h on any bytes: a log is refused or found to differ in one line, or every attempt is decided again.
//
//   clang++ -x c++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas -I. fuzz/fuzz_decisions.cpp -o build/fuzz_decisions
//   build/fuzz_decisions -max_len=4096 CORPUS fuzz/corpus/decisions              what is new goes to CORPUS, an empty folder
//
// Found    anything that is no Error of status 1 or 2, a crash and a leak included
// Why      each line has a hash of the state after it, which no mutation guesses: seven times of eight a mutant's lines are
//          decided anew, and what is fuzzed is the evidence and the rules
#include "decisions.h"
#include <random>
#include <sstream>

static void require(bool good) {
    if (!good) abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    std::istringstream log(std::string((const char*)bytes, size));
    int attempts = 0, reasons = 0;
    try {
        const Replayed r = replay(log, "fuzz", [&](const Attempt& a) {
            const size_t n = a.after.tensors.size();
            require(a.names.size() == n + a.after.parameters.size() && a.before.tensors.size() == n && a.evidence.tensors.size() == n);
            require(a.decision.culprit < (int)n && a.rules.window >= 1 && a.rules.window <= MAX_WINDOW);
            for (size_t i = 0; i < n; i++) // as the report asks
                require(std::abs(cast_exponent(a.rules, a.before.tensors[i], a.evidence.tensors[i].amax_bits)) <= K_LIMIT && name_of(a.after.tensors[i].format)[0]);
            for (const Reason& reason : a.decision.reasons) require(!text(reason, a.names).empty());
            attempts++, reasons += a.decision.reasons.size();
        });
        require(r.attempts == attempts && r.reasons == reasons && r.verdicts[0] + r.verdicts[1] + r.verdicts[2] + r.verdicts[3] == attempts);
        require(attempts == std::count(bytes, bytes + size, '\n') - (bytes[size - 1] == '\n')); // every line but the first
    } catch (const Error& e) {
        require((e.status == 1 || e.status == 2) && !strchr(e.what(), '\n') && strlen(e.what()) < 1000 && strncmp(e.what(), "fuzz:", 5) == 0);
    }
    return 0;
}

// Another number in place of one of the log's.
static void change_number(std::string& log, std::minstd_rand& random) {
    static const char* const numbers[] = {
        "0", "1", "2", "3", "4", "7", "16", "64", "65", "1000", "1001", "-1", "1.5", "1e300", "-0", "20000", "1065353216", "2139095039", "2139095040", "2147483647",
        "2147483648", "-2147483648", "4294967295", "4294967296", "9007199254740992", "9007199254740993", "9223372036854775807", "18446744073709551616"};
    const size_t begin = log.find_first_of("0123456789", random() % (log.size() + 1));
    if (begin != std::string::npos) log.replace(begin, log.find_first_not_of("0123456789", begin) - begin, numbers[random() % std::size(numbers)]);
}

// The log as a run would have written it, as far as it can be read; a line that cannot stays.
static std::string decided(const std::string& log) {
    std::istringstream from(log);
    std::string all, line;
    Rules rules;
    PolicyState state;
    std::vector<std::string> names;
    while (std::getline(from, line)) {
        try {
            const Logged logged = Logged::parse(line);
            if (all.empty()) {
                read_header(logged, rules, state, names);
                line = header_of(rules, state, names).dump();
            } else {
                const StepEvidence e = evidence_of(logged);
                Decision d = decide(rules, state, e);
                give_masters(rules, state, e.updates, d);
                line = line_of(e, d, state, names).dump();
            }
        } catch (const std::exception&) {
        }
        all += line + "\n";
    }
    return all;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* bytes, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* bytes, size_t size, size_t most, unsigned seed) {
    std::minstd_rand random(seed);
    if (random() % 2) size = LLVMFuzzerMutate(bytes, size, most);
    std::string log((const char*)bytes, size);
    for (int n = random() % 4; n > 0; n--) change_number(log, random);
    if (random() % 8) log = decided(log);
    size = std::min(log.size(), most);
    memcpy(bytes, log.data(), size);
    return size;
}
