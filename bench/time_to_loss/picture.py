"""picture.py: held-out loss over seconds or over steps as SVG, a line per arm; looks like predict_value's.

Lines are means over seeds at each arm's best rate, dots at their ends the single seeds. Open dots are the ends of
runs of other lengths, whose whole schedule ends there. The loss axis begins where a quarter of the baseline is done:
before that all arms are so far above that nothing else could be seen.
"""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 74, 230, 48, 60
# Apart from each other also for people who do not tell red from green.
COLOURS = ["#111111", "#0072b2", "#e69f00", "#cc79a7"]


def tick_step(span, wanted):
    """1, 2 or 5 times a power of ten, so that about `wanted` of them make up the span."""
    power = 10 ** math.floor(math.log10(span / wanted))
    share = span / wanted / power
    return power * (1 if share < 1.5 else 2 if share < 3.5 else 5 if share < 7.5 else 10)


def text(x, y, anchor, words, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


def mean_line(runs, column):
    """Means over seeds, point by point: (x, loss)."""
    count = min(len(run["held_out"]) for run in runs)
    return [tuple(sum(run["held_out"][i][at] for run in runs) / len(runs) for at in (column, 3))
            for i in range(count)]


class Frame:
    def __init__(self, arms, column):
        points = [(p[column], p[3]) for arm in arms for run in arm["runs"] for p in run["held_out"]]
        ends = [run["held_out"][-1][column] for arm in arms for run in arm["shorter"]]
        self.right = max([x for x, _ in points] + ends)
        begin = 0.25 * max(p[column] for p in arms[0]["runs"][0]["held_out"])
        losses = [loss for x, loss in points if x >= begin]
        low, high = min(losses), max(losses)
        margin = 0.05 * (high - low) or 0.5
        self.low, self.high = low - margin, high + margin

    def x(self, value):
        return LEFT + value / self.right * (WIDTH - LEFT - RIGHT)

    def y(self, loss):
        return HEIGHT - BOTTOM - (loss - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def axes(self, name):
        out, step = [], tick_step(self.high - self.low, 6)
        for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            y = self.y(i * step)
            out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
            out.append(text(LEFT - 8, y + 4, "end", f"{i * step:.{3 if step < 0.01 else 2}f}"))
        step, bottom = tick_step(self.right, 5), HEIGHT - BOTTOM
        for i in range(math.floor(self.right / step * 1.0001) + 1):
            x = self.x(i * step)
            out.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#555555"/>')
            out.append(text(x, bottom + 20, "middle", f"{i * step:g}"))
        out.append(f'<path d="M{LEFT} {TOP} V{bottom} H{WIDTH - RIGHT}" fill="none" stroke="#555555"/>')
        out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "middle", name))
        out.append(f'<text transform="translate(20 {(TOP + bottom) // 2}) rotate(-90)" '
                   'text-anchor="middle">held-out loss, nats per token</text>')
        return out


def draw_arm(frame, arm, column, colour):
    line = " ".join(f"{frame.x(x):.1f},{frame.y(loss):.1f}" for x, loss in mean_line(arm["runs"], column))
    out = [f'<polyline clip-path="url(#plot)" fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>']
    for runs, style in ((arm["runs"], f'fill="{colour}"'), (arm["shorter"], f'fill="none" stroke="{colour}"')):
        for run in runs:
            end = run["held_out"][-1]
            out.append(f'<circle clip-path="url(#plot)" cx="{frame.x(end[column]):.1f}" '
                       f'cy="{frame.y(end[3]):.1f}" r="3" {style}/>')
    return out


def draw_legend(arm, colour, number):
    x, y = WIDTH - RIGHT + 16, TOP + 12 + 36 * number
    mean = sum(run["val_loss"] for run in arm["runs"]) / len(arm["runs"])
    return [f'<line x1="{x}" y1="{y - 4}" x2="{x + 20}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>',
            text(x + 26, y, "start", arm["label"]),
            text(x + 26, y + 15, "start", f"lr {arm['rate']:g}: {mean:.4f}")]


def write(path, title, arms, column, name):
    """arms: dicts with label, rate, runs (a result per seed) and shorter; the first is the baseline. column: of
    held_out; name: of its axis."""
    frame = Frame(arms, column)
    target = frame.y(sum(run["val_loss"] for run in arms[0]["runs"]) / len(arms[0]["runs"]))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
           f'height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#222222">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
           f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>',
           text(LEFT, 26, "start", title, ' font-size="15"'), *frame.axes(name),
           f'<line x1="{LEFT}" y1="{target:.1f}" x2="{WIDTH - RIGHT}" y2="{target:.1f}" stroke="#777777" '
           'stroke-dasharray="5 4"/>']
    for number in reversed(range(len(arms))):  # the baseline on top
        out += draw_arm(frame, arms[number], column, COLOURS[number])
    for number, arm in enumerate(arms):
        out += draw_legend(arm, COLOURS[number], number)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")
