#!/usr/bin/env python3
"""compare.py ENCODE [--write FILE] FOLDER ...: rows of every kind as tokens, here and with transformers.

ENCODE is build/tests/rows/encode (make build/tests/rows/encode). Each FOLDER has a tokenizer. COUNT (300)
odd rows of every kind (text, prompt and completion, question and answer, Alpaca, ShareGPT, messages with
tools, calls, parts and null content) go through both, without a template and with those of several families,
for which tokens are added. Ids and counted tokens must be equal, or the row is refused by name. Without a
template, a row is the text that our documentation describes, encoded by transformers in one piece. With one,
apply_chat_template writes the text; a token counts if it shares a character with an answer, or is the end
token right behind it. Special tokens that are spelled in a turn stay text in ours, on purpose: transformers
then gets the turn with split_special_tokens. Some malformed rows must be refused.

--write FILE also writes rows and ids of the families in KEEP (plain,llama3,tools) for `make test`: a line with
a template, then its rows. Needs transformers.
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


# Tools, calls without content, results and thoughts, in the manner of Qwen and Hermes.
TOOLS = ("{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}{% for m in messages %}"
         "{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}{% elif m.content %}"
         "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}"
         "{{ '\n<tool_call>\n' + c.function | tojson + '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
FAMILIES["tools"] = (TOOLS, ["<|im_start|>", "<|im_end|>"], "<|im_end|>", True)
BAD = [{"prompt": None, "completion": "a"}, {"prompt": "q"}, {"prompt": "q", "completion": 5}, {"question": ["q"], "answer": "a"},
       {"instruction": "i"}, {"text": {}}, {"messages": []}, {"messages": [{"role": "judge", "content": "x"}]},
       {"messages": [{"role": "user"}]}, {"conversations": [{"from": "human", "value": None}]},
       {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]}]


def text(r):
    return r.choice(["", " "]).join(r.choice(WORDS) for _ in range(r.choice([0, 1, 2, 3, 5, 9])))


def make_row(r, kind, specials, family):
    """A row, and its messages; specials may be spelled in text."""
    has_system = family in FAMILIES and FAMILIES[family][3]
    say = lambda: text(r) + (r.choice(specials) + text(r) if specials and r.random() < 0.2 else "")
    q, a = say() or "q", say() or r.choice(["a", ""])
    turn = lambda who, said: {"role": who, "content": said}
    if kind == "text":
        return {"text": q, "id": 7}, [turn("user", q)]
    if kind in ("prompt", "question"):
        keys = {"prompt": ("prompt", "completion"), "question": ("question", "answer")}[kind]
        return dict(zip(keys, (q, a))), [turn("user", q), turn("assistant", a)]
    if kind == "alpaca":
        i, system = r.choice(["", None, say()]), say() if has_system or family == "none" else ""
        row = {"instruction": q, "input": i, "output": a}
        if system:
            row["system"] = system
        asked = [turn("system", system)] if system else []
        return row, asked + [turn("user", q + ("\n" + i if i else "")), turn("assistant", a)]
    turns = [turn("system", say())] if has_system and r.random() < 0.3 else []
    for _ in range(r.choice([1, 1, 2, 3])):
        turns += [turn("user", say() or "q"), turn("assistant", say() or "a")]
    if kind == "sharegpt":
        names = {"user": "human", "assistant": "gpt", "system": "system"}
        return {"conversations": [{"from": names[t["role"]], "value": t["content"]} for t in turns]}, turns
    row = {"messages": turns}
    if family == "tools":
        row["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"x": r.choice([1, 2.5, 2**70, None, "ü"])}}}]
        call = {"role": "assistant", "content": r.choice([None, "", say()]), "tool_calls": [{"type": "function", "function": {
            "name": "f", "arguments": {"text": text(r), "n": r.choice([0, -3, 1e300, True])}}}]}
        turns += [turn("user", "q"), call, turn("tool", say() or "r"), turn("assistant", say() or "a")]
    if family in ("tools",) and r.random() < 0.3:
        turns[0] = {"role": turns[0]["role"], "content": [{"type": "text", "text": turns[0]["content"]}, {"type": "text", "text": "+"}]}
    return row, turns


def encode(tokenizer, whole, answers, adds, protected=None):
    """Ids, and a flag for each that shares a character with an answer. protected: special tokens are text, except those
    at the given places (begin, end), which the template wrote."""
    def part(begin, end, is_text):
        out = tokenizer(whole[begin:end], add_special_tokens=adds and begin == 0, return_offsets_mapping=True,
                        split_special_tokens=is_text)
        for one, (b, e) in zip(out["input_ids"], out["offset_mapping"]):
            ids.append(one)
            flags.append(e > b and any(b + begin < end_ and e + begin > begin_ for begin_, end_ in answers))
    ids, flags, at = [], [], 0
    for begin, end in protected or []:
        if begin > at:
            part(at, begin, True)
        part(begin, end, False)
        at = end
    if at < len(whole) or not ids:
        part(at, len(whole), protected is not None)
    return ids, flags


def trimmed(tokenizer, ids):
    """A tokenizer that ends texts itself: ours writes one end token."""
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id and tokenizer("a").input_ids[-1] == ids[-1] else ids


ASKS = ("Below is an instruction that describes a task{}. Write a response that appropriately completes the request.\n\n",
        ", paired with an input that provides further context")


def plain(tokenizer, kind, row, turns, family):
    """Texts one after the other; Alpaca's rows have their own template where the model has none."""
    eos = tokenizer.eos_token_id
    if kind == "text":
        ids = trimmed(tokenizer, encode(tokenizer, turns[0]["content"], [], True)[0]) + [eos]
        return ids, [True] * len(ids)
    whole, answers = "", []
    if family == "none" and kind == "alpaca":
        i = row.get("input") or ""
        whole = row["system"] + "\n\n" if row.get("system") else ASKS[0].format(ASKS[1] if i else "")
        whole += "### Instruction:\n" + row["instruction"] + ("\n\n### Input:\n" + i if i else "") + "\n\n### Response:\n"
        answers, whole = [(len(whole), len(whole) + len(row["output"]))], whole + row["output"]
        ids, flags = encode(tokenizer, whole, answers, True, [])
    else:
        for i, turn in enumerate(turns):
            if turn["role"] == "assistant":
                answers.append((len(whole), len(whole) + len(turn["content"]) + len(tokenizer.eos_token)))
            whole += turn["content"] + ("\n" if kind == "question" and i == 0 else "")
            whole += tokenizer.eos_token if turn["role"] == "assistant" and i + 1 < len(turns) else ""
        ids, flags = encode(tokenizer, whole, answers, True)
    ids = trimmed(tokenizer, ids)
    return ids + [eos], flags[: len(ids)] + [True]


