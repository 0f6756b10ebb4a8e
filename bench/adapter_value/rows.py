"""rows.py: rows of questions and answers, as files: made up, split, as text; and the tokens of shards."""
import array
import hashlib
import json
import os
import random

from journal import Failure, key_of

SHARD_HEADER = 1024  # bytes; tokens of 2 bytes follow


def make(folder):
    """Sums in words, for --tiny: train and held-out rows."""
    draw, paths = random.Random(1), []
    for name, count in (("train.jsonl", 240), ("held-out.jsonl", 60)):
        paths.append(os.path.join(folder, name))
        with open(paths[-1], "w", encoding="utf-8") as file:
            for _ in range(count):
                a, b = draw.randrange(2, 50), draw.randrange(2, 50)
                row = {"question": f"Lela kept {a} cups and put {b}. How many?", "answer": f"{a} {b}: {a + b}"}
                file.write(json.dumps(row) + "\n")
    return paths


def hash_of(path):
    """Of a file's content, or of a folder's names and sizes; shards are known by their size alone."""
    if os.path.isdir(path):
        return key_of([[name, os.path.getsize(os.path.join(path, name))] for name in sorted(os.listdir(path))])
    if path.endswith(".bin"):
        return str(os.path.getsize(path))
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def split(path, count, folder):
    """The first rows as text, or None for none, and the others as they are: two paths, new files in the folder."""
    if not count:
        return None, path
    first, others = (os.path.join(folder, name) for name in ("base-rows.jsonl", "tune-rows.jsonl"))
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file if line.strip()]
    if count >= len(lines):
        raise Failure(f"--base-rows {count}: {path} has {len(lines)} rows")
    write_text(lines[:count], first)
    with open(others, "w", encoding="utf-8") as file:
        file.writelines(lines[count:])
    return first, others


def write_text(lines, path):
    """Rows of questions and answers as rows of text, as they are read in tuning."""
    with open(path, "w", encoding="utf-8") as file:
        for row in map(json.loads, lines):
            if "question" not in row or "answer" not in row:
                raise Failure(f"a row has {', '.join(row)}: expected question and answer, or --base FOLDER")
            file.write(json.dumps({"text": row["question"] + "\n" + row["answer"]}) + "\n")


def tokens_of(path):
    """All tokens of a shard, or of a folder of shards and folders."""
    found = array.array("H")
    if os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            found += tokens_of(os.path.join(path, name))
    elif path.endswith(".bin"):
        with open(path, "rb") as file:
            found.frombytes(file.read()[SHARD_HEADER:])
    return found
