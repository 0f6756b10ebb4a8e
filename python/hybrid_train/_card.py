"""Torch's part of the card for a module with blocks.

Torch's allocator and the library share a card. What the passes need is measured in the first step, in which the library
keeps as little on the card as it can; then the library plans with the rest. If a later step needs more, it plans again.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any, Callable, Protocol

import torch

from . import _abi, _library
from ._blocks import Unit
from ._library import lib
from ._plan import bytes_text
from ._units import Units
from .config import Config
from .errors import MemoryError_, StateError, error_of
from .trainer import facts_of, memory_of


_GRAPH_MARGIN = 16  # this part of the memory for graphs stays free


class Meter(Protocol):
    """What torch has of a device, in bytes."""

    def held(self) -> int: ...
    def restart(self) -> None: ...
    def peak(self) -> int: ...


class _CardMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def held(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def restart(self) -> None:
        """Forgets the peak."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)


def meter_for(device: torch.device) -> Meter | None:
    """None: the device has no memory of its own."""
    return _CardMeter(device) if device.type == "cuda" else None


class TorchsPart:
    def __init__(self, units: Units, config: Config, say: Callable[[str, str], object]) -> None:
        self._units, self._say = units, say
        self._meter = meter_for(units.device)
        place, recompute = config.get("activations_place"), config.get("recompute")
        self._handle: ctypes.c_void_p | None = None
        self._step = 0  # the last step that was looked at
        self._most = 0  # bytes that the library knows of
        self._spare = 0  # bytes that the plan leaves to neither the library nor torch
        self._has_failed = False  # the peak is that of a pass that ran out of memory
        # The leanest first step has its inputs in host memory; then they are on the card if a plan fits.
        self._is_auto = place == "auto" and self._meter is not None
        self._is_open = self._is_auto
        units.keep_inputs(place == "pinned" or self._is_open)
        # Graphs are kept in memory that is left when everything else has its own.
        self._keeps_graphs = recompute == "auto" and self._meter is not None
        units.graph_room = math.inf if recompute == "none" or (recompute == "auto" and self._meter is None) else -1

    def to_c(self, options: _abi.hy_loop_options) -> None:
        if self._meter is not None:
            options.caller_bytes, options.caller_held = -1, self._meter.held()

    def attach(self, handle: ctypes.c_void_p, step: int) -> None:
        self._handle, self._step = handle, step
        if self._meter is not None:
            self._meter.restart()

    def begin(self) -> None:
        """Before passes."""
        if self._has_failed and self._meter is not None:
            self._meter.restart()
        self._has_failed = False

    def look(self, step: int) -> None:
        """At the questions for gradients: after a step, plans again if torch needed more than the library knew."""
        if self._meter is None or step == self._step:
            return
        peak, before = self._meter.peak(), self._step
        self._step = step
        try:
            if self._is_open and self._units.inputs is not None:
                more = peak + self._units.inputs.most_bytes
                self._is_open = False
                if self._again(more):
                    self._units.keep_inputs(False)
                    self._most = more
                    return
            if peak > self._most and not self._has_fewer_graphs(peak - self._most - self._spare):
                self._plan(peak)
        except StateError:  # in a paired test
            self._step, self._is_open = before, self._is_auto and self._most == 0

    def _has_fewer_graphs(self, over: int) -> bool:
        """If torch needs so much more than the plan leaves: lets graphs go before weights, and measures again."""
        kept = self._units.kept_graph_bytes if self._keeps_graphs else 0
        if over <= 0 or kept == 0 or self._meter is None:
            return False
        self._units.graph_room = min(self._units.graph_room, kept) - over
        self._meter.restart()
        return True

    def _plan(self, peak: int) -> None:
        assert self._meter is not None
        self._most = peak
        if self._again(peak):
            return
        why = _library.message()
        may_need_less = self._units.graph_room > 0 or (self._is_auto and self._units.inputs is None)
        if self._units.graph_room > 0:  # without graphs first, then without inputs
            if not self._keeps_graphs:
                self._say("warning", f"{why}; the run continues without recompute=none: blocks are computed again")
            self._units.graph_room, self._keeps_graphs = -1, False
        elif may_need_less:
            self._units.keep_inputs(True)
        if may_need_less:
            self._meter.restart()
            self._most = 0
            return
        self._say("warning", f"{why}; the run continues with the plan that it has")

    def _again(self, caller_bytes: int) -> bool:
        """False: no plan fits."""
        held = self._meter.held() if self._meter is not None else 0
        status = lib.hy_loop_plan_again(self._handle, caller_bytes, held)
        if status == _abi.HY_ERR_MEMORY:
            return False
        if status != _abi.HY_OK:
            raise error_of(status, _library.message())
        self._units.forget_addresses()
        if self._keeps_graphs:
            self._units.graph_room = self._left() if caller_bytes >= 0 else -1
        return True

    def _left(self) -> int:
        """Bytes of the device for graphs: what neither the library nor torch needs, and those that torch has now."""
        run = lib.hy_loop_trainer(self._handle)
        self._spare = left = max(memory_of(run).device.budget - facts_of(run).vram_bytes, 0)
        return left - left // _GRAPH_MARGIN + self._units.kept_graph_bytes

    def library_bytes(self) -> int:
        """What the library has planned of the device for itself."""
        facts = facts_of(lib.hy_loop_trainer(self._handle))
        return facts.vram_bytes - facts.caller_bytes

    def out_of_memory(self, error: BaseException) -> MemoryError_:
        """The exception instead of torch's. The library gives back what it can, for another try."""
        ours, torchs = self.library_bytes(), self._meter.peak() if self._meter is not None else 0
        self._has_failed = True
        try:
            is_leaner = self._handle is not None and self._again(-1)
        except StateError:
            is_leaner = False  # the step already has gradients, or the question asks for a loss
        if is_leaner:
            self._units.keep_inputs(self._units.inputs is not None or self._is_auto)
            self._most, self._is_open = 0, self._is_auto
        after = "" if not is_leaner else "; now it keeps as little as it can, so the same step may be tried again"
        if self._units.has_gradients:
            after = "; the step already has gradients: close the loop, which keeps the weights of the last finished one"
        return MemoryError_(
            f"torch ran out of memory on the device in step {self._step + 1}: the library had {bytes_text(ours)} there and "
            f"torch {bytes_text(torchs)}{after}. Smaller micro-batches with more grad_accum_steps, "
            f'activations_place="pinned" and a lower max_gpu_mem leave torch more. Torch says: {error}'
        )


# ---- what blocks need --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockActivations:
    """Measured bytes of a kind of block: of one call's tensors, and of computing it for the backward pass."""

    name: str  # of the first such block
    count: int
    input_bytes: int
    result_bytes: int
    compute_bytes: int


@dataclass(frozen=True)
class Activations:
    """Bytes of a pass: the inputs of all blocks, which are kept, and the block that needs most."""

    blocks: list[BlockActivations]
    input_bytes: int
    compute_bytes: int

    @property
    def total(self) -> int:
        return self.input_bytes + self.compute_bytes


def activations_of(units: Units) -> Activations:
    found: dict[Any, list[Unit]] = {}
    for unit in units.list:
        if unit.number in units.sizes:
            found.setdefault((type(unit.modules[0]), units.sizes[unit.number]), []).append(unit)
    if not found:
        raise StateError("blocks are measured in the first step; call estimate_activations after it")
    blocks = [BlockActivations(same[0].name, len(same), *sizes) for (_, sizes), same in found.items()]
    most = max(one.compute_bytes for one in blocks)
    return Activations(blocks, sum(one.count * one.input_bytes for one in blocks), most)
