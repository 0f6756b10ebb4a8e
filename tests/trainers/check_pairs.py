#!/usr/bin/env python3
"""Losses and weights of 20 AdamW steps on pairs of answers, against the formulas in PyTorch, and losses against TRL.

    check_pairs.py HYBRID_TRAIN [FOLDER]

Exits with 77 if torch, transformers or trl is missing.
"""

import json
import math
import os
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as missing:
    print(f"left out: {missing}", file=sys.stderr)
    sys.exit(77)

STEPS, PAIRS_PER_STEP, RATE, SEQ = 20, 4, 1e-3, 128
TASKS = {
    "dpo": {"beta": 0.1, "likelihood": 0},
    "dpo with likelihood": {"beta": 0.3, "likelihood": 0.5},
    "ipo": {"beta": 0.1, "likelihood": 0},
    "orpo": {"beta": 0.1, "likelihood": 1},
    "simpo": {"beta": 2, "margin": 1, "likelihood": 0},
    "simpo with likelihood": {"beta": 0.5, "margin": 0.25, "likelihood": 1},
}


def make_model(folder):
    """A small Llama with a byte tokenizer that knows where a text ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)} | {"<end>": len(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=SEQ, tie_word_embeddings=False, eos_token_id=len(alphabet),
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
    rows = []
    for _ in range(STEPS * PAIRS_PER_STEP):
        text = [" ".join(draw.choices(words, k=draw.randint(1, most))) for most in (4, 4, 6)]
        rows.append({"prompt": text[0] + ":", "chosen": " " + text[1] + "!", "rejected": " " + text[2] + "?"})
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


def run_ours(program, folder, task, values, flags=()):
    out = os.path.join(folder, "run-" + task.replace(" ", "-"))
    command = [program, "--model", os.path.join(folder, "model"), "--data", os.path.join(folder, "rows.jsonl"),
               "--task", task.split()[0], "--out", out, "--overwrite", "--steps", STEPS, "--batch-size", 1,
               "--grad-accum-steps", PAIRS_PER_STEP, "--packing", "off", "--shuffle", "false", "--val-fraction", 0,
               "--seq-len", SEQ, "--precision", "fp32", "--grad-clip", 0, "--lr", RATE, "--schedule", "constant",
               "--lr-warmup-steps", 0, "--weight-decay", 0, "--beta1", 0.9, "--beta2", 0.999, "--sample-tokens", 0,
               "--device", "cpu", "--report", "false", "--quiet", "--beta", values["beta"],
               "--likelihood", values["likelihood"]]
    if "margin" in values:
        command += ["--simpo-margin", values["margin"]]
    subprocess.run([str(word) for word in [*command, *flags]], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    steps = [line for line in lines if "loss" in line and "event" not in line]
    model = os.path.join(out, "model")
    if not os.path.isdir(model):
        return steps, os.path.join(out, "adapter")
    return steps, transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def encode(tokenizer, row):
    """The ids of prompt and answer, and how many are of the prompt: as for rows of prompt and completion."""
    prompt = len(tokenizer(row["prompt"]).input_ids)
    return [(tokenizer(row["prompt"] + row[key]).input_ids + [tokenizer.eos_token_id], prompt)
            for key in ("chosen", "rejected")]


def log_probabilities(model, ids):
    logits = model(torch.tensor([ids[:-1]])).logits[0]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0]


def pair_loss(task, values, model, reference, pair):
    """The formulas of the papers, for one pair; no code in common with the product."""
    beta = values["beta"]
    logp = [log_probabilities(model, ids) for ids, _ in pair]
    own = [each[prompt - 1:] for each, (_, prompt) in zip(logp, pair)]
    with torch.no_grad():
        before = [log_probabilities(reference, ids)[prompt - 1:] for ids, prompt in pair]
    likelihood = values["likelihood"] * -own[0].mean()
    if task == "dpo":
        delta = (own[0].sum() - before[0].sum()) - (own[1].sum() - before[1].sum())
        return -torch.nn.functional.logsigmoid(beta * delta) + likelihood
    if task == "ipo":
        delta = (own[0] - before[0]).mean() - (own[1] - before[1]).mean()
        return (delta - 1 / (2 * beta)) ** 2 + likelihood
    if task == "orpo":
        chosen, rejected = own[0].mean(), own[1].mean()
        odds = (chosen - torch.log1p(-chosen.exp())) - (rejected - torch.log1p(-rejected.exp()))
        return values["likelihood"] * -logp[0].mean() - beta * torch.nn.functional.logsigmoid(odds)
    delta = beta * (own[0].mean() - own[1].mean()) - values["margin"]
    return -torch.nn.functional.logsigmoid(delta) + likelihood


def run_torch(folder, tokenizer, rows, task, values):
    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(
            os.path.join(folder, "model"), dtype=torch.float32, attn_implementation="eager")

    model, reference = load(), load().eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    losses, norms = [], []
    for step in range(STEPS):
        batch = rows[step * PAIRS_PER_STEP:(step + 1) * PAIRS_PER_STEP]
        optimizer.zero_grad()
        loss = sum(pair_loss(task, values, model, reference, encode(tokenizer, row)) for row in batch) / len(batch)
        loss.backward()
        norms.append(math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in model.parameters())))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, model


def difference(ours, theirs):
    largest = 0
    theirs = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        largest = max(largest, ((parameter - theirs[name]).norm() / theirs[name].norm()).item())
    return largest


def run_trl(folder, tokenizer, rows, task, values):
    """Losses of TRL's own trainer; None where it has no such loss."""
    import datasets
    import trl

    common = {"output_dir": os.path.join(folder, "trl"), "per_device_train_batch_size": PAIRS_PER_STEP, "max_steps": STEPS,
              "learning_rate": RATE, "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0,
              "adam_beta2": 0.999, "max_grad_norm": 0, "logging_steps": 1, "report_to": "none", "use_cpu": True,
              "save_strategy": "no", "disable_tqdm": True, "beta": values["beta"], "bf16": False,
              "gradient_checkpointing": False, "shuffle_dataset": False} if task in ("dpo", "ipo") else None
    if common is None or values["likelihood"]:
        return None
    common.pop("shuffle_dataset")
    arguments = trl.DPOConfig(loss_type=["sigmoid" if task == "dpo" else "ipo"], max_length=SEQ, **common)
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "model"), dtype=torch.float32)

    class InOrder(trl.DPOTrainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                      processing_class=tokenizer)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def check_adapters(program, folder, tokenizer, rows):
    """An adapter of ours goes on in TRL, and TRL's goes on here."""
    import datasets
    import peft
    import trl

    _, ours = run_ours(program, folder, "dpo", TASKS["dpo"], ["--lora", "--lora-rank", 4])
    base = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "model"), dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, ours, is_trainable=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    theirs = os.path.join(folder, "trl-adapter")
    arguments = trl.DPOConfig(output_dir=theirs, max_steps=2, per_device_train_batch_size=PAIRS_PER_STEP,
                              learning_rate=RATE, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
                              gradient_checkpointing=False, save_strategy="no", logging_steps=1)
    trainer = trl.DPOTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                             processing_class=tokenizer)
    trainer.train()
    has_moved = all(not torch.equal(p, before[name]) for name, p in model.named_parameters() if p.requires_grad)
    trainer.save_model(theirs)
    steps, _ = run_ours(program, folder, "dpo", TASKS["dpo"], ["--adapter", theirs])
    begins = abs(steps[0]["loss"] - math.log(2)) < 1e-5 # the reference has the adapter
    learns = steps[-1]["train_reward_chosen"] > steps[-1]["train_reward_rejected"]
    return has_moved and begins and learns


