"""figures.py: what held-out losses of several runs say: where a loss is reached, compute factors, the tables.

Pure functions over results as runs.py has them: a result is a dict with val_loss, train_s, spent,
tokens_per_second and held_out, a list of [step, compute in full steps, seconds, loss]. A mark "<" or ">" stands
before a number that is only known to lie below or above.
"""
import statistics

SAME = 5e-5  # nats: what prints as the same loss counts as reached


def between(before, after, target):
    """The point between two (..., loss) at which the loss is `target`, without the loss."""
    share = (before[-1] - target) / (before[-1] - after[-1])
    return [x + share * (y - x) for x, y in zip(before[:-1], after[:-1])]


def reach_on_curve(held_out, target):
    """(mark, compute, seconds) of the first time a run's curve is at `target`; None: never."""
    points, target = [point[1:] for point in held_out], target + SAME
    for i, point in enumerate(points):
        if point[-1] <= target:
            return ("<", *point[:-1]) if i == 0 else ("", *between(points[i - 1], point, target))
    return None


def made_falling(losses):
    """Losses over lengths with neighbours that rise averaged, as predict_value has AdamW's over budgets."""
    blocks = []
    for loss in losses:
        blocks.append([loss, 1])
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            (last, size), (before, others) = blocks.pop(), blocks.pop()
            blocks.append([(last * size + before * others) / (size + others), size + others])
    return [loss for loss, size in blocks for _ in range(size)]


def reach_by_length(runs, target):
    """(mark, compute, seconds) of the run, whole schedule included, that ends at `target`.

    Interpolated over runs of several lengths. ">" when even the longest ends above, "<" when even the shortest
    ends below.
    """
    ends, target = sorted([run["spent"], run["train_s"], run["val_loss"]] for run in runs), target + SAME
    falling = made_falling([end[-1] for end in ends])
    ends = [[*end[:-1], loss] for end, loss in zip(ends, falling)]
    for i, end in enumerate(ends):
        if end[-1] <= target:
            return ("<", *end[:-1]) if i == 0 else ("", *between(ends[i - 1], end, target))
    return (">", *ends[-1][:-1])


def spread(values, form):
    """Median and range of (mark, value), as text: "1.52 (1.48 to 1.55)". A mark that any of them has is shown."""
    if not values:
        return "-"
    marks = {mark for mark, _ in values if mark}
    numbers = [value for _, value in values]
    mark = "" if not marks else marks.pop() if len(marks) == 1 else "?"
    text = mark + format(statistics.median(numbers), form)
    if len(numbers) > 1:
        text += f" ({min(numbers):{form}} to {max(numbers):{form}})"
    return text


TURNED = {"<": ">", ">": "<", "": ""}


def factors(base, runs_of_seed):
    """Per seed: how much of the base's compute, and of its time, an arm saves to end at the base's loss.

    base: seed -> result. runs_of_seed: seed -> results of several lengths. Returns two lists of (mark, factor).
    """
    compute, time = [], []
    for seed, runs in runs_of_seed.items():
        mark, spent, seconds = reach_by_length(runs, base[seed]["val_loss"])
        compute.append((TURNED[mark], base[seed]["spent"] / spent))
        time.append((TURNED[mark], base[seed]["train_s"] / seconds))
    return compute, time
