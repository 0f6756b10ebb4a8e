"""A plan as a dict that prints as a table."""

from __future__ import annotations

from typing import Any


def bytes_text(count: int) -> str:
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    value = count / 1024**power
    digits = 0 if power == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


class Plan(dict[str, Any]):
    """The keys of plan.json. `print(plan)` shows the table of --plan: bytes and places of each phase, and why."""

    def __str__(self) -> str:
        rows = [("phase", "class", "place", "type", "planned")]
        for names, phase in self._phases():
            label = ", ".join(names)
            for name, one in phase["classes"].items():
                if one["bytes"]:
                    rows.append((label, name, one["place"], one["dtype"], bytes_text(one["bytes"])))
                    label = ""
            rows.append((label, "total", "device", "", bytes_text(phase["vram_bytes"])))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join((*map(str.ljust, row[:4], widths), row[4].rjust(widths[4]))) for row in rows]
        lines += [f"why: {reason}" for reason in self["reasons"]]
        lines += [f"it would fit with: {change}" for change in self["changes"]]
        return "\n".join([*lines, "it fits" if self["fits"] else f"it does not fit: {self['problem']}"])

    def _phases(self) -> list[tuple[list[str], dict[str, Any]]]:
        """Phases with the same memory together. Without a predictor, a run does not reach two of them."""
        out: list[tuple[list[str], dict[str, Any]]] = []
        for name, phase in self["phases"].items():
            if name in ("predict", "correct") and "predictor" not in phase["classes"]:
                continue
            if out and out[-1][1] == phase:
                out[-1][0].append(name)
            else:
                out.append(([name], phase))
        return out
