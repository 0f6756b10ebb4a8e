#!/usr/bin/env python3
"""torch_blocks.py: modules of PyTorch with all parameters trained, in a loop with blocks and in plain torch.

    python3 bench/torch_blocks.py 7b [KEY=VALUE ...]      Qwen2.5-7B of transformers, 16 x 1024 tokens a step
    python3 bench/torch_blocks.py 1.5b [KEY=VALUE ...]    Qwen2.5-1.5B, beside plain torch with fused AdamW
    python3 bench/torch_blocks.py cnn [KEY=VALUE ...]     a 3D CNN with cross-attention, beside plain torch
    python3 bench/torch_blocks.py small                   a tiny Qwen2 on the CPU: a test of the program

Tokens (samples) per second; memory of library and torch on the card, planned and measured; and the part of a step in
which Python's own thread works. Options: --batch, --accum, --steps, --plain 0 (without plain torch),
--profile (on a card: where the time of one more step of our loop goes). KEY=VALUE are keys
of the loop (max_gpu_mem=15GiB). `bench/hold.sh` leaves 16,303 MiB of a larger card. Weights are drawn.
"""

import argparse
import gc
import importlib.util
import tempfile
import time
from pathlib import Path

import torch
import torch_profile

import hybrid_train

WARM = 3  # steps that are not measured: in the first the loop measures memory, then it plans again
QWEN = {
    "7b": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
               num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "small": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, vocab_size=512, tie_word_embeddings=True),
}  # fmt: skip
CNN = dict(channels=256, cnn=12, side=64, rows=64, width=1024, layers=8, cross=6)


class Qwen:
    """A language model, drawn into a folder, so that a loop reads it without memory for a second copy."""

    unit = "tokens"

    def __init__(self, name, device, batch, folder):
        import transformers

        self.device, self.batch, self.length = device, batch, 32 if name == "small" else 1024
        self.config = transformers.Qwen2Config(**QWEN[name], use_cache=False, dtype="bfloat16")
        self.folder = Path(folder)
        self._draw()

    @property
    def count(self):
        return self.batch * self.length

    def _make(self):
        import transformers

        return transformers.AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16).train()

    def _draw(self):
        from safetensors.torch import save_file

        with torch.device("meta"):
            shapes = {name: t.shape for name, t in self._make().state_dict().items()}
        if self.config.tie_word_embeddings:
            shapes.pop("lm_head.weight")
        drawn = {}
        for name, shape in shapes.items():
            value = torch.randn(shape, device=self.device, dtype=torch.bfloat16) * 0.02
            drawn[name] = (value if len(shape) > 1 else value.zero_() + ("norm" in name)).cpu()
        save_file(drawn, self.folder / "model.safetensors", metadata={"format": "pt"})
        self.config.save_pretrained(self.folder)

    def empty(self):
        with torch.device("meta"):
            return self._make()

    def whole(self):
        import transformers

        return transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.bfloat16).train()

    def load(self, loop):
        loop.load(self.folder)

    def loss(self, model, number):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(self.config.vocab_size, (self.batch, self.length), generator=generator).to(self.device)
        return model(input_ids=ids, labels=ids).loss


class Volumes:
    """The model of python/examples/multimodal.py in another size."""

    unit = "samples"

    def __init__(self, name, device, batch, folder):
        path = Path(__file__).parent.parent / "python/examples/multimodal.py"
        spec = importlib.util.spec_from_file_location("multimodal", path)
        self.example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.example)
        self.device, self.count = device, batch

    def empty(self):
        torch.manual_seed(0)
        return self.example.Multimodal(**CNN).to(torch.bfloat16)

    whole = empty

    def load(self, loop):
        pass

    def loss(self, model, number):
        generator = torch.Generator().manual_seed(number)
        side, rows = CNN["side"], CNN["rows"]
        volume = torch.randn(self.count, 1, side, side, side, generator=generator)
        table = torch.randn(self.count, rows, self.example.COLUMNS, generator=generator)
        out = model(volume.to(self.device, torch.bfloat16), table.to(self.device, torch.bfloat16))
        return (out.float() - table[:, 0, 0].to(self.device)).square().mean()


def timed(step, options):
    """Seconds of a step, and the seconds in which this thread worked."""
    for i in range(WARM + options.steps):
        if i == WARM:
            begin, worked = time.perf_counter(), time.thread_time()
        step(i)
        if options.device == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begin) / options.steps, (time.thread_time() - worked) / options.steps


def plain(task, options):
    model = task.whole().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(i):
        for k in range(options.accum):
            (task.loss(model, i * options.accum + k) / options.accum).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    seconds, worked = timed(step, options)
    gib = torch.cuda.max_memory_reserved() / 2**30 if options.device == "cuda" else 0
    return seconds, worked, f"torch reserved {gib:.2f} GiB"


def ours(task, options):
    model = task.empty()
    keys = dict(grad_accum_steps=options.accum, device=options.device, master_dtype="bf16")
    keys |= dict(one.split("=", 1) for one in options.keys)
    with hybrid_train.Loop(model, blocks=True, steps=WARM + options.steps + options.profile, lr=1e-5, **keys) as loop:
        task.load(loop)
        step = lambda *_: loop.step(lambda number: task.loss(model, number))  # noqa: E731
        seconds, worked = timed(step, options)
        if options.profile:
            torch_profile.profile(step)
        device, choices = loop.memory().device, loop.plan()["choices"]
        places = ", ".join(f"{name[:-6]} {choices[name]}" for name in choices if name.endswith("_place"))
        graphs = loop._module.units.kept_graph_bytes / 2**30
        memory = f"planned {device.planned / 2**30:.2f} GiB, peak {device.peak / 2**30:.2f}"
        return seconds, worked, f"{memory}; kept graphs {graphs:.2f} GiB; {places}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*QWEN, "cnn"])
    for name, value in (("batch", 0), ("accum", 0), ("steps", 5), ("plain", -1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    usual = {"7b": (8, 2, 0), "1.5b": (8, 2, 1), "cnn": (64, 1, 1), "small": (2, 2, 1)}[options.model]
    options.batch, options.accum = options.batch or usual[0], options.accum or usual[1]
    has_plain = usual[2] if options.plain < 0 else options.plain
    options.device = "cuda" if torch.cuda.is_available() and options.model != "small" else "cpu"
    torch.use_deterministic_algorithms(True, warn_only=options.model == "cnn")
    with tempfile.TemporaryDirectory() as folder:
        task = (Volumes if options.model == "cnn" else Qwen)(options.model, options.device, options.batch, folder)
        first = None
        for name, run in [("plain torch, fused AdamW", plain)] * has_plain + [("our loop", ours)]:
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            try:
                seconds, worked, said = run(task, options)
            except torch.OutOfMemoryError as error:
                print(f"{name:26} out of memory: {str(error)[:90]}", flush=True)
                continue
            speed = task.count * options.accum / seconds
            ratio = f"{speed / first:5.2f}" if first else ""
            first = first or speed
            share = 100 * worked / seconds
            print(f"{name:26} {speed:10,.1f} {task.unit}/s {ratio}  Python {share:.1f} %  {said}", flush=True)


if __name__ == "__main__":
    main()
