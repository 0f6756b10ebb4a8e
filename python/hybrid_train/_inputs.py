"""Keeps the inputs of blocks in host memory between the forward and the backward pass.

Copies run on a stream of their own: out of the card while the block computes, and back one block ahead of the backward
pass. All copies are on that one stream, so a buffer that is used again is never overwritten too early, and the host never
waits. On a CPU the same code copies between two parts of its memory.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch

_SMALL = 1 << 20  # bytes; smaller tensors stay where they are


class _Buffers:
    """Host memory that is used again. There are never more buffers than were in use at the same time."""

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._free: list[torch.Tensor] = []
        self.count = 0

    def take(self, size: int) -> torch.Tensor:
        fitting = [i for i, one in enumerate(self._free) if one.numel() >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].numel()))
        if self._free:  # all are too small
            self._free.pop()
            self.count -= 1
        out = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
        self.count += 1
        return out

    def give(self, buffer: torch.Tensor) -> None:
        self._free.append(buffer)


class Kept:
    """A tensor in a buffer, which is free again when nobody refers to this object."""

    def __init__(self, buffers: _Buffers, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self.tensor: torch.Tensor | None = None  # on the device again
        self.is_back: Any = None  # the event after which it is complete there
        self.uses = 0  # calls that will still ask for it
        buffer = buffers.take(size)
        self.values = buffer[:size].view(tensor.dtype).view(tensor.shape)
        weakref.finalize(self, buffers.give, buffer).atexit = False


class Inputs:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.buffers = _Buffers(self._side is not None)
        self._calls: list[list[Kept | None]] = []  # of this pass, in the order of its calls
        self._shared: dict[int, tuple[Any, int, Kept]] = {}  # tensors of this pass by id, with their version
        self._bytes = self.most_bytes = 0  # of this pass, and of the largest so far

    def clear(self) -> None:
        """Before and after a pass: what a pass that failed has left is free again."""
        if self._side is not None and self._calls:
            torch.cuda.current_stream(self._device).wait_stream(self._side)  # tensors may be on their way back
        self._calls, self._shared, self._bytes = [], {}, 0

    def keep(self, tensors: list[torch.Tensor]) -> int:
        """Begins to copy the tensors of a call, and returns its number for `stay` and `bring`."""
        self._calls.append([self._kept(t) for t in tensors])
        return len(self._calls) - 1

    def stay(self, call: int, tensors: Any) -> list[torch.Tensor]:
        """Those of the tensors that are not copied."""
        return [t for t, kept in zip(tensors, self._calls[call]) if kept is None]

    def bring(self, call: int, stayed: Any) -> list[torch.Tensor]:
        """The tensors of a call on the device. Those of the call before it begin to come back, too."""
        rest = iter(stayed)
        out = [next(rest) if kept is None else self._ready(kept) for kept in self._calls[call]]
        for kept in self._calls[call - 1] if call > 0 else ():
            if kept is not None and kept.uses > 0:
                self._fetch(kept)
        return out

    def _kept(self, tensor: torch.Tensor) -> Kept | None:
        if tensor.numel() * tensor.element_size() < _SMALL or tensor.device != self._device:
            return None
        if tensor.is_leaf and tensor.requires_grad:  # a parameter: its memory stays anyway
            return None
        if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride())):
            return None  # expanded: it has little memory of its own
        known = self._shared.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            kept = Kept(self.buffers, tensor)
            with self._beside():
                kept.values.copy_(tensor.detach(), non_blocking=True)
            if self._side is not None:
                tensor.record_stream(self._side)  # its memory is not used for others before the copy is done
            self._shared[id(tensor)] = known = weakref.ref(tensor), tensor._version, kept
            self._bytes += kept.values.nbytes
            self.most_bytes = max(self.most_bytes, self._bytes)
        known[2].uses += 1
        return known[2]

    def _beside(self) -> Any:
        """The stream of copies, which first waits for everything that was queued until now."""
        if self._side is None:
            return contextlib.nullcontext()
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._side)

    def _fetch(self, kept: Kept) -> None:
        if kept.tensor is not None:
            return
        kept.tensor = torch.empty_strided(kept.shape, kept.stride, dtype=kept.dtype, device=self._device)
        with self._beside():
            kept.tensor.copy_(kept.values, non_blocking=True)
            kept.is_back = self._side.record_event() if self._side is not None else None

    def _ready(self, kept: Kept) -> torch.Tensor:
        self._fetch(kept)
        if kept.is_back is not None:
            torch.cuda.current_stream(self._device).wait_event(kept.is_back)
        assert kept.tensor is not None
        out, kept.uses = kept.tensor, kept.uses - 1
        if kept.uses <= 0:
            kept.tensor = kept.is_back = None
        return out
