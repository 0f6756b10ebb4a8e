"""rates.py: held-out losses over learning rates, the best of them, and tables.

Pure functions over results: a result is a dict with val_loss, None for a run that diverged.
"""
import math


def loss_of(result):
    """Held-out loss at the end; infinite for a run that diverged."""
    loss = result.get("val_loss")
    return loss if loss is not None and math.isfinite(loss) else math.inf


def loss_text(result):
    return f"{loss_of(result):.4f}".replace("inf", "diverged")


def best_rate(results):
    """The rate of lowest loss among rate -> result, and whether it is at an edge of them; None: all diverged."""
    losses = {rate: loss_of(result) for rate, result in results.items()}
    best = min(losses, key=losses.get)
    if math.isinf(losses[best]):
        return None, False
    return best, best in (min(losses), max(losses))


def rate_text(arm):
    return f"{arm['rate']:g}" + (" (edge)" if arm["is_edge"] else "")


def print_table(title, heads, rows):
    widths = [max(len(str(row[i])) for row in [heads, *rows]) for i in range(len(heads))]
    print(f"\n{title}")
    for row in [heads, *rows]:
        cells = [str(cell).ljust(width) for cell, width in zip(row, widths)]
        print("  " + "  ".join(cells).rstrip())
