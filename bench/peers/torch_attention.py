#!/usr/bin/env python3
"""Our causal attention beside PyTorch's FLASH_ATTENTION backend: speed and values, in one run.

    torch_attention.py --ours build/bench/gpu_attention [--case BxTxHxD ...] [--device cuda]

For each shape: random bf16 q, k, v and output gradient are made here, timed here, written as packed rows
(q, k, v of a token side by side) for our program, which times the same work; its results come back as
files. Values of both are held against attention computed in fp32: error is the largest difference over
the largest value. PyTorch gets q, k and v as tensors of their own, laid out as it likes them.
"""
import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F

# batch, sequence, heads, size of a head; 16,384 tokens of 16 x 128, and GPT-2 124M's micro-batch
CASES = ["8x2048x16x128", "2x8192x16x128", "64x1024x12x64"]
BAR_FORWARD, BAR_BACKWARD = 0.9, 0.95
MOST_ERROR = 0.02  # bf16 keeps 8 bits: 0.4 % of a value, a few times over where values are summed


def flash(device):
    """Only the flash backend on a card; on a CPU there is no such choice."""
    if device == "cpu":
        return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)


def synchronize(device):
    if device != "cpu":
        torch.cuda.synchronize()


def median_ms(work, device, rounds, calls):
    """Median over rounds of the mean of `calls` calls, between two CUDA events."""
    import time

    for _ in range(calls):
        work()
    synchronize(device)
    found = []
    for _ in range(rounds):
        if device == "cpu":
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            found.append((time.perf_counter() - begin) * 1e3 / calls)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            work()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / calls)
    return statistics.median(found)


def raw(tensor, path):
    tensor.contiguous().view(torch.int16).cpu().numpy().tofile(path)


def from_raw(path, shape, device):
    data = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.bfloat16)
    return data.view(shape).to(device)


def run_ours(program, folder, shape, options):
    batch, seq, heads, size = shape
    command = [program, "--json", "--device", options.device, "--batch", str(batch), "--seq",
               str(seq), "--heads", str(heads), "--head-dim", str(size), "--rounds",
               str(options.rounds), "--calls", str(options.calls)]
    for name in ("qkv", "dout", "out", "dqkv"):
        command += ["--" + name, os.path.join(folder, name)]
    command += ["--attention", options.attention, "--card-mib", str(options.card_mib)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout.startswith("{"):
        sys.exit(f"{program}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def exact(q, k, v, dout):
    """Output and gradients in fp32, one sequence at a time: scores of all would not fit."""
    results = []
    for i in range(q.shape[0]):
        leaves = [x[i:i + 1].float().detach().requires_grad_() for x in (q, k, v)]
        outs, grads = [], [[], [], []]
        for h in range(q.shape[1]):  # and one head at a time, for 8k tokens
            parts = [x[:, h:h + 1] for x in leaves]
            scores = parts[0] @ parts[1].transpose(-1, -2) / math.sqrt(q.shape[-1])
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            out = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ parts[2]
            for g, part in zip(grads, torch.autograd.grad(out, parts, dout[i:i + 1, h:h + 1].float())):
                g.append(part)
            outs.append(out.detach())
        results.append([torch.cat(outs, 1)] + [torch.cat(g, 1) for g in grads])
    return [torch.cat([r[j] for r in results]) for j in range(4)]


def error(value, truth):
    return ((value.float() - truth).abs().max() / truth.abs().max()).item()


def verdict(ratio, bar):
    return "faster" if ratio > 1 else "bar reached" if ratio >= bar else "BELOW THE BAR"


def measure(case, options):
    shape = batch, seq, heads, size = [int(x) for x in case.split("x")]
    device = options.device
    torch.manual_seed(1)
    packed = torch.randn(batch, seq, 3, heads, size, device=device).to(torch.bfloat16)
    dout = torch.randn(batch, seq, heads, size, device=device).to(torch.bfloat16)
    q, k, v = (packed[:, :, i].contiguous().transpose(1, 2).detach().requires_grad_()
               for i in range(3))
    gradient = dout.transpose(1, 2)
    with flash(device):
        def forward():
            with torch.no_grad():
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward():
            return torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

        theirs = {"forward": median_ms(forward, device, options.rounds, options.calls),
                  "backward": median_ms(backward, device, options.rounds, options.calls)}
        their_values = [out.detach(), *backward()]
    with tempfile.TemporaryDirectory() as folder:
        raw(packed, os.path.join(folder, "qkv"))
        raw(dout, os.path.join(folder, "dout"))
        ours = run_ours(options.ours, folder, shape, options)
        our_out = from_raw(os.path.join(folder, "out"), (batch, seq, heads, size), device)
        our_grads = from_raw(os.path.join(folder, "dqkv"), (batch, seq, 3, heads, size), device)
    our_values = [our_out.transpose(1, 2)] + [our_grads[:, :, i].transpose(1, 2) for i in range(3)]
    truth = exact(q, k, v, gradient)
    work = 4.0 * batch * heads * size * seq * (seq + 1) / 2  # operations of the forward pass
    errors = [(error(a, t), error(b, t)) for a, b, t in zip(our_values, their_values, truth)]
    is_good = True
    for name, factor, bar, kinds in (("forward", 1.0, BAR_FORWARD, errors[:1]),
                                     ("backward", 2.5, BAR_BACKWARD, errors[1:])):
        mine, other = ours[name + "_ms"], theirs[name]
        our_error, their_error = (max(x) for x in zip(*kinds))
        is_right = our_error <= MOST_ERROR
        is_good = is_good and is_right
        print(f"{case:16} {name:9} {mine:9.3f} {factor * work / mine * 1e-9:8.1f}"
              f" {other:9.3f} {factor * work / other * 1e-9:8.1f}   {other / mine:5.2f}"
              f"   {verdict(other / mine, bar):13}"
              f" {our_error:.4f} {their_error:.4f} {'' if is_right else 'WRONG VALUES'}", flush=True)
    return is_good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ours", required=True, help="the program gpu_attention")
    parser.add_argument("--case", action="append", help="BATCHxSEQUENCExHEADSxSIZE, may be repeated")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--attention", default="own", choices=["own", "cudnn", "auto"])
    parser.add_argument("--card-mib", type=int, default=0, help="process as many heads at a time as on a card with this memory")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must be true fp32
    card = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{card}; PyTorch {torch.__version__}; {datetime.date.today()}")
    print("causal attention, bf16; ratio is PyTorch's time over ours; bars: forward "
          f"{BAR_FORWARD}, backward {BAR_BACKWARD}")
    print(f"{'B x T x H x D':16} {'':9} {'ours ms':>9} {'TFLOP/s':>8} {'flash ms':>9} {'TFLOP/s':>8}"
          f"   {'ratio':5}   {'':13} {'error':6} {'theirs'}")
    results = [measure(case, options) for case in options.case or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
