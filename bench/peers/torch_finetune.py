#!/usr/bin/env python3
"""Fine-tunes a model's folder on questions and answers in plain PyTorch, for bench/finetune_peer.sh.

    torch_finetune.py MODEL TOKENIZER TRAIN VAL --steps N --batch B --seq T --lr X [--wd X] [--clip X]

Everything is made anew here: transformers' model, Hugging Face's tokenizers over "question, line end,
answer" as one text, the loss on the answer's tokens and the end token (a token that shares a character with
the answer is the answer's), AdamW with decay on matrices alone, a constant learning rate, rows in the
order of the file, one in a sequence. Prints the mean loss over all held-out answers before and after.
"""
import argparse
import json

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


def examples(path, tokenizer, eos, seq):
    """(tokens, counts) of each row, cut to a sequence; rows without an answer left are dropped."""
    out = []
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        prompt = row["question"] + "\n"
        text = tokenizer.encode(prompt + row["answer"], add_special_tokens=False)
        ids = text.ids + [eos]
        counts = [end > len(prompt) for _, end in text.offsets] + [True]
        ids, counts = ids[:seq + 1], counts[:seq + 1]
        if any(counts[1:]):
            out.append((ids, counts))
    return out


def batch_of(rows, seq):
    tokens = torch.zeros(len(rows), seq, dtype=torch.long)
    targets = torch.full((len(rows), seq), -100, dtype=torch.long)
    for i, (ids, counts) in enumerate(rows):
        n = len(ids) - 1
        tokens[i, :n] = torch.tensor(ids[:-1])
        targets[i, :n] = torch.tensor([t if c else -100 for t, c in zip(ids[1:], counts[1:])])
    return tokens, targets


def loss_sum(model, rows, seq):
    tokens, targets = batch_of(rows, seq)
    logits = model(tokens).logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return loss, int((targets >= 0).sum())


@torch.no_grad()
def held_out(model, rows, seq):
    sums = [loss_sum(model, rows[i:i + 32], seq) for i in range(0, len(rows), 32)]
    return float(sum(s for s, _ in sums)) / sum(n for _, n in sums)


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "tokenizer", "train", "val"):
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--wd", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--eos", default="<|endoftext|>")
    a = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(a.tokenizer)
    eos = tokenizer.token_to_id(a.eos)
    train, val = (examples(p, tokenizer, eos, a.seq) for p in (a.train, a.val))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": a.wd},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=a.lr, betas=(0.9, 0.95), eps=1e-8)
    before = held_out(model, val, a.seq)
    for step in range(a.steps):
        rows = [train[(step * a.batch + i) % len(train)] for i in range(a.batch)]
        loss, count = loss_sum(model, rows, a.seq)
        optimizer.zero_grad()
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        optimizer.step()
    print(json.dumps({"before": before, "after": held_out(model, val, a.seq), "examples": len(train),
                      "val_examples": len(val), "last_loss": loss.item() / count}))


main()
