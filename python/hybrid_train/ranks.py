"""Several processes that train one model: which of them this one is."""

from __future__ import annotations

from typing import Any

from . import _abi
from ._library import check, lib, sized
from .results import RankInfo, RanksInfo

__all__ = ["find_rank"]


def find_rank() -> RankInfo:
    """Which rank this process is, by the variables of its launcher (torchrun, mpirun, srun): 0 of 1 without any.

    Variables that are partial or contradict each other are an InputError that names them.
    """
    c = _abi.hy_rank_info()
    check(lib.hy_find_rank_sized(*sized(c)))
    return RankInfo._of(c)


def ranks_of(trainer: Any) -> RanksInfo | None:
    """None: the run is alone."""
    c = _abi.hy_ranks_info()
    return RanksInfo._of(c) if lib.hy_trainer_ranks_sized(trainer, *sized(c)) else None
