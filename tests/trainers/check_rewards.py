#!/usr/bin/env python3
"""Losses and weights of 20 AdamW steps on rewarded answers, against the formulas in PyTorch and against TRL.

    check_rewards.py HYBRID_TRAIN [FOLDER]

A reward program logs prompts, answers and rewards, so the same answers are computed again in double and in single
precision. The decoder's log-probabilities are in a checkpoint between two steps with the same answers.

Exits with 77 if torch, transformers, peft or trl is missing.
"""

import contextlib
import json
import math
import os
import random
import shutil
import string
import struct
import subprocess
import sys
import tempfile

try:
    import datasets
    import numpy
    import peft
    import torch
    import transformers
    import trl
    import xxhash
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as missing:
    print(f"left out: {missing}", file=sys.stderr)
    sys.exit(77)

STEPS, PROMPTS, SAMPLES, ANSWER_TOKENS, SEQ, RATE = 20, 4, 4, 24, 128, 1e-3
LIMIT = 1e-5
EPSILON = 1e-4 # 1e-8 would turn the rounding of gradients near 0 into whole updates
BETAS = tuple(float(numpy.float32(beta)) for beta in (0.9, 0.999)) # in single precision, as in the run
DEFAULTS = {"grpo-loss": "dapo", "reward-scale": "group", "clip": 0.2, "clip-high": -1, "iterations": 1, "kl": 0,
            "rollout-temperature": 1, "importance-cap": 3, "skip-cut": "false", "lr": RATE}
CASES = {
    "grpo": {"grpo-loss": "grpo"},
    "dapo": {},
    "dr-grpo": {"grpo-loss": "dr-grpo", "reward-scale": "none"},
    "scale batch": {"reward-scale": "batch"},
    "scale none": {"reward-scale": "none"},
    "3 iterations, clipped": {"iterations": 3, "clip": 0.05, "clip-high": 0.1},
    "grpo, 3 iterations": {"grpo-loss": "grpo", "iterations": 3, "clip": 0.05},
    "kl with LoRA": {"kl": 0.5},
    "temperature 0.7": {"rollout-temperature": 0.7},
    "temperature 1.3": {"rollout-temperature": 1.3},
    "skip_cut": {"skip-cut": "true"},
    "grpo, skip_cut": {"grpo-loss": "grpo", "skip-cut": "true"},
    "cap 0.5": {"importance-cap": 0.5, "kl": 0.2},
    "all at once": {"grpo-loss": "dr-grpo", "reward-scale": "batch", "iterations": 3, "clip": 0.01, "kl": 0.2,
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


def read_steps(out):
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if "loss" in line and "event" not in line]


def run_ours(program, folder, name, values, flags=()):
    """Its steps, where its weights are, and all answers in order."""
    out = os.path.join(folder, "run-" + "-".join(name.split()))
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
               "--weight-decay", 0, "--beta1", 0.9, "--beta2", 0.999, "--adam-eps", EPSILON,
               "--sample-tokens", 0, "--device", "cpu", "--threads", 1, "--report", "false", "--tensorboard", "false",
               "--quiet"]
    for key, value in (DEFAULTS | values).items():
        command += ["--" + key, value]
    subprocess.run([str(word) for word in [*command, *flags]], check=True, stdout=subprocess.DEVNULL)
    with open(log, encoding="utf-8") as file:
        return read_steps(out), out, [json.loads(line) for line in file]


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


def loss_of_answers(model, rollout, old, reference, importance, values):
    """The formula of the papers, in the precision of the model; no code in common with the product."""
    low, high = 1 - values["clip"], 1 + (values["clip"] if values["clip-high"] < 0 else values["clip-high"])
    all_now = log_probabilities(model, rollout, values["rollout-temperature"])
    sums, counts = [], []
    for answer, now, before, base, weight in zip(rollout, all_now, old, reference, importance):
        ratio = torch.exp(now - before)
        gain = torch.minimum(ratio * answer["advantage"], ratio.clamp(low, high) * answer["advantage"])
        loss = -gain * weight
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


