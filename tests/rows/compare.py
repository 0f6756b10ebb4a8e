#!/usr/bin/env python3
"""compare.py ENCODE [--write FILE] FOLDER ...: rows of every kind as tokens, here and with transformers.

ENCODE is build/tests/rows/encode (make build/tests/rows/encode). Each FOLDER has a tokenizer. COUNT (300)
odd rows of every kind (text, prompt and completion, question and answer, Alpaca, ShareGPT, messages) go
through both, without a template and with those of several families that the tokenizer has the tokens for.
Ids and counted tokens must be equal, or the row is refused by name. Without a template, a row is the text
that our documentation describes, encoded by transformers in one piece. With one, apply_chat_template writes
the text; a token counts if it shares a character with an answer, or is the end token right behind it. Texts
spell no special tokens where a template is used: ours keeps them text, on purpose. --write FILE also writes
rows and ids for `make test`. Needs transformers.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from transformers import AutoTokenizer, PreTrainedTokenizerFast

COUNT = int(os.environ.get("COUNT", "300"))
WORDS = ["Hello", "world", " lead", "trail ", "größer", "日本語", "😀🎉", "naïve", "a\nb", "\n\n", "  ", "\t",
         "'ll", "1234567", "3.14", "{x}", "<b>", "Привет", "مرحبا", "é\u0301", "a\r\nb", "\u00a0", "zero\u200b",
         "def f(x):\n    return x", "...", "?!", "#", "▁", "None", "x" * 40, "I'm", "the quick brown fox"]
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + "
          "m.content | trim + '<|eot_id|>' }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}")
MISTRAL = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
           "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}")
GEMMA = ("{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else "
         "m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
         "{{ '<start_of_turn>model\n' }}{% endif %}")
PHI = ("{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
DEEPSEEK = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}"
            "{{ '<｜Assistant｜>' + m.content + eos_token }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}")
# name: template, tokens to add, end of an answer (None: eos), whether it takes a system turn
FAMILIES = {"chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>", True),
            "llama3": (LLAMA3, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>", True),
            "mistral": (MISTRAL, ["[INST]", "[/INST]"], None, False),
            "llama2": (MISTRAL, [], None, False),
            "gemma": (GEMMA, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>", True),
            "phi": (PHI, ["<|user|>", "<|system|>", "<|assistant|>", "<|end|>"], "<|end|>", True),
            "deepseek": (DEEPSEEK, ["<｜User｜>", "<｜Assistant｜>"], None, False)}


def text(r):
    return r.choice(["", " "]).join(r.choice(WORDS) for _ in range(r.choice([1, 2, 3, 5, 9]))) or "x"


def make_row(r, kind, specials):
    """A row, and its turns; specials may be spelled in text without a template."""
    say = lambda: text(r) + (r.choice(specials) + text(r) if specials and r.random() < 0.2 else "")
    q, a = say(), say()
    if kind == "text":
        return {"text": q}, [("user", q)]
    if kind == "prompt":
        return {"prompt": q, "completion": a}, [("user", q), ("assistant", a)]
    if kind == "question":
        return {"question": q, "answer": a}, [("user", q), ("assistant", a)]
    if kind == "alpaca":
        i = r.choice(["", say()])
        return {"instruction": q, "input": i, "output": a}, [("user", q + ("\n" + i if i else "")), ("assistant", a)]
    turns = []
    for _ in range(r.choice([1, 1, 2, 3])):
        turns += [("user", say()), ("assistant", say())]
    if kind == "sharegpt":
        names = {"user": "human", "assistant": "gpt"}
        return {"conversations": [{"from": names[w], "value": t} for w, t in turns]}, turns
    return {"messages": [{"role": w, "content": t} for w, t in turns]}, turns


def encode(tokenizer, whole, answers, special):
    """Ids, and a flag for each that shares a character with an answer."""
    out = tokenizer(whole, add_special_tokens=special, return_offsets_mapping=True)
    flags = [any(b < end and e > begin for begin, end in answers) if e > b else False for b, e in out["offset_mapping"]]
    return out["input_ids"], flags


def plain(tokenizer, kind, turns):
    between = "\n" if kind == "question" else ""
    if kind == "text":
        ids, _ = encode(tokenizer, turns[0][1], [], True)
        ids = trimmed(tokenizer, ids) + [tokenizer.eos_token_id]
        return ids, [False] + [True] * (len(ids) - 1)
    whole, answers = turns[0][1] + between, []
    answers.append((len(whole), len(whole) + len(turns[1][1])))
    ids, flags = encode(tokenizer, whole + turns[1][1], answers, True)
    return trimmed(tokenizer, ids) + [tokenizer.eos_token_id], flags[: len(trimmed(tokenizer, ids))] + [True]


def trimmed(tokenizer, ids):
    """A tokenizer that ends texts itself: ours writes one end token."""
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id and tokenizer("a").input_ids[-1] == ids[-1] else ids


def chat(tokenizer, family, turns):
    messages = [{"role": w, "content": t} for w, t in turns]
    template, _, end, _ = FAMILIES[family]
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    answers, at = [], 0
    for i, (who, said) in enumerate(turns):
        said = said.strip() if "trim" in template else said
        if said not in whole[at:]:
            return None
        begin = whole.index(said, at)
        before = tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True) if i else ""
        if who == "assistant":
            if not whole.startswith(before):
                return None
            begin = len(before)
            stop = whole.index(end or tokenizer.eos_token, begin + len(said)) + len(end or tokenizer.eos_token)
            if said:  # an empty answer teaches nothing
                answers.append((begin, stop))
            at = stop
        else:
            at = begin + len(said)
    return encode(tokenizer, whole, answers, False)


def run(program, folder, template, rows):
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    out = subprocess.run([program, folder, template], input=lines.encode(), capture_output=True, check=False)
    if out.returncode:
        return out.stderr.decode().strip()
    return [json.loads(line) for line in out.stdout.decode().splitlines()]


def open_tokenizer(folder):
    """The file as it is: some classes of transformers 5 replace its steps by their own."""
    names = AutoTokenizer.from_pretrained(folder)
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), bos_token=names.bos_token,
                                   eos_token=names.eos_token, chat_template=names.chat_template)


def compare(program, folder, family, r, kept):
    tokenizer = open_tokenizer(folder)
    kinds = ["text", "prompt", "question"] if family == "plain" else ["prompt", "question", "alpaca", "sharegpt", "messages"]
    cases = []
    specials = [tokenizer.eos_token] if family == "plain" else []
    for i in range(COUNT):
        kind = kinds[i % len(kinds)]
        row, turns = make_row(r, kind, specials)
        if family == "plain":
            expected = plain(tokenizer, kind, turns)
        else:
            expected = chat(tokenizer, family, turns)
        if expected:
            cases.append((row, expected))
    ours = run(program, folder, "plain" if family == "plain" else "auto", [row for row, _ in cases])
    if isinstance(ours, str):
        return print(f"{os.path.basename(folder):24} {family:9} refused: {ours[:110]}") or 0
    wrong = refused = 0
    for (row, (ids, flags)), found in zip(cases, ours):
        flags = [int(f) for f in flags]
        flags[0] = 0
        if "error" in found:
            refused += 1
            if refused <= 2:
                print("  refused:", found["error"].split(": ", 1)[-1][:120])
            continue
        kept.append({"row": row, "ids": ids, "counts": flags})
        if found["ids"] != ids or found["counts"] != flags:
            wrong += 1
            if wrong <= 2:
                print("  row   ", json.dumps(row, ensure_ascii=False)[:300], "\n  ours  ", found["ids"][:60], "\n  theirs", ids[:60],
                      "\n  ours  ", found["counts"][:60], "\n  theirs", flags[:60])
    print(f"{os.path.basename(folder):24} {family:9} {len(cases)} rows: {wrong} differ, {refused} refused", flush=True)
    return wrong


def with_family(folder, family, out):
    """A copy of the folder with the family's template and tokens."""
    shutil.copytree(folder, out, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(out)
    template, tokens, _, _ = FAMILIES[family]
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    tokenizer.chat_template = template
    if not tokenizer.eos_token or ("bos_token" in template and not tokenizer.bos_token):
        return False
    tokenizer.save_pretrained(out)
    return True


def main():
    arguments = sys.argv[1:]
    program, wrong = arguments.pop(0), 0
    file = (arguments.pop(0), arguments.pop(0))[1] if arguments[0] == "--write" else None
    kept = []
    for folder in arguments:
        folder = os.path.normpath(folder)
        r = random.Random(37)
        wrong += compare(program, folder, "plain", r, kept)
        for family in FAMILIES:
            with tempfile.TemporaryDirectory() as place:
                copy = os.path.join(place, os.path.basename(folder))
                if with_family(folder, family, copy):
                    wrong += compare(program, copy, family, r, [])
    if file:
        with open(file, "w", encoding="utf-8") as out:
            for line in kept:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
    sys.exit(wrong > 0)


main()
