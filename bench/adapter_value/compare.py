"""compare.py: compares the held-out losses of adapters with those of full fine-tuning, and prints tables.

Pure functions over arms as adapter_value.py has them: a dict with name, label, grid (epochs -> rate -> result or
None), rate, epochs and is_edge, runs (seed -> result or None). None is a run that was not made.
"""
import math
import statistics

from rates import loss_of, loss_text, print_table, rate_text

NEAR = 1.02  # ratio to the loss of full fine-tuning that counts as equal


def choose(arm):
    """Puts the best rate and epochs, and whether either lies at an edge of its grid, into the arm; None: there is
    none. A grid of one has no edges in epochs: they were given, not looked for."""
    grid = arm["grid"]
    made = {(rate, epochs): result for epochs, row in grid.items() for rate, result in row.items() if result}
    best = min(made, key=lambda at: loss_of(made[at])) if made else None
    if best is None or math.isinf(loss_of(made[best])):
        best = None, None
    arm["rate"], arm["epochs"] = best
    rates, lengths = next(iter(grid.values())), len(grid) > 1 and (min(grid), max(grid))
    arm["is_edge"] = arm["rate"] in (min(rates), max(rates)) or bool(lengths) and arm["epochs"] in lengths
    arm["is_grid_whole"] = len(made) == len(rates) * len(grid)


def best_grid(arm):
    """Rate -> result at the best number of epochs."""
    return arm["grid"].get(arm["epochs"], {})


def best_of(arms):
    """The arm with the lowest mean loss; None: there is none."""
    known = [arm for arm in arms if losses(arm)]
    return min(known, key=lambda arm: statistics.mean(losses(arm).values())) if known else None


def vertex(grid, rate):
    """Where a parabola over log(rate) through a rate and its neighbours is lowest; None at an edge or beside a run
    that is missing or diverged."""
    rates = sorted(grid)
    at = rates.index(rate)
    near = rates[max(0, at - 1):at + 2]
    if len(near) < 3 or any(not grid[r] or math.isinf(loss_of(grid[r])) for r in near):
        return None
    (x0, x1, x2), (y0, y1, y2) = [math.log(r) for r in near], [loss_of(grid[r]) for r in near]
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    if right <= left:
        return None
    slope = (right - left) / (x2 - x0)  # left is the slope in the middle of x0 and x1
    return math.exp((x0 + x1) / 2 - left / (2 * slope))


def losses(arm):
    """Seed -> loss, of the seeds that were run."""
    return {seed: loss_of(result) for seed, result in arm["runs"].items() if result}


def ratio(base, arm):
    """Mean loss over mean loss of the base, over the seeds that both have; None: they have none."""
    of_base, of_arm = losses(base), losses(arm)
    shared = [seed for seed in of_arm if seed in of_base]
    if not shared:
        return None
    return statistics.mean(of_arm[s] for s in shared) / statistics.mean(of_base[s] for s in shared)


def print_grids(arms, seed):
    rows, count = [], len(next(iter(arms[0]["grid"].values())))
    for arm in arms:
        for epochs, grid in sorted(arm["grid"].items()):
            cells = [f"{rate:g}: {loss_text(grid[rate]) if grid[rate] else 'not run'}" for rate in sorted(grid)]
            rows.append([arm["name"], f"{epochs:g}", *cells])
    print_table(f"Held-out loss by learning rate, seed {seed}, {count} rate{'s' * (count > 1)} in every arm",
                ["arm", "epochs", "rate: loss", *[""] * (count - 1)], rows)
    for arm in arms:
        if arm["rate"] is None:
            print(f"  {arm['name']} diverged at every rate and is omitted")
        elif not arm["is_grid_whole"]:
            print(f"  {arm['name']}: some rates were not run, so another may be better")
        elif arm["is_edge"]:
            print(f"  {arm['name']} is best at an edge of its grid, {arm['rate']:g} and {arm['epochs']:g} epochs: "
                  "values beyond the grid may be better")


def print_losses(base, arms, seeds, jobs):
    rows = []
    for arm in arms:
        found = losses(arm)
        made = [result for result in arm["runs"].values() if result and not result["diverged"]]
        share = ratio(base, arm) if base else None
        seconds = f"{statistics.median(r['train_s'] for r in made):.1f}" if made else "-"
        rows.append([arm["name"], arm["label"], rate_text(arm), f"{arm['epochs']:g}",
                     " ".join(f"{found[s]:.4f}" if s in found else "-" for s in seeds),
                     f"{statistics.mean(found.values()):.4f}" if found else "-",
                     f"{share:.4f}" if share else "-",
                     f"{made[0]['trained']:,}" if made else "-", f"{made[0]['steps']}" if made else "-", seconds])
    together = f", {jobs} runs at a time" if jobs > 1 else ""
    print_table(f"At the best rate and epochs, seeds {', '.join(map(str, seeds))}",
                ["arm", "", "rate", "epochs", "held-out loss of each seed", "mean", "ratio to full",
                 "trained parameters", "steps", f"seconds{together}"], rows)


def print_rates(base, arms):
    """Compares the best rates with the rule that adapters need ten times the rate of full fine-tuning."""
    middle, rows = vertex(best_grid(base), base["rate"]), []
    for arm in arms:
        if arm is base:
            continue
        found = vertex(best_grid(arm), arm["rate"])
        between = f"{found / middle:.1f}" if found and middle else "-"
        remark = "an edge: a bound at most" if arm["is_edge"] or base["is_edge"] else ""
        rows.append([arm["name"], f"{arm['rate'] / base['rate']:.1f}", between, remark])
    if rows:
        print_table(f"Best rate over that of {base['label']} ({rate_text(base)}; between rates "
                    f"{f'{middle:.2g}' if middle else 'unknown'})",
                    ["arm", "by the grid", "by a parabola through its best three", ""], rows)


def print_verdicts(base, arms, seeds):
    print()
    for arm in arms:
        share = None if arm is base else ratio(base, arm)
        if share is None:
            continue
        count = len([s for s in losses(arm) if s in losses(base)])
        doubt = ", at an edge" if arm["is_edge"] or base["is_edge"] else ""
        doubt += f", {count} of {len(seeds)} seeds" if count < len(seeds) else ""
        word = "within" if share <= NEAR else "NOT within"
        print(f"{arm['name']}: its held-out loss is {100 * (share - 1):+.2f} % against {base['label']}, "
              f"{word} {100 * (NEAR - 1):.0f} %{doubt}")
