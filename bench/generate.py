#!/usr/bin/env python3
"""generate.py: tokens per second of generation, of one stream and of many, with drawn weights.

    python3 bench/generate.py qwen2.5-1.5b [--streams 1,64,512] [--peer] [--same 1000] [--prefill 8192] [--profile]
    python3 bench/generate.py qwen3-8b --frozen-dtype nf4 --streams 1

Each stream answers a prompt of --prompt tokens with --answer tokens, sampled with top-p 0.95; logits of drawn
weights are flat, so that sampling is as slow as it gets. Two answer lengths are timed, and their difference counts;
the speed with prompts follows in brackets. Up to 8 streams are timed with hybrid_train.Generator, more with
hybrid-generate.

--peer      transformers with a static cache and compiled decoding, the same streams
--same N    N prompts of different lengths, with 1 and with 64 streams: are the files equal?
--prefill N a prompt of N tokens; an evaluation's forward pass over as long sequences, eight at once:
            gpu_throughput --row d --model MODEL --batch-size 1 --seq-len N --tokens 8N
--logprobs  how far log-probabilities of generated tokens are from those of the same tokens as a prompt, and the
            mean of a prompt's from the loss of an evaluation, which is a training forward pass
--profile   which kernels take the time of a step (needs PyTorch's profiler)
--keep DIR  draws the weights into DIR, or takes what is there
"""

import argparse
import array
import hashlib
import json
import math
import os
import random
import re
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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

FEW_STREAMS = 8  # more are timed without Python, whose callbacks would take a part of a step


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


def bf16(numbers):
    """The upper halves of fp32 numbers."""
    words, halves = array.array("f", numbers).tobytes(), bytearray(2 * len(numbers))
    halves[0::2], halves[1::2] = words[2::4], words[3::4]
    return halves


def draw_folder(name, folder):
    """Matrices go round a few million normal numbers; their count is prime, so no two rows of one are alike."""
    drawn = random.Random(1)
    normal = bf16([drawn.gauss(0, 0.02) for _ in range(4194301)])
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for tensor, shape in shapes_of(MODELS[name]):
        begin, end = end, end + 2 * math.prod(shape)
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head, at = json.dumps(header).encode(), 0
    head += b" " * (-len(head) % 8)  # tensors are aligned
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor, shape in shapes_of(MODELS[name]):
            left = 2 * math.prod(shape)
            if len(shape) == 1:
                file.write(bf16([float("norm" in tensor)] * shape[0]))
                continue
            while left > 0:
                part = memoryview(normal)[at : at + left]
                file.write(part)
                left, at = left - len(part), (at + len(part)) % len(normal)
    (folder / "config.json").write_text(json.dumps(MODELS[name]))