def make_trl_loss(folder, model, values):
    """The loss of TRL's trainer on given answers. The trainer changes how the model computes."""
    arguments = trl.GRPOConfig(
        output_dir=os.path.join(folder, "trl"), per_device_train_batch_size=PROMPTS * SAMPLES, num_generations=SAMPLES,
        max_completion_length=ANSWER_TOKENS, loss_type=values["grpo-loss"].replace("-", "_"), epsilon=values["clip"],
        use_bias_correction_kl=False, # its default weighs the divergence by the ratio
        epsilon_high=values["clip-high"] if values["clip-high"] >= 0 else None, beta=values["kl"],
        temperature=values["rollout-temperature"], report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        gradient_checkpointing=False, save_strategy="no")
    trainer = trl.GRPOTrainer(
        model=model, args=arguments, reward_funcs=lambda **_: None,
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * PROMPTS),
        processing_class=transformers.AutoTokenizer.from_pretrained(os.path.join(folder, "model")))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True # for importance weights

    def pad(rows, is_left=False):
        most = max(len(row) for row in rows)
        rows = [torch.as_tensor(row) for row in rows]
        return torch.stack([torch.nn.functional.pad(row, (most - len(row), 0) if is_left else (0, most - len(row)))
                            for row in rows])

    def loss_of(model, rollout, old, reference, importance, _):
        prompts, ids = [answer["prompt_ids"] for answer in rollout], [answer["ids"] for answer in rollout]
        masks = [[int(answer["ended"] or values["skip-cut"] == "false")] * answer["tokens"] for answer in rollout]
        inputs = {"prompt_ids": pad(prompts, True), "prompt_mask": pad([[1] * len(one) for one in prompts], True),
                  "completion_ids": pad(ids), "completion_mask": pad(masks),
                  "advantages": torch.tensor([answer["advantage"] for answer in rollout]),
                  "old_per_token_logps": pad(old), "importance_sampling_ratio": pad(importance),
                  "num_items_in_batch": torch.tensor(sum(sum(mask) for mask in masks))}
        if values["kl"]:
            inputs["ref_per_token_logps"] = pad(reference)
        return trainer._compute_loss(model, inputs)

    return loss_of


def load(folder, dtype, adapter=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(folder, "model"), dtype=dtype, attn_implementation="eager")
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True, autocast_adapter_dtype=False)
    return model.to(dtype)


