"""torch_profile.py: where the time of a step on a card goes, with torch.profiler; see torch_blocks.py --profile."""

import json
import tempfile
import time

import torch


def _union(spans):
    """Microseconds covered by spans (begin, end, name), and the gaps between them with the spans on either side."""
    busy, end, last, gaps = 0.0, None, "", []
    for a, b, name in sorted(spans):
        if end is not None and a > end:
            gaps.append((a - end, last, name))
        if end is None or b > end:
            busy += b - (a if end is None else max(a, end))
            end, last = b, name
    return busy, gaps


def _print_sums(title, sums, count):
    print(title)
    for name, (microseconds, calls, size) in sorted(sums.items(), key=lambda one: -one[1][0])[:count]:
        rate = f"{size / microseconds / 1e3:7.1f} GB/s" if size else " " * 12
        print(f"  {microseconds / 1e3:9.2f} ms {calls:6} {rate}  {name[:100]}")


def profile(step):
    """Runs one step and prints: its time, how long the card was busy, the longest gaps, kernels and copies by time."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as run:
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run.export_chrome_trace(file.name)
        with open(file.name) as text:
            events = json.load(text)["traceEvents"]
    spans, on_card, on_host = [], {}, {}
    for event in events:
        kind, duration = event.get("cat"), event.get("dur", 0)
        if kind not in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"):
            continue
        is_card = kind in ("kernel", "gpu_memcpy", "gpu_memset")
        is_copy = kind == "gpu_memcpy"
        name = f"{event['name']}, stream {event['args'].get('stream')}" if is_copy else event["name"]
        sums = (on_card if is_card else on_host).setdefault(name, [0.0, 0, 0])
        sums[0] += duration
        sums[1] += 1
        sums[2] += event["args"].get("bytes", 0) if is_copy else 0
        if kind == "kernel":
            spans.append((event["ts"], event["ts"] + duration, event["name"]))
    busy, gaps = _union(spans)
    print(f"profile: step {wall * 1e3:.1f} ms, kernels run in {busy / 1e3:.1f} ms of it")
    for gap, before, after in sorted(gaps, reverse=True)[:8]:
        print(f"  {gap / 1e3:9.2f} ms without kernels, between {before[:50]} and {after[:50]}")
    _print_sums("on the card:", on_card, 16)
    _print_sums("calls of CUDA:", on_host, 6)
