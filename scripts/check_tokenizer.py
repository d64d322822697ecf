#!/usr/bin/env python3
"""check_tokenizer.py -- bpe.h and tokenizer.h against Hugging Face's tokenizers, which must give the same ids.

  what   Every character of Unicode next to a letter, a digit, a symbol and a space; then random strings of characters that are
         easily split wrongly, as they are and with <|endoftext|> read as that token; then lossy text: bytes that are no UTF-8
         here, U+FFFD there, must make the same words. Exit status 1 at the first difference.
  needs  g++, and what nothing else of this project does:   pip install tokenizers==0.23.*
  run    python3 scripts/check_tokenizer.py [--tokenizer FOLDER OR tokenizer.json] [--strings 20000] [--seed 1] [--text FILE]
         python3 scripts/check_tokenizer.py --write-tests --text tinyshakespeare.txt     trains tests/tiny_tokenizer.h
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = ROOT / "tests" / "tiny_tokenizer.h"
END = "<|endoftext|>"

# Texts as (uint32 bytes, bytes), ids as (uint32 count, int32 ids); a first byte of 1 asks for encode_documents.
PROGRAM = """
#include "tokenizer.h"
int main(int, char** argv) {
    const Tokenizer tokenizer = load_tokenizer(argv[1]);
    for (uint32_t n; fread(&n, 4, 1, stdin) == 1;) {
        std::string text(n, 0);
        if (fread(&text[0], 1, n, stdin) != n) return 1;
        const std::vector<int> ids = text[0] ? tokenizer.encode_documents(text.substr(1)) : tokenizer.encode(text.substr(1));
        if (tokenizer.decode(ids) != text.substr(1)) return 2;
        n = ids.size();
        fwrite(&n, 4, 1, stdout), fwrite(ids.data(), 4, n, stdout);
    }
}
"""
LESSON = """Emoji: 😀 😀😀 👍🏽 👩‍👩‍👧‍👦 🇫🇷 ❤️. It's we're I'll they've I'm he'd can't, IT'S. 東京 日本語 中文 русский العربية עברית हिन्दी ไทย café naïve.
int main() {\r\n\treturn 0;\r\n}\n\n\n    four spaces   three\u00a0no break 1234 56 ٣٤٥ Ⅷ ½ ¼ -- ... !!! ??? “quotes” ‘it’s’ — –
"""
AWKWARD = [
    "", " ", "  ", "   ", "a", " a", "  a", "   a b", "a ", "a  ", "Hello, world!", "\n", "\n\n", "a\nb", "a\n\nb", "a \n b", " \n", "\n ",
    "line\r\nline\r\n", "\r", "\t\tif\tx:", "a\t b", "it's we're I'll they've I'm he'd can't", "IT'S WE'RE I'LL THEY'VE I'M HE'D CAN'T", "it’s we’re I’ll",
    "'s 's''s '''s", " 's", "'", "''", "'S", "'r 'v 'l 'lx 'rex", "don''t", "!'s", "x'", "1's", "123 4567 890", "a1b2c3", " 1a", "3.14159e-10",
    "٣٤٥ ١٢", "१२३ ๓๔๕ Ⅷ½¼ ²³ ①", "𝟘𝟙𝟚 𝐀𝐛", "😀", "😀 😀😀", "👍🏽👍", "👩‍👩‍👧‍👦 family", "🇫🇷🇩🇪", "❤️ ❤", "1️⃣", "東京タワー", "中文 123 中文", "日本語。テスト、",
    "العربية مرحبا", "עִבְרִית", "हिन्दी में", "ไทย ภาษา", "ကမ္ဘာ", "한국어 조선말", "e\u0301 cafe\u0301", "a\u0300\u0301\u0302b", "\u0301", " \u0301x", "Å Å Å",
    "a\u00a0b\u00a0\u00a0c", "\u00a0", "\u2003\u2003x", "a\u3000b", "\u2028\u2029x", "\u0085x\u0085", "a\u200bb", "a\u200db\u200c", "\ufeffBOM", "x\ufeff", "\u180ea", "\u2060",
    "\0", "a\0b\0\0", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f\x80\x9f", "\x1c\x1d\x1e\x1f x", "\x0b\x0c v f", "a \u00a0b", " \u00a0", "  \u3000 x",
    "\ufffd", "\ufffe\uffff", "\U0010ffff\U0010fffe", "\ue000", "ſ ß ẞ ŉ İı", "ﬁ ﬂ", "ǅ ʰ ª º", "_under_score__", "@#$%^&*()[]{}|\\/<>~`+=", "a.b,c;d:e", "...", " ... ", "—–‐", "“a” ‘b’",
    "https://example.org/a?b=c&d=%20#e", "user@example.org", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|", "<|endoftext|><|endoftext|>", "Ġ Ċ ĉ", "ĠHello", "À la carte", "¡¿«»", "­soft­hyphen",
    "a" * 300, "ab" * 200, " " * 200 + "x", "!" * 150, "9" * 150, "é" * 120, "😀" * 60, "\n" * 100, "the the the  the\tthe\n the", "ROMEO:\nBut, soft! what light through yonder window breaks?",
    "\u1c89\u1c8a\ua7da", "\U000105c0 \U00016d40", "\U00010d40\U00010d41", "\U0001e5f1", "\U000323af\U000323b0",
]  # fmt: skip; the last line: characters that Unicode 15 did not have yet, and the end of a range
NASTY = (
    list("aZsStTrRvVeEmMlLdD'’ 019.,!-_<|>") + ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", " '", END, "<|", "the", " the", " and", "ing"]
    + [chr(c) for c in [*range(0x21), *range(0x7F, 0xC0), 0x130, 0x131, 0x17F, 0x1C5, 0x2B0, 0x300, 0x301, 0x36F, 0x660, 0x669, 0x6DD, 0x964, 0x966, 0x1680, 0x180E, 0x2160]]
    + [chr(c) for c in [*range(0x2000, 0x2010), 0x2028, 0x2029, 0x202E, 0x202F, 0x205F, 0x2060, 0x20E3, 0x3000, 0x3007, 0x4E00, 0x9FFF, 0xAC00, 0xD7A3, 0xE000, 0xFE0F, 0xFEFF]]
    + [chr(c) for c in [0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x105C0, 0x10D40, 0x1D7D8, 0x1F1EB, 0x1F3FD, 0x1F469, 0x1F600, 0x20000, 0x323AF, 0x323B0, 0xE0001, 0xE0100, 0x10FFFF]]
)  # fmt: skip


def load(path):
    path = pathlib.Path(path)
    if path.is_dir() and not (path / "tokenizer.json").exists():
        tokenizer = Tokenizer(models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens([AddedToken(END, special=True)])
        return tokenizer
    return Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))


def expected(tokenizer, texts, documents):
    tokenizer.encode_special_tokens = not documents  # <|endoftext|> as text
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


class Ours:
    def __init__(self, folder, tokenizer):
        source, self.program, self.tokenizer = pathlib.Path(folder) / "ids.cpp", pathlib.Path(folder) / "ids", str(tokenizer)
        source.write_text(PROGRAM)
        subprocess.run(["g++", "-std=c++17", "-O2", "-fopenmp", f"-I{ROOT}", source, "-o", self.program], check=True)

    def encode(self, texts, documents=False):
        """Of bytes; the program also checks that they decode to what they were."""
        sent = b"".join(struct.pack("<I", len(t) + 1) + bytes([documents]) + t for t in texts)
        run = subprocess.run([self.program, self.tokenizer], input=sent, stdout=subprocess.PIPE, check=True)
        ids, at = [], 0
        for _ in texts:
            (n,) = struct.unpack_from("<I", run.stdout, at)
            ids.append(list(struct.unpack_from(f"<{n}i", run.stdout, at + 4)))
            at += 4 + 4 * n
        return ids


def compare(what, theirs, ours, texts):
    for t, a, b in zip(texts, theirs, ours):
        if a != b:
            sys.exit(f"{what}: {t!r}: tokenizers gives {a}, we give {b}")
    print(f"{what}: {len(texts)} texts, {sum(map(len, theirs))} ids, all the same")


def check(options, folder):
    path = options.tokenizer
    if not path:
        path = pathlib.Path(folder) / "tokenizer.json"
        path.write_text(TINY.read_text().split('R"json(')[1].split(')json"')[0])
    tokenizer, ours, rng = load(path), Ours(folder, path), random.Random(options.seed)

    texts = [f"a{c} 1{c} !{c} {c}{c}" for c in map(chr, range(0x110000)) if not "\ud800" <= c <= "\udfff"]
    compare("every character", expected(tokenizer, texts, False), ours.encode([t.encode() for t in texts]), texts)

    def text():
        alphabet = rng.sample(NASTY, rng.randint(1, 12)) if rng.random() < 0.5 else NASTY
        anywhere = lambda: rng.choice([chr(rng.randrange(0xD800)), chr(rng.randrange(0xE000, 0x110000))])
        return "".join(anywhere() if rng.random() < 0.05 else rng.choice(alphabet) for _ in range(rng.randint(0, 60)))

    for documents in (False, True):
        texts = [text() for _ in range(options.strings)]
        what = "random strings, with <|endoftext|>" if documents else "random strings"
        compare(what, expected(tokenizer, texts, documents), ours.encode([t.encode() for t in texts], documents), texts)

    # Bytes that are no UTF-8: between them the words, and so the ids, are those of the lossy text. Here: where an isolated 0xFF stands.
    texts = [t.replace("\ufffd", "") for t in (text() for _ in range(options.strings // 4))]
    texts = ["\ufffd".join([t[:5], t[5:9], t[9:]]) for t in texts]
    broken = [t.encode().replace("\ufffd".encode(), b"\xff") for t in texts]
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs = [[t[a:b] for _, (a, b) in words.pre_tokenize_str(t)] for t in texts]
    flat = [w.encode().replace("\ufffd".encode(), b"\xff") for word in theirs for w in word]
    pieces, joined, at = ours.encode(flat), [], 0
    for word in theirs:
        joined.append([i for ids in pieces[at : at + len(word)] for i in ids])
        at += len(word)
    compare("bytes that are no UTF-8", joined, ours.encode(broken), broken)

    if options.text:
        whole = pathlib.Path(options.text).read_bytes().decode()
        compare(options.text, expected(tokenizer, [whole], False), ours.encode([whole.encode()]), [whole])


def literal(text):
    shown = lambda c: c.isprintable() and unicodedata.category(c)[0] in "LNPS" and ord(c) < 0x1F000 and unicodedata.bidirectional(c) in ("L", "EN", "ON", "ES", "ET", "CS") or c == " "
    escape = lambda c: "\\" + c if c in '"\\?' else c if shown(c) else "".join(f"\\{b:03o}" for b in c.encode())
    return '"' + "".join(map(escape, text)) + '"s'


def write_tests(options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[END], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator([pathlib.Path(options.text).read_bytes().decode()[:200000], LESSON * 40], trainer)
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    lines = "".join(
        f"    {{{literal(t)}, {{{', '.join(map(str, ids))}}}}},\n" for t, ids in zip(AWKWARD, expected(tokenizer, AWKWARD, False))
    )
    TINY.write_text(f"""// tiny_tokenizer.h -- a byte-level BPE of 600 tokens as a tokenizer.json, and strings with the ids that Hugging Face's tokenizers
//                     0.23 gives them. Written by scripts/check_tokenizer.py --write-tests; it was trained on Tiny Shakespeare.
// clang-format off
#pragma once
#include <string>
#include <vector>
using namespace std::string_literals;

const char TINY_TOKENIZER[] = R"json({compact})json";

struct Awkward {{
    std::string text;
    std::vector<int> ids;
}};
const std::vector<Awkward> AWKWARD = {{
{lines}}};
""")
    print(f"{TINY}: {len(compact.encode())} bytes of tokenizer, {len(AWKWARD)} strings")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer"), parser.add_argument("--text"), parser.add_argument("--write-tests", action="store_true")
    parser.add_argument("--strings", type=int, default=20000), parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.write_tests:
        return write_tests(options)
    with tempfile.TemporaryDirectory() as folder:
        check(options, folder)


main()
