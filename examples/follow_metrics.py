#!/usr/bin/env python3
"""follow_metrics.py: sends the metrics of a run to Weights & Biases or MLflow while it trains.

    python3 examples/follow_metrics.py runs/mine --wandb PROJECT
    python3 examples/follow_metrics.py runs/mine --mlflow EXPERIMENT
    python3 examples/follow_metrics.py runs/mine            # only prints, to try it out

It reads OUT/metrics.jsonl and does not disturb the run. It ends when the run has ended, which
summary.json shows, or with --once at the end of the file. wandb or mlflow must be installed; nothing
else is needed. A run that is resumed drops the lines after its checkpoint: the file gets shorter or
another inode, and is read from its start again, steps that were sent before excepted.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def follow(path: Path, is_over: Callable[[], bool], pause: float) -> Iterator[dict]:
    """The lines of the file as objects, until is_over() is true and all lines were read."""
    file, inode, rest = None, -1, ""
    while True:
        last = is_over()
        if path.exists():
            now = os.stat(path)
            if file is None or now.st_ino != inode or now.st_size < file.tell():
                file, inode, rest = open(path, encoding="utf-8"), now.st_ino, ""
            rest += file.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                yield json.loads(line)
        if last:
            return
        time.sleep(pause)


def numbers(line: dict) -> dict[str, float]:
    """The values of a step that can be drawn; NaN and infinity are written as null."""
    return {key: value for key, value in line.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "step"}


def sender(arguments: argparse.Namespace) -> Callable[[dict[str, float], int], None]:
    if arguments.wandb:
        import wandb
        run = wandb.init(project=arguments.wandb, name=arguments.run.name)
        return lambda values, step: run.log(values, step=step)
    if arguments.mlflow:
        import mlflow
        mlflow.set_experiment(arguments.mlflow)
        mlflow.start_run(run_name=arguments.run.name)
        return lambda values, step: mlflow.log_metrics(values, step=step)
    return lambda values, step: print(step, values)


def main() -> None:
    parser = argparse.ArgumentParser(description="Follows metrics.jsonl of a run.")
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--mlflow", metavar="EXPERIMENT")
    parser.add_argument("--once", action="store_true", help="end at the end of the file")
    parser.add_argument("--pause", type=float, default=2, help="seconds between two looks")
    arguments = parser.parse_args()
    began = time.time()
    summary = arguments.run / "summary.json"

    def is_over() -> bool:
        if arguments.once:
            return True
        metrics = arguments.run / "metrics.jsonl"
        if not summary.exists() or not metrics.exists():
            return False
        return summary.stat().st_mtime >= metrics.stat().st_mtime and time.time() > began + 1

    send, newest = sender(arguments), -1
    for line in follow(arguments.run / "metrics.jsonl", is_over, arguments.pause):
        if "event" in line or line["step"] <= newest:
            continue  # a start, a change of the batch; or a step that was repeated after a resume
        newest = line["step"]
        send(numbers(line), newest)


if __name__ == "__main__":
    main()
