#!/usr/bin/env python3
"""check_exports.py: folders of hybrid-export --type against what bitsandbytes makes of the same weights.

    check_exports.py HYBRID_EXPORT
    check_exports.py --digests > tests/golden/bnb/exports.txt

The models of make_bnb.py and the folders of tests/golden/hf and tests/golden/families are exported in each type. Names,
types, shapes and bytes of the tensors must be those that transformers saves after bitsandbytes has quantised the
folder. Transformers must load our folder and, if bitsandbytes can compute with matrices of these sizes on a CPU, give
the logits of its own folder. Differences that are allowed: the mean of the scales of a matrix
is rounded in another order, so the offset of two-level scales may have another last digit, and with it their codes;
quant_state ends in blanks. The second form needs no program of ours: it prints a SHA-256 of all tensors that
bitsandbytes makes of a few folders, for tests/test_bnb_export.c, and for int8 one of the numbers that they stand for.
Needs torch, transformers, bitsandbytes, accelerate, safetensors.
"""
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import torch
from bitsandbytes.functional import int8_vectorwise_dequant
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT + "/tests/golden")
import make_bnb  # noqa: E402

STATE = ".quant_state.bitsandbytes__nf4"


def options(kind, dtype):
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype,
                              bnb_4bit_use_double_quant=kind == "nf4")


def load(folder, dtype, **more):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cpu", **more).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(1, 11).reshape(1, -1)).logits.float()


def expected_logits(model):
    try:
        return logits(model)
    except (RuntimeError, AssertionError):  # "N must be divisible by block_n"
        return None


def state(tensor):
    return json.loads(bytes(tensor.numpy()).decode())


def compare(ours, theirs):
    """Returns how many offsets have another last digit; fails if anything else differs."""
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    moved = set()
    for name in [n for n in theirs if n.endswith(STATE)]:
        a, b = state(ours[name]), state(theirs[name])
        x, y = a.pop("nested_offset", 0), b.pop("nested_offset", 0)
        assert a == b and abs(x - y) <= 1e-6 * abs(y), (name, a, b, x, y)
        if x != y:
            moved.add(name[:-len(STATE)])
    for name, tensor in theirs.items():
        if name.endswith(STATE):
            continue
        found = ours[name]
        assert found.dtype == tensor.dtype and found.shape == tensor.shape, (name, found.shape, tensor.shape)
        if name.rsplit(".", 1)[0] in moved and name.endswith("absmax"):
            assert torch.allclose(found.float(), tensor.float(), atol=1, rtol=1e-5), name
        else:
            assert torch.equal(found.contiguous().view(-1).view(torch.uint8),
                               tensor.contiguous().view(-1).view(torch.uint8)), name
    return len(moved)


def check(export, source, scratch, kind):
    out, saved = os.path.join(scratch, "ours"), os.path.join(scratch, "theirs")
    subprocess.run([export, source, "--out", out, "--type", kind, "--overwrite", "--quiet"], check=True)
    config = json.load(open(os.path.join(out, "config.json")))
    dtype = getattr(torch, config.get("dtype") or config["torch_dtype"])
    theirs = load(source, dtype, quantization_config=options(kind, dtype))
    theirs.save_pretrained(saved)
    moved = compare(load_file(os.path.join(out, "model.safetensors")),
                    load_file(os.path.join(saved, "model.safetensors")))
    ours, expected = load(out, dtype), expected_logits(theirs)
    far = 0 if expected is None else (logits(ours) - expected).abs().max().item()
    assert far <= (0 if moved == 0 else 1e-2), far
    return moved, expected is not None


def sources(scratch):
    for name, ((cls, config), dtype, *_) in make_bnb.CASES.items():
        torch.manual_seed(len(name))
        cls(config).to(dtype).save_pretrained(os.path.join(scratch, name))
        yield os.path.join(scratch, name)
    for folder in sorted(glob.glob(ROOT + "/tests/golden/hf/*") + glob.glob(ROOT + "/tests/golden/families/*")):
        if not folder.endswith("-multimodal"):  # we write the text model alone
            yield folder


def digest(tensors):
    """Of names and bytes in the order of names."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def print_digests():
    for case in ("hf/llama", "hf/qwen2", "hf/gpt2", "families/gemma3-dual", "families/phi3-short",
                 "families/neox-parallel"):
        source = os.path.join(ROOT, "tests/golden", case)
        config = json.load(open(os.path.join(source, "config.json")))
        dtype = torch.float16 if "float16" == (config.get("dtype") or config["torch_dtype"]) else torch.bfloat16
        for kind in ("nf4", "nf4_single", "int8"):
            with tempfile.TemporaryDirectory() as saved:
                load(source, dtype, quantization_config=options(kind, dtype)).save_pretrained(saved)
                tensors = load_file(os.path.join(saved, "model.safetensors"))
            print(case, kind, digest(tensors))
        codes = {n: t for n, t in tensors.items() if t.dtype == torch.int8}
        print(case, "decoded", digest({n: int8_vectorwise_dequant(t, tensors[n[:-6] + "SCB"]) for n, t in codes.items()}))


def main():
    if sys.argv[1] == "--digests":
        return print_digests()
    failed = offsets = done = ran = 0
    with tempfile.TemporaryDirectory() as scratch:
        for folder in sources(scratch):
            for kind in ("nf4", "nf4_single", "int8"):
                try:
                    moved, has_run = check(sys.argv[1], folder, scratch, kind)
                    offsets, ran, done = offsets + moved, ran + has_run, done + 1
                except Exception as error:
                    print(f"{os.path.basename(folder)} {kind}: {type(error).__name__} {str(error)[:600]}")
                    failed += 1
    print(f"{done} exports are those of bitsandbytes, with {offsets} offsets of another last digit; {ran} gave its "
          f"logits; {failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