def render(tokenizer, messages, row, asks=False):
    return tokenizer.apply_chat_template(messages, tools=row.get("tools"), tokenize=False, add_generation_prompt=asks)


def hide(value, specials):
    """Special tokens in texts become other characters, as many: what is left was written by the template."""
    if isinstance(value, str):
        for s in specials:
            value = value.replace(s, "\ue000" * len(s))
        return value
    if isinstance(value, list):
        return [hide(v, specials) for v in value]
    return {k: hide(v, specials) for k, v in value.items()} if isinstance(value, dict) else value


def chat(tokenizer, family, row, messages, specials):
    template, _, end, _ = FAMILIES[family]
    end = end or tokenizer.eos_token
    try:
        whole = render(tokenizer, messages, row)
    except Exception:
        return None  # transformers refuses it too
    hidden = render(tokenizer, hide(messages, specials), row)
    assert len(hidden) == len(whole)
    answers = []
    for i, turn in enumerate(messages):
        said = turn["content"] or ""
        said = said.strip() if "trim" in template and isinstance(said, str) else said
        if turn["role"] != "assistant" or not (said or turn.get("tool_calls")):
            continue  # an empty answer teaches nothing
        before = render(tokenizer, hide(messages[:i], specials), row, True)
        upto = render(tokenizer, hide(messages[: i + 1], specials), row)
        stop = upto.rfind(end) + len(end)
        assert hidden.startswith(before) and hidden[:stop] == upto[:stop]
        answers.append((len(before), stop))
    places, at = [], 0
    known = sorted((t.content for t in tokenizer.added_tokens_decoder.values() if t.special), key=len, reverse=True)
    while specials and at < len(hidden):
        found = next((k for k in known if hidden.startswith(k, at)), None)
        places += [(at, at + len(found))] if found else []
        at += len(found) if found else 1
    return encode(tokenizer, whole, answers, False, places if specials else None)


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


