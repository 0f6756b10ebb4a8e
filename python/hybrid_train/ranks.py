"""Finds which of several processes that train one model this process is."""

from __future__ import annotations

from typing import Any

from . import _abi
from ._library import check, lib, sized
from .results import RankInfo, RanksInfo

__all__ = ["find_rank"]


def find_rank() -> RankInfo:
    """Finds the rank of this process from the variables of its launcher (torchrun, mpirun, srun); without any, 0 of 1.

    If variables are missing or contradict each other, it raises an InputError that names them.
    """
    c = _abi.hy_rank_info()
    check(lib.hy_find_rank_sized(*sized(c)))
    return RankInfo._of(c)


def ranks_of(trainer: Any) -> RanksInfo | None:
    """None: the run has one rank."""
    c = _abi.hy_ranks_info()
    return RanksInfo._of(c) if lib.hy_trainer_ranks_sized(trainer, *sized(c)) else None
