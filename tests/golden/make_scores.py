#!/usr/bin/env python3
"""Writes tests/golden/scores/: a tiny random Llama, rows for evaluation, and what lm-evaluation-harness
computes for them.

    pip install lm_eval transformers torch
    python3 tests/golden/make_scores.py

choices.jsonl and answers.jsonl are the rows; expected.json has the log-probability of every choice, and
acc, acc_norm, their standard errors and is_greedy, from the harness' own task and model classes. Sequences
have 48 tokens, and some prompts are longer.
"""
import json
import os
import shutil
import sys
import tempfile

import torch
from lm_eval import evaluator
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "scores")
TOKENIZER = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "rows", "tokenizer.json")
SEQ = 48

PROMPTS = [
    ("The sea is", [" salt", " blue and wide", " a", " caf\u00e9"]),
    ("What is 6 times 7? ", ["42", "six", "67", "a long way off"]),
    ("Count to three:\n", ["One. Two. Three.", "Three", "1 2 3", "\u4f60\u597d"]),
    ("Is the sea salt?\n\nAnswer:", [" Yes", " No"]),
    ("one word,", [" s", "ing", "\u2014 two", " more"]),
    ("def f(x):\n    return", [" x", " 2 * x", " f", " None"]),
    ("a", [" b", " c", "?", " e", ", b"]),
    ("The days of the week are known to everybody, and so are the months of the year, but the hours of "
     "the day are counted twice: once before noon and once after it. The first is", [" one", " noon", " zero"]),
    ("na\u00efve \u00fcber ", ["caf\u00e9", "\U0001F600", "cafe", "alles"]),
    ("Line one.\nLine two.\n", ["Line three.", "The end.", "\tLine"]),
]


def make_model():
    torch.manual_seed(7)
    is_plain = "metaspace" not in TOKENIZER
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=TOKENIZER, bos_token=None if is_plain else "<s>",
                                        eos_token="<|endoftext|>" if is_plain else "</s>")
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=24, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=3, num_key_value_heads=3, max_position_embeddings=64,
                         tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
                         initializer_range=0.4)
    model = LlamaForCausalLM(config).float().eval()
    return model, tokenizer


def greedy_answer(model, tokenizer, prompt, count):
    """A text that the model would write: its tokens are the most likely ones."""
    ids = tokenizer.encode(prompt.rstrip())
    start = len(ids)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    text = tokenizer.decode(ids[start:])
    whole = tokenizer.encode(prompt.rstrip() + text)
    return text if whole == ids and prompt == prompt.rstrip() else None


def chatml(prompt):
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def best(values):
    return max(range(len(values)), key=values.__getitem__)


def main():
    os.makedirs(OUT, exist_ok=True)
    model, tokenizer = make_model()
    model.save_pretrained(OUT)
    os.remove(os.path.join(OUT, "generation_config.json"))
    shutil.copy(TOKENIZER, os.path.join(OUT, "tokenizer.json"))
    lm = HFLM(pretrained=model, tokenizer=tokenizer, max_length=SEQ, batch_size=4)

    def ask(pairs):
        requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
        return lm.loglikelihood(requests, disable_tqdm=True)

    values = [[v for v, _ in ask([(p, c) for c in choices])] for p, choices in PROMPTS]
    # Some rows are answered right, some only by length, some not.
    right = [best(v) if i % 4 < 2 else best([x / len(c) for x, c in zip(v, choices)]) if i % 4 == 2 else 0
             for i, (v, (_, choices)) in enumerate(zip(values, PROMPTS))]
    rows = [{"prompt": p, "choices": c, "answer": c[r] if i % 2 else r}
            for i, ((p, c), r) in enumerate(zip(PROMPTS, right))]
    answers = []
    for i, (prompt, choices) in enumerate(PROMPTS):
        found = next((t for n in (3, 2, 1) if (t := greedy_answer(model, tokenizer, prompt, n))), None)
        answers.append({"prompt": prompt, "answer": found if found and i % 2 == 0 else choices[0]})
    for name, list_ in (("choices", rows), ("answers", answers)):
        with open(os.path.join(OUT, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in list_)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps({**row, "answer": r}) + "\n" for row, r in zip(rows, right))
        f.flush()
        task = ConfigurableTask(config={
            "task": "rows", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f.name}},
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{prompt}}",
            "doc_to_choice": "choices", "doc_to_target": "answer", "target_delimiter": "",
            "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True}
                            for m in ("acc", "acc_norm")]})
        found = evaluator.evaluate(lm=lm, task_dict={"rows": task}, bootstrap_iters=1)["results"]["rows"]
    keys = ("acc", "acc_stderr", "acc_norm", "acc_norm_stderr")
    expected = {
        "seq_len": SEQ,
        **{key: found[key + ",none"] for key in keys},
        "log_probabilities": values,
        "answers": [{"log_probability": v, "is_greedy": g}
                    for v, g in ask([(r["prompt"], r["answer"]) for r in answers])],
        "chatml": [[v for v, _ in ask([(chatml(p), c) for c in choices])] for p, choices in PROMPTS],
    }
    with open(os.path.join(OUT, "expected.json"), "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
