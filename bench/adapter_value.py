#!/usr/bin/env python3
"""adapter_value.py: how close does an adapter come to full fine-tuning, and at which learning rate?

First trains a base model (GPT-2 124M on token shards of books), or takes one (--base FOLDER). Then fine-tunes it on
rows of questions and answers (GSM8K) in several arms and compares the held-out loss, on answers, at the end:

  full       full fine-tuning, AdamW                   lora64     LoRA, rank 64
  lora       LoRA, rank 16, all matrices, AdamW        rslora     LoRA, rank 16, scaled by alpha / sqrt(rank)
  qlora      the same beside NF4 weights               lora-muon  LoRA, rank 16, Muon
  lora-embed the same with the embedding, and so       lora-lion  LoRA, rank 16, Lion
             the tied head, trained whole

Settings behind colons make an arm of your own: --arms full,full:batch_size=8,lora:lora_rank=128:weight_decay=0.
Of several arms of full fine-tuning the others are compared with the best.

Every arm has as many learning rates to choose from, in a grid of its own (--lrs ARM=LIST), and the same numbers of
epochs (--epochs 2,4,8). All of them are tried on the first seed; the arm is then run on every seed at its best rate
and epochs. A best one at an edge of the grid is marked. Base, rows, their order, warm-up (a tenth) and schedule
(cosine) are the same in all arms; nothing is predicted. The choice is made by the loss that is reported: that
flatters every arm alike. The other figure is the best rate over that of full fine-tuning: hybrid-train gives
adapters ten times the rate unless --lr is set.

Rows may have tokens that the base has never seen; how many is printed. Adapters leave embedding and head as they
are, so such a base is hard on them. lora-embed shows how much of a difference comes from there; with --base-rows N
the base also reads the first N training rows as text, in one sequence of 16 (--rows-among), and the arms are tuned
on the others.

  HYBRID_TOKENS=tokens HYBRID_DATA=data bench/adapter_value.py --out runs/adapters       on a GPU
  bench/adapter_value.py --base ~/models/Qwen3-0.6B --rows rows.jsonl --val-rows held-out.jsonl
  bench/adapter_value.py --arms full,lora,lora64 --lrs lora64=5e-4,1e-3,2e-3,4e-3 --epochs 2,4,8 --seeds 1
  bench/adapter_value.py --tiny --device cpu                                             does it work? a minute or two

Data: token shards train.bin and val.bin in HYBRID_TOKENS/books or HYBRID_TOKENS; in HYBRID_DATA or ../shared/data
instruct/gsm8k_train.jsonl and gsm8k_test.jsonl, which is held out, and tokenizers/gpt2/, the tokenizer of the
shards. --tiny trains a model of 0.1M parameters on the built-in text and makes rows of its own.

Left in --out: runs.jsonl, a line per finished run; results.json; the base in base/ (--base-dir). A stop costs
the runs in progress alone: the same command continues. A run whose settings and data are all the same is not made again,
even by a program that was built anew or beside a base that was: begin another --out for that. A base that no run
needs any more is not trained. --limit-s N begins no run after N seconds and reports what there is.

What prediction is worth over adapters is a question for predict_value, which takes settings of adapters:
  build/bench/predict_value --size tune --model OUT/base/model --data gsm8k_train.jsonl --arms line --steps 290 \\
      --lrs 1e-3,3e-3,1e-2 --set lora=true --set val_data=gsm8k_test.jsonl --set seq_len=512 --set batch_size=16 \\
      --set lr_warmup_steps=29 --set eval_batches=0 --set device=cuda

Exit code: 0, 1 when a run broke, 2 for wrong usage, 75 when stopped or out of time.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "adapter_value"), os.path.join(HERE, "measurement")]
import command  # noqa: E402
import compare  # noqa: E402
import rows  # noqa: E402
from command import pair, skip, some_numbers  # noqa: E402
from journal import Failure, Journal, key_of, last_lines  # noqa: E402

LORA = ["lora=true", "lora_rank=16", "lora_targets=all", "optimizer=adamw"]
ARMS = {  # label, settings, grid
    "full": ("full fine-tuning", ["optimizer=adamw"], "1e-4,3e-4,1e-3,3e-3"),
    "lora": ("LoRA r16", LORA, "1e-3,3e-3,1e-2,3e-2"),
    "qlora": ("QLoRA NF4 r16", [*LORA, "qlora=true", "frozen_dtype=nf4"], "1e-3,3e-3,1e-2,3e-2"),
    "lora-embed": ("LoRA r16, with embedding", [*LORA, "lora_modules=embed"], "3e-4,1e-3,3e-3,1e-2"),
    "lora64": ("LoRA r64", [*LORA, "lora_rank=64"], "1e-3,3e-3,1e-2,3e-2"),
    "rslora": ("rsLoRA r16", [*LORA, "rslora=true"], "3e-4,1e-3,3e-3,1e-2"),
    "lora-muon": ("LoRA r16, Muon", [*LORA, "optimizer=muon"], "1e-3,3e-3,1e-2,3e-2"),
    "lora-lion": ("LoRA r16, Lion", [*LORA, "optimizer=lion"], "1e-4,3e-4,1e-3,3e-3"),
}
SIZES = {
    "gpt2-124m": {"base": ["model=gpt2-124m", "seq_len=1024", "batch_size=16", "grad_accum_steps=1", "lr=2.4e-3",
                           "optimizer=auto"],
                  "base_steps": 1100, "tune": ["seq_len=512", "batch_size=16"], "epochs": [2.0]},
    "tiny": {"base": ["model=tiny-gpt2", "layers=2", "width=64", "heads=2", "mlp_width=256", "context=128",
                      "seq_len=128", "batch_size=8", "grad_accum_steps=1", "lr=8e-3", "optimizer=auto",
                      "data=builtin", "builtin_bytes=300000", "eval_batches=4"],
             "base_steps": 60, "tune": ["seq_len=128", "batch_size=4"], "epochs": [1.0]},
}
QUIET = ["predictor=none", "precision_correct=same", "offload_strategy=none", "sample_tokens=0", "eval_every=0",
         "tensorboard=false", "report=false", "monitor=off"]


def kind_of(arm):
    """The row of ARMS that an arm is made of: what stands before its own settings."""
    return arm.split(":")[0]


def settings_of(arm):
    return [*ARMS[kind_of(arm)][1], *arm.split(":")[1:]]


def label_of(arm):
    return " ".join([ARMS[kind_of(arm)][0], *arm.split(":")[1:]])


def is_arm(text):
    return kind_of(text) in ARMS and all("=" in setting[1:] for setting in text.split(":")[1:])


def names(text):
    found = text.split(",")
    if not all(map(is_arm, found)) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f'"{text}": expected some of {", ".join(ARMS)}, with :KEY=VALUE or without')
    return sorted(found, key=lambda arm: [*ARMS].index(kind_of(arm)))  # full first


def grid_of(text):
    arm, _, rates = text.rpartition("=")
    if not is_arm(arm):
        raise argparse.ArgumentTypeError(f'"{text}": expected ARM=LIST, with an arm of {", ".join(ARMS)}')
    return arm, some_numbers(float)(rates)


def parse_command():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                allow_abbrev=False)
    p.add_argument("--arms", type=names, default=["full", "lora", "qlora"], metavar="LIST",
                   help="full,lora,qlora; ARM:KEY=VALUE is an arm with another setting")
    p.add_argument("--lrs", type=grid_of, action="append", default=[], metavar="ARM=LIST",
                   help="learning rates of an arm, the same number in each; 4, a factor of about 3 apart")
    p.add_argument("--seeds", type=some_numbers(int), default=[1, 2, 3], metavar="LIST", help="1,2,3")
    p.add_argument("--epochs", type=some_numbers(float), metavar="LIST", help="passes over the rows; 2")
    p.add_argument("--set", type=pair, action="append", default=[], metavar="KEY=VALUE", help="of all tuning runs")
    p.add_argument("--base", metavar="FOLDER", help="model folder to fine-tune, instead of training a base")
    p.add_argument("--base-steps", type=int, metavar="N", help="steps of the base, 16,384 tokens each; 1,100")
    p.add_argument("--base-set", type=pair, action="append", default=[], metavar="KEY=VALUE", help="of the base's run")
    p.add_argument("--base-rows", type=int, default=0, metavar="N", help="rows that the base also trains on, as text; 0")
    p.add_argument("--rows-among", type=int, default=16, metavar="N",
                   help="one of this many sequences of the base is made of rows; 16")
    p.add_argument("--base-dir", metavar="FOLDER", help="folder of the base; OUT/base")
    p.add_argument("--data", help="token shards of the base; from HYBRID_TOKENS")
    p.add_argument("--val-data", help="held-out shards of the base")
    p.add_argument("--tokenizer", help="tokenizer of the shards; from HYBRID_DATA")
    p.add_argument("--rows", help="training rows; from HYBRID_DATA")
    p.add_argument("--val-rows", help="held-out rows")
    p.add_argument("--device", default="cuda", help="cuda or cpu; cuda")
    p.add_argument("--tiny", action="store_true", help="a model of 0.1M parameters on generated rows")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time, which makes seconds less meaningful; 1")
    p.add_argument("--limit-s", type=float, metavar="N", help="start no run after this many seconds")
    p.add_argument("--program", help="hybrid-train; $HYBRID_BIN/hybrid-train, or build/bin/hybrid-train")
    p.add_argument("--out", help="folder of the results; runs/adapter_value")
    p.add_argument("--resume", metavar="FILE", help="file of finished runs to continue; OUT/runs.jsonl")
    o = p.parse_args()
    size = SIZES["tiny" if o.tiny else "gpt2-124m"]
    o.base_settings, o.tune_settings = size["base"], size["tune"]
    o.base_steps, o.epochs = o.base_steps or size["base_steps"], o.epochs or size["epochs"]
    own = dict(o.lrs)
    o.grids = {arm: own.get(arm) or some_numbers(float)(ARMS[kind_of(arm)][2]) for arm in o.arms}
    o.out = o.out or os.path.join("runs", "adapter_value" + "-tiny" * o.tiny)
    o.base_dir = o.base_dir or os.path.join(o.out, "base")
    o.resume = o.resume or os.path.join(o.out, "runs.jsonl")
    o.program = o.program or os.path.join(os.environ.get("HYBRID_BIN", os.path.join(HERE, "..", "build", "bin")),
                                          "hybrid-train")
    if len({len(grid) for grid in o.grids.values()}) > 1:
        p.error("--lrs: every arm must have the same number of learning rates: " +
                ", ".join(f"{arm} {len(grid)}" for arm, grid in o.grids.items()))
    if set(own) - set(o.arms):
        p.error(f"--lrs of {', '.join(sorted(set(own) - set(o.arms)))}, which --arms does not include")
    if min(o.base_steps, o.jobs, o.rows_among - 1) < 1 or o.base_rows < 0:
        p.error("--base-steps and --jobs must be at least 1, --rows-among at least 2, --base-rows at least 0")
    if o.base_rows and (o.tiny or o.base):
        p.error("--base-rows needs a base that is trained here on shards; omit --tiny and --base")
    if bool(o.rows) != bool(o.val_rows) or bool(o.data) != bool(o.val_data):
        p.error("set both --rows and --val-rows, and both --data and --val-data")
    return o


# ---- input files -----------------------------------------------------------------------------------

def find_shared(path):
    for folder in (os.environ.get("HYBRID_DATA"), os.path.join(HERE, "..", "..", "shared", "data")):
        if folder and os.path.exists(os.path.join(folder, path)):
            return os.path.join(folder, path)
    skip(f"there is no {path} in HYBRID_DATA or ../shared/data", "name one: see --help; or try --tiny")


def find_shards(o):
    if o.data:
        return [o.data, o.val_data]
    return command.find_shards(("books", ""), "give --data and --val-data, or --base")


def find_data(o):
    """Puts paths of rows, shards and tokenizer into the options."""
    if o.tiny and not o.rows:
        os.makedirs(o.out, exist_ok=True)
        o.rows, o.val_rows = rows.make(o.out)
    o.rows = o.rows or find_shared("instruct/gsm8k_train.jsonl")
    o.val_rows = o.val_rows or find_shared("instruct/gsm8k_test.jsonl")
    if not o.tiny and not o.base:
        o.data, o.val_data = find_shards(o)
        o.tokenizer = o.tokenizer or find_shared("tokenizers/gpt2")


# ---- programs --------------------------------------------------------------------------------------

class Programs:
    """Runs several programs at a time; another thread can end all of them."""

    def __init__(self, folder):
        self.folder, self.lock, self.running, self.is_ended = folder, threading.Lock(), set(), False

    def call(self, name, words):
        """Exit code and standard output; standard error goes into a file of that name."""
        log = os.path.join(self.folder, name + ".log")
        with open(log, "w", encoding="utf-8") as errors:
            with self.lock:
                if self.is_ended:
                    raise KeyboardInterrupt
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                           text=True)
                self.running.add(process)
            out, _ = process.communicate()
        with self.lock:
            self.running.discard(process)
            if self.is_ended:
                raise KeyboardInterrupt
        if process.returncode not in (0, 3):
            raise Failure(f"{os.path.basename(words[0])} ended with code {process.returncode}:\n"
                          f"{last_lines(log)}\n  $ {' '.join(words)}")
        return process.returncode, out

    def end(self):
        with self.lock:
            self.is_ended = True
            for process in self.running:
                process.kill()


def flags(settings):
    return [word for setting in settings for word in ("--set", setting)]


def trained_parameters(summary):
    """The number of trained parameters, without padding rows."""
    grads = summary["phases"]["full"]["classes"]["grads"]
    return min(summary["parameters"], grads["planned_bytes"] // {"fp32": 4, "bf16": 2}[grads["dtype"]])


class Measurement:
    def __init__(self, o, scratch):
        self.o, self.scratch, self.began = o, scratch, time.monotonic()
        self.programs = Programs(o.out)
        self.journal, self.lock = Journal(o.resume), threading.Lock()
        self.base, self.is_out_of_time, self.done, self.total = o.base, False, 0, 0
        self.base_rows, self.rows = rows.split(o.rows, o.base_rows, self.scratch)
        self.data = [rows.hash_of(path) for path in (self.rows, o.val_rows)]
        self.base_key = self.key_of_base()

    # ---- the base --------------------------------------------------------------------------------

    def key_of_base(self):
        o = self.o
        if o.base:
            return rows.hash_of(o.base)
        data = [rows.hash_of(path) for path in (o.data, o.val_data, o.tokenizer, self.base_rows) if path]
        return key_of({"settings": [*o.base_settings, *o.base_set], "steps": o.base_steps, "data": data,
                            "rows": [o.base_rows, o.rows_among]})

    def tokenize(self, text, name):
        """A temporary folder of shards for the training of the base."""
        shards = os.path.join(self.scratch, name)
        program = os.path.join(os.path.dirname(self.o.program), "hybrid-tokenize")
        self.programs.call("tokenize", [program, "--tokenizer", self.o.tokenizer, "--out", shards, text])
        return shards

    def base_data(self):
        """Settings that name the base's text, and the share of the rows' tokens that never occur in it."""
        o = self.o
        if not o.data:
            return [], None
        text = os.path.join(self.scratch, "text.jsonl")
        with open(self.rows, encoding="utf-8") as file:
            rows.write_text(file, text)
        wanted, known, data = rows.tokens_of(self.tokenize(text, "tuning")), set(rows.tokens_of(o.data)), o.data
        if o.base_rows:
            shards = self.tokenize(self.base_rows, "rows")
            known |= set(rows.tokens_of(shards))
            data = f"{data}:{o.rows_among - 1},{shards}:1"
        unseen = sum(token not in known for token in wanted) / len(wanted)
        return [f"data={data}", f"val_data={o.val_data}", f"tokenizer={o.tokenizer}"], unseen

    def make_base(self):
        """The folder of the base; trains the base if the folder does not exist."""
        command.find_card(self.o.device, "--tiny --device cpu tries it on a CPU")
        if self.base:
            return
        o, key = self.o, self.base_key
        folder, mark = os.path.join(o.base_dir, "model"), os.path.join(o.base_dir, "adapter_value.key")
        is_there = os.path.exists(mark) and open(mark, encoding="utf-8").read() == key
        if not is_there:
            began = time.monotonic()
            data, unseen = self.base_data()
            settings = [*o.base_settings, *data, *QUIET, *o.base_set, f"device={o.device}",
                        f"steps={o.base_steps}", "seed=1", f"out={o.base_dir}", "overwrite=true"]
            code, out = self.programs.call("base", [o.program, "--json", *flags(settings)])
            if code == 3:
                raise Failure("the base diverged")
            summary = json.loads(out)
            about = {name: summary[name] for name in ("device", "parameters", "steps", "tokens_per_step", "val_loss")}
            with open(os.path.join(o.base_dir, "adapter_value.json"), "w", encoding="utf-8") as file:
                json.dump({**about, "unseen": unseen, "seconds": time.monotonic() - began}, file)
            with open(mark, "w", encoding="utf-8") as file:
                file.write(key)
        with open(os.path.join(o.base_dir, "adapter_value.json"), encoding="utf-8") as file:
            about = json.load(file)
        print(f"base: {about['parameters']:,} parameters, {about['steps']} steps of {about['tokens_per_step']:,} "
              f"tokens, held-out loss {about['val_loss']:.4f} on its own text, {about['seconds']:.1f} s with start "
              f"and saving{', made before' if is_there else ''}; {about['device']}")
        if about["unseen"] is not None:
            print(f"of the training rows' tokens {100 * about['unseen']:.2f} % never occur in the base's text")
        self.base = folder

    # ---- runs ------------------------------------------------------------------------------------

    def settings(self, arm, lr, epochs, seed):
        o = self.o
        return [*o.tune_settings, "grad_accum_steps=1", "lr_warmup_ratio=0.1", "schedule=cosine", "eval_batches=0",
                *QUIET, *o.set, *settings_of(arm), f"epochs={epochs:g}", f"device={o.device}", f"lr={lr!r}",
                f"seed={seed}"]

    def key(self, *run):
        return key_of({"base": self.base_key, "data": self.data, "settings": self.settings(*run)})

    def has_time(self):
        limit = self.o.limit_s
        self.is_out_of_time |= limit is not None and time.monotonic() - self.began > limit
        return not self.is_out_of_time

    def train(self, name, settings):
        began = time.monotonic()
        code, out = self.programs.call(name, [self.o.program, "--json", "--model", self.base, "--data", self.rows,
                                              "--val-data", self.o.val_rows, "--out", "none", *flags(settings)])
        summary = json.loads(out) if out.strip() else {}
        if code == 3 or summary.get("val_loss") is None:
            return {"diverged": True, "val_loss": None}
        kept = ("device", "parameters", "val_loss", "val_tokens", "final_loss", "steps", "tokens_per_step")
        return {"diverged": False, **{key: summary[key] for key in kept}, "train_s": summary["seconds"],
                "trained": trained_parameters(summary), "wall_s": time.monotonic() - began}

    def run(self, arm, lr, epochs, seed):
        """The result of a run, from the file of finished runs or made now; None: out of time."""
        key = self.key(arm, lr, epochs, seed)
        with self.lock:
            self.done += 1
            number = self.done
            if key in self.journal.lines:
                return self.journal.lines[key]
            if not self.has_time():
                return None
        name = f"run-{arm.replace('/', '_')}-{lr:g}-{epochs:g}-{seed}"
        result = self.train(name, self.settings(arm, lr, epochs, seed))
        with self.lock:
            entry = self.journal.add(key, {"arm": arm, "lr": lr, "epochs": epochs, "seed": seed}, result)
        outcome = "diverged" if entry["diverged"] else \
            f"held-out loss {entry['val_loss']:.4f}, {entry['steps']} steps in {entry['train_s']:.1f} s, " \
            f"{entry['wall_s']:.1f} s in all"
        print(f"run {number} of {self.total}: {arm}, lr {lr:g}, {epochs:g} epochs, seed {seed}: {outcome}",
              file=sys.stderr)
        return entry

    def run_all(self, wanted):
        """(arm, lr, epochs, seed) -> result of each, --jobs at a time, begun in that order."""
        missing = [each for each in wanted if self.key(*each) not in self.journal.lines]
        if missing and self.has_time():
            self.make_base()
        if self.o.jobs == 1:
            return {each: self.run(*each) for each in wanted}
        with concurrent.futures.ThreadPoolExecutor(self.o.jobs) as pool:
            made = {each: pool.submit(self.run, *each) for each in wanted}
            try:
                return {each: future.result() for each, future in made.items()}
            except BaseException:
                self.programs.end()
                raise

    def untuned(self):
        """Loss of the base on the held-out rows before fine-tuning; None: out of time."""
        key = key_of({"base": self.base_key, "data": self.data[1], "settings": self.o.tune_settings})
        if key not in self.journal.lines:
            if not self.has_time():
                return None
            self.make_base()
            _, out = self.programs.call("untuned", [self.o.program, "--json", "--eval-only", "--model", self.base,
                                                    "--data", self.o.val_rows,
                                                    *flags([*self.o.tune_settings, f"device={self.o.device}"])])
            self.journal.add(key, {"arm": "none"}, {"val_loss": json.loads(out)["loss"]})
        return self.journal.lines[key]["val_loss"]

    def measure(self):
        o, first = self.o, self.o.seeds[0]
        self.total = sum(len(grid) * len(o.epochs) + len(o.seeds) - 1 for grid in o.grids.values())
        untuned = self.untuned()
        arms = [{"name": arm, "label": label_of(arm)} for arm in o.arms]
        made = self.run_all([(arm, lr, epochs, first) for arm in o.arms for epochs in o.epochs for lr in o.grids[arm]])
        for arm in arms:
            arm["grid"] = {epochs: {lr: made[arm["name"], lr, epochs, first] for lr in o.grids[arm["name"]]}
                           for epochs in o.epochs}
            compare.choose(arm)
            arm["runs"] = {first: compare.best_grid(arm).get(arm["rate"])}
        left = [arm for arm in arms if arm["rate"] is not None and arm["is_grid_whole"]]
        more = [(arm["name"], arm["rate"], arm["epochs"], seed) for seed in o.seeds[1:] for arm in left]  # seed by seed
        for (name, _, _, seed), result in self.run_all(more).items():
            next(arm for arm in arms if arm["name"] == name)["runs"][seed] = result
        return untuned, arms


# ---- the whole -----------------------------------------------------------------------------------

def report(o, untuned, arms):
    compare.print_grids(arms, o.seeds[0])
    there = [arm for arm in arms if arm["rate"] is not None]
    base = compare.best_of([arm for arm in there if kind_of(arm["name"]) == "full"])
    if untuned is not None:
        print(f"\nthe base before fine-tuning: held-out loss {untuned:.4f}")
    if there:
        compare.print_losses(base, there, o.seeds, o.jobs)
    if base:
        compare.print_rates(base, there)
        compare.print_verdicts(base, there, o.seeds)
    devices = {run["device"] for arm in there for run in arm["runs"].values() if run and not run["diverged"]}
    print("note: computed on " + ", ".join(sorted(devices)) if devices else "note: no run was made")
    with open(os.path.join(o.out, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"command": sys.argv[1:], "seeds": o.seeds, "epochs": o.epochs, "untuned": untuned, "arms": arms},
                  file, indent=1)
    print(f"{o.out}: results.json; runs in {o.resume}")


def measure(o):
    command.find_program(o.program, "bin")
    find_data(o)
    command.begin(o)
    with tempfile.TemporaryDirectory(prefix="adapter_value-") as scratch:
        m = Measurement(o, scratch)
        try:
            untuned, arms = m.measure()
        finally:
            m.programs.end()
    report(o, untuned, arms)
    if m.is_out_of_time:
        print(f"out of time after {o.limit_s:g} s; the same command continues with {o.resume}", file=sys.stderr)
        sys.exit(75)


if __name__ == "__main__":
    command.run(measure, parse_command())
