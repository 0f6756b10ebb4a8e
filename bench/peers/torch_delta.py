#!/usr/bin/env python3
"""Our gated delta rule beside flash-linear-attention's Triton kernels: speed and values, in one run.

    torch_delta.py --ours build/bench/gpu_delta [--case BxTxHxD ...] [--configs few|all]

For each shape: random bf16 q, k, v, gates and output gradient are made here and timed here, with the
launches of their kernels, with chunk_gated_delta_rule(use_qk_l2norm_in_kernel=True), which gets the log
decay and the write strength ready-made; our program times the same work and the activation functions of the gates with it. Values of
the first sequence of both are held against the recurrence in fp32: error is the norm of the difference
over the norm of the values.

Triton compiles and times each kernel in every configuration that its author lists. `--configs few` keeps
at most six of them, those with 2 or 4 warps and the fewest stages first; every kernel is named when it is
tuned, with the seconds that took and what was chosen.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

CASES = ["8x2048x16x128", "2x8192x16x128"]
BAR, GOAL = 0.8, 1.2
MOST_ERROR = 0.02
DT_BIAS = -3.0  # as in our program; a_log is 0


def limit_tuning(kind):
    """Fewer configurations per kernel, and a line for each kernel that was tuned."""
    from triton.runtime import autotuner

    start, run = autotuner.Autotuner.__init__, autotuner.Autotuner.run

    def fewer(configs):
        if kind == "all" or len(configs) <= 6:
            return configs
        best = [c for c in configs if c.num_warps in (2, 4)] or list(configs)
        return sorted(best, key=lambda c: (c.num_stages, c.num_warps))[:6]

    def begin(self, *args, **kwargs):
        start(self, *args, **kwargs)
        self.configs = fewer(self.configs)

    def timed(self, *args, **kwargs):
        known, first = len(self.cache), time.time()
        result = run(self, *args, **kwargs)
        if len(self.cache) > known:
            name = getattr(self.base_fn, "__name__", "kernel")
            print(f"    tuned {name} in {time.time() - first:.1f} s, {len(self.configs)}"
                  f" configurations: {self.best_config}", flush=True)
        return result

    autotuner.Autotuner.__init__, autotuner.Autotuner.run = begin, timed


def median_ms(work, rounds, calls):
    """Median over rounds of the mean of `calls` calls, between two CUDA events."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    found = []
    for _ in range(rounds):
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


def from_raw(path, shape):
    data = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.bfloat16)
    return data.view(shape).cuda()


def wait_for(program, seconds):
    end = time.time() + seconds
    while time.time() < end and not os.path.exists(program):
        time.sleep(0.2)


