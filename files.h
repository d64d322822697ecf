// files.h -- what is on the disk after a kill, a power loss or a full disk can be read.
//
//   WholeFile   a file that is whole or not there: written under another name, synced, then renamed
//   Lines       a file that grows by whole lines; at most its last one is cut off
//
// Why      whoever is killed, or finds the disk full, leaves what was there before; a reader never meets half a file
// Tests    tests/test_safetensors.cu, tests/test_plot.cu, tests/test_train_gpt.cu
#pragma once
#include "errors.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

// All of it, or false and errno.
inline bool write_all(int file, const void* bytes, size_t n) {
    for (const char* at = (const char*)bytes; n;) {
        const ssize_t k = ::write(file, at, std::min(n, (size_t)1 << 30));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k, n -= k;
    }
    return true;
}
// Devices, and folders of some file systems, have nothing to sync: EINVAL.
inline bool synced(int file) { return fsync(file) == 0 || errno == EINVAL; }
// The names in a folder are on the disk: of new files and renamed ones.
inline void sync_folder(const std::string& path) {
    const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool done = folder >= 0 && synced(folder);
    const int why = errno;
    if (folder >= 0) close(folder);
    if (!done) throw Error(1, path + ": cannot be synced: " + strerror(why));
}

// Writes path.part, and calls it `path` when all of it is on the disk. If anything fails (Error, status 1), or without commit(), `path`
// stays as it was and the .part goes. One writer at a time for one path.
class WholeFile {
    std::string path, part;
    int file = -1, folder = -1;
    void abandon() {
        if (file >= 0) unlink(part.c_str()), close(file);
        if (folder >= 0) close(folder);
        file = folder = -1;
    }

  public:
    explicit WholeFile(const std::string& path) : path(path), part(path + ".part") {
        folder = open(path.substr(0, path.rfind('/') + 1).append(".").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0) fail("its folder cannot be opened", errno);
        file = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (file < 0) fail("its .part cannot be opened", errno);
    }
    WholeFile(const WholeFile&) = delete;
    ~WholeFile() { abandon(); }

    bool is_open() const { return file >= 0; }
    [[noreturn]] void fail(const std::string& what, int why = 0) { throw(abandon(), Error(1, path + ": " + what + (why ? std::string(": ") + strerror(why) : ""))); }
    void write(const void* bytes, size_t n) {
        if (!write_all(file, bytes, n)) fail("cannot be written", errno);
    }
    void commit() {
        if (fsync(file) != 0) fail("cannot be synced", errno);
        if (rename(part.c_str(), path.c_str()) != 0) fail("cannot take the place of what is there", errno);
        close(file), file = -1; // the data are on the disk; the name is when the folder is
        if (!synced(folder)) fail("is whole, but its folder cannot be synced", errno);
    }
};
inline void write_whole(const std::string& path, const std::string& bytes) {
    WholeFile file(path);
    file.write(bytes.data(), bytes.size()), file.commit();
}

// Each line is one write at the file's end. Opened, nothing changes; cut() leaves the `kept` bytes that it had before, and then it grows.
class Lines {
    std::string path;
    size_t kept;
    int file;
    void check(bool done, const char* what) {
        if (!done) throw Error(1, path + ": cannot be " + what + ": " + strerror(errno));
    }

  public:
    Lines(const std::string& path, size_t kept) : path(path), kept(kept), file(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | (kept ? 0 : O_CREAT), 0666)) {
        if (file < 0) refuse("%s: cannot be opened: %s", path.c_str(), strerror(errno));
        if (const size_t is = size(); is < kept) close(file), refuse("%s has %zu bytes; expected the %zu that it had before, or more", path.c_str(), is, kept);
    }
    Lines(const Lines&) = delete;
    ~Lines() { close(file); }
    size_t size() const {
        struct stat status = {};
        fstat(file, &status);
        return status.st_size;
    }
    void cut() { check(ftruncate(file, kept) == 0 || errno == EINVAL, "cut back"); } // EINVAL: of a device
    void write(const std::string& line) { check(write_all(file, (line + "\n").data(), line.size() + 1), "written"); }
    void sync() { check(synced(file), "synced"); }
};
