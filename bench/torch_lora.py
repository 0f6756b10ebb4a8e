#!/usr/bin/env python3
"""torch_lora.py: LoRA by PEFT on a model of transformers that our own models do not know: plain torch, and our loop.

    python3 bench/torch_lora.py [--steps 10] [--batch 4] [--length 1024] [KEY=VALUE ...]
    python3 bench/torch_lora.py --small           a tiny model on the CPU: a test of the program

Tokens per second, and the peak of memory of torch and library together: with a resident bf16 base and torch's fused AdamW; in a loop with a
base in nf4 on the card; and with that base in pinned memory. KEY=VALUE are keys of the last two (max_gpu_mem=9GiB).
The model is a Bloom of 3 billion parameters with drawn weights. Needs torch, transformers, peft and the package of python/.
"""

import argparse
import gc
import time

import peft
import torch
import transformers

import hybrid_train

WARM = 3  # steps that are not measured


def make(small, device):
    """Drawn on the device, which is faster."""
    size = (
        dict(hidden_size=64, n_layer=2, n_head=2, vocab_size=512)
        if small
        else dict(hidden_size=2560, n_layer=30, n_head=32)
    )
    torch.manual_seed(0)
    with torch.device(device):
        base = transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**size), dtype=torch.bfloat16)
    base.config.use_cache = False
    return peft.get_peft_model(base, peft.LoraConfig(r=16, target_modules="all-linear")).train()


def loss_of(model, device, options):
    vocab = model.get_base_model().config.vocab_size

    def loss(batch):
        generator = torch.Generator().manual_seed(batch)
        ids = torch.randint(vocab, (options.batch, options.length), generator=generator).to(device)
        return model(input_ids=ids, labels=ids).loss

    return loss


def timed(step, device, options):
    """Seconds of a step."""
    for i in range(WARM + options.steps):
        if i == WARM:
            begin = time.perf_counter()
        step(i)
        if device == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begin) / options.steps


def plain(device, options):
    model = make(options.small, device).to(device)
    loss = loss_of(model, device, options)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def step(i):
        loss(i).backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = timed(step, device, options)
    return seconds, torch.cuda.max_memory_reserved() if device == "cuda" else 0


def ours(device, options, **keys):
    model = make(options.small, device).to("cpu")
    keys |= dict(one.split("=", 1) for one in options.keys)
    loss = loss_of(model, device, options)
    steps = WARM + options.steps
    with hybrid_train.Loop(model, blocks=True, steps=steps, lr=1e-4, device=device, frozen_dtype="nf4", **keys) as loop:
        seconds = timed(lambda _: loop.step(loss), device, options)
        return seconds, loop.memory().device.peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    for name, value in (("steps", 10), ("batch", 4), ("length", 1024)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    if options.small:
        options.batch, options.length = 2, 32
    device = "cuda" if torch.cuda.is_available() and not options.small else "cpu"
    rows = (
        ("plain torch, bf16 base", plain, {}),
        ("our loop, nf4 base on the device", ours, {"weights_place": "device"}),
        ("our loop, nf4 base in pinned memory", ours, {"weights_place": "pinned"}),
    )
    first = None
    for name, run, keys in rows:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds, peak = run(device, options, **keys)
        speed = options.batch * options.length / seconds
        first = first or speed
        print(f"{name:36} {speed:10,.0f} tokens/s  {speed / first:5.2f}  peak {peak / 2**30:6.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
