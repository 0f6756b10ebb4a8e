#!/usr/bin/env python3
"""Losses and weights of 20 AdamW steps on rewarded answers, against the formulas in PyTorch and against TRL.

    check_rewards.py HYBRID_TRAIN [FOLDER]

A reward program logs prompts, answers and rewards, so the same answers are computed again in double and in single
precision. Exits with 77 if torch, transformers, peft or trl is missing.
"""

import contextlib
import json
import math
import os
import random
import string
import struct
import subprocess
import sys
import tempfile

try:
    import numpy
    import peft
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as missing:
    print(f"left out: {missing}", file=sys.stderr)
    sys.exit(77)

STEPS, PROMPTS, SAMPLES, ANSWER_TOKENS, SEQ, RATE = 20, 4, 4, 24, 128, 1e-3
DEFAULTS = {"grpo-loss": "dapo", "reward-scale": "group", "clip": 0.2, "clip-high": -1, "iterations": 1, "kl": 0,
            "rollout-temperature": 1, "importance-cap": 3, "skip-cut": "false", "lr": RATE}
CASES = {
    "grpo": {"grpo-loss": "grpo"},
    "dapo": {},
    "dr-grpo": {"grpo-loss": "dr-grpo", "reward-scale": "none"},
    "scale batch": {"reward-scale": "batch"},
    "3 iterations, clipped": {"iterations": 3, "clip": 0.05, "clip-high": 0.1},
    "grpo, 3 iterations": {"grpo-loss": "grpo", "iterations": 3, "clip": 0.05},
    "kl with LoRA": {"kl": 0.5, "iterations": 2},
    "temperature 0.7": {"rollout-temperature": 0.7},
    "skip_cut": {"skip-cut": "true"},
    "grpo, skip_cut": {"grpo-loss": "grpo", "skip-cut": "true"},
    "all at once": {"grpo-loss": "dr-grpo", "reward-scale": "batch", "iterations": 3, "clip": 0.05, "kl": 0.2,
                    "rollout-temperature": 1.3, "skip-cut": "true"},
}
# Written by the run's reward program: all that is known of an answer, and the reward. Every fourth row has equal ones.
REWARDS = """
import json, sys

log = open(sys.argv[1], "a", encoding="utf-8")
for line in sys.stdin:
    item = json.loads(line)
    share = sum(letter in "aeiou" for letter in item["answer"]) / (1 + len(item["answer"]))
    item["reward"] = 1.0 if item["row"]["number"] % 4 == 0 else share + item["ended"]
    log.write(json.dumps(item) + "\\n")
    log.flush()
    print(item["reward"], flush=True)
"""


