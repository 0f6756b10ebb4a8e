"""A regressor over volumes and tables: a 3D CNN, a transformer, cross-attention between them, and one head.

    python multimodal.py [--size tiny|small|8.5b] [--plan] [--card a100-80] [--steps N] [--device cpu|cuda]
                         [--max-gpu-mem 47.4GB] [--cpu-mem 120GiB] [--out FOLDER]

The library keeps the weights and gradients of the model's blocks (blocks=True), so a model may be larger than the card.
--plan shows where everything would be, without memory for it; with --card also for a card that is not here. With --out
the run can be stopped or killed; started again, it continues with the same bits.
"""

import argparse

import torch
from torch import nn

import hybrid_train

# volumes: channels and blocks of the CNN, side of a volume; tables: rows; transformer: width, layers, cross-attention
SIZES = {
    "tiny": dict(channels=16, cnn=2, side=12, rows=6, width=32, layers=2, cross=1),
    "small": dict(channels=64, cnn=6, side=32, rows=32, width=256, layers=6, cross=3),
    "8.5b": dict(channels=1024, cnn=21, side=64, rows=128, width=4096, layers=24, cross=12),
}
COLUMNS, BATCH, SAMPLES, HELD_OUT = 8, 16, 2048, 256


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        halves = [[nn.GroupNorm(8, channels), nn.GELU(), nn.Conv3d(channels, channels, 3, padding=1)] for _ in range(2)]
        self.body = nn.Sequential(*halves[0], *halves[1])

    def forward(self, x):  # (B, C, D, H, W)
        return x + self.body(x)


class CrossAttention(nn.Module):
    """Each row of the table looks at all places of the volume."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 16, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, places):
        x = x + self.attention(self.norm1(x), places, places, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Multimodal(nn.Module):
    def __init__(self, channels, cnn, side, rows, width, layers, cross):
        super().__init__()
        self.stem, self.to_places = nn.Conv3d(1, channels, 4, stride=4), nn.Linear(channels, width)
        self.enter, self.positions = nn.Linear(COLUMNS, width), nn.Parameter(torch.zeros(rows, width))
        self.cnn = nn.ModuleList(Residual(channels) for _ in range(cnn))
        layer = dict(d_model=width, nhead=width // 16, dim_feedforward=4 * width, norm_first=True, batch_first=True)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(**layer, dropout=0) for _ in range(layers))
        self.cross = nn.ModuleList(CrossAttention(width) for _ in range(cross))
        self.head = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, volume, table):
        x = self.stem(volume)
        for block in self.cnn:
            x = block(x)
        places = self.to_places(x.flatten(2).transpose(1, 2))  # (B, places, width)
        y = self.enter(table) + self.positions
        for block in self.layers:
            y = block(y)
        for block in self.cross:
            y = block(y, places)
        return self.head(torch.cat([y.mean(1), places.mean(1)], 1))[:, 0]


def sample(number, side, rows):
    """A spot in a noisy volume, and a table. The target needs both; the same number always gives the same sample."""
    random = torch.Generator().manual_seed(number)
    bright, center = torch.randn((), generator=random), torch.rand(3, generator=random) * (side - 1)
    x, y, z = (torch.exp(-((torch.arange(side) - c) ** 2) / 8) for c in center)
    volume = bright * x[:, None, None] * y[:, None] * z + 0.05 * torch.randn(side, side, side, generator=random)
    table = torch.randn(rows, COLUMNS, generator=random)
    of_table = table[:, 0].mean() * rows**0.5
    return volume[None], table, bright + of_table + bright * of_table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--plan", action="store_true", help="only show the plan")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for flag in ("--card", "--max-gpu-mem", "--cpu-mem", "--out"):
        parser.add_argument(flag)
    args = parser.parse_args()
    size, is_tiny = SIZES[args.size], args.size == "tiny"
    dtype = torch.float32 if is_tiny else torch.bfloat16
    keys = dict(steps=args.steps, lr=3e-3 if is_tiny else 1e-4, max_gpu_mem=args.max_gpu_mem, cpu_mem=args.cpu_mem)

    if args.plan:
        with torch.device("meta"):  # shapes without memory
            plan = hybrid_train.plan_parameters(Multimodal(**size).to(dtype), card=args.card, **keys)
        print(f"{plan['parameters']:,} parameters;", "it fits" if plan["fits"] else "it does not fit")
        for name, one in plan["phases"]["full"]["classes"].items():
            print(f"  {name:10} {one['place']:7} {one['dtype']:5} {one['bytes'] / 2**30:7.2f} GiB")
        return print(*plan["reasons"], sep="\n")

    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    model = Multimodal(**size)  # in host memory; the loop takes the weights from there
    torch.set_default_dtype(torch.float32)
    data = [sample(i, size["side"], size["rows"]) for i in range(SAMPLES + HELD_OUT)]
    train, held_out = data[:SAMPLES], data[SAMPLES:]

    def loss(batch):
        volume, table, target = (x.to(args.device) for x in batch)
        return (model(volume.to(dtype), table.to(dtype)).float() - target).square().mean(), len(target)

    def evaluate():
        losses = [loss(batch)[0].item() for batch in torch.utils.data.DataLoader(held_out, BATCH)]
        return sum(losses) / len(losses), HELD_OUT

    loader = torch.utils.data.DataLoader(train, BATCH, shuffle=True)
    keys.update(device=args.device, evaluate=evaluate, out=args.out, resume=True if args.out else None)
    with hybrid_train.Loop(model, blocks=True, **keys) as loop:
        print(loop, "weights:", loop.plan()["choices"]["weights_place"])
        while not loop.is_over:
            info = loop.step(loss, data=loader)
            print(f"step {info.step}: loss {info.loss:.4f}, {info.seconds:.2f} s", flush=True)
        summary = loop.summary()
    variance = torch.stack([target for _, _, target in held_out]).var()
    print(f"held-out loss {summary.val_loss:.4f} after {summary.steps} steps; variance of the target {variance:.4f}")


if __name__ == "__main__":
    main()
