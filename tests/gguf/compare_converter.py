#!/usr/bin/env python3
"""Compares files of hybrid-export --gguf with those of llama.cpp's convert_hf_to_gguf.py.

    compare_converter.py hybrid-export LLAMA_CPP f32,f16,bf16,q8_0 FOLDER ...

LLAMA_CPP is a source folder of llama.cpp; the folders are those of make_folders.py. For these types
it compares every key and every tensor, byte by byte. EXPLAINED lists the differences
that are meant. Needs torch and transformers, for the converter; without them it exits with 77."""

import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(SOURCE / "gguf-py"))
try:
    import gguf
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TYPES = sys.argv[3].split(",")
# (keys, folders, "ours", "theirs" or "both": the file that has the key) and why.
EXPLAINED = [
    (r"general\.(name|size_label|basename|finetune|license.*|tags|languages|base_model.*|dataset.*)",
     ".*", "any", "the name is that of the file; the rest is for listings"),
    (r".*\.vocab_size", ".*", "ours", "written for all architectures"),
    (r".*\.attention\.(key|value)_length", ".*", "ours", "written for all, also if it is width / heads"),
    (r".*\.attention\.head_count_kv", "gpt2|gpt_neox", "ours", "written for all architectures"),
    (r".*\.rope\.(dimension_count|freq_base)", ".*", "ours", "written for all that have rope"),
    (r".*\.attention\.sliding_window(_pattern)?", "gemma.*|olmo.*", "ours",
     "the pattern is written, not left to llama.cpp's defaults"),
    (r"gemma3\.rope\.freq_base_swa", "gemma3", "ours", "written, not left to llama.cpp's defaults"),
    (r"gemma2\.rope\.freq_base", "gemma2", "ours", "written, not left to llama.cpp's defaults"),
    (r".*\.attention\.layer_norm_rms_epsilon", "starcoder2", "theirs", "it has layernorm"),
    (r"phi3\.(rope\.scaling\.original_context_length|attention\.sliding_window)", "phi3", "theirs",
     "llama.cpp ignores them without longrope"),
    (r"granite\.(expert.*|ssm.*|rope\.scaling\.finetuned)", "granite.*", "any",
     "there are no experts; finetuned is the switch of rope"),
    (r"granite\.attention\.head_count_kv", "granite4", "both", "a list of equal numbers"),
    (r"granite\.(embedding_scale|residual_scale|logit_scale|attention\.scale)", "granite4", "any",
     "ones are written"),
    (r"mistral3\.rope\.scaling\.(attn_factor|yarn_attn_factor)", "ministral3", "any",
     "llama.cpp derives the factor"),
    (r"tokenizer\.ggml\.(add_(bos|eos|sep)_token|add_space_prefix)", ".*", "any",
     "ours are what the tokenizer does with a text"),
    (r"tokenizer\.ggml\.(bos|eos|unknown|padding|eot|eom|mask|seperator)_token_id", ".*", "any",
     "ours are those of the tokenizer; the converter prefers config.json, which the random models "
     "do not adapt"),
    (r"tokenizer\.ggml\.scores", "llama|mistral", "both",
     "without tokenizer.model the converter writes -1000 for all, which no text survives"),
    (r"tokenizer\.ggml\.scores", "llama-pieces|gemma.*", "both",
     "scores of control and unknown tokens, which nothing reads"),
    (r"tokenizer\.ggml\.token_type", "llama|mistral|llama-pieces|gemma.*", "both",
     "the unknown token has the type unknown"),
    (r"tokenizer\.ggml\.tokens", "llama|mistral", "both",
     "the converter has no tokens for the last ids, so llama.cpp does not open its file"),
    (r"tokenizer\.ggml\.pre", "llama3|ministral3|olmo2|qwen.|smollm3", "both",
     "the converter's hash means smaug-bpe, which does not ignore merges; the tokenizer does"),
    (r"olmo2\.rope\.freq_base_swa", "olmo3", "theirs", "it equals freq_base"),
]

# Folders that the converter cannot read with transformers 5, and why.
UNREADABLE = {
    "gpt_neox": "it looks for rotary_pct, which transformers 5 renames",
    "qwen2": "it identifies tokenizers by a hash, and transformers 5 changes that of this folder",
}


def read(path):
    file = gguf.GGUFReader(path)
    keys = {k: v.contents() for k, v in file.fields.items() if not k.startswith("GGUF.")}
    tensors = {t.name: (int(t.tensor_type), [int(n) for n in t.shape], t.data.tobytes())
               for t in file.tensors}
    return keys, tensors


def explain(key, folder, side):
    for pattern, folders, where, why in EXPLAINED:
        if re.fullmatch(pattern, key) and re.fullmatch(folders, folder) and where in (side, "any"):
            return why
    return None


def show(value):
    text = repr(value)
    return text if len(text) < 80 else text[:80] + "..."


def compare(ours, theirs, folder, used):
    problems = []
    for key in sorted(ours[0].keys() | theirs[0].keys()):
        side = "both" if key in ours[0] and key in theirs[0] else "ours" if key in ours[0] else "theirs"
        a, b = ours[0].get(key), theirs[0].get(key)
        if a == b:
            continue
        why = explain(key, folder, side)
        if why:
            used.add((key, why))
        else:
            problems.append(f"{key}: ours {show(a)}, theirs {show(b)}")
    for name in sorted(ours[1].keys() | theirs[1].keys()):
        a, b = ours[1].get(name), theirs[1].get(name)
        if a == b:
            continue
        if name == "rope_freqs.weight" and a and b and near(a[2], b[2]):
            used.add((name, "the converter computes it in single precision"))
        elif name == "output.weight" and a and not b and folder in ("olmo2", "olmo3", "gpt_neox"):
            used.add((name, "llama.cpp needs it"))
        else:
            problems.append(f"tensor {name}: ours {a and a[:2]}, theirs {b and b[:2]}")
    return problems


def near(a, b):
    import numpy as np
    a, b = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
    return a.shape == b.shape and float(np.abs(a / b - 1).max()) < 1e-6


def main():
    failed = 0
    used = set()
    with tempfile.TemporaryDirectory() as work:
        for folder in map(pathlib.Path, sys.argv[4:]):
            said = []
            for kind in TYPES:
                ours, theirs = pathlib.Path(work) / "ours.gguf", pathlib.Path(work) / "theirs.gguf"
                made = subprocess.run([PROGRAM, str(folder), "--gguf", str(ours), "--type", kind,
                                       "--overwrite", "--quiet"], capture_output=True, text=True)
                theirs.unlink(missing_ok=True)
                converted = subprocess.run(
                    [sys.executable, str(SOURCE / "convert_hf_to_gguf.py"), str(folder),
                     "--outfile", str(theirs), "--outtype", kind], capture_output=True, text=True)
                if converted.returncode and not made.returncode and folder.name in UNREADABLE:
                    used.add((folder.name, "not compared: " + UNREADABLE[folder.name]))
                    continue
                if made.returncode or converted.returncode:
                    said.append(f"{kind}: " + (made.stderr if made.returncode else
                                               "converter: " + converted.stderr[-300:]).strip())
                    continue
                problems = compare(read(ours), read(theirs), folder.name, used)
                said += [f"{kind}: {p}" for p in problems]
            failed += bool(said)
            print("FAIL" if said else "ok  ", folder.name, "\n     ".join([""] + said), flush=True)
    for key, why in sorted(used):
        print("explained:", key, "-", why)
    sys.exit(1 if failed else 0)


main()