def make_model(folder):
    """A small Llama. Its tokens are letters, so the text of an answer has its ids."""
    letters = ["\u0120" if letter == " " else letter for letter in string.ascii_lowercase + " :!?"]
    vocab = {letter: i for i, letter in enumerate(letters)} | {"<end>": len(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2 * SEQ, tie_word_embeddings=False, eos_token_id=len(letters),
        bos_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    return fast


def make_rows(path):
    draw = random.Random(7)
    words = "red green blue small large round apple tree house river".split()
    with open(path, "w", encoding="utf-8") as file:
        for number in range(STEPS * PROMPTS):
            prompt = " ".join(draw.choices(words, k=draw.randint(1, 4))) + ":"
            file.write(json.dumps({"prompt": prompt, "number": number}) + "\n")


# ---- our run ----------------------------------------------------------------------------------------


def run_ours(program, folder, name, values, flags=()):
    """Its steps, where its weights are, and all answers in order."""
    out = os.path.join(folder, "run-" + "-".join(name.replace(",", "").split()))
    log, script = out + ".answers", os.path.join(folder, "rewards.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(REWARDS)
    with contextlib.suppress(FileNotFoundError):
        os.remove(log)
    command = [program, "--model", os.path.join(folder, "model"), "--data", os.path.join(folder, "rows.jsonl"),
               "--task", "grpo", "--reward-program", f"'{sys.executable}' '{script}' '{log}'", "--out", out,
               "--overwrite", "--steps", STEPS, "--prompts", PROMPTS, "--samples", SAMPLES, "--answer-tokens",
               ANSWER_TOKENS, "--batch-size", 2, "--shuffle", "false", "--val-fraction", 0, "--seq-len", SEQ,
               "--precision", "fp32", "--grad-clip", 0, "--schedule", "constant", "--lr-warmup-steps", 0,
               "--weight-decay", 0, "--beta1", 0.9, "--beta2", 0.999, "--sample-tokens", 0, "--device", "cpu",
               "--threads", 1, "--report", "false", "--tensorboard", "false", "--quiet"]
    for key, value in (DEFAULTS | values).items():
        command += ["--" + key, value]
    subprocess.run([str(word) for word in [*command, *flags]], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    with open(log, encoding="utf-8") as file:
        answers = [json.loads(line) for line in file]
    return [line for line in lines if "loss" in line and "event" not in line], out, answers


def read_rollouts(tokenizer, answers, values):
    """Lists of answers with ids and advantages, one for each rollout."""
    each = PROMPTS * SAMPLES
    assert len(answers) % each == 0
    rollouts = []
    for at in range(0, len(answers), each):
        rollout = answers[at:at + each]
        for answer in rollout:
            answer["prompt_ids"] = tokenizer(answer["prompt"]).input_ids
            answer["ids"] = tokenizer(answer["answer"]).input_ids + [tokenizer.eos_token_id] * answer["ended"]
            assert len(answer["ids"]) == answer["tokens"]
        rewards = torch.tensor([answer["reward"] for answer in rollout], dtype=torch.float64)
        groups = rewards.view(PROMPTS, SAMPLES)
        scale = {"group": groups.std(1, keepdim=True) + 1e-4, "batch": rewards.std() + 1e-4, "none": 1}
        advantages = (groups - groups.mean(1, keepdim=True)) / scale[values["reward-scale"]]
        for answer, advantage in zip(rollout, advantages.flatten().tolist()):
            answer["advantage"] = advantage
        rollouts.append(rollout)
    return rollouts


# ---- the formulas -----------------------------------------------------------------------------------


def log_probabilities(model, rollout, temperature):
    """Of the tokens of all answers, at the temperature of sampling. Padding follows, so no token attends to it."""
    texts = [answer["prompt_ids"] + answer["ids"] for answer in rollout]
    most = max(len(text) for text in texts)
    ids = torch.tensor([text + [0] * (most - len(text)) for text in texts])
    logp = torch.log_softmax(model(ids[:, :-1]).logits / temperature, -1).gather(2, ids[:, 1:].unsqueeze(2))[:, :, 0]
    return [one[len(answer["prompt_ids"]) - 1:len(text) - 1] for one, answer, text in zip(logp, rollout, texts)]


def loss_of_answers(model, rollout, old, reference, values):
    """The formula of the papers, in the precision of the model; no code in common with the product."""
    low, high = 1 - values["clip"], 1 + (values["clip"] if values["clip-high"] < 0 else values["clip-high"])
    sums, counts = [], []
    all_now = log_probabilities(model, rollout, values["rollout-temperature"])
    for answer, now, before, base in zip(rollout, all_now, old, reference):
        ratio = torch.exp(now - before)
        gain = torch.minimum(ratio * answer["advantage"], ratio.clamp(low, high) * answer["advantage"])
        loss = -gain
        if values["kl"]:
            loss = loss + values["kl"] * (torch.exp(base - now) - (base - now) - 1)
        is_skipped = values["skip-cut"] == "true" and not answer["ended"]
        sums.append(loss.sum() * (0 if is_skipped else 1))
        counts.append(0 if is_skipped else len(answer["ids"]))
    if values["grpo-loss"] == "dapo":
        return sum(sums) / max(1, sum(counts))
    if values["grpo-loss"] == "grpo":
        return sum(one / max(1, count) for one, count in zip(sums, counts)) / len(sums)
    return sum(sums) / (len(sums) * ANSWER_TOKENS)


def load(folder, dtype, adapter=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(folder, "model"), dtype=dtype, attn_implementation="eager")
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True, autocast_adapter_dtype=False)
    return model.to(dtype)


def replay(model, rollouts, values, loss_of=loss_of_answers):
    """Losses, norms of gradients, and the losses of answers before the first update of each rollout."""
    # Bias corrections follow from betas in single precision, as in the run.
    betas = tuple(float(numpy.float32(beta)) for beta in (0.9, 0.999))
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=values["lr"], betas=betas, eps=1e-8, weight_decay=0)
    temperature = values["rollout-temperature"]
    losses, norms, all_old = [], [], []
    for step in range(STEPS):
        rollout = rollouts[step // values["iterations"]]
        if step % values["iterations"] == 0:
            with torch.no_grad():
                old = log_probabilities(model, rollout, temperature)
                reference = [None] * len(rollout)
                if values["kl"]:
                    with model.disable_adapter():
                        reference = log_probabilities(model, rollout, temperature)
            all_old.append(old)
        optimizer.zero_grad()
        loss = loss_of(model, rollout, old, reference, values)
        loss.backward()
        norms.append(math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in parameters)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, all_old


# ---- comparing --------------------------------------------------------------------------------------


def difference(ours, theirs):
    largest = 0
    theirs = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if name in theirs and theirs[name].requires_grad:
            other = theirs[name].double()
            largest = max(largest, ((parameter.double() - other).norm() / other.norm()).item())
    return largest


def compare(steps, ours, losses, norms, theirs):
    """Largest relative differences of losses, norms and weights. A loss is near 0 by construction, because advantages
    of a row add up to 0; its difference is relative to at least the mean size of all losses."""
    size = sum(abs(loss) for loss in losses) / len(losses)
    return (max(abs(step["loss"] - loss) / max(abs(loss), size) for step, loss in zip(steps, losses)),
            max(abs(step["grad_norm"] - norm) / norm for step, norm in zip(steps, norms)),
            difference(ours, theirs))


def check_case(program, folder, tokenizer, name):
    values = DEFAULTS | CASES[name]
    flags = ["--lora", "--lora-rank", 4] if values["kl"] else []
    adapter = None
    if flags: # the first update leaves A as it was drawn, and B where a rate of almost 0 leaves it
        _, out, _ = run_ours(program, folder, name + " start", values | {"lr": 1e-30}, [*flags, "--steps", 1])
        adapter = os.path.join(out, "adapter")
    steps, out, answers = run_ours(program, folder, name, values, flags)
    assert len(steps) == STEPS
    rollouts = read_rollouts(tokenizer, answers, values)
    ours = load(folder, torch.float32, os.path.join(out, "adapter") if flags else None)
    if not flags:
        ours = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(out, "model"), dtype=torch.float32)
    results = []
    for dtype in (torch.float64, torch.float32):
        model = load(folder, dtype, adapter)
        losses, norms, _ = replay(model, rollouts, values)
        results.append(compare(steps, ours, losses, norms, model))
    clipped = max(step["clipped"] for step in steps)
    is_right = all(one < 1e-5 for result in results for one in result)
    is_right = is_right and (clipped > 0) == (values["iterations"] > 1)
    shown = "  ".join("losses {:.1e} norms {:.1e} weights {:.1e}".format(*result) for result in results)
    print(f"{'ok    ' if is_right else 'FAILED'} {name:22} double: {shown.replace('  ', '  single: ')}  "
          f"clipped {100 * clipped:.0f} %", flush=True)
    return is_right


def main():
    program = os.path.abspath(sys.argv[1])
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1) # small matrices
    transformers.utils.logging.disable_progress_bar()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[2] if len(sys.argv) > 2 else scratch
        os.makedirs(folder, exist_ok=True)
        tokenizer = make_model(os.path.join(folder, "model"))
        make_rows(os.path.join(folder, "rows.jsonl"))
        for name in CASES:
            failed += not check_case(program, folder, tokenizer, name)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
