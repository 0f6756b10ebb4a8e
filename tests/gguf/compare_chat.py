#!/usr/bin/env python3
"""Greedy answers of llama.cpp and of hybrid-chat for the same f32 file, with the file's own chat template.

compare_chat.py BIN [MODEL]    BIN has the programs; MODEL is a run or folder with a chat template. Without it a small
model is trained on the rows in $HYBRID_DATA (../shared/data). Exit code 77: llama-cpp-python or the data is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import llama_cpp
except ImportError:
    sys.exit(77)

PROMPTS, TOKENS = 20, 20
bin_ = Path(sys.argv[1])
root = Path(__file__).resolve().parents[2]
data = Path(os.environ.get("HYBRID_DATA", root.parent / "shared" / "data"))
rows = data / "instruct" / "alpaca_style_1100.json"
if not rows.is_file():
    sys.exit(77)


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{words[0]} failed: {done.stderr[-800:]}")
    return done.stdout


def trained(folder):
    shape = "--layers 2 --width 64 --heads 4 --mlp-width 192 --context 512 --vocab 128256".split()
    steps = "--steps 160 --seq-len 128 --step-tokens 1024 --lr 3e-3 --predictor none --sample-tokens 0".split()
    tokenizer = data / "tokenizers" / "llama3" / "tokenizer.json"
    out = Path(folder) / "run"
    run(bin_ / "hybrid-train", "--architecture", "llama", *shape, *steps, "--tokenizer", tokenizer, "--data", rows,
        "--device", "cpu", "--eval-every", "0", "--no-report", "--no-tensorboard", "--out", out)
    return out


with tempfile.TemporaryDirectory() as folder:
    model = Path(sys.argv[2]) if len(sys.argv) > 2 else trained(folder)
    file = Path(folder) / "chat.gguf"
    run(bin_ / "hybrid-export", model, "--gguf", file, "--type", "f32")
    theirs = llama_cpp.Llama(model_path=str(file), n_ctx=512, verbose=False, n_threads=2)
    if "tokenizer.chat_template" not in theirs.metadata:
        sys.exit("the file has no chat template")
    wrong = length = 0
    for row in json.loads(rows.read_text())[:PROMPTS]:
        prompt = row["instruction"]
        answer = theirs.create_chat_completion([{"role": "user", "content": prompt}], temperature=0, max_tokens=TOKENS)
        expected = answer["choices"][0]["message"]["content"]
        ours = run(bin_ / "hybrid-chat", "--model", file, "--prompt", prompt, "--temperature", "0", "--max-tokens",
                   TOKENS, "--device", "cpu", "--quiet")
        length += len(expected)
        if ours.strip() != expected.strip():
            wrong += 1
            print(f"{prompt!r}\n  llama.cpp    {expected!r}\n  hybrid-chat  {ours!r}")
    if length < PROMPTS * TOKENS:
        sys.exit("the answers are too short to compare")
    print(f"{PROMPTS - wrong} of {PROMPTS} answers of {TOKENS} tokens are equal")
    sys.exit(1 if wrong else 0)
