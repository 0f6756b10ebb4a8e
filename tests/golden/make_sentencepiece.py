#!/usr/bin/env python3
"""Small SentencePiece files, and what the sentencepiece library and transformers give with them.

    pip install sentencepiece transformers protobuf
    python3 tests/golden/make_sentencepiece.py make TEXT
    python3 tests/golden/make_sentencepiece.py compare build/lib/libhybrid.so TEXT COUNT [FILE.model ...]

`make` trains the files of sentencepiece/ on TEXT (English, 1 MB of it) and writes expected.json: 300
texts, and for each case the file, the files beside it, and ids. `compare` puts COUNT texts through our
library and the others, for these files or any others; what differs is printed, and makes the exit code 1.
Made with sentencepiece 0.2.3 and transformers 5.23; older sentencepiece adds Unigram scores otherwise.
"""
import ctypes
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "sentencepiece"
MARKS = ["<sep>", "<mask>", "h\u00e9\u00e9", "\n\n", "\t\t", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "</b>"]
WORDS = MARKS + [
    "na\u00efve", "caf\u00e9", "gr\u00f6\u00dfe", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u65e5\u672c\u8a9e",
    "\uc548\ub155", "\ufb01n", "\u00bd", "\u212b", "e\u0301", "\u3000", "\u2460", "\uff46\uff55\uff4c\uff4c",
    "\U0001f642", "\U0001f468\u200d\U0001f469", "\u2026", "\u201c", "\u2581", "  ", "      ", "\t", "\n", "\x07",
    "\x00", "<s>", "</s>", "<unk>", "<bos>", "<0x41>", "0", "123", "aaaaa", "---", "lll", "the", " an", "\ufdfa",
    "\u200b", "\ufeff", "<|im_start|>", "<|im_end|> ", "[PAD]", "abq",
]
RULES = {"\ufb01": "fi", "\u00bd": "1 2", "\u3000": " ", "\t": " ", "\n": " ", "e\u0301": "\u00e9", "\x07": "",
         "\u212b": "\u00c5", "\u2460": "1", "E\u0301": "\u00c9", "\ufdfa": "\u0635\u0644\u0649 \u0627\u0644"}
PLAIN = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True)
FILES = {
    "llama": dict(model_type="bpe", split_digits=True, allow_whitespace_only_pieces=True, **PLAIN),
    "gemma": dict(model_type="bpe", add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                  bos_piece="<bos>", eos_piece="<eos>", user_defined_symbols=MARKS, **PLAIN),
    "bpe": dict(model_type="bpe", split_by_whitespace=False, user_defined_symbols=MARKS[:3], rules=True),
    "unigram": dict(model_type="unigram", rules=True),
    "unigram_bytes": dict(model_type="unigram", byte_fallback=True, user_defined_symbols=MARKS[:3], rules=True),
    "char": dict(model_type="char", normalization_rule_name="identity", vocab_size=120),
}


def token(text, **flags):
    return dict(content=text, lstrip=False, rstrip=False, normalized=False, single_word=False, special=True) | flags


def cases(size):
    """Name, file, class, files beside it; size(file) is its number of pieces."""
    llama, n = "LlamaTokenizer", size("llama")
    for name in FILES:
        yield name, name, None, {}
    yield "legacy", "llama", llama, {"tokenizer_config.json": dict(
        tokenizer_class=llama, legacy=True, add_bos_token=True, add_eos_token=True)}
    yield "phi", "llama", llama, {"tokenizer_config.json": dict(
        tokenizer_class=llama + "Fast", legacy=False, add_bos_token=True, pad_token="[PAD]", added_tokens_decoder={
            "0": token("<unk>"), "1": token("<s>"), "2": token("</s>", rstrip=True, special=False),
            str(n): token("<|im_start|>"), str(n + 1): token("<|im_end|>", rstrip=True), str(n + 2): token(
                "abq", special=False, normalized=True, single_word=True, lstrip=True)})}
    yield "older files", "llama", llama, {
        "tokenizer_config.json": dict(tokenizer_class=llama, add_prefix_space=False),
        "special_tokens_map.json": dict(bos_token=token("<s>", normalized=True), pad_token="[PAD]"),
        "added_tokens.json": {"[PAD]": n, "<|im_start|>": n + 1, " an": n + 2}}
    yield "gemma class", "gemma", "GemmaTokenizer", {"tokenizer_config.json": dict(
        tokenizer_class="GemmaTokenizer", add_bos_token=True)}
    yield "gemma extras", "gemma", "GemmaTokenizer", {"tokenizer_config.json": dict(
        tokenizer_class="GemmaTokenizer", additional_special_tokens=["<sep>", "<|im_end|>"], mask_token=None)}


