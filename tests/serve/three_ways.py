"""three_ways.py BIN TOKENIZER: rows with a known answer, scored by lm-evaluation-harness on hybrid-serve
(local-completions), by the harness on an exported folder (hf), and by hybrid-train --eval-only.

The model is trained here on the same kind of rows, so it is well above chance. The three accuracies must
be equal. Needs lm_eval[api], transformers and torch; exits with 77 without them. Ends with
"N passed, N failed".
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from lm_eval import evaluator
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI
except ImportError:
    sys.exit(77)

SEQ = 64
ANIMALS = ["fox", "cow", "hen", "dog", "cat", "pig", "owl", "bee"]
PLACES = ["barn", "wood", "lake", "hill"]


def make_rows(scratch):
    """Where animals live follows from the animal, but for one row in four."""
    dice = random.Random(4)
    home = {animal: PLACES[i % len(PLACES)] for i, animal in enumerate(ANIMALS)}
    lines, rows = [], []
    for number in range(600):
        animal, name = dice.choice(ANIMALS), dice.choice(["Ann", "Bo", "Cy", "Di"])
        place = home[animal] if dice.random() < 0.75 else dice.choice(PLACES)
        prompt = f"{name} has a {animal}. It lives at the"
        lines.append(f"{prompt} {place}.")
        if number < 120:
            rows.append({"prompt": prompt, "choices": [f" {p}" for p in PLACES], "answer": PLACES.index(place)})
    (scratch / "text.txt").write_text("\n".join(lines) + "\n")
    (scratch / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return scratch / "rows.jsonl"


def task_of(rows):
    return ConfigurableTask(
        config={
            "task": "rows",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(rows)}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{prompt}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "target_delimiter": "",
            "metric_list": [
                {"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")
            ],
        }
    )


def harness(lm, rows):
    found = evaluator.evaluate(lm=lm, task_dict={"rows": task_of(rows)}, bootstrap_iters=1)["results"]["rows"]
    return found["acc,none"], found["acc_norm,none"]


def over_http(binary, model, rows):
    command = [binary / "hybrid-serve", "--model", model, "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        address = next(word for line in server.stderr for word in line.split() if word.startswith("http://"))
        lm = LocalCompletionsAPI(
            base_url=address.rstrip("/") + "/v1/completions",
            model="model",
            tokenizer=str(model),
            tokenizer_backend="huggingface",
            max_length=SEQ,
            num_concurrent=8,
        )
        found = harness(lm, rows)
        server.terminate()
    return found


def main():
    binary, tokenizer = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rows = make_rows(scratch)
        run, model = scratch / "run", scratch / "run" / "model"
        shape = "--model tiny-llama --layers 2 --width 64 --heads 4 --kv-heads 2 --mlp-width 128 --vocab 50257"
        training = f"--context {SEQ} --seq-len {SEQ} --batch-size 8 --steps 500 --lr 5e-3 --device cpu --quiet"
        subprocess.run(
            [binary / "hybrid-train", *shape.split(), *training.split(), "--tokenizer", tokenizer]
            + ["--data", scratch / "text.txt", "--out", run, "--sample-tokens", "0"],
            check=True,
        )
        said = subprocess.run(
            [binary / "hybrid-train", "--model", model, "--eval-only", "--data", rows, "--json", "--device", "cpu"]
            + ["--seq-len", str(SEQ)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        scores = json.loads(said)["row_scores"]
        ours = scores["accuracy"], scores["accuracy_norm"]
        lm = HFLM(pretrained=str(model), max_length=SEQ, batch_size=8, dtype="float32", device="cpu")
        hf, server = harness(lm, rows), over_http(binary, model, rows)
    print(f"--eval-only {ours}, hf {hf}, local-completions {server}")
    is_same = ours == hf == server and ours[0] > 1.5 / len(PLACES)
    print("1 passed, 0 failed" if is_same else "0 passed, 1 failed")
    sys.exit(not is_same)


main()
