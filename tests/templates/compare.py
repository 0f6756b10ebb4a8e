#!/usr/bin/env python3
"""compare.py RENDER FOLDER [NAME ...]: chat templates of others through our renderer and transformers'.

RENDER is build/tests/templates/render (make build/tests/templates/render). FOLDER holds templates as they
come with models, as NAME.jinja; they are not part of this repository. Each is tried with COUNT (200)
random conversations: system, user and assistant turns, tool calls and their results, content in parts,
reasoning, texts in many scripts, blanks at their ends, empty ones, turns in an odd order. Text and tokens
must be equal; where one refuses, the other must. Needs transformers, jinja2 and tokenizers.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, decoders
from transformers.utils.chat_template_utils import render_jinja_template

COUNT = int(os.environ.get("COUNT", "200"))
SPECIAL = re.compile(
    r"<\|[^<>|\s{}'\"]{1,40}\|>|<｜[^<>｜\s{}'\"]{1,40}｜>|\[/?[A-Z_]{3,30}\]|</?s>|<(?:start|end)_of_\w+>"
    r"|<bos>|<eos>")
WORDS = ["Hello", "what is", "2+2?", "größer", "日本語", "😀🎉", "naïve", "a\nb", "  lead", "trail  ", "\n\n",
         "{x}", "{{ y }}", "'quoted'", '"double"', "back\\slash", "<b>&amp;</b>", "tab\there", "\u00a0nbsp",
         "Привет", "مرحبا", "1.5", "None", "true", "# title", "- item", "`code`", "a=b;c", "%s", "é\u0301", ""]


def make_tokenizer(folder, text):
    """Bytes with a few merges, and as special tokens what looks like one in the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = []
    for pair in ("t h", "th e", "i n", "e r", "a n", "o u", "Ġ a", "Ċ Ċ", "u s", "us er", "a s", "as s"):
        left, right = pair.split(" ")
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    names = sorted(set(SPECIAL.findall(text)) | {"<s>", "</s>"})
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<s>"}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    return tokenizer, config


def words(r, most=6):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(0, most)))


def content(r, with_parts):
    if with_parts and r.random() < 0.15:
        return [{"type": "text", "text": words(r)} for _ in range(r.randint(1, 3))]
    return words(r)


def arguments(r):
    return {k: r.choice([1, -3, 2.5, True, None, "x y", "ü", ["a", 1], {"k": "v"}, words(r, 2)])
            for k in r.sample(["city", "days", "unit", "größe"], r.randint(0, 3))}


def tool(r):
    kinds = [{"type": "string", "description": words(r, 3)}, {"type": "integer"},
             {"type": "array", "items": {"type": "string"}}, {"type": "string", "enum": ["a", "b"]},
             {"type": "object", "properties": {"inner": {"type": "boolean"}}, "required": ["inner"]},
             {"type": ["string", "null"], "default": None}]
    keys = r.sample(["city", "days", "unit", "größe"], r.randint(0, 3))
    return {"type": "function", "function": {
        "name": r.choice(["get_weather", "add", "search"]), "description": words(r, 4),
        "parameters": {"type": "object", "properties": {k: r.choice(kinds) for k in keys},
                       "required": keys[:1]}}}


def answer(r, with_parts, calls):
    message = {"role": "assistant", "content": content(r, with_parts)}
    if r.random() < 0.2:
        message["reasoning_content"] = words(r)
    if r.random() < 0.1:
        message["content"] = "<think>\n" + words(r, 3) + "\n</think>\n\n" + words(r, 3)
    if calls:
        if r.random() < 0.5:
            message["content"] = r.choice([None, ""])
        message["tool_calls"] = [
            {"id": "call%05d" % r.randint(0, 99999), "type": "function",
             "function": {"name": r.choice(["get_weather", "add"]), "arguments": arguments(r)}}
            for _ in range(r.randint(1, 2))]
    return message


def conversation(r, with_parts):
    out, use_tools = [], r.random() < 0.35
    if r.random() < 0.5:
        out.append({"role": "system", "content": content(r, with_parts)})
    for _ in range(r.randint(1, 4)):
        out.append({"role": "user", "content": content(r, with_parts)})
        if use_tools and r.random() < 0.6:
            called = answer(r, with_parts, True)
            out.append(called)
            for call in called["tool_calls"]:
                out.append({"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"],
                            "content": r.choice([words(r), json.dumps({"t": 1})])})
        if r.random() < 0.95:
            out.append(answer(r, with_parts, False))
    if r.random() < 0.08:  # an odd order
        r.shuffle(out)
    asks = r.random() < 0.5
    if asks and out[-1]["role"] == "assistant" and r.random() < 0.9:
        out.pop()
    case = {"messages": out, "asks": asks}
    if use_tools:
        case["tools"] = [tool(r) for _ in range(r.randint(1, 2))]
    return case


