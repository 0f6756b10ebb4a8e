#!/usr/bin/env python3
"""compare.py RENDER FOLDER [NAME ...]: chat templates of others through our renderer and transformers'.

RENDER is build/tests/templates/render (make build/tests/templates/render). FOLDER holds templates as they
come with models, as NAME.jinja; they are not part of this repository. Each is tried with random
conversations until transformers has rendered COUNT (200) of them, or ten times as many were tried: system,
user and assistant turns, tool calls and their results, content in parts, reasoning, with and without
enable_thinking, texts in many scripts, blanks at their ends, empty ones, turns in an odd order. Text and
tokens must be equal, and the answers, where the template has {% generation %}; where one refuses, the other
must. A line for each template says equal, refused (by us, and why), neither (renders a conversation) or
FAILED. Needs transformers, jinja2 and tokenizers.
"""
import calendar
import datetime
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import jinja2
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.utils import chat_template_utils

COUNT = int(os.environ.get("COUNT", "200"))
SPECIAL = re.compile(
    r"<\|[^<>|\s{}'\"]{1,40}\|>|<｜[^<>｜\s{}'\"]{1,40}｜>|\[/?[A-Z_]{3,30}\]|</?s>|<(?:start|end)_of_\w+>"
    r"|<bos>|<eos>")
PLAIN = re.compile(r"</?(?:think|tool_call|tool_response)>")  # added tokens that are not special
WORDS = ["Hello", "what is", "2+2?", "größer", "日本語", "😀🎉", "naïve", "a\nb", "  lead", "trail  ", "\n\n",
         "{x}", "{{ y }}", "'quoted'", '"double"', "back\\slash", "<b>&amp;</b>", "tab\there", "\u00a0nbsp",
         "Привет", "مرحبا", "1.5", "None", "true", "# title", "- item", "`code`", "a=b;c", "%s", "é\u0301", "",
         "a\r\nb", "line\u2028sep", "zero\u200bwidth", "<think>", "</think>", "<tool_call>", "{% if %}", "\x7f"]


class Clock(datetime.datetime):
    """What templates take for now: the same for both."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 7, 9, 5, 3)


chat_template_utils.datetime = Clock


def make_tokenizer(folder, text, r):
    """Bytes or characters with a few merges, and as added tokens what looks like one in the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges, is_bytes = [], r.random() < 0.6
    if not is_bytes:  # as in Llama 2: a blank in front of each text, bytes for what is not in the vocabulary
        alphabet = ["<0x%02X>" % i for i in range(256)] + [chr(i) for i in range(33, 127)] + ["▁"]
    vocab = {c: i for i, c in enumerate(alphabet)}
    blank = "Ġ" if is_bytes else "▁"
    for pair in ("t h", "th e", "i n", "e r", "a n", "o u", blank + " a", "u s", "us er", "a s", "as s"):
        left, right = pair.split(" ")
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=not is_bytes, fuse_unk=not is_bytes))
    if is_bytes:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    names = sorted(set(SPECIAL.findall(text)) | {"<s>", "</s>"})
    strips = r.random() < 0.3  # as in Phi 3
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False, rstrip=strips and n != "<s>")
                                  for n in names])
    tokenizer.add_tokens([AddedToken(n, special=False, normalized=False)
                          for n in sorted(set(PLAIN.findall(text)))])
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


def scalar(r):
    return r.choice([1, -3, 2.5, True, None, "x y", "ü", ["a", 1], {"k": "v"}, words(r, 2), 12345678901234, 1e-7,
                     100.0, 1e16, 0.1, False, 0, [], {}, [{"a": None}], "<b>"])


def arguments(r):
    out = {k: scalar(r) for k in r.sample(["city", "days", "unit", "größe"], r.randint(0, 3))}
    return json.dumps(out) if r.random() < 0.15 else out


