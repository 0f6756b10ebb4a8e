#!/usr/bin/env python3
"""check_exports.py: folders that our exporter wrote generate the expected tokens in transformers.

    HYBRID_EXPORTS=DIR build/tests/test_families     # writes DIR/NAME and DIR/NAME.bare
    oracle/bin/python tests/golden/check_exports.py DIR/*

Each folder is loaded as users load it, in fp32, and must give the 40 greedy tokens and the logits of
families/NAME/expected.safetensors. Versions are those of make_families.py.
"""
import pathlib
import sys

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig

from make_families import FOLDER, greedy_of


def check(folder):
    name = folder.name.removesuffix(".bare")
    with safe_open(FOLDER / "families" / name / "expected.safetensors", framework="pt") as f:
        golden = {key: f.get_tensor(key) for key in ("tokens", "logits", "greedy")}
        prompt = int(f.metadata()["prompt"])
    cls = getattr(transformers, AutoConfig.from_pretrained(folder).architectures[0])
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    greedy, _ = greedy_of(model, golden["tokens"][0, :prompt])
    with torch.no_grad():
        logits = model(golden["tokens"].long(), use_cache=False).logits
    far = ((logits - golden["logits"]).abs().max() / golden["logits"].abs().max()).item()
    same = torch.equal(greedy.int(), golden["greedy"])
    print(f"{folder}: {'the same' if same else 'OTHER'} tokens, logits {far:.1e}")
    return same and far <= 1e-5


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = [pathlib.Path(name) for name in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    return 0 if all([check(folder) for folder in folders]) else 1


if __name__ == "__main__":
    sys.exit(main())
