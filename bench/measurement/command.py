"""command.py: what the Python measurements share: values of options, checks of input files, exit codes.

A measurement that lacks a card or its data says so and ends well; one without its program is wrong usage (2). A run
that broke is code 1, a stop 75: the journal has the finished runs, and the same command continues.
"""
import argparse
import ctypes
import os
import signal
import sys
import time

from journal import Failure

NAME = os.path.splitext(os.path.basename(sys.argv[0]))[0]


# ---- values of options -----------------------------------------------------------------------------

def numbers(kind):
    """Different positive numbers, separated by commas; "none": no numbers."""
    def parse(text):
        try:
            values = [kind(word) for word in text.split(",")] if text != "none" else []
        except ValueError:
            values = [0]
        if any(value <= 0 for value in values) or len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f'"{text}": expected different positive numbers, separated by commas')
        return values
    return parse


def some_numbers(kind):
    def parse(text):
        values = numbers(kind)(text)
        if not values:
            raise argparse.ArgumentTypeError(f'"{text}": expected at least one number')
        return values
    return parse


def pair(text):
    if "=" not in text[1:]:
        raise argparse.ArgumentTypeError(f'"{text}": expected KEY=VALUE')
    return text


# ---- input files -----------------------------------------------------------------------------------

def skip(reason, advice):
    print(f"{NAME}: skipped, {reason}\n  {advice}")
    sys.exit(0)


def find_program(path, target):
    if not os.access(path, os.X_OK):
        print(f"{NAME}: there is no {path}; `make {target}` builds it", file=sys.stderr)
        sys.exit(2)


def find_card(device, advice):
    if device == "cpu":
        return
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        skip("no NVIDIA driver found", advice)


def find_shards(folders, advice):
    """Training and held-out shards in the first folder of HYBRID_TOKENS that has both."""
    root = os.environ.get("HYBRID_TOKENS", "")
    for folder in folders:
        for end in (".bin", ""):
            paths = [os.path.join(root, folder, name + end) for name in ("train", "val")]
            if root and all(map(os.path.exists, paths)):
                return paths
    places = " or ".join("HYBRID_TOKENS" + (f"/{name}" if name else "") for name in folders)
    return skip(f'there are no train.bin and val.bin in {places} (HYBRID_TOKENS is "{root}")',
                f"bench/peers/make_shards.py makes them (see its first lines); or {advice}")


# ---- from beginning to end -------------------------------------------------------------------------

def begin(o):
    """Folders of the results, and the heading."""
    for folder in (o.out, os.path.dirname(os.path.abspath(o.resume))):
        os.makedirs(folder, exist_ok=True)
    print(f"$ bench/{NAME}.py " + " ".join(sys.argv[1:]) + "\n" + time.strftime("%Y-%m-%d", time.gmtime()))


def stop(*_):
    raise KeyboardInterrupt


def run(measure, o):
    """measure(o), and how it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    sys.stdout.reconfigure(line_buffering=True)  # in order with progress, which goes to standard error
    try:
        measure(o)
    except Failure as failure:
        print(f"{NAME}: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"\nstopped; finished runs are in {o.resume}, the same command continues", file=sys.stderr)
        sys.exit(75)
