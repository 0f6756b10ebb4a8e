#!/usr/bin/env python3
"""Makes nf4.safetensors: matrices as bitsandbytes stores them in NF4 with double quantisation, on the CPU.

    pip install torch bitsandbytes
    python3 tests/golden/make_nf4.py                                   # the file that tests/test_model_nf4.c reads
    python3 tests/golden/make_nf4.py --random 50 --seed 3 FILE         # so many others

Case N has `N.x` (rows, columns), fp32 or bf16, and for each matrix P that lies in it, one below the other, what
bitsandbytes makes of it alone: `N.P.codes` (two a byte), `N.P.scales` (codes of the blocks' scales), `N.P.nested`
(the scales of those), `N.P.offset`, and the numbers again as `N.P.fp32`, `N.P.bf16` and `N.P.fp16`. Bits of the
offset depend on how PyTorch sums: on threads and on the processor.
"""
import argparse
from pathlib import Path

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matrix(rows, cols, kind, generator):
    x = torch.randn(rows, cols, generator=generator) * 0.02
    if kind == "outliers":
        x[torch.rand(rows, cols, generator=generator) < 0.002] *= 300
    elif kind == "zeros":
        x[torch.rand(rows, generator=generator) < 0.4] = 0
    elif kind == "nothing":
        x[:] = 0
    elif kind == "subnormal":
        x *= 1e-38
    elif kind == "large":
        x *= 1e30
    elif kind == "scaled":  # rows of very different size
        x *= 10 ** torch.empty(rows, 1).uniform_(-6, 4, generator=generator)
    elif kind == "equal":  # no scale differs from the mean
        x = torch.sign(x) * 0.5
    return x


def add_case(tensors, index, x, pieces, types):
    tensors[f"{index}.x"] = x.contiguous()
    for at, part in enumerate(torch.split(x, pieces)):
        codes, state = quantize_4bit(part.contiguous(), blocksize=64, compress_statistics=True, quant_type="nf4")
        name = f"{index}.{at}"
        tensors[f"{name}.codes"] = codes.reshape(-1)
        tensors[f"{name}.scales"] = state.absmax
        tensors[f"{name}.nested"] = state.state2.absmax
        tensors[f"{name}.offset"] = state.offset.reshape(1)
        for word in types:
            state.dtype = TYPES[word]
            tensors[f"{name}.{word}"] = dequantize_4bit(codes, state).reshape(-1)


KINDS = ("normal", "outliers", "zeros", "nothing", "subnormal", "large", "scaled", "equal")


def kept_cases(generator):
    """Few and small, all kinds; the last has a second block of scales, which is not whole."""
    for i, kind in enumerate(KINDS):
        yield matrix(9, 64, kind, generator).to(torch.bfloat16 if i % 2 else torch.float32), [3, 4, 2], TYPES
    yield matrix(270, 64, "normal", generator).bfloat16(), [260, 10], ["bf16"]


def random_cases(count, generator):
    for i in range(count):
        pieces = [int(torch.randint(1, 400, (), generator=generator)) for _ in range(1 + i % 3)]
        cols = 64 * int(torch.randint(1, 17, (), generator=generator))
        kind = KINDS[i % len(KINDS)]
        x = torch.cat([matrix(rows, cols, kind, generator) for rows in pieces])
        yield x.to(torch.bfloat16 if i // len(KINDS) % 2 else torch.float32), pieces, TYPES


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("file", nargs="?", default=str(FOLDER / "nf4.safetensors"))
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(arguments.seed)
    cases = random_cases(arguments.random, generator) if arguments.random else kept_cases(generator)
    tensors = {}
    for index, (x, pieces, types) in enumerate(cases):
        add_case(tensors, index, x, pieces, types)
    made_with = f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}"
    save_file(tensors, arguments.file, metadata={"made_with": made_with})


if __name__ == "__main__":
    main()
