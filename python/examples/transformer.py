"""A small transformer in PyTorch whose optimizer state lives in pinned host memory.

    python transformer.py [--steps N] [--width N] [--layers N] [--out FOLDER]

On a card, weights, gradients and activations stay on the card. AdamW's two moments and, with bf16 weights, the fp32
master copy are in pinned memory and stream through the card during the update. On a CPU the same program runs, and
"pinned" is another part of the same memory. With --out the run can be stopped (Ctrl-C) or killed; started again, it
continues from its last checkpoint.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

import hybrid_train

VOCAB, CONTEXT, BATCH, FREE = 64, 64, 16, 0.1
RIGHT, WRONG = 1 - FREE + FREE / VOCAB, FREE / VOCAB  # probability of the token that follows, and of each other token
ENTROPY = -RIGHT * math.log(RIGHT) - (VOCAB - 1) * WRONG * math.log(WRONG)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):  # (B, T, C)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        for one in (self.tokens, self.places):
            nn.init.normal_(one.weight, std=0.02)
        self.head.weight = self.tokens.weight  # tied: counts once

    def forward(self, ids):  # (B, T)
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def rows(number, device):
    """Tokens of an artificial language: each follows from the one before, except that one in ten is random."""
    random = torch.Generator().manual_seed(number)
    ids = torch.randint(VOCAB, (BATCH, CONTEXT + 1), generator=random)
    is_free = torch.rand(BATCH, CONTEXT + 1, generator=random) < FREE
    for t in range(1, CONTEXT + 1):
        ids[:, t] = torch.where(is_free[:, t], ids[:, t], (5 * ids[:, t - 1] + 3) % VOCAB)
    return ids.to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    model = Transformer(options.width, options.layers).to(device)
    if device == "cuda":
        model = model.to(torch.bfloat16)

    def loss(number):
        ids = rows(number, device)
        return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())

    def held_out():
        return sum(loss(2**40 + i) for i in range(4)) / 4, 4 * BATCH * CONTEXT

    def on_step(info):
        if info.phase == "predict":
            print(f"step {info.step}: a jump of {info.predicted_steps:.1f} steps")
        elif info.step % 20 == 0:
            print(f"step {info.step}  loss {info.loss:.4f}  {info.seconds * 1e3:.0f} ms")

    with hybrid_train.Loop(
        model.named_parameters(),
        steps=options.steps,
        lr=3e-3,
        evaluate=held_out,
        can_rewind=True,
        on_step=on_step,
        in_turn=[*model.blocks, model.norm],  # updates are applied during the next forward pass
        optim_place="pinned",
        master_place="auto" if device == "cpu" else "pinned",
        out=options.out,
        resume=True if options.out else None,
    ) as loop:
        summary = loop.run(loss)
        state = loop.memory().classes["optim"].live
        print(f"optimizer state: {state['pinned'] / 1e6:.1f} MB pinned, {state['device'] / 1e6:.1f} MB on the device")
    print(f"held-out loss {summary.val_loss:.4f} after {summary.steps} steps, the best possible {ENTROPY:.4f}")


if __name__ == "__main__":
    main()
