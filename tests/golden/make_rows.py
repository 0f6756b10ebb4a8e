#!/usr/bin/env python3
"""Writes tests/golden/rows/: conversations, a small tokenizer, and what they become.

The reference is Hugging Face's tokenizers over the whole text of a conversation, special tokens written
out in it, and for the loss the places of tokens in that text: a token is an answer's when it shares a
character with one, or is the token that ends it. Our program works the other way round (pieces, tokens by
id, borders found by encoding twice), so agreement says something.

    python3 tests/golden/make_rows.py [FOLDER_WITH_REAL_TOKENIZERS]

With the folder (one with gpt2/, llama2/ and llama3/) also real tokenizers are used; the test that reads
their part is skipped where the folder is absent.
"""
import json
import os
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rows")
SPECIAL = ["<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
           "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

CHATS = [
    [("user", "What is 6 times 7?"), ("assistant", "6 times 7 is 42.")],
    [("system", "You answer in one word."), ("user", "Is the sea salt?"), ("assistant", "Yes")],
    [("user", "Count."), ("assistant", "One."), ("user", "Go on."), ("assistant", "Two, three.\n")],
    [("system", "Line one.\nLine two."), ("user", "  blanks around  "), ("assistant", "\n\nafter lines"),
     ("user", "caf\u00e9 \u2014 na\u00efve? \u4f60\u597d"), ("assistant", "\U0001F600 \u00fcber 1234567 days\t.")],
    [("user", "a"), ("assistant", "")],
    [("user", "def f(x):\n    return x\n"), ("assistant", "    indented\n\n\n  more")],
]
ALPACA = ("Below is an instruction that describes a task. Write a response that appropriately completes "
          "the request.")


def chatml(chat, default=None):
    if default and chat[0][0] != "system":
        chat = [("system", default)] + chat
    for role, text in chat:
        answer = role == "assistant"
        yield "<|im_start|>" + role + "\n", False
        yield text, answer
        yield "<|im_end|>", answer
        yield "\n", False


def llama3(chat):
    yield "<|begin_of_text|>", False
    for role, text in chat:
        answer = role == "assistant"
        yield "<|start_header_id|>" + role + "<|end_header_id|>\n\n", False
        yield text.strip(), answer
        yield "<|eot_id|>", answer


def split_system(chat):
    return (chat[0][1], chat[1:]) if chat[0][0] == "system" else (None, chat)


def llama2(chat):
    system, chat = split_system(chat)
    for i, (role, text) in enumerate(chat):
        if role == "assistant":
            yield " ", False
            yield text.strip() + " ", True
            yield "</s>", True
            continue
        yield "<s>[INST] ", False
        if i == 0 and system is not None:
            yield "<<SYS>>\n" + system + "\n<</SYS>>\n\n", False
        yield text.strip() + " [/INST]", False


def mistral(chat):
    system, chat = split_system(chat)
    yield "<s>", False
    for i, (role, text) in enumerate(chat):
        if role == "assistant":
            yield " ", False
            yield text, True
            yield "</s>", True
            continue
        yield "[INST] ", False
        if i == 0 and system is not None:
            yield system + "\n\n", False
        yield text + " [/INST]", False


def alpaca(chat):
    system, chat = split_system(chat)
    yield (ALPACA if system is None else system) + "\n\n", False
    for role, text in chat:
        if role == "assistant":
            yield text, True
            yield "<|endoftext|>", True
        else:
            yield "### Instruction:\n" + text + "\n\n### Response:\n", False


TEMPLATES = {"chatml": chatml, "llama3": llama3, "llama2": llama2, "mistral": mistral, "alpaca": alpaca}


def encode(tokenizer, pieces):
    text, spans = "", []
    for piece, answer in pieces:
        if answer:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    out = tokenizer.encode(text, add_special_tokens=False)
    answers = [int(any(b < end and e > begin for begin, end in spans)) for b, e in out.offsets]
    return out.ids, answers


def small_tokenizer():
    """Byte-level BPE of a few hundred merges, learnt from this file, with everybody's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    with open(os.path.abspath(__file__), encoding="utf-8") as source:
        tokenizer.train_from_iterator(source.read().split("\n\n"), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def real_tokenizer(path):
    """A file may mark <s> as normalised; then text after it loses the blank that models were trained with
    (their own programs encode the text alone and put the token's id in front)."""
    with open(path, encoding="utf-8") as source:
        content = json.load(source)
    for token in content["added_tokens"]:
        token["normalized"] = False
    return Tokenizer.from_str(json.dumps(content))


def write(name, lines):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=True) + "\n")


def expected(tokenizer, names):
    for name in names:
        for number, chat in enumerate(CHATS):
            ids, answers = encode(tokenizer, TEMPLATES[name](chat))
            yield {"template": name, "chat": number, "ids": ids, "answers": answers}


def main():
    os.makedirs(HERE, exist_ok=True)
    tokenizer = small_tokenizer()
    path = os.path.join(HERE, "tokenizer.json")
    tokenizer.save(path, pretty=False)
    write("tokenizer_config.json", [{"eos_token": "<|endoftext|>"}])
    write("chats.jsonl", ({"messages": [{"role": r, "content": t} for r, t in chat]} for chat in CHATS))
    write("expected.jsonl", expected(Tokenizer.from_file(path), TEMPLATES))
    if len(sys.argv) < 2:
        return
    real = []
    for folder, names in (("llama2", ["llama2", "mistral"]), ("llama3", ["llama3"]), ("gpt2", ["alpaca"])):
        tokenizer = real_tokenizer(os.path.join(sys.argv[1], folder, "tokenizer.json"))
        real += [dict(line, tokenizer=folder) for line in expected(tokenizer, names)]
    write("expected_real.jsonl", real)


main()
