"""A CNN that tells four patterns apart, in images that are made here.

    python convnet.py [--steps N] [--width N] [--blocks N] [--device cpu|cuda] [--max-gpu-mem 2GiB] [--out FOLDER]

The library keeps the weights and gradients of the residual blocks (blocks=True) where the plan puts them: on the card,
in pinned memory or on disk. The forward pass keeps a block's input; the backward pass computes the block again, with
BatchNorm's running statistics as in plain torch. With --out the run can be stopped or killed; started again, it
continues with the same bits, statistics and order of images included.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hybrid_train

SIDE, CLASSES, BATCH, IMAGES, HELD_OUT = 16, 4, 32, 2048, 512


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):  # (B, C, H, W)
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ConvNet(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class Images(Dataset):
    """Stripes in four directions, at a random place and under strong noise. Image i is always the same."""

    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        random = torch.Generator().manual_seed(self.first + i)
        kind = int(torch.randint(CLASSES, (), generator=random))
        begin, noise = 6.3 * torch.rand((), generator=random), torch.randn(SIDE, SIDE, generator=random)
        x, y = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        along = (x, y, x + y, x - y)[kind]
        return (torch.sin(along * 1.2 + begin) + 2 * noise)[None], kind


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 80), ("width", 16), ("blocks", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("max-gpu-mem", "cpu-mem", "out"):
        parser.add_argument(f"--{name}")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = ConvNet(args.width, args.blocks)
    # Where the library's part would be on this machine, without using any memory. The loop below measures torch's part
    # in its first step and then plans again.
    plan = hybrid_train.plan_parameters(model, blocks=True, device=args.device, max_gpu_mem=args.max_gpu_mem)
    print(f"{plan['parameters']:,} parameters, weights: {plan['choices']['weights_place']}")

    def loss(batch):
        images, kinds = batch  # the loop has moved them to the device
        return F.cross_entropy(model(images), kinds), len(kinds)  # micro-batches count by their size

    def accuracy():
        """The part of unseen images that the model gets right, with BatchNorm's running statistics."""
        model.eval()
        right = sum((model(x.to(args.device)).argmax(1).cpu() == kinds).sum() for x, kinds in held_out)
        model.train()
        return right.item() / HELD_OUT

    # num_workers=4 would load the same images in the same order.
    loader, held_out = DataLoader(Images(0, IMAGES), BATCH, shuffle=True), DataLoader(Images(10**6, HELD_OUT), 128)
    with hybrid_train.Loop(
        model,
        blocks=True,
        steps=args.steps,
        lr=5e-3,
        device=args.device,
        max_gpu_mem=args.max_gpu_mem,
        cpu_mem=args.cpu_mem,
        out=args.out,
        resume=True if args.out else None,
    ) as loop:
        while not loop.is_over:
            info = loop.step(loss, data=loader)
            if info.step % 40 == 0:
                with loop.using_weights():  # the library has the weights, so they are asked for
                    print(f"step {info.step}: loss {info.loss:.4f}, accuracy {accuracy():.3f}", flush=True)
    # After the loop the model has memory of its own again, with the trained weights.
    model.to(args.device)
    with torch.no_grad():
        print(f"accuracy {accuracy():.3f} on {HELD_OUT} images, by chance {1 / CLASSES:.3f}")


if __name__ == "__main__":
    main()