def write_prompts(path, count, shortest, longest):
    """`count` prompts of different lengths and tokens, each the same in every call."""
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

    def open(self, streams, context):
        import hybrid_train

        used = dict(streams=streams, context=context, tokenizer="none", device=self.args.device)
        if self.args.frozen_dtype:
            used["frozen_dtype"] = self.args.frozen_dtype
        return hybrid_train.Generator(self.folder, **used)

    def speeds(self, counts):
        """Tokens per second of several numbers of streams, from one generator: without and with prompts."""
        short, whole = self.args.answer // 4, self.args.answer
        with self.open(max(counts), self.args.context) as generator:
            for streams in counts:
                prompts = [[(7 * i + k) % 500 for i in range(self.args.prompt)] for k in range(streams)]
                seconds = []
                for answer in 8, short, whole:
                    begin = time.perf_counter()
                    generator.generate(prompts, max_tokens=answer, temperature=1.0, top_p=0.95)
                    seconds.append(time.perf_counter() - begin)
                yield streams, streams * (whole - short) / (seconds[2] - seconds[1]), streams * whole / seconds[2]

    def speed(self, streams):
        context = ["--context", str(self.args.context)]
        data, out = self.folder / "prompts.jsonl", self.folder / "answers.jsonl"
        write_prompts(data, streams, self.args.prompt, self.args.prompt)
        short, few = self.run(data, out, streams, self.args.answer // 4, *context)
        whole, many = self.run(data, out, streams, self.args.answer, *context)
        return (many - few) / (whole - short), many / whole

    def same(self, count):
        """Answers of the same prompts with 1 and with 64 streams, at once: nothing is timed."""
        data = self.folder / "many.jsonl"
        write_prompts(data, count, 3, 400)

        def answer(streams):
            out = self.folder / f"answers-{streams}.jsonl"
            self.run(data, out, streams, 20, "--context", "512", "--logprobs")
            return hashlib.sha256(out.read_bytes()).hexdigest()

        with ThreadPoolExecutor(2) as pool:
            alone, among = pool.map(answer, (1, 64))
        return alone == among

    def prefill(self, count):
        """Seconds for a prompt of so many tokens; the second of two, with other tokens."""
        seconds = []
        with self.open(1, count + 8) as generator:
            for k in range(3):
                prompt = [(7 * i + k) % 500 for i in range(count)]
                begin = time.perf_counter()
                generator.generate([prompt], max_tokens=1)
                seconds.append(time.perf_counter() - begin)
        return min(seconds[1:])

    def logprobs(self):
        """Absolute differences of each token (mean, most), of a step and a chunk; and of two means."""
        prompts = [[(7 * i + k) % 500 for i in range(100)] for k in range(16)]
        how = dict(temperature=1.0, top_p=1.0, logprobs=True)
        with self.open(16, 512) as generator:
            answers = [one.answers[0] for one in generator.generate(prompts, max_tokens=400, **how)]
            texts = [p + list(a.tokens) for p, a in zip(prompts, answers)]
            again = generator.generate(texts, max_tokens=1, prompt_logprobs=True)
        apart = [abs(x - y) for a, b in zip(answers, again) for x, y in zip(a.logprobs, b.prompt_logprobs[100:])]
        text, count = self.folder / "text.txt", 4096
        text.write_bytes(bytes((31 * i * i + 7 * i) % 95 + 32 for i in range(count + 1)))
        with self.open(1, count + 8) as generator:
            known = generator.generate([list(text.read_bytes())], max_tokens=1, prompt_logprobs=True)[0].prompt_logprobs
        command = [Path(self.args.program).with_name("hybrid-train"), "--eval-only", "--json", "--tokenizer", "none"]
        command += ["--model", self.folder, "--data", text, "--seq-len", str(count), "--batch-size", "1"]
        command += ["--device", self.args.device, "--data-format", "bytes"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return sum(apart) / len(apart), max(apart), -sum(known[1:]) / count - json.loads(done.stdout)["loss"]


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


def profile(ours, streams):
    import torch_profile

    with ours.open(streams, ours.args.context) as generator:
        prompts = [[(7 * i + k) % 500 for i in range(ours.args.prompt)] for k in range(streams)]
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
    parser.add_argument("--logprobs", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--keep", default="")
    args = parser.parse_args()
    streams = [int(n) for n in args.streams.split(",") if n]
    base = os.environ.get("TMPDIR") or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    with tempfile.TemporaryDirectory(dir=base) as made:
        folder = Path(args.keep or made)
        folder.mkdir(exist_ok=True)
        begin = time.perf_counter()
        if not (folder / "config.json").exists():
            draw_folder(args.model, folder)
            print(f"{args.model}: drawn in {time.perf_counter() - begin:.1f} s", flush=True)
        ours = Ours(args, folder)

        def show(n, speed, whole):
            stored = args.frozen_dtype or "bf16"
            line = f"{args.model} {stored}, {n} streams: {speed:.0f} tok/s ({whole:.0f} with prompts)"
            if args.peer:
                line += f"; transformers {peer_speed(args, folder, n):.0f}"
            print(line, flush=True)
            if args.profile:
                profile(ours, n)

        few = [n for n in streams if n <= FEW_STREAMS]
        for figures in ours.speeds(few) if few else ():
            show(*figures)
        for n in streams:
            if n > FEW_STREAMS:
                show(n, *ours.speed(n))
        if args.prefill:
            seconds = ours.prefill(args.prefill)
            rate = args.prefill / seconds
            print(f"prompt of {args.prefill} tokens: {seconds * 1e3:.1f} ms, {rate:.0f} tok/s", flush=True)
        if args.logprobs:
            mean, most, loss = ours.logprobs()
            print(f"log-probabilities of steps and chunks: {mean:.1e} apart, at most {most:.1e}; "
                  f"of a prompt and an evaluation: means {loss:+.1e} apart", flush=True)  # fmt: skip
        if args.same:
            same = "yes" if ours.same(args.same) else "NO"
            print(f"{args.same} prompts have the same bits alone and among others: {same}", flush=True)


if __name__ == "__main__":
    main()
