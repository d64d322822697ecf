#!/usr/bin/env python3
"""make_unicode_tables.py -- writes unicode_tables.h: the ranges of \\p{L}, \\p{N} and \\s that GPT-2's pattern needs.

  why    The version is that of Hugging Face's tokenizers 0.23: a letter that one of the two does not know would be split
         differently. scripts/check_tokenizer.py compares all 1,112,064 characters.
  needs  Python's unicodedata of that version, or: pip install unicodedata2==16.0.0
  run    python3 scripts/make_unicode_tables.py > unicode_tables.h
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

VERSION = "16.0.0"
if unicodedata.unidata_version != VERSION:
    sys.exit(f"this unicodedata is of Unicode {unicodedata.unidata_version}; expected {VERSION}: pip install unicodedata2=={VERSION}")


def ranges(belongs):
    found = []
    for code in range(0x110000):
        if belongs(code, unicodedata.category(chr(code))):
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    return found


def table(name, comment, found):
    print(f"\nconstexpr uint32_t {name}[][2] = {{ // {comment}: {sum(b - a + 1 for a, b in found):,}")
    for i in range(0, len(found), 6):
        print("    " + " ".join(f"{{0x{a:x}, 0x{b:x}}}," for a, b in found[i : i + 6]))
    print("};")


print(f"""// unicode_tables.h -- which characters are letters, numbers and white space: the first and last of each range, in order.
//
// Source   the Unicode Character Database, version {VERSION}, written by scripts/make_unicode_tables.py
// Why      a pattern with \\p{{L}}, \\p{{N}} and \\s needs no more of Unicode than this
// Tests    tests/test_tokenizer.cu
// clang-format off
#pragma once
#include <cstdint>
#include <string>""")
table("UNICODE_LETTERS", "general categories L*", ranges(lambda code, category: category[0] == "L"))
table("UNICODE_NUMBERS", "general categories N*", ranges(lambda code, category: category[0] == "N"))
table("UNICODE_SPACES", "the property White_Space", ranges(lambda code, category: category[0] == "Z" or 9 <= code <= 13 or code == 0x85))
print("""
// 'L' a letter, 'N' a number, 's' white space, '.' anything else.
inline char class_of(uint32_t code) {
    static const std::string classes = [] {
        std::string of(0x110000, '.');
        for (auto& r : UNICODE_LETTERS) of.replace(r[0], r[1] - r[0] + 1, r[1] - r[0] + 1, 'L');
        for (auto& r : UNICODE_NUMBERS) of.replace(r[0], r[1] - r[0] + 1, r[1] - r[0] + 1, 'N');
        for (auto& r : UNICODE_SPACES) of.replace(r[0], r[1] - r[0] + 1, r[1] - r[0] + 1, 's');
        return of;
    }();
    return code < classes.size() ? classes[code] : '.';
}""")