def tool(r):
    kinds = [{"type": "string", "description": words(r, 3)}, {"type": "integer"},
             {"type": "array", "items": {"type": "string"}}, {"type": "string", "enum": ["a", "b"]},
             {"type": "object", "properties": {"inner": {"type": "boolean"}}, "required": ["inner"]},
             {"type": ["string", "null"], "default": None}, {"type": "number", "minimum": 0.5, "default": 1},
             {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "T"},
             {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}}]
    keys = r.sample(["city", "days", "unit", "größe"], r.randint(0, 3))
    function = {"name": r.choice(["get_weather", "add", "search"]), "description": words(r, 4),
                "parameters": {"type": "object", "properties": {k: r.choice(kinds) for k in keys}}}
    if r.random() < 0.8:
        function["parameters"]["required"] = keys[:1]
    if r.random() < 0.15:
        function["return"] = {"type": "string", "description": words(r, 2)}
    if r.random() < 0.1:
        function["strict"] = True
    return {"type": "function", "function": function}


def answer(r, with_parts, calls):
    message = {"role": "assistant", "content": content(r, with_parts)}
    if r.random() < 0.2:
        message[r.choice(["reasoning_content", "reasoning_content", "thinking", "reasoning"])] = words(r)
    if r.random() < 0.1:
        message["content"] = "<think>\n" + words(r, 3) + "\n</think>\n\n" + words(r, 3)
    if r.random() < 0.05:
        message["name"] = words(r, 1)
    if calls:
        if r.random() < 0.5:
            message["content"] = r.choice([None, ""])
        message["tool_calls"] = [
            {"id": "call%05d" % r.randint(0, 99999), "type": "function",
             "function": {"name": r.choice(["get_weather", "add"]), "arguments": arguments(r)}}
            for _ in range(r.randint(1, 2))]
    return message


def results(r, called, with_parts):
    for call in called["tool_calls"]:
        out = {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"],
               "content": r.choice([content(r, with_parts), json.dumps({"t": 1}), "4"])}
        if r.random() < 0.1:
            del out["name"]
        yield out


def conversation(r, with_parts):
    out, use_tools = [], r.random() < 0.35
    if r.random() < 0.5:
        out.append({"role": "system" if r.random() < 0.95 else "developer", "content": content(r, with_parts)})
    for _ in range(r.randint(1, 4)):
        out.append({"role": "user", "content": content(r, with_parts)})
        for _ in range(r.choice([0, 1, 1, 2]) if use_tools else 0):
            out.append(answer(r, with_parts, True))
            out.extend(results(r, out[-1], with_parts))
        if r.random() < 0.95:
            out.append(answer(r, with_parts, False))
    if r.random() < 0.08:  # an odd order
        r.shuffle(out)
    asks = r.random() < 0.5
    if asks and out[-1]["role"] == "assistant" and r.random() < 0.9:
        out.pop()
    case = {"messages": out, "asks": asks, "thinks": r.random() < 0.8}
    if use_tools:
        case["tools"] = [tool(r) for _ in range(r.randint(1, 2))]
    return case


def theirs(template, config, case):
    messages = json.loads(json.dumps(case["messages"]))
    extra = {} if case.get("thinks", True) else {"enable_thinking": False, "thinking": False}
    text, spans = chat_template_utils.render_jinja_template(
        [messages], tools=case.get("tools"), chat_template=template,
        add_generation_prompt=case["asks"], return_assistant_tokens_mask=bool(
            re.search(r"\{%[-+]?\s*generation", template)), **config, **extra)
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


def refuses(template, config, case, wraps):
    """Why transformers does not render this conversation; None: it does."""
    try:
        theirs(template, config, in_parts(case) if wraps else case)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def draw(r, template, config, with_parts, wraps):
    """Conversations until COUNT are rendered by transformers, or ten times as many were tried."""
    cases, rendered = [], 0
    while rendered < COUNT and len(cases) < 10 * COUNT:
        case = conversation(r, with_parts)
        case["refused"] = refuses(template, config, case, wraps)
        rendered += case["refused"] is None
        cases.append(case)
    return cases


