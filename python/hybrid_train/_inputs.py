"""Keeps the inputs of blocks in host memory between the forward and the backward pass.

Copies run on a stream of their own: out of the card while the block computes, and back one block ahead of the backward
pass. All copies are on that one stream, so a buffer that is used again is never overwritten too early, and the host never
waits. The host is ahead of the card, so a tensor that is copied is kept until two calls later: then the stream of the
passes waits for the copy, and torch uses the memory for what comes after. On a CPU the same code copies between two
parts of its memory.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from typing import Any

import torch

from .errors import InputError

_SMALL = 1 << 20  # bytes; smaller tensors stay where they are
_LEAVING = 2  # calls with tensors that are being copied
_PER_BLOCK = 4  # at least so many buffers are in one block of pinned memory
_ALIGNMENT = 512  # bytes


def _memory(size: int, is_pinned: bool) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)


class _Buffers:
    """Host memory that is used again. If no free buffer is large enough, larger ones take the place of all free ones.

    torch rounds pinned memory up to a power of two, so such a block is cut into several buffers.
    """

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._free: list[torch.Tensor] = []
        self.count = 0

    def take(self, size: int) -> torch.Tensor:
        fitting = [i for i, one in enumerate(self._free) if one.numel() >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].numel()))
        self.count -= len(self._free)
        self._free.clear()
        size += -size % _ALIGNMENT
        block = _memory(1 << (_PER_BLOCK * size - 1).bit_length() if self._is_pinned else size, self._is_pinned)
        self._free = [block[at : at + size] for at in range(0, block.numel() - size + 1, size)]
        self.count += len(self._free)
        return self._free.pop()

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
        # Of the last calls: the block's name, its copied tensors with their versions, and the event after the copies.
        self._leaving: collections.deque[tuple[str, list[tuple[torch.Tensor, int]], Any]] = collections.deque()

    def close(self) -> None:
        """After the last pass: torch gives pinned memory back only if it is asked to."""
        self.clear()
        empty = getattr(torch._C, "_host_emptyCache", None)
        if self._side is not None and empty is not None:
            self.buffers = _Buffers(True)
            empty()

    def clear(self) -> None:
        """Before and after a pass: what a pass that failed has left is free again."""
        if self._side is not None and self._calls:
            torch.cuda.current_stream(self._device).wait_stream(self._side)  # tensors may be on their way back
        self._calls, self._shared, self._bytes = [], {}, 0
        self._leaving.clear()

    def keep(self, tensors: list[torch.Tensor], name: str) -> int:
        """Begins to copy the tensors of a call of this block, and returns its number for `stay` and `bring`."""
        self._let_go(_LEAVING - 1)
        self._leaving.append((name, [], None))
        self._calls.append([self._kept(t) for t in tensors])
        if self._side is not None:
            self._leaving[-1] = name, self._leaving[-1][1], self._side.record_event()
        return len(self._calls) - 1

    def _let_go(self, left: int) -> None:
        """Lets torch use the memory of all but the last calls' tensors, which must be as they were."""
        while len(self._leaving) > left:
            name, tensors, is_copied = self._leaving.popleft()
            if any(t._version != version for t, version in tensors):
                raise InputError(
                    f"an input of block {name} was changed in place after the call, while it was copied to host memory; "
                    "use x = x + y instead of x += y, or clone it first"
                )
            if is_copied is not None:
                torch.cuda.current_stream(self._device).wait_event(is_copied)

    def stay(self, call: int, tensors: Any) -> list[torch.Tensor]:
        """Those of the tensors that are not copied."""
        return [t for t, kept in zip(tensors, self._calls[call]) if kept is None]

    def bring(self, call: int, stayed: Any) -> list[torch.Tensor]:
        """The tensors of a call on the device. Those of the call before it begin to come back, too."""
        self._let_go(0)
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
            self._leaving[-1][1].append((tensor.detach(), tensor._version))
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