def make_cases(tokenizer, family, r):
    kinds = ["text", "prompt", "question", "alpaca", "sharegpt", "messages"]
    if family == "none":
        kinds = kinds[:4]
    elif family in FAMILIES:
        kinds = kinds[1:]
    steps = tokenizer._tokenizer.to_str()
    is_byte_level = not ("Metaspace" in steps or "Prepend" in steps)  # pieces between special tokens are encoded alone
    specials = [tokenizer.eos_token] if family == "plain" or is_byte_level else []
    if family in FAMILIES and specials:
        specials += FAMILIES[family][1]
    for i in range(COUNT):
        kind = kinds[i % len(kinds)]
        allowed = [] if family == "none" and kind != "alpaca" else specials
        row, turns = make_row(r, kind, allowed, family)
        is_plain = family not in FAMILIES
        yield row, plain(tokenizer, kind, row, turns, family) if is_plain else chat(tokenizer, family, row, turns, allowed)


def compare(program, folder, family, r, kept):
    tokenizer = open_tokenizer(folder)
    cases = list(make_cases(tokenizer, family, r)) + [(row, None) for row in BAD]
    ours = run(program, folder, "plain" if family == "plain" else "auto", [row for row, _ in cases])
    if isinstance(ours, str):
        return print(f"{os.path.basename(folder):24} {family:9} refused: {ours[:110]}") or 0
    wrong = refused = 0
    for (row, expected), found in zip(cases, ours):
        if "error" in found:
            refused += 1
            reason = found["error"].split(": ", 1)[-1].split(" (set bad_rows")[0]
            if reason == "the answer is empty":  # transformers trains its end token
                continue
            if expected and not (reason.endswith("no answer to learn from") and not any(expected[1][1:])):
                wrong += 1
                print("  refused:", json.dumps(row, ensure_ascii=False)[:200], reason[:200])
            continue
        ids, flags = expected or ([], [])
        flags = [0] + [int(f) for f in flags[1:]]
        kept.append({"row": row, "ids": ids, "counts": flags})
        if found["ids"] != ids or found["counts"] != flags:
            wrong += 1
            if wrong <= 2:
                print("  row   ", json.dumps(row, ensure_ascii=False)[:300])
                for a, b in ((found["ids"], ids), (found["counts"], flags)):
                    at = max(0, next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))) - 4)
                    print(f"  token {at}: ours {a[at:at + 16]}, theirs {b[at:at + 16]}")
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
    program, wrong, lines = arguments.pop(0), 0, []
    file = (arguments.pop(0), arguments.pop(0))[1] if arguments[0] == "--write" else None
    for folder in arguments:
        folder = os.path.normpath(folder)
        r = random.Random(37)
        tokenizer = open_tokenizer(folder)
        marks = {"<|im_start|>", "<|start_header_id|>", "[INST]"} & set(tokenizer.get_vocab())  # name a built-in template
        families = ["plain"] + ([] if tokenizer.chat_template or marks else ["none"]) + list(FAMILIES)
        for family in families:
            kept = []
            with tempfile.TemporaryDirectory() as place:
                copy = os.path.join(place, os.path.basename(folder))
                if family not in FAMILIES:
                    wrong += compare(program, folder, family, r, kept)
                elif with_family(folder, family, copy):
                    wrong += compare(program, copy, family, r, kept)
            if family in os.environ.get("KEEP", "plain,llama3,tools").split(","):
                lines += [{"template": FAMILIES[family][0] if family in FAMILIES else ""}] + kept
    if file:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    sys.exit(wrong > 0)


main()
