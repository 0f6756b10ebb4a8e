#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.c: the Unicode data for tokenizers.

    scripts/unicode-tables.py > src/tokenizer/unicode_tables.c

The tables match Hugging Face's tokenizers, so that ids are the same: classes of Unicode 16 (its regular
expressions), normal form C of Unicode 9 (later characters are neither ordered nor composed), and lower
case of Unicode 17. tests/golden/compare_tokenizers.py finds differences. If this Python does not have
Unicode 16, the package unicodedata2==16.0.0 is needed. The result is checked in: a build never runs this.
"""
import sys

try:
    import unicodedata2 as ucd
except ImportError:
    import unicodedata as ucd

WANTED = "16.0.0"
LAST = 0x10FFFF
BLOCK = 128
OTHER, LETTER, NUMBER, SPACE, WORD = 0, 1, 2, 3, 4
# White_Space; the category does not include the control characters.
SPACES = {0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
SPACES |= set(range(0x2000, 0x200B))
# Alphabetic but neither letter, mark nor number: circled and squared letters. Then the joiners.
WORDS = {0x200C, 0x200D}
for first, last in ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)):
    WORDS |= set(range(first, last + 1))
# Lower case of Unicode 15 to 17, which str.lower() of an older Python does not have.
LOWER = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7DA: 0xA7DB, 0xA7DC: 0x19B}
LOWER.update({c: c + 1 for c in (0xA7CE, 0xA7D2, 0xA7D4)})
LOWER.update({c: c + 0x20 for c in range(0x10D50, 0x10D66)})
LOWER.update({c: c + 0x1B for c in range(0x16EA0, 0x16EB9)})
# Marks and composed characters that were added after Unicode 9.
NEWER = set()
for first, last in (
        (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C),
        (0xEBA, 0xEBA), (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C),
        (0x10D24, 0x10D27), (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EFD, 0x10EFF), (0x10F46, 0x10F50),
        (0x10F82, 0x10F85), (0x105C9, 0x105C9), (0x105E4, 0x105E4), (0x11070, 0x11070), (0x1133B, 0x1133B),
        (0x11383, 0x113D0), (0x1145E, 0x1145E), (0x11839, 0x1183A), (0x11938, 0x11943), (0x119E0, 0x119E0),
        (0x11A34, 0x11A34), (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D45), (0x11D97, 0x11D97),
        (0x11F41, 0x11F42), (0x16121, 0x1612F), (0x16D68, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F),
        (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF)):
    NEWER |= set(range(first, last + 1))


def character_class(code):
    category = ucd.category(chr(code))
    value = OTHER
    if category[0] == "L":
        value = LETTER
    elif category[0] == "N":
        value = NUMBER
    elif code in SPACES:
        value = SPACE
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or code in WORDS:
        value |= WORD
    return value


def lower(code):
    if code in LOWER:
        return LOWER[code]
    small = chr(code).lower()
    # Only U+0130 becomes two characters: unicode.c handles it.
    return ord(small) if len(small) == 1 else code


def write_rows(name, kind, values, per_row):
    print(f"const {kind} {name}[{len(values)}] = {{")
    for i in range(0, len(values), per_row):
        print("    " + " ".join(f"{v}," for v in values[i : i + per_row]))
    print("};\n")


def classes():
    blocks, index = {}, []
    for first in range(0, LAST + 1, BLOCK):
        row = tuple(character_class(c) for c in range(first, first + BLOCK))
        index.append(blocks.setdefault(row, len(blocks)))
    packed = [row[i] | row[i + 1] << 4 for row in blocks for i in range(0, BLOCK, 2)]
    assert len(blocks) < 256
    write_rows("hy_unicode_block", "uint8_t", index, 18)
    write_rows("hy_unicode_classes", "uint8_t", packed, 18)


def decompositions():
    rows = []
    for code in range(LAST + 1):
        parts = ucd.decomposition(chr(code)).split()
        if parts and not parts[0].startswith("<") and code not in NEWER:
            pair = [int(p, 16) for p in parts] + [0]
            rows.append((code, pair[0], pair[1]))
    shown = [f"{{0x{c:X}, 0x{a:X}, 0x{b:X}}}" for c, a, b in rows]
    write_rows("hy_unicode_decomposition", "hy_unicode_pair", shown, 3)
    composed = [
        (a, b, i)
        for i, (c, a, b) in enumerate(rows)
        if b and ucd.normalize("NFC", chr(a) + chr(b)) == chr(c)
    ]
    write_rows("hy_unicode_composition", "uint16_t", [i for _, _, i in sorted(composed)], 16)


def combining():
    runs = []
    for code in range(LAST + 1):
        value = ucd.combining(chr(code))
        if not value or code in NEWER:
            continue
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1][1] = code
        else:
            runs.append([code, code, value])
    write_rows("hy_unicode_combining", "hy_unicode_run",
               [f"{{0x{a:X}, 0x{b:X}, {v}}}" for a, b, v in runs], 3)


def lowering():
    """Runs of upper-case letters with the same distance to lower case, every character or every other."""
    runs = []
    for code in range(0x80, LAST + 1):
        if 0xD800 <= code < 0xE000:
            continue
        distance = lower(code) - code
        if not distance:
            continue
        last = runs[-1] if runs else None
        if last and last[3] == distance and code - last[1] in ((1, 2) if last[2] == 0 else (last[2],)):
            last[2] = code - last[1]
            last[1] = code
        else:
            runs.append([code, code, 0, distance])
    write_rows("hy_unicode_lower_run", "hy_unicode_case",
               [f"{{0x{a:X}, 0x{b:X}, {s or 1}, {d}}}" for a, b, s, d in runs], 3)


def main():
    if ucd.unidata_version != WANTED:
        sys.exit(f"unicode-tables.py: this Python has Unicode {ucd.unidata_version}, but the tables"
                 f" need {WANTED}: pip install unicodedata2=={WANTED}")
    print(f"""/* unicode_tables.c: character classes of Unicode {WANTED}, decompositions of 9, cases of 17.
 *
 * Written by scripts/unicode-tables.py; unicode_tables.h describes the layout. */
/* clang-format off */
#include "tokenizer/unicode_tables.h"
""")
    classes()
    decompositions()
    combining()
    lowering()


main()
