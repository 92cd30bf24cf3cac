"""Writes unicode_tables.inc for src/text/unicode.cc: the properties of characters for BERT's normaliser.

usage: python unicode_tables.py OUTPUT

The facts are those of this Python's `unicodedata`, taken back to what the `tokenizers` package knows, so that any
Python builds the same tables. The package has categories of Unicode 8, decompositions and combining classes of Unicode
12, and lower case of Rust, Unicode 17. Each list below holds what must be left out or added; ranges also cover
characters that are none of the kind. tests/property/test_text_tokenizer.py compares every character with the package.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

# Marks, punctuation and controls that Unicode 8 has not.
NEWER_CATEGORY = """
5C8-5C9 61D 7FD 890-8E2 9FD-9FE A76 AFA-AFF B53-B55 C04-C3C C77 C84 D00 D3B-D3C D81 EBA ECE 180F-1886 1ABF-1AF0
1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E63 A82C A8C5 A8FF A9BD 10D24-10F89 11070-11074 110C2-110CD 111C9 111CF 1123E-11241
1133B 113BB-1145E 11660-1166C 116B9 1182F-11FFF 12FF1-1612F 16D6D-16F4F 16FE2-16FE4 1CF00-1D128 1D25B-1D25C 1E000-1E6F5
1E944-1E95F
"""
OTHER_CATEGORY = {0x166D: "Po", 0x111C9: "Po", 0x1734: "Mn", 0x1171E: "Mn"}  # in Unicode 8
# Decompositions that Unicode 12 has not.
NEWER_DECOMPOSITION = "105C9-105E4 11383-113C8 11938-16D6A"
# Combining classes that Unicode 12 has not.
NEWER_CLASS = """
5C8-5C9 7FD 897-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1AF0 1DF6-1DFA A82C 10D24-10F85 11070 1133B 113CE-113D0 1145E
11839-11A99 11D42-1612F 16FF0-16FF1 1D127-1D128 1D250-1D281 1E08F-1E6F5
"""
# Lower case that came after the oldest Unicode of the Pythons that build this.
NEWER_LOWER = (
    {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5, 0xA7DA: 0xA7DB}
    | {0xA7DC: 0x19B}
    | {code: code + 0x20 for code in range(0x10D50, 0x10D66)}
    | {code: code + 0x1B for code in range(0x16EA0, 0x16EB9)}
)
CJK = "3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B81F 2B920-2CEAF 2F800-2FA1F"
SPACE = "9-D 20 85 A0 1680 2000-200A 2028-2029 202F 205F 3000"
ASCII_PUNCTUATION = "21-2F 3A-40 5B-60 7B-7E"
HANGUL = range(0xAC00, 0xD7A4)  # they decompose by arithmetic
SURROGATES = range(0xD800, 0xE000)
END = 0x110000

# The bits of Trait in unicode.h.
CONTROL, SPACES, MARK, PUNCTUATION, IDEOGRAPH, LOWERS, DECOMPOSES, REORDERS = (1 << bit for bit in range(8))


def codes(ranges: str) -> Iterator[int]:
    for each in ranges.split():
        first, _, last = each.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def category(code: int, newer: frozenset[int]) -> str:
    if code in OTHER_CATEGORY:
        return OTHER_CATEGORY[code]
    return "Cn" if code in newer else unicodedata.category(chr(code))


def lower(code: int) -> list[int]:
    if code in NEWER_LOWER:
        return [NEWER_LOWER[code]]
    return [ord(char) for char in chr(code).lower()]


def main(output: Path) -> None:
    newer_category, newer_class = frozenset(codes(NEWER_CATEGORY)), frozenset(codes(NEWER_CLASS))
    newer_decomposition = frozenset(codes(NEWER_DECOMPOSITION))
    traits = bytearray(END)

    def mark(bit: int, found: Iterator[int]) -> None:
        for code in found:
            traits[code] |= bit

    def such(says: Callable[[str], bool]) -> Iterator[int]:
        return (c for c in range(END) if c not in SURROGATES and says(category(c, newer_category)))

    mark(CONTROL, (c for c in such(lambda kind: kind in ("Cc", "Cf", "Co")) if c not in (9, 10, 13)))
    mark(CONTROL, iter((0xFFFD,)))
    mark(SPACES, codes(SPACE))
    mark(MARK, such(lambda kind: kind == "Mn"))
    mark(PUNCTUATION, such(lambda kind: kind[0] == "P"))
    mark(PUNCTUATION, codes(ASCII_PUNCTUATION))
    mark(IDEOGRAPH, codes(CJK))

    lowers = {c: lower(c) for c in range(END) if c not in SURROGATES and lower(c) != [c]}
    mark(LOWERS, iter(lowers))
    decompositions = {
        c: [ord(char) for char in unicodedata.normalize("NFD", chr(c))]
        for c in range(END)
        if c not in HANGUL and c not in newer_decomposition and unicodedata.normalize("NFD", chr(c)) != chr(c)
    }
    mark(DECOMPOSES, iter(decompositions))
    mark(DECOMPOSES, iter(HANGUL))
    classes = {c: unicodedata.combining(chr(c)) for c in range(END) if c not in newer_class}
    classes = {code: value for code, value in classes.items() if value}
    mark(REORDERS, iter(classes))

    pages: dict[bytes, int] = {}
    page_of = [pages.setdefault(bytes(traits[at : at + 256]), len(pages)) for at in range(0, END, 256)]
    assert len(pages) <= 256
    pool: list[int] = []
    places = []
    for each in (lowers, decompositions):
        rows = []
        for code, into in each.items():
            rows.append(f"{{{code},{len(pool)},{len(into)}}}")
            pool += into
        places.append(rows)
    output.write_text(
        "// Made by unicode_tables.py.\n"
        + f"constexpr std::uint8_t kPageOf[] = {{{','.join(map(str, page_of))}}};\n"
        + f"constexpr std::uint8_t kPages[][256] = {{{','.join('{' + ','.join(map(str, p)) + '}' for p in pages)}}};\n"
        + f"constexpr Into kLower[] = {{{','.join(places[0])}}};\n"
        + f"constexpr Into kDecompositions[] = {{{','.join(places[1])}}};\n"
        + f"constexpr char32_t kPool[] = {{{','.join(map(str, pool))}}};\n"
        + f"constexpr Class kClasses[] = {{{','.join(f'{{{c},{k}}}' for c, k in classes.items())}}};\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
