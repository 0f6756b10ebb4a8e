#!/usr/bin/env python3
"""Compares ids of our tokenizers with those that llama.cpp computes from our files.

    compare_tokenizers.py hybrid-export libhybrid.so [COUNT]

Every kind of tokenizer that a file can have is exported with a model of zeros, and COUNT (10000) random
texts are encoded by us, from the tokenizer's own files, and by llama.cpp, from the exported one. docs/gguf.md
lists what llama.cpp reads otherwise: such texts are left out here. Real tokenizers are those in
$HYBRID_DATA/tokenizers; the others have the vocabulary of GPT-2 and their own steps. Needs llama_cpp; without
it exits with 77."""

import ctypes
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    import llama_cpp
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


@llama_cpp.llama_log_callback
def silent(level, text, user):
    """llama.cpp says much about files without weights."""


llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("HYBRID_DATA") or ROOT.parent / "shared" / "data")
WORDS = ["a", "Zz", " ", "  ", "\n", "\r\n", "\t", "1", "23", "4567", "'s", "'LL", "'ve", "'\u017f", "'", "!?", "_",
         "\u00e9", "e\u0301", "\u65e5", "\u00a0", "\u3000", "\u00bd", "\U0001f999", "\u2581", "don't", " the", "...\n",
         "\u0416", "/", "//", "\u01c5", "\u02b0", "\u0660", "HTTPServer", "iPhone", "\u0939\u093f\u0928", "\ufb01",
         "\u2167", "\uac00", "\u1100\u1161", "\u200d", "\u0300", "<", "|", ">", "hello", "World", "\u00df", "=", "{}"]
RANGES = [(32, 127), (32, 127), (0xA0, 0x3000), (0x3000, 0xD800), (0x10000, 0x1FFFF)]

LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def by_digits(digits):
    return rf"{SHORT}|{LETTERS}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{BLANKS}"


def by_case(after, digits):
    begin = r"[^\r\n\p{L}\p{N}]?"
    return (rf"{begin}{UPPER}*{LOWER}+{after}|{begin}{UPPER}+{LOWER}*{after}|{digits}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{BLANKS}")


# Steps: a pattern, or "Digits"; ignore_merges; NFC.
MADE = {
    "cl100k": (by_digits(r"\p{N}{1,3}"), False, False),
    "llama3-steps": (by_digits(r"\p{N}{1,3}"), True, False),
    "qwen2": (by_digits(r"\p{N}"), False, True),
    "qwen2-without-nfc": (by_digits(r"\p{N}"), False, False),
    "gpt-4o": (by_case(SHORT + "?", r"\p{N}{1,3}"), False, False),
    "tekken": (by_case("", r"\p{N}"), True, False),
    "smollm": ("Digits", False, False),
    "olmo": ("", False, True),
}


def is_left_out(name, text):
    """Does llama.cpp read this text otherwise? See docs/gguf.md."""
    if name in ("gpt-4o", "tekken"):
        return any(unicodedata.category(c)[0] == "M" for c in text)
    if name in ("qwen2", "olmo"):
        return unicodedata.normalize("NFC", text) != text
    return name in ("unigram", "gemma") and "\u2581" in text


def random_text(draw):
    text = ""
    for _ in range(draw.randrange(1, 30)):
        if draw.random() < 0.6:
            text += draw.choice(WORDS)
            continue
        letter = chr(draw.randrange(*draw.choice(RANGES)))
        if unicodedata.category(letter) != "Cn":  # not in the tables of one or the other
            text += letter
    return text


def made_tokenizer(steps, ignores, nfc):
    tokenizer = json.loads((DATA / "tokenizers/gpt2/tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": steps}, "behavior": "Isolated", "invert": False}
    digits = {"type": "Digits", "individual_digits": True}
    first = [] if not steps else [digits] if steps == "Digits" else [split]
    last = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": steps in ("", "Digits")}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": first + [last]}
    tokenizer["normalizer"] = {"type": "NFC"} if nfc else None
    tokenizer["model"]["ignore_merges"] = ignores
    return json.dumps(tokenizer)


class Ours:
    def __init__(self, library, path):
        self.lib = library
        self.handle = ctypes.c_void_p()
        if library.hy_tokenizer_open(str(path).encode(), ctypes.byref(self.handle)):
            raise SystemExit(library.hy_error_message().decode())

    def encode(self, text):
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.lib.hy_tokenize(self.handle, text, ctypes.c_size_t(len(text)), 0, ctypes.byref(ids), ctypes.byref(count))
        return ids[: count.value]


def write_model(folder, vocab):
    """A Llama of zeros."""
    (folder / "config.json").write_text(json.dumps(dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=64, vocab_size=vocab, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu")))
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [vocab, 8], "model.norm.weight": [8],
              layer + "input_layernorm.weight": [8], layer + "post_attention_layernorm.weight": [8]}
    shapes |= {f"{layer}self_attn.{n}_proj.weight": [8, 8] for n in "qkvo"}
    shapes |= {f"{layer}mlp.{n}_proj.weight": [8, 8] for n in ("gate", "up", "down")}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def compare(name, folder, program, library, count):
    ours = Ours(library, folder)
    write_model(folder, 128512)
    file = folder.parent / f"{name}.gguf"
    made = subprocess.run([program, str(folder), "--gguf", str(file), "--type", "f32"], capture_output=True, text=True,
                          check=False)
    if made.returncode:
        return f"not exported: {made.stderr.strip()}", False
    theirs = llama_cpp.Llama(model_path=str(file), vocab_only=True, verbose=False)
    draw, wrong, left_out = random.Random(39), [], 0
    for _ in range(count):
        text = random_text(draw)
        if not text or is_left_out(name, text):
            left_out += 1
            continue
        raw = text.encode()
        want, got = ours.encode(raw), theirs.tokenize(raw, add_bos=False, special=True)
        if want != got:
            wrong.append((text, want, got))
    file.unlink()
    first = f", the shortest {min(wrong, key=lambda w: len(w[0]))!r}" if wrong else ""
    return f"{count - left_out} texts, {len(wrong)} differ{first}", not wrong


def main():
    program, count = sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 10000
    library = ctypes.CDLL(sys.argv[2])
    library.hy_error_message.restype = ctypes.c_char_p
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        folders = {}
        for name in ("unigram", "llama", "gemma"):
            folders[name] = pathlib.Path(work) / name
            folders[name].mkdir()
            shutil.copy(ROOT / f"tests/golden/sentencepiece/{name}.model", folders[name] / "tokenizer.model")
        real = sorted((DATA / "tokenizers").iterdir()) if (DATA / "tokenizers").is_dir() else []
        for source in real:
            folders[f"{source.name}-real"] = pathlib.Path(work) / source.name
            shutil.copytree(source, folders[f"{source.name}-real"])
        for name, steps in MADE.items() if real else []:
            folders[name] = pathlib.Path(work) / name
            folders[name].mkdir()
            (folders[name] / "tokenizer.json").write_text(made_tokenizer(*steps))
        for name, folder in folders.items():
            row, good = compare(name, folder, program, library, count)
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {name}: {row}", flush=True)
    sys.exit(1 if failed else 0)


main()
