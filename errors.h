// errors.h -- one line that names the thing: what was found, where, and what was expected.
//
//   refuse(...)              the user's option, file or value is at fault: exit status 2
//   ENSURE(condition, ...)   one of our own shapes or pointers is, or a run had to stop: exit status 1
//
// Tests    tests/test_gpu.cu
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

struct Error : std::runtime_error {
    int status; // what main returns
    Error(int status, const std::string& message) : std::runtime_error(message), status(status) {}
};

// clang-format off
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
inline std::string format(const char* pattern, ...) {
    // clang-format on
    va_list args, again;
    va_start(args, pattern);
    va_copy(again, args);
    std::string text(vsnprintf(nullptr, 0, pattern, args), '\0');
    vsnprintf(&text[0], text.size() + 1, pattern, again);
    va_end(args);
    va_end(again);
    return text;
}

template <class... A>
[[noreturn]] void refuse(const char* pattern, A... args) {
    throw Error(2, format(pattern, args...));
}
[[noreturn]] inline void refuse(const char* message) { throw Error(2, message); }
#define ENSURE(condition, ...)                                                                \
    do {                                                                                      \
        if (!(condition)) throw Error(1, std::string(__func__) + ": " + format(__VA_ARGS__)); \
    } while (0)
