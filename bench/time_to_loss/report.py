"""report.py: the tables on standard output, results.json and the pictures.

An arm is a dict as Measurement.arm makes it: arm, label, rate and is_edge, grid (rate -> result), runs (seed ->
result) and lengths (seed -> results with shares of the steps). The first arm that did not diverge is the baseline.
"""
import json
import os
import statistics

import figures
import picture
from journal import Failure
from rates import loss_of, loss_text, print_table, rate_text


def is_whole(arm):
    return arm["rate"] is not None and not any(run["diverged"] for run in arm["runs"].values())


def finite_lengths(arm):
    """Per seed: the whole run and the shorter ones that did not diverge."""
    return {seed: [arm["runs"][seed], *(run for run in arm["lengths"][seed] if not run["diverged"])]
            for seed in arm["runs"]}


def print_grid(o, arms):
    rows = [[arm["arm"], arm["label"], *map(loss_text, arm["grid"].values())] for arm in arms]
    print_table(f"Held-out loss by learning rate: seed {o.seeds[0]}, {o.grid_steps} steps, "
                f"{len(o.grid)} trials in every arm", ["", "arm", *(f"{lr:g}" for lr in o.grid)], rows)
    for arm in arms:
        if arm["rate"] is None:
            print(f"  {arm['arm']} diverged with every rate and is left out")
        elif arm["is_edge"] and len(o.grid) > 1:
            print(f"  {arm['arm']} is best at an edge of the grid, {arm['rate']:g}: it may do better beyond it")
        elif arm["is_edge"]:
            print(f"  {arm['arm']} has one rate alone: it may do better at another")


def print_ends(o, base, arms):
    rows = []
    for arm in arms:
        done = list(arm["runs"].values())
        losses = [loss_of(run) for run in done]
        shares = [("", run["train_s"] / base["runs"][seed]["train_s"]) for seed, run in arm["runs"].items()]
        seconds, speed, steps = (statistics.median(run[key] for run in done)
                                 for key in ("train_s", "tokens_per_second", "steps"))
        rows.append([arm["arm"], arm["label"], rate_text(arm), " ".join(f"{loss:.4f}" for loss in losses),
                     f"{statistics.median(losses):.4f}", f"{seconds:.1f}", figures.spread(shares, ".3f"),
                     f"{speed:,.0f}", f"{steps:.0f}"])
    print_table(f"At the best rate, seeds {', '.join(map(str, o.seeds))}",
                ["", "arm", "rate", "held-out loss of each seed", "median", "seconds",
                 f"share of {base['arm']}'s", "tokens/s", "steps"], rows)


def print_curve(base, arms):
    rows = []
    for arm in arms:
        columns, missed = ([], [], [], []), 0
        for seed, run in arm["runs"].items():
            goal = base["runs"][seed]
            found = figures.reach_on_curve(run["held_out"], goal["val_loss"])
            missed += found is None
            if found:
                mark, spent, seconds = found
                for column, value in zip(columns, (seconds, seconds / goal["train_s"], spent, spent / goal["spent"])):
                    column.append((mark, value))
        texts = [figures.spread(column, form) for column, form in zip(columns, (".1f", ".3f", ".0f", ".3f"))]
        remark = f"not on {missed} of {len(arm['runs'])} seeds" if missed else ""
        rows.append([arm["arm"], arm["label"], *texts, remark])
    print_table(f"Until ({base['arm']})'s final held-out loss of the same seed, on the curve; median (range)",
                ["", "arm", "seconds", f"share of {base['arm']}'s", "steps", f"share of {base['arm']}'s", ""],
                rows)


def print_lengths(o, base, arms):
    """The compute factor; returns what is to be kept of it."""
    rows, kept, shares = [], {}, sorted({1, *o.fractions})
    for arm in arms:
        if arm is base or not any(arm["lengths"].values()):
            continue
        compute, seconds = figures.factors(base["runs"], finite_lengths(arm))
        by_length = {share: statistics.median(loss_of(arm["lengths"][seed][i]) for seed in arm["runs"])
                     for i, share in enumerate(o.fractions)}
        by_length[1] = statistics.median(loss_of(run) for run in arm["runs"].values())
        rows.append([arm["arm"], arm["label"], *(f"{by_length[share]:.4f}" for share in shares),
                     figures.spread(compute, ".3f"), figures.spread(seconds, ".3f")])
        kept[arm["arm"]] = {"compute_factors": compute, "time_factors": seconds}
    if rows:
        goal = statistics.median(run["val_loss"] for run in base["runs"].values())
        print_table(f"Whole schedules: median held-out loss by share of ({base['arm']})'s {o.steps} steps; "
                    f"({base['arm']}) ends at {goal:.4f}",
                    ["", "arm", *(f"{share:g}" for share in shares), "compute factor f", "time factor"], rows)
        print(f"  f: with STEPS / f steps, its schedule ending there, the arm ends at ({base['arm']})'s loss of "
              "the same seed; median (range)")
    marks = {mark for factors in kept.values() for mark, _ in factors["compute_factors"]}
    if "<" in marks:
        print("  <: not reached on some seed with the longest run; a share above 1 in --fractions says more")
    if ">" in marks:
        print("  >: reached on some seed by the shortest run already; a smaller share says more")
    return kept


def draw(o, base, arms):
    drawn = [{**arm, "runs": list(arm["runs"].values()),
              "shorter": [run for each in arm["lengths"].values() for run in each if not run["diverged"]]}
             for arm in [base, *(arm for arm in arms if arm is not base)]]
    seeds = f"{len(o.seeds)} seed{'s' * (len(o.seeds) > 1)}"
    title = f"{o.model}, {o.steps} steps: each arm at its best rate, mean of {seeds}"
    picture.write(os.path.join(o.out, "seconds.svg"), title, drawn, 2, "seconds of training")
    picture.write(os.path.join(o.out, "steps.svg"), title, drawn, 1, "compute, in full steps")


def report(o, arms, about):
    """Prints all tables and writes results.json and the pictures into o.out. about: what results.json begins with."""
    whole = [arm for arm in arms if is_whole(arm)]
    print_grid(o, arms)
    for arm in arms:
        if arm["rate"] is not None and not is_whole(arm):
            print(f"  {arm['arm']} diverged on a seed at its best rate and is left out")
    if not whole:
        raise Failure("no arm is left that did not diverge")
    base = whole[0]
    if base["arm"] != "a":
        print(f"note: ({base['arm']}) is what the others are compared with: (a) was not run, or diverged")
    devices = {run["device"] for arm in whole if arm["arm"] in "cd" for run in arm["runs"].values()}
    if len(devices) > 1:
        print(f"note: runs of several machines: {', '.join(sorted(devices))}; seconds do not compare")
    print_ends(o, base, whole)
    print_curve(base, whole)
    kept = print_lengths(o, base, whole)
    draw(o, base, whole)
    results = {**about, "base": base["arm"], "steps": o.steps, "grid": o.grid, "grid_steps": o.grid_steps,
               "seeds": o.seeds, "fractions": o.fractions, "factors": kept, "arms": arms}
    with open(os.path.join(o.out, "results.json"), "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    print(f"\n{o.out}: results.json, seconds.svg, steps.svg; runs in {o.resume}")
