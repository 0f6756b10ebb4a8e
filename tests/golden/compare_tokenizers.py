#!/usr/bin/env python3
"""Random texts through our tokenizer and Hugging Face's: ids and decoded texts must be the same.

    pip install tokenizers
    make lib
    python3 tests/golden/compare_tokenizers.py build/lib/libhybrid.so COUNT TOKENIZER.json ...

Without files the small tokenizers of tokenizers.json are compared, one of each family. Texts mix words that
tokenizers stumble over with characters from all over Unicode; what differs is printed, and makes the exit
code 1. Two kinds of texts are compared by their ids alone: those that Hugging Face decodes to something with
U+FFFD (half a character; ours gives such bytes as they are), and those with a normalised added token inside
(the blank that was matched with it is its own in some versions and nobody's in others).
"""
import ctypes
import json
import os
import random
import sys
import tempfile
import time

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.argv, arguments = [sys.argv[0]], sys.argv[1:]


def words():
    """The lists of make_tokenizers.py, which does not run when read."""
    source = open(os.path.join(HERE, "make_tokenizers.py"), encoding="utf-8").read()
    begin, end = source.index("BLANK ="), source.index("def texts()")
    names = {}
    exec(source[begin:end], names)
    return names["WORDS"], names["RANGES"]


WORDS, RANGES = words()
RANGES = RANGES + [(0x1, 0xD800), (0xE000, 0x110000)]


def random_text(draw):
    text = ""
    for _ in range(draw.choice([0, 1, 2, 3, 5, 8, 13, 30, 60])):
        if draw.random() < 0.35:
            text += draw.choice(WORDS)
        else:
            text += chr(draw.randrange(*draw.choice(RANGES))) * draw.choice([1, 1, 1, 1, 2, 5])
    return text


class Ours:
    def __init__(self, library, path):
        self.lib = ctypes.CDLL(library)
        self.lib.hy_error_message.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        self.check(self.lib.hy_tokenizer_open(path.encode(), ctypes.byref(self.handle)))

    def check(self, status):
        if status:
            raise SystemExit(self.lib.hy_error_message().decode())

    def encode(self, text, special):
        data = text.encode()
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.check(self.lib.hy_tokenize(self.handle, data, ctypes.c_size_t(len(data)), int(special),
                                        ctypes.byref(ids), ctypes.byref(count)))
        out = ids[: count.value]
        self.lib.hy_free(ids)
        return out

    def decode(self, ids):
        row = (ctypes.c_int32 * len(ids))(*ids)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.check(self.lib.hy_untokenize(self.handle, row, ctypes.c_size_t(len(ids)), 0,
                                          ctypes.byref(text), ctypes.byref(size)))
        out = ctypes.string_at(text, size.value)
        self.lib.hy_free(text)
        return out


def compare(library, path, name, count):
    ours, theirs, draw = Ours(library, path), Tokenizer.from_file(path), random.Random(11)
    with open(path, encoding="utf-8") as source:
        added = json.load(source)["added_tokens"]
    vague = {token["id"] for token in added if token["normalized"]}
    wrong, ids_alone, began = 0, 0, time.time()
    for number in range(count):
        text, special = random_text(draw), number % 2 == 0
        expected = theirs.encode(text, add_special_tokens=special).ids
        found = ours.encode(text, special)
        differs = found != expected
        if not differs:
            back = theirs.decode(expected, skip_special_tokens=False)
            is_vague = "\ufffd" in back or not vague.isdisjoint(found[1:])
            ids_alone += is_vague
            differs = not is_vague and ours.decode(found) != back.encode()
        wrong += differs
        if differs and wrong <= 3:
            print(f"  {text!r}\n  ours   {found[:40]}\n  theirs {expected[:40]}")
    print(f"{name}: {count} texts, {wrong} differ, {ids_alone} compared by ids alone, "
          f"{time.time() - began:.0f} s", flush=True)
    return wrong


def main():
    library, count, files = arguments[0], int(arguments[1]), arguments[2:]
    wrong = sum(compare(library, path, path, count) for path in files)
    if not files:
        with open(os.path.join(HERE, "tokenizers.json"), encoding="utf-8") as source:
            golden = json.load(source)["tokenizers"]
        for entry in golden:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "tokenizer.json")
                with open(path, "w", encoding="utf-8") as out:
                    json.dump(entry["tokenizer"], out)
                wrong += compare(library, path, entry["name"], count)
    sys.exit(wrong > 0)


main()