def replay(model, rollouts, values, loss_of=loss_of_answers):
    """Losses and norms of gradients. Where an answer has "sampled", these are the decoder's log-probabilities of its
    tokens from the second step on; before, they are those of the model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=values["lr"], betas=BETAS, eps=EPSILON, weight_decay=0)
    temperature = values["rollout-temperature"]
    losses, norms = [], []
    for step in range(STEPS):
        rollout = rollouts[step // values["iterations"]]
        if step % values["iterations"] == 0:
            with torch.no_grad():
                old = log_probabilities(model, rollout, temperature)
                reference = [None] * len(rollout)
                if values["kl"]:
                    with model.disable_adapter():
                        reference = log_probabilities(model, rollout, temperature)
        sampled = [answer.get("sampled", before) if step else before for answer, before in zip(rollout, old)]
        importance = [torch.exp(before - one.to(before.dtype)).clamp(max=values["importance-cap"])
                      for before, one in zip(old, sampled)]
        optimizer.zero_grad()
        loss = loss_of(model, rollout, old, reference, importance, values)
        loss.backward()
        norms.append(math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in parameters)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


# ---- comparing --------------------------------------------------------------------------------------


def difference(ours, theirs):
    largest = 0
    theirs = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if name in theirs and theirs[name].requires_grad:
            other = theirs[name].double()
            largest = max(largest, ((parameter.double() - other).norm() / other.norm()).item())
    return largest


def compare_all(folder, name, steps, ours, rollouts, values, adapter=None):
    """Prints the largest relative differences of losses, norms and weights; whether all are small. A loss is near 0 by
    construction, because advantages of a row add up to 0: it is compared with the mean size of an advantage, too."""
    sizes = [abs(answer["advantage"]) for rollout in rollouts for answer in rollout]
    size = sum(sizes) / len(sizes)
    shown, is_right = "", len(steps) == STEPS
    for way, dtype in ("double", torch.float64), ("single", torch.float32), ("TRL", torch.float32):
        model = load(folder, dtype, adapter)
        loss_of = make_trl_loss(folder, model, values) if way == "TRL" else loss_of_answers
        losses, norms = replay(model, rollouts, values, loss_of)
        apart = (max(abs(step["loss"] - loss) / max(abs(loss), size) for step, loss in zip(steps, losses)),
                 max(abs(step["grad_norm"] - norm) / norm for step, norm in zip(steps, norms)),
                 difference(ours, model))
        is_right = is_right and all(one < LIMIT for one in apart)
        shown += "  {}: {:.1e} {:.1e} {:.1e}".format(way, *apart)
    clipped = max(step["clipped"] for step in steps)
    is_right = is_right and (clipped > 0) == (values["iterations"] > 1)
    print(f"{'ok    ' if is_right else 'FAILED'} {name:22}{shown}  clipped {100 * clipped:.0f} %", flush=True)
    return is_right


def load_ours(folder, out):
    """The result of a run; of adapters, with the base."""
    if os.path.isdir(os.path.join(out, "adapter")):
        return load(folder, torch.float32, os.path.join(out, "adapter"))
    return transformers.AutoModelForCausalLM.from_pretrained(os.path.join(out, "model"), dtype=torch.float32)


def check_case(program, folder, tokenizer, name):
    values = DEFAULTS | CASES[name]
    flags = ["--lora", "--lora-rank", 4] if values["kl"] else []
    adapter = None
    if flags: # the first update leaves A as it was drawn, because B is 0, and B where a rate of almost 0 leaves it
        _, out, _ = run_ours(program, folder, name + " start", values | {"lr": 1e-30}, [*flags, "--steps", 1])
        adapter = os.path.join(out, "adapter")
    steps, out, answers = run_ours(program, folder, name, values, flags)
    rollouts = read_rollouts(tokenizer, answers, values)
    return compare_all(folder, name, steps, load_ours(folder, out), rollouts, values, adapter)


# ---- the decoder's log-probabilities ----------------------------------------------------------------


class SavedRollout:
    """rollout.bin of a checkpoint: answers as documents of sequences."""

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
        with open(os.path.join(checkpoint, "rollout.bin"), "rb") as file:
            self.bytes = bytearray(file.read())
        at = self.bytes.index(b"hyroll 1") + 8
        seq, count = struct.unpack_from("<qq", self.bytes, at)
        arrays = numpy.frombuffer(self.bytes, dtype=numpy.int32, offset=at + 16)
        self.tokens, self.targets, self.starts = (one.reshape(count, seq) for one in
                                                  numpy.split(arrays[:3 * count * seq], 3))
        self.policy = arrays[3 * count * seq:].view(numpy.float32).reshape(count, seq, 4)

    def find(self, answer):
        """Where the targets of an answer are in all documents like it; none if it is not there."""
        found = []
        ids = answer["prompt_ids"] + answer["ids"]
        for i, starts in enumerate(self.starts):
            for start in numpy.unique(starts):
                at = numpy.flatnonzero(starts == start)
                if list(self.tokens[i, at]) == ids[:-1] and self.targets[i, at[-1]] == ids[-1]:
                    found.append((i, at[len(answer["prompt_ids"]) - 1:]))
        return found

    def write(self):
        path, manifest = (os.path.join(self.checkpoint, name) for name in ("rollout.bin", "manifest.json"))
        with open(path, "wb") as file:
            file.write(self.bytes)
        with open(manifest, encoding="utf-8") as file:
            content = json.load(file)
        for entry in content["files"]:
            if entry["name"] == "rollout.bin":
                entry["xxh64"] = xxhash.xxh64_hexdigest(bytes(self.bytes))
        with open(manifest, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


def copy_first_checkpoint(out, to):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(os.path.join(out, "checkpoint-1"), os.path.join(to, "checkpoint-1"))
    for name in ("config.cfg", "metrics.jsonl", "rewards.jsonl"):
        shutil.copy(os.path.join(out, name), os.path.join(to, name))


def check_numbers(saved, rollout, before, step):
    """Whether the decoder's log-probabilities, and those before the first update, are those of PyTorch."""
    ours, theirs = [], []
    for answer, one in zip(rollout, before):
        places = saved.find(answer)
        assert places or answer["advantage"] == 0
        if places:
            ours.append(-torch.tensor(saved.policy[places[0]][:, 2:]).double())
            theirs.append(one)
    ours, theirs = torch.cat(ours), torch.cat(theirs).unsqueeze(1)
    apart = ((ours - theirs).abs().amax(0) / theirs.abs().mean()).tolist()
    between = (ours[:, 0] - ours[:, 1]).abs().mean().item()
    is_right = max(apart) < LIMIT and abs(step["apart"] - between) < 1e-3 * between
    print(f"{'ok    ' if is_right else 'FAILED'} {'log-probabilities':22}  decoder: {apart[0]:.1e}  training: "
          f"{apart[1]:.1e}", flush=True)
    return is_right


