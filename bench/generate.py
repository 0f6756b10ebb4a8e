#!/usr/bin/env python3
"""generate.py: tokens per second of hybrid-generate, of one stream and of many, with drawn weights.

    python3 bench/generate.py qwen2.5-1.5b [--streams 1,64,512] [--peer] [--same 1000] [--prefill 8192] [--profile]
    python3 bench/generate.py qwen3-8b --frozen-dtype nf4 --streams 1

Each stream answers a prompt of --prompt tokens with --answer tokens, sampled with top-p 0.95; logits of drawn
weights are flat, so that sampling is as slow as it gets. The figure is answer tokens over the time between
the moment at which all streams run and the end of the file (two answer lengths are timed, and their difference counts).

--peer      transformers with a static cache and compiled decoding, the same streams
--same N    N prompts of different lengths, with 1 and with 64 streams: are the files equal?
--prefill N a prompt of N tokens, beside a training forward pass over N tokens
--profile   which kernels take the time of a step (needs PyTorch's profiler)
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

QWEN2 = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", max_position_embeddings=32768,
             rms_norm_eps=1e-6, rope_theta=1000000.0, hidden_act="silu", use_sliding_window=False,
             eos_token_id=151643, torch_dtype="bfloat16")  # fmt: skip
MODELS = {
    "tiny": dict(QWEN2, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=512, tie_word_embeddings=True, eos_token_id=511),
    "qwen2.5-1.5b": dict(QWEN2, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                         num_attention_heads=12, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-7b": dict(QWEN2, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                       num_attention_heads=28, num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False),
    "qwen3-8b": dict(QWEN2, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=4096,
                     intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
                     head_dim=128, vocab_size=151936, tie_word_embeddings=False, attention_bias=False),
}  # fmt: skip


def shapes_of(c):
    """Name and shape of each tensor of a folder."""
    width, mlp = c["hidden_size"], c["intermediate_size"]
    head = c.get("head_dim", width // c["num_attention_heads"])
    rows = {"q": c["num_attention_heads"] * head, "k": c["num_key_value_heads"] * head}
    rows["v"] = rows["k"]
    yield "model.embed_tokens.weight", (c["vocab_size"], width)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (width,)
        yield at + "post_attention_layernorm.weight", (width,)
        for name, count in rows.items():
            yield f"{at}self_attn.{name}_proj.weight", (count, width)
            if c["model_type"] == "qwen2":
                yield f"{at}self_attn.{name}_proj.bias", (count,)
            elif name != "v":
                yield f"{at}self_attn.{name}_norm.weight", (head,)
        yield at + "self_attn.o_proj.weight", (width, rows["q"])
        yield at + "mlp.gate_proj.weight", (mlp, width)
        yield at + "mlp.up_proj.weight", (mlp, width)
        yield at + "mlp.down_proj.weight", (width, mlp)
    yield "model.norm.weight", (width,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], width)


def draw_folder(name, folder, device):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    drawn = {}
    for tensor, shape in shapes_of(MODELS[name]):
        value = torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02
        drawn[tensor] = (value if len(shape) > 1 else value.zero_() + ("norm" in tensor)).cpu()
    save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(MODELS[name]))


def write_prompts(path, count, shortest, longest):
    """`count` prompts of different lengths and tokens, each the same in every call."""
    import random

    drawn = random.Random(7)
    rows = [[drawn.randrange(500) for _ in range(drawn.randint(shortest, longest))] for _ in range(count)]
    path.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    return rows


class Ours:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def run(self, data, out, streams, answer, *more):
        """Answers a file; seconds without opening and loading, and the tokens of answers."""
        command = [self.args.program, "--model", str(self.folder), "--tokenizer", "none", "--data", str(data)]
        command += ["--out", str(out), "--overwrite", "--streams", str(streams), "--max-tokens", str(answer)]
        command += ["--device", self.args.device, "--temperature", "1", "--top-p", "0.95", *more]
        if self.args.frozen_dtype:
            command += ["--frozen-dtype", self.args.frozen_dtype]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        said = re.search(r"; ([\d,]+) tokens of answers, .*?, ([\d.]+) tokens/s", done.stdout + done.stderr)
        tokens = int(said[1].replace(",", ""))
        return tokens / float(said[2]), tokens

    def speed(self, streams):
        context = ["--context", str(self.args.context)]
        data, out = self.folder / "prompts.jsonl", self.folder / "answers.jsonl"
        write_prompts(data, streams, self.args.prompt, self.args.prompt)
        short, few = self.run(data, out, streams, self.args.answer // 4, *context)
        whole, many = self.run(data, out, streams, self.args.answer, *context)
        return (many - few) / (whole - short), many / whole

    def same(self, count):
        data, sums = self.folder / "prompts.jsonl", []
        write_prompts(data, count, 3, 400)
        for streams in 1, 64:
            out = self.folder / f"answers-{streams}.jsonl"
            begin = time.perf_counter()
            self.run(data, out, streams, 40, "--context", "512", "--logprobs")
            sums.append(hashlib.sha256(out.read_bytes()).hexdigest())
            print(f"  {count} prompts, {streams} streams: {time.perf_counter() - begin:.1f} s, {sums[-1][:16]}", flush=True)
        return sums[0] == sums[1]

    def prefill(self, count):
        """Seconds for a prompt of so many tokens; the second of two, with other tokens."""
        import hybrid_train

        used = dict(streams=1, context=count + 8, tokenizer="none", device=self.args.device)
        seconds = []
        with hybrid_train.Generator(self.folder, **used) as generator:
            for k in range(3):
                prompt = [(7 * i + k) % 500 for i in range(count)]
                begin = time.perf_counter()
                generator.generate([prompt], max_tokens=1)
                seconds.append(time.perf_counter() - begin)
        return min(seconds[1:])


def peer_speed(args, folder, streams):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    ids = torch.randint(500, (streams, args.prompt), device="cuda")
    how = dict(do_sample=True, top_p=0.95, top_k=0, temperature=1.0, eos_token_id=None, pad_token_id=0)
    how.update(cache_implementation="static", attention_mask=torch.ones_like(ids))
    seconds = []
    for answer in (args.answer, args.answer // 4, args.answer):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model.generate(ids, max_new_tokens=answer, min_new_tokens=answer, **how)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    del model
    torch.cuda.empty_cache()
    return streams * (args.answer - args.answer // 4) / (seconds[2] - seconds[1])


def profile(args, folder, streams):
    import torch_profile

    import hybrid_train

    used = dict(streams=streams, context=args.context, tokenizer="none", device=args.device)
    if args.frozen_dtype:
        used["frozen_dtype"] = args.frozen_dtype
    with hybrid_train.Generator(folder, **used) as generator:
        prompts = [[(7 * i + k) % 500 for i in range(args.prompt)] for k in range(streams)]
        how = dict(max_tokens=40, temperature=1.0, top_p=0.95)
        generator.generate(prompts, **how)
        torch_profile.profile(lambda: generator.generate(prompts, **how))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--streams", default="1,64,512", help="of each measurement; default 1,64,512")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--answer", type=int, default=400)
    parser.add_argument("--frozen-dtype", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--program", default="build/bin/hybrid-generate")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--same", type=int, default=0)
    parser.add_argument("--prefill", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    streams = [int(n) for n in args.streams.split(",") if n]
    base = os.environ.get("TMPDIR") or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    with tempfile.TemporaryDirectory(dir=base) as made:
        folder = Path(made)
        begin = time.perf_counter()
        draw_folder(args.model, folder, args.device)
        print(f"{args.model}: drawn in {time.perf_counter() - begin:.1f} s", flush=True)
        ours = Ours(args, folder)
        for n in streams:
            speed, whole = ours.speed(n)
            line = f"{args.model} {args.frozen_dtype or 'bf16'}, {n} streams: {speed:.0f} tok/s ({whole:.0f} with prompts)"
            if args.peer:
                line += f"; transformers {peer_speed(args, folder, n):.0f}"
            print(line, flush=True)
            if args.profile:
                profile(args, folder, n)
        if args.prefill:
            seconds = ours.prefill(args.prefill)
            print(f"prompt of {args.prefill} tokens: {seconds * 1e3:.1f} ms, {args.prefill / seconds:.0f} tok/s", flush=True)
        if args.same:
            print("the same bits alone and among others:", "yes" if ours.same(args.same) else "NO", flush=True)


if __name__ == "__main__":
    main()
