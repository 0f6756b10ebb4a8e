#!/usr/bin/env python3
"""How fast Hugging Face's tokenizers open a file and encode a text on one core.

    hf_tokenize.py TOKENIZER TEXT [MB]

The arguments and the printed figures are those of build/bench/tokenize: run one after the other on the
same machine; equal sums mean equal ids. Needs the package tokenizers.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sys
import time

from tokenizers import Tokenizer

OPENINGS = 5


def main():
    path = sys.argv[1]
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    best = float("inf")
    for _ in range(OPENINGS):
        began = time.perf_counter()
        tokenizer = Tokenizer.from_file(path)
        best = min(best, time.perf_counter() - began)
    size = int(float(sys.argv[3]) * 1e6 if len(sys.argv) > 3 else 100e6)
    with open(sys.argv[2], "rb") as file:
        data = file.read(size)
    text = data.decode("utf-8", "ignore")
    documents = [part for part in text.split("<|endoftext|>") if part]
    began = time.perf_counter()
    # encode_batch_fast leaves out offsets, which we do not compute either.
    rows = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
    seconds = time.perf_counter() - began
    total, count = 0, 0
    for row in rows:
        for token in row.ids:
            total = (total * 31 + token) & 0xFFFFFFFFFFFFFFFF
        count += len(row.ids)
    size = len(text.encode())
    print(f"opened in {best * 1e3:.1f} ms (best of {OPENINGS})")
    print(f"{size / 1e6:.1f} MB in {seconds:.2f} s: {size / 1e6 / seconds:.1f} MB/s on one core, "
          f"{count} tokens, sum {total:016x}")


main()
