// temp_dir.h -- a directory of a test's own, gone with the test.
#pragma once
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>

struct TempDir {
    std::filesystem::path path;
    TempDir() {
        std::string pattern = (std::filesystem::temp_directory_path() / "fewbits_test_XXXXXX").string();
        REQUIRE(mkdtemp(&pattern[0]) != nullptr);
        path = pattern;
    }
    ~TempDir() { std::filesystem::remove_all(path); }
    std::string at(const std::string& name) const { return (path / name).string(); }
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(at(name), std::ios::binary) << bytes;
        return at(name);
    }
    int files() const { return (int)std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()); }
};