def check_decoder(program, folder, tokenizer):
    """Log-probabilities in a checkpoint; and a run that goes on from one where the decoder's were changed."""
    values = DEFAULTS | {"iterations": STEPS, "rollout-temperature": 0.8, "clip": 0.05, "importance-cap": 1.5}
    flags = ["--save-every", 1, "--keep", STEPS]
    steps, out, answers = run_ours(program, folder, "decoder", values, flags)
    rollout = read_rollouts(tokenizer, answers, values)[0]
    changed = out + "-changed"
    copy_first_checkpoint(out, changed)
    saved = SavedRollout(os.path.join(changed, "checkpoint-1"))
    with torch.no_grad():
        before = log_probabilities(load(folder, torch.float64), rollout, values["rollout-temperature"])
    is_right = check_numbers(saved, rollout, before, steps[0])
    draw, texts = torch.Generator().manual_seed(3), set()
    for answer, one in zip(rollout, before):
        places, text = saved.find(answer), (answer["prompt"], answer["answer"], answer["ended"])
        for place in places if text not in texts else ():
            noise = 0.4 * torch.randn(len(one), 1, generator=draw)
            saved.policy[place] += numpy.float32([0, 0, 1, 0]) * noise.numpy()
        texts.add(text)
        answer["sampled"] = -torch.tensor(saved.policy[places[0]][:, 2]) if places else one.float()
    saved.write()
    subprocess.run([program, "--out", changed, "--resume", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    steps = read_steps(changed)
    capped = max(step["capped"] for step in steps)
    is_alike = compare_all(folder, f"weights, {100 * capped:.0f} % capped", steps, load_ours(folder, changed),
                           [rollout], values)
    return is_right and is_alike and 0 < capped < 1


# ---- adapters ---------------------------------------------------------------------------------------


def check_adapters(program, folder, tokenizer):
    """An adapter of ours goes on in TRL; TRL's goes on here, with rewards and with pairs."""
    _, out, _ = run_ours(program, folder, "adapter", DEFAULTS, ["--lora", "--lora-rank", 4])
    model = load(folder, torch.float32, os.path.join(out, "adapter"))
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    theirs = os.path.join(folder, "trl-adapter")
    arguments = trl.GRPOConfig(output_dir=theirs, max_steps=2, per_device_train_batch_size=8, num_generations=8,
                               max_completion_length=ANSWER_TOKENS, learning_rate=RATE, report_to="none", use_cpu=True,
                               bf16=False, disable_tqdm=True, gradient_checkpointing=False, save_strategy="no")
    with open(os.path.join(folder, "rows.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    trainer = trl.GRPOTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                              reward_funcs=lambda completions, **_: [float(text.count("a")) for text in completions],
                              processing_class=tokenizer)
    trainer.train()
    is_right = all(not torch.equal(p, before[name]) for name, p in model.named_parameters() if p.requires_grad)
    print(f"{'ok    ' if is_right else 'FAILED'} an adapter goes on in TRL", flush=True)
    trainer.save_model(theirs)
    steps, out, answers = run_ours(program, folder, "adapter of TRL", DEFAULTS, ["--adapter", theirs])
    is_right &= compare_all(folder, "adapter of TRL", steps, load_ours(folder, out),
                            read_rollouts(tokenizer, answers, DEFAULTS), DEFAULTS, theirs)
    with open(os.path.join(folder, "pairs.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": row["prompt"], "chosen": " red", "rejected": " blue!"}) + "\n"
                        for row in rows)
    pairs = os.path.join(folder, "run-pairs")
    subprocess.run([program, "--model", os.path.join(folder, "model"), "--data", os.path.join(folder, "pairs.jsonl"),
                    "--task", "dpo", "--adapter", theirs, "--out", pairs, "--overwrite", "--steps", "5", "--lr", "1e-3",
                    "--val-fraction", "0", "--seq-len", str(SEQ), "--batch-size", "2", "--sample-tokens", "0",
                    "--device", "cpu", "--report", "false", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    losses = [step["loss"] for step in read_steps(pairs)]
    is_learning = abs(losses[0] - math.log(2)) < 1e-5 and losses[-1] < losses[0] # the reference has the adapter
    print(f"{'ok    ' if is_learning else 'FAILED'} TRL's adapter goes on with pairs", flush=True)
    return is_right and is_learning


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
        failed += not check_decoder(program, folder, tokenizer)
        failed += not check_adapters(program, folder, tokenizer)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