def check_case(template, config, tokenizer, wraps, case, got):
    """What differs between their rendering and ours; None: nothing."""
    text, generated = theirs(template, config, in_parts(case) if wraps else case)
    if got["text"] != text:
        at = next((i for i, (a, b) in enumerate(zip(got["text"], text)) if a != b),
                  min(len(got["text"]), len(text)))
        return "texts differ at %d: ours %r, theirs %r" % (
            at, got["text"][max(0, at - 30):at + 40], text[max(0, at - 30):at + 40])
    encoded = tokenizer.encode(text, add_special_tokens=False)
    if got["ids"] != encoded.ids:
        return "tokens differ: ours %r, theirs %r" % (got["ids"], encoded.ids)
    if generated is None or case["asks"]:
        return None
    # Their own mask leaves out the end of a last character that has several tokens.
    wanted = [int(any(first < end and last > begin for begin, end in generated))
              for first, last in encoded.offsets]
    if got.get("answers") == wanted:
        return None
    return "answers differ: ours %r, theirs %r" % tuple(
        tokenizer.decode([t for t, is_in in zip(encoded.ids, mask) if is_in], skip_special_tokens=False)
        for mask in (got.get("answers", []), wanted))


# A refusal of ours that says what we lack, and how they put it where they lack it, too.
LACKS = re.compile("not supported|more than 63 bits|too large|cannot be written as text")
LACK_TOO = re.compile("No filter named|No test named|unknown tag|is unsafe|not callable|unexpected")


def tally(template, config, tokenizer, wraps, cases, ours):
    counts = {"equal": 0, "refused by both": 0, "without answers": 0}
    alone, lacks = {}, {}
    for case, got in zip(cases, ours):
        reason = re.sub(r"turn \d+", "turn N", got.get("error", ""))
        if case["refused"] is not None:
            if not reason:
                return "FAILED", "they refuse (%s), we do not: %s" % (case["refused"], json.dumps(case))
            counts["refused by both"] += 1
            if LACKS.search(reason) and not LACK_TOO.search(case["refused"]):
                lacks[reason] = lacks.get(reason, 0) + 1
        elif "text" not in got:
            alone[reason] = alone.get(reason, 0) + 1
        else:
            found = check_case(template, config, tokenizer, wraps, case, got)
            if found:
                return "FAILED", found + " in " + json.dumps(case)
            counts["equal"] += 1
            counts["without answers"] += "error" in got
    told = ", ".join("%d %s" % (n, what) for what, n in counts.items() if n or what != "without answers")
    if lacks:
        told += ", by both but for what we lack: " + json.dumps(lacks, ensure_ascii=False)
    if alone:
        return "refused", told + ", refused by us alone: " + json.dumps(alone, ensure_ascii=False)
    if counts["equal"] == 0:
        return "neither", told + ": " + cases[0]["refused"][:80]
    return "equal", told


def compare(render, path):
    with open(path, encoding="utf-8", newline="") as f:
        template = f.read()
    r = random.Random(os.path.basename(path))
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, config = make_tokenizer(folder, template, r)
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as f:
            f.write(template)
        with_parts = writes(template, config, [{"type": "text", "text": "needle"}])
        wraps = with_parts and writes(template, config, "needle") is not True
        cases = draw(r, template, config, with_parts, wraps)
        lines = "".join(json.dumps(c) + "\n" for c in cases)
        seconds = str(calendar.timegm(Clock.now().timetuple()))
        run = subprocess.run([render, folder, seconds], input=lines, capture_output=True, text=True)
        ours = [json.loads(line) for line in run.stdout.split("\n") if line]
    if run.returncode == 1:  # refused whole; is it by them?
        known = cases[0]["refused"]
        return ("neither", ours[0]["error"] + "; theirs: " + known[:80]) if known else ("refused", ours[0]["error"])
    if run.returncode != 0 or len(ours) != len(cases) + 1:
        return "FAILED", "render ended with %d: %s" % (run.returncode, run.stderr[-300:])
    return tally(template, config, tokenizer, wraps, cases, ours[1:])


def main():
    transformers.logging.set_verbosity_error()
    render, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:]
    counts, conversations = {}, 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja") or (names and name[:-6] not in names):
            continue
        result, told = compare(render, os.path.join(folder, name))
        counts[result] = counts.get(result, 0) + 1
        equal = re.match(r"(\d+) equal", told)
        conversations += int(equal.group(1)) if equal else 0
        print("%-8s %-60s %s" % (result, name[:-6], told), flush=True)
    print("templates: " + ", ".join("%d %s" % (n, result) for result, n in sorted(counts.items())) +
          "; %d conversations equal; transformers %s, jinja2 %s" % (
              conversations, transformers.__version__, jinja2.__version__))
    return 1 if counts.get("FAILED") else 0


if __name__ == "__main__":
    sys.exit(main())
