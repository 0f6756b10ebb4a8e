#!/usr/bin/env python3
"""own_torch.py: a PyTorch GPT-2 under hybrid_train.Loop, compared with torch's fused AdamW, on one CUDA card.

    python3 bench/own_torch.py losses             fp32: losses of both, step by step
    python3 bench/own_torch.py speed [STEPS]      124M, 65,536 tokens a step: step time and memory of torch's
                                                  AdamW, of ours on the card, of ours in pinned memory
    python3 bench/own_torch.py large              1.5 billion parameters in bf16, fp32 state in pinned memory;
                                                  run it beside build/bench/hold_memory to have a 16 GB card
    python3 bench/own_torch.py resume             killed with SIGKILL in mid-run and resumed: same bits?

Needs torch with CUDA and the package of python/. Batches are random tokens by number: the same for all.
"""
import gc
import hashlib
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import hybrid_train


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self, layers, width, heads, vocab=50304, context=1024, recompute=False):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocab, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.recompute, self.vocab = recompute, vocab
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def in_turn(self):
        return [self.tokens, self.positions, *self.blocks, self.norm]

    def forward(self, ids):
        x = self.tokens(ids[:, :-1]) + self.positions(torch.arange(ids.shape[1] - 1, device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.float().view(-1, self.vocab), ids[:, 1:].reshape(-1))


def batch_of(number, rows, length, vocab=50257):
    """Random tokens with something to learn: each half repeats."""
    g = torch.Generator(device="cuda").manual_seed(number)
    half = torch.randint(vocab, (rows, length // 2 + 1), device="cuda", generator=g)
    return torch.cat([half, half], 1)[:, : length + 1]


def small(seed=0):
    torch.manual_seed(seed)
    return Model(4, 256, 4, vocab=2048, context=256).cuda()


KEYS = dict(lr=3e-4, schedule="constant", lr_warmup_steps=0, beta1=0.9, beta2=0.95, weight_decay=0.1, grad_clip=0,
            predictor="none")


def torch_adamw(model, **kind):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=3e-4,
                             betas=(0.9, 0.95), weight_decay=0.1, **(kind or {"fused": True}))


def torch_losses(start, steps, rows, length, **kind):
    model = Model(12, 768, 12, context=256).cuda()
    model.load_state_dict(start)
    optimizer, found = torch_adamw(model, **kind), []
    for i in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch_of(i, rows, length))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def losses():
    torch.backends.cuda.matmul.allow_tf32 = False
    steps, rows, length = 100, 8, 256
    torch.manual_seed(0)
    model = Model(12, 768, 12, context=256).cuda()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    fused = torch_losses(start, steps, rows, length, fused=True)
    plain = torch_losses(start, steps, rows, length, foreach=False)
    ours = []
    with hybrid_train.Loop(model.named_parameters(), steps=steps, **KEYS) as loop:
        while not loop.is_over:
            ours.append(loop.step(lambda i: model(batch_of(i, rows, length))).loss)
    print(f"GPT-2 124M in fp32, {steps} steps: losses {fused[0]:.5f} to {fused[-1]:.5f}")
    for name, other in (("ours", ours), ("torch's AdamW without fused", plain)):
        worst = max(abs(a - b) / abs(a) for a, b in zip(fused, other))
        print(f"  {name:28s} differs from torch's fused AdamW by {worst:.2e} of the loss at most")


def used():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def timed(name, steps, micro, step_of, base):
    times = []
    for i in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step_of(i)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    times = sorted(times[3:])
    median = times[len(times) // 2]
    print(f"{name:34s} {median * 1e3:8.2f} ms a step  {micro[0] * micro[1] * micro[2] / median:9.0f} tokens/s  "
          f"{used() - base:8.0f} MiB of the card")
    return median


def speed(steps=12):
    micro = (4, 16, 1024)  # micro-batches of rows of tokens: 65,536
    torch.backends.cuda.matmul.allow_tf32 = True
    medians = {}

    def loss_of(model, i):
        with torch.autocast("cuda", torch.bfloat16):
            return model(batch_of(i, micro[1], micro[2]))

    for name, keys in (("torch fused AdamW", None), ("ours, state on the card", {}),
                       ("ours, pinned", {"optim_place": "pinned"}),
                       ("ours, pinned, updates in turn", {"optim_place": "pinned", "in_turn": True}),
                       ("torch fused AdamW, again", None)):
        torch.manual_seed(0)
        base = used()
        model = Model(12, 768, 12).cuda()
        if keys and keys.get("in_turn"):
            keys["in_turn"] = model.in_turn()
        if keys is None:
            optimizer = torch_adamw(model)

            def step_of(i):
                optimizer.zero_grad(set_to_none=True)
                for k in range(micro[0]):
                    (loss_of(model, i * micro[0] + k) / micro[0]).backward()
                optimizer.step()

            medians[name] = timed(name, steps, micro, step_of, base)
            del optimizer
        else:
            before = used()
            with hybrid_train.Loop(model.named_parameters(), steps=steps, grad_accum_steps=micro[0], **KEYS,
                                   **keys) as loop:
                print(f"{name:34s} the library uses {used() - before:.0f} MiB of the card")
                medians[name] = timed(name, steps, micro,
                                      lambda i: loop.step(lambda b: loss_of(model, b)), base)
        step_of = None
        del model
        gc.collect()
        torch.cuda.empty_cache()
    reference = medians["torch fused AdamW"]
    for name, value in medians.items():
        print(f"{name:34s} {value / reference:.3f} of torch's step time")


def large(steps=6):
    free = torch.cuda.mem_get_info()[0] / 2**20
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(28, 2048, 16, vocab=50304, context=1024, recompute=True)
    torch.set_default_dtype(torch.float32)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e9:.2f} billion parameters in bf16; {free:.0f} MiB of the card were free")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    one = torch.zeros(16, device="cuda")
    fresh = used()
    with hybrid_train.Loop({"one": one}, gradients={"one": torch.zeros_like(one)}, steps=1, lr=1e-4) as loop:
        loop.run(lambda i: 1.0)  # the driver loads our code here
    before = used()
    print(f"code and handles of the library: {before - fresh:.0f} MiB")
    with hybrid_train.Loop(model.named_parameters(), steps=steps, lr=1e-4, schedule="constant", lr_warmup_steps=0,
                           predictor="none", optim_place="pinned", master_place="pinned",
                           in_turn=model.in_turn()) as loop:
        taken = used() - before
        planned = loop.plan()["vram_peak_bytes"] / 2**20
        print(f"the library uses {taken:.0f} MiB of the card, planned {planned:.0f}: {100 * (taken / planned - 1):+.1f} %; "
              f"pinned {loop.plan()['host_pinned_bytes'] / 2**30:.1f} GiB")
        while not loop.is_over:
            begin = time.perf_counter()
            info = loop.step(lambda i: model(batch_of(i, 2, 1024)))
            print(f"step {info.step}  loss {info.loss:.4f}  {time.perf_counter() - begin:.2f} s  {used():.0f} MiB")


def child(out, kill_at):
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    model = small()
    with hybrid_train.Loop(model.named_parameters(), steps=60, lr=1e-3, predictor="outer", out=out, resume=True,
                           save_every=10, full_steps=6, correct_steps=2, predict_from=0.1) as loop:
        while not loop.is_over:
            info = loop.step(lambda i: model(batch_of(i, 4, 128, 2048)))
            if info.step == kill_at:
                os.kill(os.getpid(), 9)
    digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
    print(digest.hexdigest())


def resume():
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with tempfile.TemporaryDirectory() as folder:
        def start(out, kill_at):
            done = subprocess.run([sys.executable, __file__, "child", os.path.join(folder, out), str(kill_at)],
                                  capture_output=True, text=True)
            return done.returncode, done.stdout.strip(), done.stderr[-2000:]

        code, expected, error = start("whole", -1)
        assert code == 0, error
        codes = [start("killed", kill_at)[0] for kill_at in (17, 34, 51)]
        code, found, error = start("killed", -1)
        assert code == 0, error
        print(f"killed three times ({codes}), resumed: "
              f"{'the same bits' if found == expected else 'OTHER BITS'} ({found[:16]})")


if __name__ == "__main__":
    words = sys.argv[1:] or ["losses"]
    {"losses": losses, "speed": lambda *a: speed(*map(int, a)), "large": large, "resume": resume,
     "child": lambda out, at: child(out, int(at))}[words[0]](*words[1:])
