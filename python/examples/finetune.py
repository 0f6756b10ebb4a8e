"""Fine-tunes a language model of transformers on a text, also one that is larger than the card.

    python finetune.py MODEL-FOLDER TEXT-FILE OUT-FOLDER [--steps N] [--lr X] [--rows N] [--length N]
                       [--max-gpu-mem 15GiB] [--cpu-mem 56GiB]

A run that was stopped or killed continues from its last checkpoint in OUT-FOLDER/run.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import hybrid_train

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("model", "text", "out"):
    parser.add_argument(name)
for name, default in (("steps", 100), ("lr", 1e-5), ("rows", 4), ("length", 1024)):
    parser.add_argument(f"--{name}", type=type(default), default=default)
for name in ("max-gpu-mem", "cpu-mem"):
    parser.add_argument(f"--{name}")
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)
tokens = torch.tensor(tokenizer(Path(args.text).read_text()).input_ids)
length = min(args.length, len(tokens))
rows = tokens[: len(tokens) // length * length].view(-1, length)
loader = torch.utils.data.DataLoader(rows, args.rows, shuffle=True)
with torch.device("meta"):  # no memory: the library keeps the weights
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=torch.bfloat16).train()

memory = {"max_gpu_mem": args.max_gpu_mem, "cpu_mem": args.cpu_mem}
with hybrid_train.Loop(
    model, blocks=True, steps=args.steps, lr=args.lr, out=f"{args.out}/run", resume=True, **memory
) as loop:
    loop.load(args.model)  # straight into the library's memory, unless the run was resumed
    print(loop, *loop.plan()["reasons"], sep="\n")
    while not loop.is_over:
        info = loop.step(lambda ids: model(input_ids=ids, labels=ids).loss, data=loader)
        print(f"step {info.step}: loss {info.loss:.4f}, {info.seconds:.2f} s", flush=True)
    loop.save_pretrained(args.out)
tokenizer.save_pretrained(args.out)