def run_ours(program, folder, shape, options):
    batch, seq, heads, size = shape
    command = [program, "--json", "--batch", str(batch), "--seq", str(seq), "--heads", str(heads),
               "--head-dim", str(size), "--rounds", str(options.rounds), "--calls", str(options.calls)]
    for name in ("qkv", "gates", "dout", "out", "dqkv", "dgates"):
        command += ["--" + name, os.path.join(folder, name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout.startswith("{"):
        sys.exit(f"{program}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def exact(q, k, v, b, a, dout):
    """Output and gradients of one sequence, (T, H, D), by the recurrence in fp32. The backward pass
    steps back by hand: automatic differentiation would keep several states per token."""
    unit = [x.float() for x in (q, k)]
    length = [torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in unit]
    unit = [x * r for x, r in zip(unit, length)]
    scale = q.shape[-1] ** -0.5
    slope = torch.sigmoid(a.float() + DT_BIAS)
    log = -torch.nn.functional.softplus(a.float() + DT_BIAS)
    decay, strength, values, dout = log.exp(), torch.sigmoid(b.float()), v.float(), dout.float()
    qs, ks = unit[0] * scale, unit[1]
    tokens, heads, size = q.shape
    state = torch.zeros(heads, size, v.shape[-1], device=q.device)
    states = torch.empty(tokens, *state.shape, device=q.device)
    errors, out = torch.empty_like(values), torch.empty_like(values)
    for t in range(tokens):
        states[t] = state
        state = state * decay[t, :, None, None]
        errors[t] = values[t] - torch.einsum("hkv,hk->hv", state, ks[t])
        state = state + ks[t][..., None] * (strength[t, :, None] * errors[t])[:, None]
        out[t] = torch.einsum("hkv,hk->hv", state, qs[t])
    grad = torch.zeros_like(state)
    dq, dk, dv = torch.empty_like(qs), torch.empty_like(ks), torch.empty_like(values)
    db, da = torch.empty_like(decay), torch.empty_like(decay)
    for t in range(tokens - 1, -1, -1):
        before = states[t] * decay[t, :, None, None]
        written = strength[t, :, None] * errors[t]
        after = before + ks[t][..., None] * written[:, None]
        dq[t] = torch.einsum("hkv,hv->hk", after, dout[t]) * scale
        grad = grad + qs[t][..., None] * dout[t][:, None]
        of_written = torch.einsum("hkv,hk->hv", grad, ks[t])
        db[t] = (of_written * errors[t]).sum(-1) * strength[t] * (1 - strength[t])
        dv[t] = strength[t, :, None] * of_written
        dk[t] = torch.einsum("hkv,hv->hk", grad, written) - torch.einsum("hkv,hv->hk", before, dv[t])
        grad = grad - ks[t][..., None] * dv[t][:, None]
        da[t] = -(grad * before).sum((-1, -2)) * slope[t]
        grad = grad * decay[t, :, None, None]
    dq, dk = (r * (d - u * (u * d).sum(-1, keepdim=True))
              for d, u, r in zip((dq, dk), unit, length))
    return [out, dq, dk, dv, db, da]


def error(value, truth):
    return ((value.float() - truth).norm() / truth.norm()).item()


def verdict(ratio):
    return "goal reached" if ratio >= GOAL else "bar reached" if ratio >= BAR else "BELOW THE BAR"


def allow_backward():
    """Their backward refuses to run with versions of Triton that compiled it wrongly on Hopper. It is timed there
    all the same; the errors that are printed say whether its values are right."""
    from fla.ops.common import chunk_o

    if chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1:
        print("  flash-linear-attention refuses its backward with this Triton; timed all the same", flush=True)
        chunk_o.TRITON_ABOVE_3_4_0 = False


def time_theirs(q, k, v, b, a, dout, options):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    allow_backward()
    leaves = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    log = (-torch.nn.functional.softplus(a.float() + DT_BIAS)).detach().requires_grad_()
    strength = torch.sigmoid(b.float()).detach().requires_grad_()
    inputs = (*leaves, log, strength)

    def forward():
        return chunk_gated_delta_rule(*leaves, log, strength, use_qk_l2norm_in_kernel=True)[0]

    def forward_alone():
        with torch.no_grad():
            return forward()

    def backward():
        return torch.autograd.grad(out, inputs, dout, retain_graph=True)

    print("  flash-linear-attention", flush=True)
    out = forward()
    grads = backward()
    wait_for(options.ours, options.wait)
    there = median_ms(forward_alone, options.rounds, options.calls)
    back = median_ms(backward, options.rounds, options.calls)
    print(f"  theirs: forward {there:.3f} ms, backward {back:.3f} ms", flush=True)
    by_gates = [grads[4] * strength * (1 - strength),
                -grads[3] * torch.sigmoid(a.float() + DT_BIAS)]
    return there, back, [x.detach()[0] for x in (out, *grads[:3], *by_gates)]


def measure(case, options):
    shape = batch, seq, heads, size = [int(x) for x in case.split("x")]
    torch.manual_seed(1)
    packed = torch.randn(batch, seq, 3, heads, size, device="cuda").to(torch.bfloat16)
    gates = torch.randn(batch, seq, 2, heads, device="cuda").to(torch.bfloat16)
    dout = torch.randn(batch, seq, heads, size, device="cuda").to(torch.bfloat16)
    q, k, v = (packed[:, :, i] for i in range(3))
    b, a = gates[:, :, 0], gates[:, :, 1]
    if not options.alone:
        there, back, values = time_theirs(q, k, v, b, a, dout, options)
    with tempfile.TemporaryDirectory() as folder:
        for name, tensor in (("qkv", packed), ("gates", gates), ("dout", dout)):
            raw(tensor, os.path.join(folder, name))
        ours = run_ours(options.ours, folder, shape, options)
        print(f"  ours: forward {ours['forward_ms']:.3f} ms, backward {ours['backward_ms']:.3f} ms",
              flush=True)
        our_out = from_raw(os.path.join(folder, "out"), (batch, seq, heads, size))
        our_grads = from_raw(os.path.join(folder, "dqkv"), (batch, seq, 3, heads, size))
        our_gates = from_raw(os.path.join(folder, "dgates"), (batch, seq, 2, heads))
    our_values = [our_out[0], *(our_grads[0, :, i] for i in range(3)),
                  *(our_gates[0, :, i] for i in range(2))]
    truth = exact(q[0], k[0], v[0], b[0], a[0], dout[0])
    names = ("out", "dq", "dk", "dv", "db", "da")
    our_errors = [error(x, t) for x, t in zip(our_values, truth)]
    print("  our errors:   " + ", ".join(f"{n} {e:.4f}" for n, e in zip(names, our_errors)), flush=True)
    is_good = max(our_errors) <= MOST_ERROR
    if not is_good:
        print("  WRONG VALUES", flush=True)
    if options.alone:
        return is_good
    print("  their errors: " + ", ".join(f"{n} {error(x, t):.4f}"
                                         for n, x, t in zip(names, values, truth)), flush=True)
    for name, mine, other in (("forward", ours["forward_ms"], there),
                              ("backward", ours["backward_ms"], back)):
        print(f"{case:16} {name:9} {mine:9.3f} {other:9.3f}   {other / mine:5.2f}"
              f"   {verdict(other / mine)}", flush=True)
    return is_good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ours", required=True, help="the program gpu_delta")
    parser.add_argument("--case", action="append", help="BATCHxSEQUENCExHEADSxSIZE, may be repeated")
    parser.add_argument("--configs", default="few", choices=["few", "all"])
    parser.add_argument("--alone", action="store_true", help="only our program and its errors")
    parser.add_argument("--wait", type=int, default=0, metavar="SECONDS",
                        help="after their kernels are tuned, wait until the program is built")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must be true fp32
    limit_tuning(options.configs)
    print(f"{torch.cuda.get_device_name()}; PyTorch {torch.__version__}; {datetime.date.today()}")
    print(f"gated delta rule, bf16; ratio is their time over ours; bar {BAR}, goal {GOAL}")
    print(f"{'B x T x H x D':16} {'':9} {'ours ms':>9} {'theirs':>9}   {'ratio':5}", flush=True)
    results = [measure(case, options) for case in options.case or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