def theirs(template, config, case):
    messages = json.loads(json.dumps(case["messages"]))
    text, spans = render_jinja_template(
        [messages], tools=case.get("tools"), chat_template=template,
        add_generation_prompt=case["asks"], return_assistant_tokens_mask="{% generation" in template
        or "{%- generation" in template, **config)
    return text[0], spans[0] if spans else None


def writes(template, config, content):
    """Whether the template writes the text of this content, and not a list as Python prints it."""
    case = {"messages": [{"role": "user", "content": content}], "asks": False}
    try:
        text = theirs(template, config, case)[0]
    except Exception:
        return None
    return "needle" in text and "'type'" not in text and '"type"' not in text


def in_parts(case):
    """The same for a template that knows nothing but parts: it is given each text as one."""
    messages = [dict(m, content=[{"type": "text", "text": m["content"]}])
                if isinstance(m.get("content"), str) else m for m in case["messages"]]
    return dict(case, messages=messages)


def compare(render, path):
    with open(path, encoding="utf-8", newline="") as f:
        template = f.read()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, config = make_tokenizer(folder, template)
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as f:
            f.write(template)
        r = random.Random(os.path.basename(path))
        with_parts = writes(template, config, [{"type": "text", "text": "needle"}])
        wraps = with_parts and writes(template, config, "needle") is not True
        cases = [conversation(r, with_parts) for _ in range(COUNT)]
        lines = "".join(json.dumps(c) + "\n" for c in cases)
        run = subprocess.run([render, folder], input=lines, capture_output=True, text=True)
        ours = [json.loads(line) for line in run.stdout.split("\n") if line]
        if run.returncode == 1:
            try:  # refused whole; is it by them?
                theirs(template, config, cases[0])
                known = ""
            except Exception as error:
                known = "; theirs: " + str(error)[:80]
            return "refused", ours[0]["error"] + known
        if run.returncode != 0:
            return "FAILED", "render ended with %d: %s" % (run.returncode, run.stderr[-300:])
    equal = both = spans = 0
    only = {}
    for case, got in zip(cases, ours[1:]):
        try:
            text, generated = theirs(template, config, in_parts(case) if wraps else case)
        except Exception as error:
            if "error" in got:
                both += 1
            else:
                return "FAILED", "they refuse (%s), we do not: %s" % (error, json.dumps(case))
            continue
        if "error" in got:
            reason = re.sub(r"turn \d+", "turn N", got["error"])
            if "chat template begins turn" in reason or "chat template writes" in reason:
                spans += 1  # the text is there, but not which of it is an answer
                if os.environ.get("SHOW"):
                    print(reason, json.dumps(case), repr(text))
            else:
                only[reason] = only.get(reason, 0) + 1
            continue
        if got["text"] != text:
            at = next((i for i, (a, b) in enumerate(zip(got["text"], text)) if a != b),
                      min(len(got["text"]), len(text)))
            return "FAILED", "texts differ at %d: ours %r, theirs %r in %s" % (
                at, got["text"][max(0, at - 30):at + 40], text[max(0, at - 30):at + 40], json.dumps(case))
        encoded = tokenizer.encode(text, add_special_tokens=False)
        if got["ids"] != encoded.ids:
            return "FAILED", "tokens differ in %s" % json.dumps(case)
        if generated is not None and not case["asks"]:
            # Their own mask leaves out the end of a last character that has several tokens.
            wanted = [int(any(first < end and last > begin for begin, end in generated))
                      for first, last in encoded.offsets]
            if got["answers"] != wanted:
                return "FAILED", "answers differ: ours %r, theirs %r in %s" % (
                    tokenizer.decode([t for t, a in zip(encoded.ids, got["answers"]) if a], False),
                    tokenizer.decode([t for t, a in zip(encoded.ids, wanted) if a], False), json.dumps(case))
        equal += 1
    told = "%d equal, %d refused by both" % (equal, both)
    if spans:
        told += ", %d without answers" % spans
    if only:
        return "refused", told + ", refused by us alone: " + json.dumps(only, ensure_ascii=False)
    return "equal", told


def main():
    transformers.logging.set_verbosity_error()
    render, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:]
    counts = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja") or (names and name[:-6] not in names):
            continue
        result, told = compare(render, os.path.join(folder, name))
        counts[result] = counts.get(result, 0) + 1
        print("%-8s %-60s %s" % (result, name[:-6], told), flush=True)
    print(", ".join("%d %s" % (n, result) for result, n in sorted(counts.items())))
    return 1 if counts.get("FAILED") else 0


if __name__ == "__main__":
    sys.exit(main())
