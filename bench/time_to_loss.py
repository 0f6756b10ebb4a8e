#!/usr/bin/env python3
"""time_to_loss.py: how much time and compute does our trainer need to reach a given loss?

Trains the same model on the same text in up to four arms:

  a  PyTorch: compiled, bf16 under autocast, fused AdamW
  b  PyTorch: the same with its own Muon (torch.optim.Muon, torch 2.9 and later) for the matrices of the blocks
  c  ours with AdamW
  d  ours as profile aggressive trains from scratch, optimizer=auto, which is Muon at these sizes; or with settings
     of your own: --d KEY=VALUE, as often as you like

Our program draws the initial weights and the order of the batches and writes them down for PyTorch, so that a
seed is the same run in every arm; with --device cpu, a and c agree to all printed digits. Every arm has the same
grid of learning rates, tried on the first seed, is taken at its own best one, and is then run on every seed.
A best rate at an edge of the grid is marked: the arm might do better beyond it.

Two ways to say when an arm has (a)'s final held-out loss:
  on the curve       the held-out loss is taken on the way, and the first crossing counts. A schedule that has
                     not ended yet holds the loss up, so this is the cautious number.
  whole schedules    with --fractions 0.5,0.6,0.7,0.8 the arms other than (a) are also run with that share of
                     (a)'s steps, schedule included. Where the loss at the end equals (a)'s, interpolated
                     between the shares, is the compute factor f: STEPS / f steps reach what (a) reaches in STEPS.
                     This is the number that counts.
Seconds are of training alone: evaluation, compilation and what comes before the first step do not count,
in any arm.

  make build/bench/gpu_loss
  HYBRID_TOKENS=tokens bench/time_to_loss.py --model lab --out runs/lab        on a GPU; token shards in tokens/lab
  HYBRID_TOKENS=tokens bench/time_to_loss.py --steps 2000 --seeds 1,2,3 --grid 6e-4,1.2e-3,2.4e-3,4.8e-3
  bench/time_to_loss.py --arms acd --d optimizer=sgd --d momentum=0.95
  bench/time_to_loss.py --device cpu --model smoke --no-compile                does it work? a minute or two on a CPU

Models: gpt2-124m (64 x 1,024 tokens a step, shards in HYBRID_TOKENS/books or HYBRID_TOKENS), lab (13.8M parameters:
6 blocks of width 384, 8,192 tokens, 64 x 512 tokens a step, shards in HYBRID_TOKENS/lab), smoke (2 blocks of
width 64 on the built-in text), or any preset of GPT-2's kind. --set KEY=VALUE changes a setting of hybrid-train in
all arms, PyTorch's among them: weight_decay, beta2, schedule, cooldown, min_lr_ratio, batch_size, seq_len, ...

Left in --out: runs.jsonl, a line per finished run; results.json; seconds.svg and steps.svg; the last words
of the programs. Ctrl-C, or a crash, costs the run in progress alone: the same command continues. A run whose settings
are all the same is not made again, even by a program that was built anew: begin another --out for that.

Exit code: 0, 1 when a run broke, 2 for wrong usage, 75 when stopped.
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "time_to_loss"), os.path.join(HERE, "measurement")]
import command  # noqa: E402
import report  # noqa: E402
import runs  # noqa: E402
from command import numbers, pair, skip, some_numbers  # noqa: E402
from journal import Failure, Journal, key_of  # noqa: E402
from rates import best_rate  # noqa: E402

PEER = os.path.join(HERE, "peers", "torch_time_to_loss.py")
PEER_OPTIMIZER = {"a": "adamw", "b": "muon"}
MODELS = {
    "gpt2-124m": {"settings": "model=gpt2-124m seq_len=1024 batch_size=64 grad_accum_steps=1",
                  "shards": ["books", ""], "steps": 1000, "grid": "3e-4,6e-4,1.2e-3,2.4e-3,4.8e-3"},
    "lab": {"settings": "model=tiny-gpt2 layers=6 width=384 heads=6 mlp_width=1536 context=512 vocab=8192 "
                        "seq_len=512 batch_size=64 grad_accum_steps=1",
            "shards": ["lab"], "steps": 1100, "grid": "1e-3,2e-3,4e-3,8e-3,1.6e-2"},
    "smoke": {"settings": "model=tiny-gpt2 layers=2 width=64 heads=2 mlp_width=256 context=64 seq_len=64 "
                          "batch_size=8 grad_accum_steps=1 builtin_bytes=1000000",
              "shards": [], "steps": 60, "grid": "2e-3,4e-3,8e-3"},
}
# Off in all arms, so that (c) trains as (a) does; --d may turn it on.
PLAIN = ["predictor=none", "precision_correct=same", "offload_strategy=none"]
TRIAL_STEPS = 2  # steps of an arm in a first test


def letters(text):
    if not text or set(text) - set("abcd"):
        raise argparse.ArgumentTypeError(f'"{text}": expected some of the letters a, b, c, d')
    return "".join(sorted(set(text)))


def parse_command():
    whole, share = some_numbers(int), numbers(float)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                allow_abbrev=False)
    p.add_argument("--model", default="gpt2-124m", help="gpt2-124m, lab, smoke, or a preset; gpt2-124m")
    p.add_argument("--arms", type=letters, default="abcd", help="abcd")
    p.add_argument("--d", type=pair, action="append", metavar="KEY=VALUE", help="a setting of arm d only")
    p.add_argument("--set", type=pair, action="append", default=[], metavar="KEY=VALUE", help="of all arms")
    p.add_argument("--steps", type=int, help="of (a); by the model")
    p.add_argument("--warmup", type=float, default=0.05, help="share of a run's steps in which the rate rises; 0.05")
    p.add_argument("--grid", type=some_numbers(float), metavar="LIST", help="learning rates; depends on the model")
    p.add_argument("--grid-steps", type=int, metavar="N", help="steps of the runs that choose a learning rate; as --steps")
    p.add_argument("--seeds", type=whole, default=[1, 2, 3], metavar="LIST", help="1,2,3")
    p.add_argument("--fractions", type=share, default=[0.5, 0.6, 0.7, 0.8], metavar="LIST",
                   help="shares of --steps, or none; 0.5,0.6,0.7,0.8")
    p.add_argument("--fraction-arms", type=letters, default="bcd", help="arms run with these shares; bcd")
    p.add_argument("--evals", type=int, default=10, metavar="N", help="number of held-out losses during a run; 10")
    p.add_argument("--eval-batches", type=int, default=20, metavar="N", help="micro-batches per held-out loss; 0: all data; 20")
    p.add_argument("--data", help="token shards, text or folder; from HYBRID_TOKENS")
    p.add_argument("--val-data", help="held-out data of the same kind")
    p.add_argument("--device", default="cuda", help="cuda or cpu; cuda")
    p.add_argument("--precision", choices=["bf16", "fp32"], help="precision of all arms; bf16, on a CPU fp32")
    p.add_argument("--no-compile", action="store_true", help="PyTorch runs as it is")
    p.add_argument("--python", default=os.environ.get("PYTHON", sys.executable), help="Python with torch; $PYTHON")
    p.add_argument("--program", help="gpu_loss; $HYBRID_BENCH/gpu_loss, or build/bench/gpu_loss")
    p.add_argument("--out", help="folder of the results; runs/time_to_loss-MODEL")
    p.add_argument("--resume", metavar="FILE", help="file of finished runs to continue; OUT/runs.jsonl")
    o = p.parse_args()
    known = MODELS.get(o.model, {"settings": f"model={o.model}", "shards": ["books", ""], "steps": 1000,
                                 "grid": MODELS["gpt2-124m"]["grid"]})
    o.settings, o.shards = known["settings"].split(), known["shards"]
    o.steps = o.steps or known["steps"]
    o.grid = sorted(o.grid or numbers(float)(known["grid"]))
    o.grid_steps = o.grid_steps or o.steps
    o.precision = o.precision or ("fp32" if o.device == "cpu" else "bf16")
    o.d = o.d or ["optimizer=auto"]
    o.out = o.out or os.path.join("runs", f"time_to_loss-{os.path.basename(o.model)}")
    o.resume = o.resume or os.path.join(o.out, "runs.jsonl")
    o.program = o.program or os.path.join(os.environ.get("HYBRID_BENCH", os.path.join(HERE, "..", "build", "bench")),
                                          "gpu_loss")
    if min(o.steps, o.grid_steps, o.evals) < 1 or o.eval_batches < 0 or not 0 <= o.warmup <= 1:
        p.error("--steps, --grid-steps and --evals must be at least 1, --warmup from 0 to 1")
    if any(round(share * o.steps) < 1 for share in o.fractions):
        p.error("--fractions: a run would have less than one step")
    return o


# ---- input files -----------------------------------------------------------------------------------

def find_data(o):
    """Settings that name the text; the built-in text for a model that needs no shards."""
    if o.data:
        return [f"data={o.data}"] + ([f"val_data={o.val_data}"] if o.val_data else [])
    if not o.shards:
        return ["data=builtin"]
    data, val_data = command.find_shards(o.shards, "give --data and --val-data")
    return [f"data={data}", f"val_data={val_data}"]


def note_epochs(o, data, tokens_per_step):
    path, longest = data[0].split("=", 1)[1], max([1, *o.fractions]) * o.steps * tokens_per_step
    if not path.endswith(".bin") or not os.path.isfile(path):
        return
    there = (os.path.getsize(path) - 1024) // 2
    if longest > there:
        print(f"note: a run reads {longest:,.0f} tokens and {path} has {there:,}: text is repeated")


def find_peer(o):
    """Facts about PyTorch; removes arms that it cannot run."""
    if not set(o.arms) & set(PEER_OPTIMIZER):
        return {}
    facts = runs.check_peer(o.python, PEER)
    missing = ""
    if isinstance(facts, str):
        missing = f"{o.python} has no PyTorch ({facts}); give --python"
    elif o.device != "cpu" and not facts["has_cuda"]:
        missing = "PyTorch finds no CUDA device"
    if missing:
        leave_out(o, "ab", missing)
        return {}
    if not facts["has_muon"]:
        leave_out(o, "b", f"PyTorch {facts['torch']} has no torch.optim.Muon, which needs 2.9 or later")
    return facts


def leave_out(o, arms, why):
    gone = [arm for arm in o.arms if arm in arms]
    if gone:
        print(f"note: arm{'s' * (len(gone) > 1)} {' and '.join(gone)} omitted: {why}")
    o.arms = "".join(arm for arm in o.arms if arm not in arms)
    if not o.arms:
        skip("no arm is left", "see above")


# ---- runs ------------------------------------------------------------------------------------------

class Measurement:
    def __init__(self, o, data, peer):
        self.o, self.data, self.peer = o, data, peer
        self.base = [*o.settings, *PLAIN, *data, f"device={o.device}", f"precision={o.precision}",
                     f"eval_batches={o.eval_batches}", *o.set]
        self.data_sizes = [os.path.getsize(path) for path in (pair.split("=", 1)[1] for pair in data)
                           if os.path.isfile(path)]
        self.journal = Journal(o.resume)
        self.ours = runs.Ours(o.program, os.path.join(o.out, "ours.log"))
        longest = max(o.grid_steps, *(self.steps_of(share) for share in [1, *o.fractions]))
        self.dumps = runs.Dumps(self.ours, self.base, longest)
        self.tokens_per_step = None
        self.done = self.total = 0

    def steps_of(self, share):
        return round(share * self.o.steps)

    def label(self, arm):
        return {"a": "PyTorch, AdamW", "b": "PyTorch, Muon", "c": "ours, AdamW",
                "d": f"ours, {' '.join(self.o.d)}"}[arm]

    def settings(self, arm, lr, seed, steps):
        """All settings of our run; --d overrides everything except rate, seed and steps."""
        warmup = round(self.o.warmup * steps)
        return [*self.base, f"lr_warmup_steps={warmup}", "lr_warmup_ratio=1", *(self.o.d if arm == "d" else []),
                f"lr={lr!r}", f"seed={seed}", f"steps={steps}"]

    def key(self, arm, lr, seed, steps):
        settings = [os.path.basename(pair) if pair in self.data else pair
                    for pair in self.settings(arm, lr, seed, steps)]  # the path of the data may change
        about = {"settings": settings, "evals": self.o.evals, "data": self.data_sizes}
        if arm in PEER_OPTIMIZER:
            about["peer"] = [PEER_OPTIMIZER[arm], self.peer["torch"], self.o.no_compile]
        return key_of(about)

    def make(self, arm, lr, seed, steps, process):
        if arm not in PEER_OPTIMIZER:
            return self.ours.train(self.settings(arm, lr, seed, steps), self.o.evals)
        return process.train({"folder": self.dumps.of(seed), "lr": lr, "steps": steps, "evals": self.o.evals,
                              "warmup_steps": round(self.o.warmup * steps)})

    def run(self, arm, lr, seed, steps, process):
        """The result of a run, from the file of finished runs or made now."""
        key = self.key(arm, lr, seed, steps)
        self.done += 1
        if key in self.journal.lines:
            return self.journal.lines[key]
        title = f"run {self.done} of {self.total}: {arm}, {self.label(arm)}, lr {lr:g}, seed {seed}, {steps} steps"
        result = self.make(arm, lr, seed, steps, process)
        about = {"arm": arm, "label": self.label(arm), "lr": lr, "seed": seed, "budget": steps}
        result = self.journal.add(key, about, result)
        outcome = "diverged" if result["diverged"] else \
            f"held-out loss {result['val_loss']:.4f}, {result['train_s']:.1f} s"
        print(f"{title}: {outcome}", file=sys.stderr)
        self.check_tokens(arm, result)
        return result

    def check_tokens(self, arm, result):
        """Checks that a step has the same number of tokens in every arm, because steps are compared."""
        tokens = result.get("tokens_per_step") or self.tokens_per_step
        if self.tokens_per_step not in (None, tokens):
            raise Failure(f"arm {arm} has {tokens} tokens per step, but another arm has {self.tokens_per_step}; "
                          "give batch_size, grad_accum_steps and seq_len with --set, for all arms")
        self.tokens_per_step = tokens

    def peer_process(self, arm):
        if arm not in PEER_OPTIMIZER:
            return None
        words = [self.o.python, PEER, "--optimizer", PEER_OPTIMIZER[arm], "--device", self.o.device,
                 "--precision", self.o.precision] + ["--no-compile"] * self.o.no_compile
        return runs.Peer(words, os.path.join(self.o.out, f"torch-{PEER_OPTIMIZER[arm]}.log"))

    def lengths(self, arm, is_base):
        """Shares of the steps, in addition to all steps."""
        return [] if is_base or arm not in self.o.fraction_arms else self.o.fractions

    def count(self):
        o = self.o
        for number, arm in enumerate(o.arms):
            shared = o.grid_steps == o.steps
            self.total += len(o.grid) + len(o.seeds) - shared
            self.total += len(o.seeds) * len(self.lengths(arm, number == 0))

    def try_ours(self):
        """Finds wrong settings of our arms before a long run starts."""
        for arm in self.o.arms:
            if arm in PEER_OPTIMIZER:
                continue
            settings = self.settings(arm, self.o.grid[0], self.o.seeds[0], TRIAL_STEPS) + ["eval_batches=1"]
            self.check_tokens(arm, self.ours.train(settings, 1))

    def arm(self, arm, is_base):
        """The grid, seeds and shorter runs of one arm; no rate: all runs of its grid diverged."""
        o, process = self.o, self.peer_process(arm)
        out = {"arm": arm, "label": self.label(arm), "rate": None, "is_edge": False, "runs": {}, "lengths": {}}
        try:
            out["grid"] = {lr: self.run(arm, lr, o.seeds[0], o.grid_steps, process) for lr in o.grid}
            out["rate"], out["is_edge"] = best_rate(out["grid"])
            if out["rate"] is None:
                return out
            self.done -= o.grid_steps == o.steps  # the first seed was run
            for seed in o.seeds:
                out["runs"][seed] = self.run(arm, out["rate"], seed, o.steps, process)
            for seed in o.seeds:
                out["lengths"][seed] = [self.run(arm, out["rate"], seed, self.steps_of(share), process)
                                        for share in self.lengths(arm, is_base)]
        except BaseException:
            if process:
                process.kill()
            raise
        finally:
            if process:
                process.close()
        return out


# ---- the whole -----------------------------------------------------------------------------------

def measure(o):
    command.find_program(o.program, "build/bench/gpu_loss")
    command.find_card(o.device, "--device cpu --model smoke tries it on a CPU")
    data = find_data(o)
    command.begin(o)
    peer = find_peer(o)
    m = Measurement(o, data, peer)
    m.count()
    try:
        m.try_ours()
        note_epochs(o, data, m.tokens_per_step or 0)
        arms = [m.arm(arm, number == 0) for number, arm in enumerate(o.arms)]
        report.report(o, arms, {"command": sys.argv[1:], "torch": peer.get("torch"), "settings": m.base})
    finally:
        m.dumps.remove()


if __name__ == "__main__":
    command.run(measure, parse_command())
