"""Fine-tunes a language model of transformers on a text, also one that is larger than the card.

python finetune.py MODEL-FOLDER TEXT-FILE OUT-FOLDER [--steps N] [--lr X] [--max-gpu-mem 15GiB] [--cpu-mem 56GiB]
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
parser.add_argument("--max-gpu-mem")
parser.add_argument("--cpu-mem")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.tensor(AutoTokenizer.from_pretrained(args.model)(Path(args.text).read_text()).input_ids)
length = min(args.length, len(tokens) - 1)
with torch.device("meta"):  # no memory: the library keeps the weights
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=torch.bfloat16)


def loss(batch):
    begins = torch.randint(len(tokens) - length, (args.rows,), generator=torch.Generator().manual_seed(batch))
    ids = torch.stack([tokens[i : i + length] for i in begins]).to(device)
    return model(input_ids=ids, labels=ids).loss


keys = {"max_gpu_mem": args.max_gpu_mem, "cpu_mem": args.cpu_mem, "device": device}
with hybrid_train.Loop(model.train(), steps=args.steps, lr=args.lr, **keys) as loop:
    loop.load(args.model)
    while not loop.is_over:
        info = loop.step(loss)
        print(f"step {info.step}: loss {info.loss:.4f}, {info.seconds:.2f} s", flush=True)
    loop.save_pretrained(args.out)
AutoTokenizer.from_pretrained(args.model).save_pretrained(args.out)
