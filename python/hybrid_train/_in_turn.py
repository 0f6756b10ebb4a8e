"""Parts of a loop for torch modules only: updates during the forward pass, and CUDA streams."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from . import _abi
from ._library import lib
from ._parameters import Parameters, TorchParameters
from .errors import InputError, StateError


class InTurn:
    """Reports to the library when a forward pass reaches one of the named modules.

    The library then applies pending updates to the parameters of this module and of all modules before it.
    Parameters outside the named modules are updated before the pass begins.
    """

    def __init__(self, modules: Iterable[Any], parameters: TorchParameters) -> None:
        numbers = {id(p): i for i, p in enumerate(parameters.values)}
        self._last: dict[int, int] = {}  # index of a module's last parameter
        self._hooks: list[Any] = []
        outside = set(numbers.values())
        for module in modules:
            if not hasattr(module, "register_forward_pre_hook"):
                raise InputError(
                    f"in_turn has a {type(module).__name__}; expected modules of the model, in the order of its "
                    "forward pass"
                )
            own = {numbers[id(p)] for p in module.parameters() if id(p) in numbers}
            outside -= own
            if own:
                self._last[id(module)] = max(own)
                self._hooks.append(module.register_forward_pre_hook(self._reached))
        self._first = max(outside, default=-1)
        self._handle: ctypes.c_void_p | None = None
        self.status = int(_abi.HY_OK)

    def begin(self, handle: ctypes.c_void_p) -> None:
        """Before the first forward pass of a step."""
        self._handle, self.status = handle, int(_abi.HY_OK)
        if self._first >= 0:
            self.status = lib.hy_loop_use(handle, self._first)

    def _reached(self, module: Any, _: Any) -> None:
        if self._handle is not None and self.status == _abi.HY_OK:
            self.status = lib.hy_loop_use(self._handle, self._last[id(module)])

    def end(self) -> int:
        """After the pass: updates the parameters that it did not reach. Gradients may be written from now on."""
        handle, self._handle = self._handle, None
        if self.status != _abi.HY_OK or handle is None:
            return self.status
        return int(lib.hy_loop_use(handle, -1))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def stream_of(parameters: Parameters, stream: Any) -> int | None:
    """The caller's CUDA stream as a number; None: the default stream."""
    if stream is None and isinstance(parameters, TorchParameters) and parameters.device != "cpu":
        stream = parameters.torch.cuda.current_stream(parameters.device)
    handle = getattr(stream, "cuda_stream", stream)
    return handle or None


def must_be_current(stream: int | None, parameters: TorchParameters) -> None:
    """Checks the stream: the library waits only for its own stream, so it would read work on another one too early."""
    now = parameters.torch.cuda.current_stream(parameters.device).cuda_stream or None
    if now != stream:
        raise StateError(
            "the current CUDA stream is not the one under which the loop was created; create the loop and compute "
            "under the same torch.cuda.stream(...), or pass stream= to the loop"
        )
