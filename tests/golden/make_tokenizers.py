#!/usr/bin/env python3
"""Writes tokenizers.json: small tokenizers of each family, and what Hugging Face's tokenizers give.

    pip install tokenizers
    python tests/golden/make_tokenizers.py TEXT

TEXT is a file of English (300 kB of it are used to train on). The file holds 60 texts, and for each
tokenizer its tokenizer.json, the ids of "a" with special tokens around it, and for each text the ids
and the text decoded from them.
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
BLANK = "\u2581"
WORDS = [
    "'s", "'S", "'\u017f", "'ll", "'LL", "'Re", "'ve", "'m", "'d", "'T", " the", " Hello", "don't", "   ",
    "\n\n", "\r\n", " \n", "\t", " 1234567", "123", "\u00bd", "<s>", "</s>", "<|endoftext|>", BLANK,
    " " + BLANK, "...", "!!\n", "/", "e\u0301", "\u0301\u0323", "\uac00\u11a8", "\u017f", "\u0130",
    "\u03a3", "<mask>", " <mask> ", "<r> ", "abq", " abq ", "norq", "<unk>", "\u00a0", "\u2003", "\u3000",
    "\u180e", "\u0085", "\u200d", "aaaa", "\u0000", "1,234,567", "_", "\u65e5\u672c\u8a9e",
    "\U0001f999", "<|im_start|>user\n", "<|im_end|>", "ROMEO:\nWhat", " speak", "first Citizen",
]
RANGES = [(0x20, 0x7F)] * 6 + [
    (9, 14), (0xA0, 0x180), (0x180, 0x600), (0x600, 0x1200), (0x1E00, 0x2070), (0x3000, 0x3100),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0x1D400, 0x1D800), (0x1F300, 0x1F600),
    (0x300, 0x370), (0x2F800, 0x2FA1D),
]


def texts():
    draw, found = random.Random(7), []
    while len(found) < 60:
        text = ""
        for _ in range(draw.choice([0, 1, 2, 3, 5, 8, 13, 30])):
            if draw.random() < 0.4:
                text += draw.choice(WORDS)
            else:
                text += chr(draw.randrange(*draw.choice(RANGES)))
        if text not in found:
            found.append(text)
    return found


def train(rows, splitter, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(rows, trainer)
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def changed(tokenizer, **parts):
    tree = json.loads(tokenizer.to_str())
    model = parts.pop("model", {})
    tree.update(parts)
    tree["model"].update(model)
    return Tokenizer.from_str(json.dumps(tree))


def gpt2(rows):
    tokenizer = train(rows, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def llama3(rows):
    tokenizer = train(rows, split_then_bytes(LLAMA3))
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(),
        processors.TemplateProcessing(single="<|endoftext|> $A",
                                      special_tokens=[("<|endoftext|>", end)]),
    ])
    return changed(tokenizer, model={"ignore_merges": True})


def qwen(rows):
    tokenizer = train(rows, split_then_bytes(QWEN), normalizers.NFC())
    tokenizer.add_tokens([
        AddedToken("<mask>", lstrip=True, normalized=False),
        AddedToken("<r>", rstrip=True, normalized=False),
        AddedToken("abq", single_word=True, normalized=False),
        AddedToken("norq", normalized=True),
    ])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def llama2(rows):
    """The bytes belong to the vocabulary but are no added tokens, as in the real file."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=760, limit_alphabet=110, show_progress=False,
                                  special_tokens=special + [f"<0x{i:02X}>" for i in range(256)])
    tokenizer.train_from_iterator(rows, trainer)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    added = [token for token in json.loads(tokenizer.to_str())["added_tokens"]
             if token["content"] in special]
    return changed(tokenizer, pre_tokenizer=None, added_tokens=added)


def family(rows):
    yield "gpt2", gpt2(rows)
    modern = llama3(rows)
    yield "llama3", modern
    yield "qwen", qwen(rows)
    pieces = llama2(rows)
    yield "llama2", pieces
    space = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first", "split": False}
    yield "mistral", changed(pieces, normalizer=None, pre_tokenizer=space, decoder=space)
    space = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "always", "split": True}
    yield "metaspace without bytes", changed(
        pieces, normalizer=None, pre_tokenizer=space, model={"byte_fallback": False})
    yield "digits and lowercase", changed(
        modern, normalizer={"type": "Lowercase"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext",
             "invert": False},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
             "use_regex": False}]})


def main():
    rows = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")[:300000].split("\n\n")
    rows += ["\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 123 don't I'LL 'twas   \n\n\t\u00e9 \u00fc "
             "\u041f\u0440\u0438\u0432\u0435\u0442"] * 40
    all_texts, sets = texts(), []
    for name, tokenizer in family(rows):
        cases = []
        for text in all_texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append([ids, tokenizer.decode(ids, skip_special_tokens=False)])
        sets.append(json.dumps({
            "name": name, "around": tokenizer.encode("a").ids,
            "tokenizer": json.loads(tokenizer.to_str()), "cases": cases,
        }, ensure_ascii=False, separators=(",", ":")))
    path = pathlib.Path(__file__).with_name("tokenizers.json")
    path.write_text('{"texts":\n' + json.dumps(all_texts) + ',\n"tokenizers": [\n'
                    + ",\n".join(sets) + "\n]}\n", encoding="utf-8")


main()
