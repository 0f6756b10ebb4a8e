#!/usr/bin/env python3
"""Compares files of hybrid-export --gguf with what llama.cpp computes from them.

    check_llama_cpp.py hybrid-export [FOLDER ...]

For each folder of tests/golden/families it exports every type, opens the file with llama.cpp
(the package llama-cpp-python) and compares logits and greedy tokens of the f32 file with those of
transformers, which the folder stores; for adapters of tests/golden/peft those of PEFT. Prints one row per folder. Needs numpy and llama_cpp; without
them it exits with 77."""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import llama_cpp
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

@llama_cpp.llama_log_callback
def silent(level, text, user):
    """llama.cpp warns of contexts that are larger than in training."""


def plain_parameters(default=llama_cpp.llama_cpp.llama_model_default_params):
    """Repacked weights may need instructions (AMX) that a virtual machine does not permit."""
    parameters = default()
    parameters.use_extra_bufts = False
    return parameters


llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
llama_cpp.llama_cpp.llama_model_default_params = plain_parameters

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q5_0", "q4_k_m", "q5_k_m", "q6_k"]
# What llama.cpp computes differently, with the reason.
DIFFERENT = {
    "phi3-short": "llama.cpp chooses the factors of longrope by the size of its context, at least 256 tokens",
    "phi3-window": "llama.cpp has no windows for phi3",
    "qwen3-windows": "llama.cpp has no windows for qwen3",
    "smollm3-window": "llama.cpp has no windows for smollm3",
    "starcoder2-window": "llama.cpp has no windows for starcoder2",
    "peft/mistral": "its base has a window, and llama.cpp has none for mistral",
    "peft/phi3": "its base has a window, and llama.cpp has none for phi3",
    "olmo2-dynamic": "llama.cpp has no dynamic rope",
}


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    kinds = {"F32": np.float32, "I32": np.int32}
    out = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in kinds:
            continue
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[8 + size + begin : 8 + size + end], kinds[entry["dtype"]])
        out[name] = flat.reshape(entry["shape"])
    return out, header["__metadata__"]


class Model:
    """A file in llama.cpp, with keys and values in fp32."""

    def __init__(self, path, context=256, adapter=None):
        self.model = llama_cpp.Llama(
            model_path=str(path), n_ctx=context, n_batch=context, logits_all=True, verbose=False,
            type_k=0, type_v=0, n_threads=1, n_threads_batch=1,
            lora_path=str(adapter) if adapter else None)

    def logits(self, tokens):
        self.model.reset()
        self.model.eval([int(t) for t in tokens])
        return np.array(self.model.scores[: len(tokens)], dtype=np.float32).copy()

    def follows(self, prompt, greedy, distance):
        """Does greedy decoding give these tokens? Two logits that are nearer than the error of all
        logits may change places; then the text of the other program is continued."""
        tokens = [int(t) for t in prompt]
        self.model.reset()
        self.model.eval(tokens)
        for want in greedy:
            logits = self.model.scores[len(tokens) - 1]
            if logits.max() - logits[want] > 2 * distance:
                return False
            tokens.append(int(want))
            self.model.eval(tokens[-1:])
        return True


def compare_texts(model, path):
    """How many texts have other ids, and the first of them."""
    about = json.loads(path.read_text())
    wrong = []
    for text, want in about["texts"]:
        raw = text.encode("utf-8")
        # The package does not tokenize nothing. llama.cpp finds the special tokens of SentencePiece
        # wherever they are spelled, or nowhere; old tokenizers find them only after a blank.
        if not raw or any(word in text for word in about["unclear"]):
            continue
        got = model.model.tokenize(raw, add_bos=False, special=about["parses_special"])
        if got != want:
            wrong.append((text, want, got))
    first = f", first {wrong[0]!r}" if wrong else ""
    return len(wrong), f"texts {len(wrong)} of {len(about['texts'])} differ{first}"


def export(program, folder, out, kind):
    return subprocess.run([program, str(folder), "--gguf", str(out), "--type", kind, "--overwrite"],
                          capture_output=True, text=True, check=False)


def check(program, folder, work):
    """A row of the table, and whether all is well."""
    file = work / "x.gguf"
    tried = export(program, folder, file, "f32")
    if tried.returncode != 0:
        return "refused: " + tried.stderr.strip().split("error: ")[-1], True
    expected, about = read_safetensors(folder / "expected.safetensors")
    model = Model(file)
    distance = max(float(np.abs(model.logits(row) - want).max())
                   for row, want in zip(expected["tokens"], expected["logits"]))
    scale = float(np.abs(expected["logits"]).max())
    greedy = expected["greedy"]
    prompt = expected["tokens"][0][: int(about["prompt"])]
    same = model.follows(prompt, greedy, distance if distance < 1e-2 * scale else 0)
    texts = folder / "texts.json"
    differ, said = compare_texts(model, texts) if texts.exists() else (0, "no texts")
    opened = []
    for kind in TYPES:
        made = export(program, folder, file, kind)
        if made.returncode != 0:
            opened.append(f"{kind}:refused")
            continue
        try:
            finite = np.isfinite(Model(file).logits(expected["tokens"][0])).all()
            opened.append(f"{kind}:{'opens' if finite else 'NaN'}")
        except Exception as problem:  # llama.cpp reports a file that it cannot read in several ways
            opened.append(f"{kind}:FAILS {problem}")
    reason = DIFFERENT.get(folder.name)
    good = ((same and distance < 2e-2 * scale) or reason) and not differ
    row = f"logits {distance:.1e} of {scale:.2g}; greedy {'same' if same else 'DIFFERENT'}; {said}"
    return f"{row}; {' '.join(opened)}{'; ' + reason if reason else ''}", good


def check_adapter(program, folder, work):
    """The logits of an adapter of tests/golden/peft: as a file beside its base, and merged."""
    expected, about = read_safetensors(folder / "expected.safetensors")
    base = folder.parent.parent / "hf" / about["base"]
    file, adapter = work / "base.gguf", work / "adapter.gguf"
    rows = []
    good = True
    for merged in (False, True):
        made = [export(program, base, file, "f32")] if not merged else []
        flags = ["--merge"] if merged else []
        made.append(subprocess.run(
            [program, "--adapter", str(folder), "--base", str(base), *flags, "--overwrite",
             "--gguf", str(file if merged else adapter), "--type", "f32"],
            capture_output=True, text=True, check=False))
        failed = [m.stderr.strip().split("error: ")[-1] for m in made if m.returncode]
        if failed:
            rows.append("refused: " + failed[0])
            continue
        model = Model(file, adapter=None if merged else adapter)
        distance = max(float(np.abs(model.logits(row) - want).max())
                       for row, want in zip(expected["tokens"], expected["logits"]))
        scale = float(np.abs(expected["logits"]).max())
        good &= distance < 1e-3 * scale or f"peft/{folder.name}" in DIFFERENT
        rows.append(f"{'merged' if merged else 'adapter'}: logits {distance:.1e}")
    return "; ".join(rows), good


def main():
    program = sys.argv[1]
    families = HERE.parent / "golden" / "families"
    adapters = families.parent / "peft"
    folders = [pathlib.Path(a) for a in sys.argv[2:]]
    folders = folders or sorted(families.iterdir()) + sorted(adapters.iterdir())
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        for folder in folders:
            if not (folder / "expected.safetensors").exists():
                continue
            is_adapter = (folder / "adapter_config.json").exists()
            row, good = (check_adapter if is_adapter else check)(program, folder, pathlib.Path(work))
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {folder.name}: {row}", flush=True)
    sys.exit(1 if failed else 0)


main()