def main():
    program = os.path.abspath(sys.argv[1])
    torch.use_deterministic_algorithms(True)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[2] if len(sys.argv) > 2 else scratch
        os.makedirs(folder, exist_ok=True)
        tokenizer = make_model(os.path.join(folder, "model"))
        rows = make_rows(os.path.join(folder, "rows.jsonl"))
        for name, values in TASKS.items():
            task = name.split()[0]
            steps, ours = run_ours(program, folder, name, values)
            losses, norms, theirs = run_torch(folder, tokenizer, rows, task, values)
            apart = [max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(pair[0], pair[1]))
                     for pair in (([s["loss"] for s in steps], losses), ([s["grad_norm"] for s in steps], norms))]
            weights = difference(ours, theirs)
            try:
                trl_losses = run_trl(folder, tokenizer, rows, task, values)
            except ImportError:
                trl_losses = None
            trl_apart = "-"
            if trl_losses:
                trl_apart = max(abs(a["loss"] - b) / abs(b) for a, b in zip(steps, trl_losses))
            is_right = len(steps) == STEPS and apart[0] < 1e-5 and apart[1] < 1e-4 and weights < 1e-5
            if trl_losses and trl_apart > 1e-4: # TRL logs four digits
                is_right = False
            failed += not is_right
            shown = trl_apart if isinstance(trl_apart, str) else f"{trl_apart:.1e}"
            print(f"{'ok    ' if is_right else 'FAILED'} {name:22} losses {apart[0]:.1e}  norms {apart[1]:.1e}  "
                  f"weights {weights:.1e}  TRL {shown}", flush=True)
        try:
            is_right = check_adapters(program, folder, tokenizer, rows)
        except ImportError as missing:
            print(f"left out: adapters ({missing})")
        else:
            failed += not is_right
            print("ok     adapters go on in TRL and here" if is_right else "FAILED adapters")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
