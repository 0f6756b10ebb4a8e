"""Reads the files of runs: curves and events; writes the report page."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._library import check, encoded, lib
from .errors import InputError
from .results import RunEvent, RunFacts, RunPoint

__all__ = ["Run", "read_run", "report"]


@dataclass(frozen=True)
class Run:
    """A run read from its folder, finished or still running.

    points: steps and jumps; a missing value is NaN, or -1 for counts
    events: all other lines: starts, recoveries, changes of the plan
    """

    facts: RunFacts
    points: tuple[RunPoint, ...]
    events: tuple[RunEvent, ...]

    def column(self, name: str) -> list[Any]:
        """One value of all points, for plotting: run.column("loss")."""
        if name not in RunPoint.__dataclass_fields__:
            raise InputError(f"a point has no {name!r}; it has {', '.join(RunPoint.__dataclass_fields__)}")
        return [getattr(point, name) for point in self.points]


class _Opened:
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.handle = ctypes.c_void_p()
        check(lib.hy_run_open(encoded(folder), ctypes.byref(self.handle)))

    def __enter__(self) -> ctypes.c_void_p:
        return self.handle

    def __exit__(self, *_: Any) -> None:
        lib.hy_run_close(self.handle)


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Reads a run's folder, or its metrics.jsonl, without disturbing the run."""
    with _Opened(folder) as run:
        return Run(
            facts=RunFacts._of(lib.hy_run_describe(run).contents),
            points=tuple(RunPoint._of(lib.hy_run_point_at(run, i).contents) for i in range(lib.hy_run_points(run))),
            events=tuple(RunEvent._of(lib.hy_run_event_at(run, i).contents) for i in range(lib.hy_run_events(run))),
        )


def report(
    run_folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
) -> None:
    """Writes one self-contained page about one run, or about several runs in the same charts."""
    folders = [run_folders] if isinstance(run_folders, (str, os.PathLike)) else list(run_folders)
    if not folders:
        raise InputError("a report needs at least one run's folder")
    opened: list[_Opened] = []
    try:
        for folder in folders:
            opened.append(_Opened(folder))
        handles = (ctypes.c_void_p * len(opened))(*(one.handle for one in opened))
        check(lib.hy_report_write(handles, len(opened), encoded(out)))
    finally:
        for one in opened:
            one.__exit__()
