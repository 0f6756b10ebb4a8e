"""compare.py: our programs and PEFT on the same adapters; started by run.sh, in an empty folder.

    compare.py GOLDEN     tests/golden: hf/ and families/ have small models, peft/ adapters that PEFT saved

Everything is fp32. A check is a function and a case; the last line is "N passed, N failed".
"""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import traceback
import warnings

import torch
import transformers
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(sys.argv[1]).resolve()
BIN = pathlib.Path(os.environ["HYBRID_BIN"]).resolve()
SEQ, VOCAB, STEPS = 8, 61, 10  # the smallest vocabulary
ADAMW = dict(lr=5e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
HERE = ["--device", "cpu", "--threads", "1", "--precision", "fp32", "--seq-len", str(SEQ), "--grad-accum-steps", "1"]
PLAIN = ["--optimizer", "adamw", "--lr", "5e-3", "--beta1", "0.9", "--beta2", "0.95", "--adam-eps", "1e-8",
         "--weight-decay", "0.1", "--grad-clip", "1", "--schedule", "constant", "--lr-warmup-steps", "0",
         "--predictor", "none"]

# What our programs train; the base is a folder of hf/ or families/.
RUNS = {
    "gpt2": ["--lora-targets", "c_attn,c_proj,c_fc", "--lora-rank", "3"],
    "llama": ["--lora-targets", "all", "--lora-modules", "embed,head"],
    "mistral": ["--lora-targets", "q_proj,v_proj", "--rslora", "--lora-alpha", "3", "--lora-modules", "o_proj"],
    "qwen2": ["--lora-targets", "attention", "--lora-modules", "embed", "--lora-rank", "2"],
    "qwen3": ["--lora-targets", "mlp", "--lora-dropout", "0.1", "--lora-modules", "final_norm.*,*.norm1.*,blocks.1.attn.*"],
    "gpt2-untied": ["--lora-targets", "c_attn", "--lora-modules", "ln_f,wpe,head,mlp.c_proj", "--lora-rank", "1"],
    "phi3-window": ["--lora-targets", "all", "--lora-modules", "norm"],
    "neox-parallel": ["--lora-targets", "all", "--lora-modules", "final_layer_norm,embed"],
    "neox-serial": ["--lora-targets", "mlp", "--lora-modules", "query_key_value"],
    "neox-old": ["--lora-targets", "dense_4h_to_h", "--lora-modules", "head"],
    "gemma3-dual": ["--lora-targets", "attention", "--lora-modules", "post_feedforward_layernorm,k_norm"],
    "granite4-rope": ["--lora-targets", "q_proj,mlp", "--lora-modules", "o_proj"],
    "olmo2-plain": ["--lora-targets", "q_proj,down_proj", "--lora-modules", "post_attention_layernorm,q_norm"],
    "starcoder2-yarn": ["--lora-targets", "v_proj,c_fc,c_proj", "--lora-modules", "o_proj,norm"],
}
FIVE = ["gpt2", "llama", "mistral", "qwen2", "qwen3"]  # adapters of PEFT's, one of each architecture
MORE = ["gpt2-untied-wte", "llama-whole", "qwen2-tied", "qwen3-one", "phi3", "neox", "neox-whole", "gemma3", "granite4",
        "olmo2", "starcoder2", "neox-head"]


def program(name, *args):
    done = subprocess.run([BIN / name, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{name} {' '.join(map(str, args))}\n{done.stderr[-2000:]}"
    return done.stdout


def write_shard(path, tokens):
    """As llm.c writes it."""
    head = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    path.write_bytes(head + struct.pack(f"<{len(tokens)}H", *tokens))


def sequences(tokens):
    """Those that our programs make of a shard: one after the other, targets one further on."""
    rows = [tokens[at:at + SEQ + 1] for at in range(0, len(tokens) - SEQ, SEQ)]
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def base_folder(name):
    return next(GOLDEN / folder / name for folder in ("hf", "families") if (GOLDEN / folder / name).exists())


def base_of(adapter):
    with safe_open(GOLDEN / "peft" / adapter / "expected.safetensors", "pt") as file:
        return base_folder(file.metadata()["base"])


def load_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def load_adapted(base, adapter, is_trainable=False):
    """Fails where PEFT finds a tensor missing or one too many: it only warns of them."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(load_model(base), adapter, is_trainable=is_trainable)
    keys = [str(w.message) for w in said if "missing" in str(w.message) or "unexpected" in str(w.message).lower()]
    assert not keys, keys
    return model.eval()


def mean_loss(model, tokens, targets):
    return torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())


def logits_of(model):
    with torch.no_grad():
        return model(VAL[0]).logits


def is_near(ours, theirs, bound=1e-5):
    far = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert far <= bound, f"off by {far:.2e}"
    return far


def eval_loss(*args):
    said = json.loads(program("hybrid-train", "--eval-only", *args, *HERE, "--data", "val.bin", "--json"))
    assert said["tokens"] == VAL[0].numel(), said
    return said["loss"]


# ---- what we train -----------------------------------------------------------------------------------


def a_run_is_made(name):
    program("hybrid-train", "--model", base_folder(name), "--lora", *RUNS[name], *HERE, "--data", "train.bin",
            "--val-data", "val.bin", "--batch-size", "2", "--steps", "5", "--lr", "2e-2", "--out", f"run-{name}")
    adapted = logits_of(load_adapted(base_folder(name), f"run-{name}/adapter"))
    far = (adapted - logits_of(load_model(base_folder(name)))).abs().max()
    assert far > 1e-2, f"five steps changed the logits by {far:.1e} only"


def peft_computes_what_the_merged_model_does(name):
    program("hybrid-export", f"run-{name}", "--merge", "--dtype", "fp32", "--out", f"merged-{name}")
    adapted = load_adapted(base_folder(name), f"run-{name}/adapter")
    return is_near(logits_of(load_model(f"merged-{name}")), logits_of(adapted))


def peft_merges_it_to_the_same_matrices(name):
    ours = dict(load_model(f"merged-{name}").named_parameters(remove_duplicate=False))
    theirs = load_adapted(base_folder(name), f"run-{name}/adapter").merge_and_unload()
    worst = 0
    for key, value in theirs.named_parameters(remove_duplicate=False):
        worst = max(worst, is_near(ours[key], value, 1e-6))
    return worst


def its_loss_is_that_of_peft(name):
    with torch.no_grad():
        theirs = mean_loss(load_adapted(base_folder(name), f"run-{name}/adapter"), *VAL).item()
    for way in (["--model", base_folder(name), "--adapter", f"run-{name}/adapter"], ["--model", f"run-{name}"]):
        is_near(torch.tensor(eval_loss(*way)), torch.tensor(theirs))
    return abs(eval_loss(*way) - theirs)


def its_checkpoint_gives_the_same_adapter(name):
    program("hybrid-export", f"run-{name}", "--out", f"again-{name}", "--dtype", "fp32")
    one, other = (load_file(f"{folder}-{name}/{sub}adapter_model.safetensors")
                  for folder, sub in (("run", "adapter/"), ("again", "")))
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


# ---- what PEFT trained -------------------------------------------------------------------------------


def a_loss_of_peft_is_ours(name):
    folder = GOLDEN / "peft" / name
    with torch.no_grad():
        theirs = mean_loss(load_adapted(base_of(name), folder), *VAL).item()
    ours = eval_loss("--model", base_of(name), "--adapter", folder)
    is_near(torch.tensor(ours), torch.tensor(theirs))
    return abs(ours - theirs)


def peft_goes_on(name):
    """Losses of AdamW steps on one sequence, and the adapter after them."""
    model = load_adapted(base_of(name), GOLDEN / "peft" / name, is_trainable=True)
    params = [p for p in model.parameters() if p.requires_grad]
    vectors = dict(params=[p for p in params if p.dim() == 1], weight_decay=0)
    optimizer = torch.optim.AdamW([dict(params=[p for p in params if p.dim() > 1]), vectors], **ADAMW)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model, *ONE)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def it_is_gone_on_with_as_peft_does(name):
    program("hybrid-train", "--model", base_of(name), "--adapter", GOLDEN / "peft" / name, *HERE, *PLAIN, "--data",
            "one.bin", "--val-data", "val.bin", "--batch-size", "1", "--steps", STEPS, "--out", f"on-{name}")
    theirs, model = peft_goes_on(name)
    lines = map(json.loads, open(f"on-{name}/metrics.jsonl"))
    ours = [line["loss"] for line in lines if "event" not in line and "loss" in line]
    assert len(ours) == STEPS, ours
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    assert worst <= 1e-4, f"a loss is off by {worst:.1e}: {ours}, {theirs}"
    assert ours[-1] < ours[0] - 0.1, ours
    is_near(logits_of(load_adapted(base_of(name), f"on-{name}/adapter")), logits_of(model), 1e-4)
    return worst


def a_run_that_began_with_it_needs_it_no_more(name):
    """What the run trained counts, not what it began with; neither does the adapter's folder have to stay."""
    shutil.copytree(GOLDEN / "peft" / name, "given")
    program("hybrid-train", "--model", base_of(name), "--adapter", "given", *HERE, *PLAIN, "--data", "train.bin",
            "--val-data", "val.bin", "--batch-size", "2", "--steps", "3", "--out", "began")
    theirs = eval_loss("--model", base_of(name), "--adapter", "began/adapter")
    assert abs(theirs - eval_loss("--model", base_of(name), "--adapter", "given")) > 1e-3
    is_near(torch.tensor(eval_loss("--model", "began")), torch.tensor(theirs), 1e-6)
    assert str(pathlib.Path("given").resolve()) in pathlib.Path("began/config.cfg").read_text()
    shutil.rmtree("given")
    is_near(torch.tensor(eval_loss("--model", "began")), torch.tensor(theirs), 1e-6)
    program("hybrid-export", "began", "--merge", "--dtype", "fp32", "--out", "merged-began")
    is_near(torch.tensor(eval_loss("--model", "merged-began")), torch.tensor(theirs))
    program("hybrid-train", "--resume", "began", "--steps", "5", "--data", "train.bin", "--val-data", "val.bin")


# ---- ours and PEFT's side by side --------------------------------------------------------------------


def beside_one_base_each_has_the_loss_of_peft(name):
    """Ranks, alphas, rsLoRA, targets and whole modules differ; the base is loaded once."""
    adapters = [GOLDEN / "peft" / other for other in FIVE + MORE if base_of(other) == base_folder(name)]
    adapters.append(pathlib.Path(f"run-{name}/adapter"))
    theirs = []
    with torch.no_grad():
        theirs.append(mean_loss(load_model(base_folder(name)), *VAL).item())
        theirs += [mean_loss(load_adapted(base_folder(name), folder), *VAL).item() for folder in adapters]
    said = json.loads(program("hybrid-train", "--eval-only", "--model", base_folder(name), "--adapter",
                              ",".join(map(str, adapters)), *HERE, "--data", "val.bin", "--json"))
    assert len(adapters) > 1 and len(said["results"]) == len(theirs), said
    ours = [result["loss"] for result in said["results"]]
    return is_near(torch.tensor(ours), torch.tensor(theirs), 2e-6)


# ---- all of it ---------------------------------------------------------------------------------------


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    passed = failed = 0
    ours = (a_run_is_made, peft_computes_what_the_merged_model_does, peft_merges_it_to_the_same_matrices,
            its_loss_is_that_of_peft, its_checkpoint_gives_the_same_adapter)
    checks = [(check, name) for name in RUNS for check in ours]
    theirs = (a_loss_of_peft_is_ours, it_is_gone_on_with_as_peft_does)
    checks += [(check, name) for name in FIVE + MORE for check in theirs]
    checks += [(beside_one_base_each_has_the_loss_of_peft, name) for name in FIVE]
    checks.append((a_run_that_began_with_it_needs_it_no_more, "llama"))
    for check, name in checks:
        try:
            far = check(name)
            passed += 1
            print(f"ok    {check.__name__}: {name}" + (f" ({far:.1e})" if far is not None else ""), flush=True)
        except Exception:
            failed += 1
            print(f"FAIL  {check.__name__}: {name}")
            print("      " + traceback.format_exc(limit=3).replace("\n", "\n      "), flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


random.seed(1)
TOKENS = [random.randrange(VOCAB) for _ in range(20 * SEQ + 1)]
write_shard(pathlib.Path("train.bin"), [random.randrange(VOCAB) for _ in range(1000)])
write_shard(pathlib.Path("val.bin"), TOKENS)
write_shard(pathlib.Path("one.bin"), TOKENS[:SEQ + 1])
VAL, ONE = sequences(TOKENS), sequences(TOKENS[:SEQ + 1])
if __name__ == "__main__":
    sys.exit(main())
