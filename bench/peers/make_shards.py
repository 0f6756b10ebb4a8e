#!/usr/bin/env python3
"""Token shards of a text, for the measurements that train on books.

    make_shards.py --train books_train.txt.xz --val books_val.txt.xz --tokenizer tokenizer.json \\
        --train-tokens 10500000 --val-tokens 500000 --out tokens/books
    make_shards.py --train books_train.txt.xz --val books_val.txt.xz --bpe 8192 \\
        --val-tokens 500000 --out tokens/lab

Needs the package `tokenizers`. The first form uses a tokenizer.json as it is, the second trains a
byte-level BPE on the beginning of the training text. Documents end with <|endoftext|>. Leaves train.bin
and val.bin (256 int32: 20240520, 1, number of tokens, zeros; then the tokens as uint16) and, for the
second form, tokenizer.json in --out.
"""
import argparse
import array
import lzma
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
MAGIC, VERSION = 20240520, 1
BPE_CHARACTERS = 30_000_000  # of the training text; more does not change an 8,192-entry vocabulary much


def documents(path):
    """The texts between separators, in order, without the separators."""
    opener = lzma.open if path.endswith(".xz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        for document in file.read().split(END):
            if document.strip():
                yield document


def train_bpe(path, vocabulary):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def beginning():
        seen = 0
        for document in documents(path):
            yield document[: BPE_CHARACTERS - seen]
            seen += len(document)
            if seen >= BPE_CHARACTERS:
                return

    tokenizer.train_from_iterator(beginning(), trainer)
    return tokenizer


def encode(tokenizer, path, wanted):
    """The first `wanted` tokens (0: all), each document followed by its end."""
    end = tokenizer.token_to_id(END)
    tokens = array.array("H")
    for document in documents(path):
        tokens.extend(tokenizer.encode(document, add_special_tokens=False).ids)
        tokens.append(end)
        if wanted and len(tokens) >= wanted:
            return tokens[:wanted]
    return tokens


def write(path, tokens):
    header = array.array("i", [0] * 256)
    header[0], header[1], header[2] = MAGIC, VERSION, len(tokens)
    with open(path + ".part", "wb") as file:
        for part in (header, tokens):
            if sys.byteorder == "big":
                part.byteswap()
            part.tofile(file)
    os.replace(path + ".part", path)
    print(f"{path}: {len(tokens):,} tokens, {os.path.getsize(path) / 2**20:.1f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", required=True, help="text, plain or .xz")
    parser.add_argument("--val", required=True, help="held-out text, plain or .xz")
    parser.add_argument("--tokenizer", help="a tokenizer.json")
    parser.add_argument("--bpe", type=int, help="train a vocabulary of this many entries instead")
    parser.add_argument("--train-tokens", type=int, default=0, help="0: all")
    parser.add_argument("--val-tokens", type=int, default=0, help="0: all")
    parser.add_argument("--out", required=True, help="folder")
    options = parser.parse_args()
    if (options.tokenizer is None) == (options.bpe is None):
        parser.error("give either --tokenizer or --bpe")
    os.makedirs(options.out, exist_ok=True)
    if options.bpe:
        tokenizer = train_bpe(options.train, options.bpe)
        tokenizer.save(os.path.join(options.out, "tokenizer.json"))
    else:
        tokenizer = Tokenizer.from_file(options.tokenizer)
    if tokenizer.get_vocab_size() > 65536:
        parser.error("a vocabulary of more than 65,536 entries does not fit uint16")
    write(os.path.join(options.out, "val.bin"), encode(tokenizer, options.val, options.val_tokens))
    write(os.path.join(options.out, "train.bin"),
          encode(tokenizer, options.train, options.train_tokens))


if __name__ == "__main__":
    main()
