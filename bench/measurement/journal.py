"""journal.py: a measurement's results on disk, a line for each run that has ended.

A run is known by its key, a hash of all that makes it what it is but the program's own build. A line is appended
whole when a run ends, so a measurement that breaks off loses the runs in progress alone.
"""
import hashlib
import json
import os


class Failure(Exception):
    """A run or program that failed; the text gives the reason."""


def last_lines(path, count=6):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-count:]).strip()


def key_of(about):
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    def __init__(self, path):
        self.path, self.lines = path, {}
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            text = file.read()
        whole = text[:text.rfind("\n") + 1]
        if whole != text:  # the program was stopped while it wrote this line
            os.truncate(path, len(whole.encode()))
        for line in whole.splitlines():
            entry = json.loads(line)
            self.lines[entry["key"]] = entry

    def add(self, key, about, result):
        entry = {"key": key, **about, **result}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines[key] = entry
        return entry
