"""event_files.py RUN: TensorBoard's own readers against metrics.jsonl of a run.

Both readers that TensorBoard has are asked: the one for scripts, and the one behind its pages. Every
number of every step must be there, as the nearest fp32, at its step, and nothing else."""

import json
import os
import struct
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.util import tensor_util

PHASES = ["warmup", "full", "predict", "correct"]
OF_STEPS = {"loss/train": "loss", "lr": "lr", "grad_norm": "grad_norm",
            "tokens_per_second": "tokens_per_second", "batch_size": "batch_size", "mfu": "mfu",
            "gpu/power_watts": "gpu_power_watts", "gpu/temperature_c": "gpu_temperature_c",
            "gpu/sm_clock_mhz": "gpu_sm_clock_mhz", "gpu/utilization": "gpu_utilization"}
OF_MOVES = {"loss/predict": "loss", "predicted_steps": "predicted_steps"}
OF_BOTH = {"loss/validation": "val_loss", "confidence": "confidence",
           "wait_seconds": "wait_seconds", "memory/vram": "vram_bytes",
           "memory/planned": "vram_planned_bytes", "memory/reserved": "vram_reserved_bytes",
           "memory/pinned": "host_pinned_bytes", "memory/host_resident": "host_resident_bytes"}


def nearest_fp32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def expected_scalars(run):
    """tag -> [(step, value), ...] in the order of the lines."""
    scalars, classes = {}, set()
    with open(os.path.join(run, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    steps = [line for line in lines if "event" not in line]
    for line in steps:
        classes.update(line["memory"])
    for line in steps:
        is_move = line["phase"] == "predict"
        of_line = {tag: line.get(key)
                   for tag, key in {**OF_BOTH, **(OF_MOVES if is_move else OF_STEPS)}.items()}
        of_line["phase"] = PHASES.index(line["phase"])
        for name in classes:  # a class that is gone for a while is drawn as 0
            of_line["memory/" + name] = line["memory"].get(name, 0)
        for tag, value in of_line.items():
            if value is not None:
                scalars.setdefault(tag, []).append((line["step"], nearest_fp32(value)))
    assert any(line["phase"] == "predict" for line in steps), "the run has no moves"
    return scalars


def from_scripts_reader(folder):
    reader = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)]
            for tag in reader.Tags()["scalars"]}


def from_pages_reader(folder):
    reader = plugin_event_accumulator.EventAccumulator(folder, size_guidance={"tensors": 0})
    reader.Reload()
    texts = reader.PluginTagToContent("text")
    config = b"".join(tensor_util.make_ndarray(e.tensor_proto).item()
                      for e in reader.Tensors("config"))
    assert set(texts) == {"command", "config"}, texts
    assert b"batch_size" in config, config
    return {tag: [(e.step, tensor_util.make_ndarray(e.tensor_proto).item())
                  for e in reader.Tensors(tag)]
            for tag in reader.PluginTagToContent("scalars")}


def zero_free(scalars):
    """A class whose every value is 0 may be left out."""
    return {tag: points for tag, points in scalars.items()
            if not tag.startswith("memory/") or any(value for _, value in points)}


def compare(name, got, expected):
    assert set(got) == set(expected), (name, set(got) ^ set(expected))
    for tag, points in expected.items():
        seen = set(got[tag])
        assert len(got[tag]) == len(points), (name, tag, len(got[tag]), len(points))
        for point in points:
            assert point in seen, (name, tag, point)
    return sum(len(points) for points in expected.values())


def main(run):
    folder = os.path.join(run, "tensorboard")
    expected = zero_free(expected_scalars(run))
    for name, read in (("scripts", from_scripts_reader), ("pages", from_pages_reader)):
        count = compare(name, zero_free(read(folder)), expected)
        print(f"{run}: {name}: {len(expected)} tags, {count} values are the same")


main(sys.argv[1])