def texts(lines, count, longest):
    draw = random.Random(5)
    out = ["", " ", "   ", "\n", "\u2581", " \u2581 ", "\x00", "a" * longest, " " * longest, "x  y" * (longest // 4)]
    while len(out) < count:
        kind = draw.random()
        line = draw.choice(lines)
        if kind < 0.4:
            out.append(" " * draw.choice([0, 0, 1, 7]) + line[:longest])
        elif kind < 0.6:
            out.append("".join(draw.choice("ab\u2581 cthe") for _ in range(draw.randrange(longest))))
        elif kind < 0.8:
            out.append("".join(draw.choice(WORDS) for _ in range(draw.randrange(12))))
        else:
            out.append("".join(chr(draw.choice([draw.randrange(32, 0x250), draw.randrange(1, 0xD800),
                                                draw.randrange(0xE000, 0x1FFFF)])) * draw.choice([1, 1, 5])
                               for _ in range(draw.randrange(12))) + line[:20])
    return out


def train(text):
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        draw, source, rules = random.Random(3), f"{scratch}/text", f"{scratch}/rules"
        lines = [line for line in text if line]
        mixed = [" ".join(draw.choices(WORDS[8:20], k=5)) + "   " + draw.choice(lines) for _ in range(300)]
        pathlib.Path(source).write_text("\n".join(lines[:8000] + mixed), encoding="utf-8")
        pathlib.Path(rules).write_text("".join(
            " ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n"
            for a, b in RULES.items()), encoding="utf-8")
        for name, options in FILES.items():
            options = dict(options)
            if options.pop("rules", False):
                options["normalization_rule_tsv"] = rules
            size = options.pop("vocab_size", 600 if "byte_fallback" in options else 350)
            sentencepiece.SentencePieceTrainer.train(
                input=source, model_prefix=f"{scratch}/{name}", vocab_size=size, hard_vocab_limit=False,
                minloglevel=2, num_threads=1, character_coverage=0.999, **options)
            model = sentencepiece_model_pb2.ModelProto.FromString(pathlib.Path(f"{scratch}/{name}.model").read_bytes())
            for field in ("input", "model_prefix"):  # paths of this machine
                model.trainer_spec.ClearField(field)
            model.normalizer_spec.ClearField("normalization_rule_tsv")
            (FOLDER / f"{name}.model").write_bytes(model.SerializeToString())


def reference(model, cls, files, folder):
    """A function from a text to ids; the folder gets the file and those beside it."""
    shutil.copy(model, os.path.join(folder, "tokenizer.model"))
    for name, content in files.items():
        pathlib.Path(folder, name).write_text(json.dumps(content))
    if cls is None:
        return sentencepiece.SentencePieceProcessor(model_file=str(model)).encode
    import transformers
    return getattr(transformers, cls).from_pretrained(folder).encode


def all_cases():
    size = lambda name: sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{name}.model")).vocab_size()
    return cases(size)


def make(text):
    train(text)
    rows = texts(text, 300, 36)
    with open(FOLDER / "expected.json", "w", encoding="utf-8") as out:
        out.write('{"texts": ' + json.dumps(rows) + ',\n"cases": [')
        for number, (name, model, cls, files) in enumerate(all_cases()):
            with tempfile.TemporaryDirectory() as folder:
                encode = reference(FOLDER / f"{model}.model", cls, files, folder)
                case = dict(name=name, model=model, files=files, ids=[encode(row) for row in rows])
            out.write(",\n" * (number > 0) + json.dumps(case, separators=(",", ":")))
        out.write("]}\n")


class Ours:
    def __init__(self, library, path):
        self.lib, self.handle = ctypes.CDLL(library), ctypes.c_void_p()
        self.lib.hy_error_message.restype = ctypes.c_char_p
        self.check(self.lib.hy_tokenizer_open(path.encode(), ctypes.byref(self.handle)))

    def check(self, status):
        if status:
            raise SystemExit(self.lib.hy_error_message().decode())

    def encode(self, text, flags):
        data, ids, count = text.encode(), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.check(self.lib.hy_tokenize(self.handle, data, ctypes.c_size_t(len(data)), flags, ctypes.byref(ids),
                                        ctypes.byref(count)))
        out = ids[: count.value]
        self.lib.hy_free(ids)
        return out


def compare(library, text, count, models):
    wrong, rows = 0, texts(text, count, 500)
    wanted = [(name, name, None, {}) for name in models] or all_cases()
    for name, model, cls, files in wanted:
        with tempfile.TemporaryDirectory() as folder:
            path = model if models else FOLDER / f"{model}.model"
            encode = reference(path, cls, files, folder)
            ours = Ours(library, folder)
            flags = 2 if cls is None else 1  # sentencepiece finds no special tokens in a text
            bad = [row for row in rows if ours.encode(row, flags) != encode(row)]
        print(f"{name}: {len(rows)} texts, {len(bad)} differ", *[repr(row) for row in bad[:3]], sep="\n  "[:3 * bool(bad)])
        wrong += len(bad)
    sys.exit(wrong > 0)


def main():
    action = sys.argv[1]
    text = pathlib.Path(sys.argv[2 if action == "make" else 3]).read_text(encoding="utf-8")[:1_000_000].split("\n")
    if action == "make":
        make(text)
    else:
        compare(sys.argv[2], text, int(sys.argv[4]), sys.argv[5:])


main()
