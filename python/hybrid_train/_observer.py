"""Python callbacks in the form that the library calls.

An exception in a callback cannot pass through C. It is stored, the run is asked to stop, and the exception is
raised when the library has returned.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Optional

from . import _abi, _names
from .results import EvalInfo, MemoryState, StepInfo

OnStep = Optional[Callable[[StepInfo], object]]
OnEval = Optional[Callable[[EvalInfo], object]]
OnMessage = Optional[Callable[[str, str], object]]
OnProgress = Optional[Callable[[str, float], object]]
OnSave = Optional[Callable[[str, float, int], object]]
OnMemory = Optional[Callable[[MemoryState], object]]

_TYPES: dict[str, Any] = dict(_abi.hy_observer._fields_)  # type: ignore[arg-type]
_log = logging.getLogger("hybrid_train")


def _to_log(level: str, text: str) -> None:
    _log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", text)


def _nothing(*_: object) -> None:
    pass


class Observer:
    """A hy_observer and the objects that keep its functions alive. Messages without a callback go to logging."""

    def __init__(
        self,
        on_step: OnStep = None,
        on_eval: OnEval = None,
        on_message: OnMessage = None,
        on_progress: OnProgress = None,
        on_save: OnSave = None,
        on_memory: OnMemory = None,
    ) -> None:
        self.raised: BaseException | None = None
        self.stop: Callable[[], object] = _nothing
        self.say = said = on_message or _to_log
        calls: dict[str, Callable[..., object]] = {
            "on_message": lambda _, level, text: said(_names.MESSAGE_LEVEL[level], text.decode("utf-8", "replace"))
        }
        if on_step:
            calls["on_step"] = lambda _, info: on_step(StepInfo._of(info.contents))
        if on_eval:
            calls["on_eval"] = lambda _, info: on_eval(EvalInfo._of(info.contents))
        if on_progress:
            calls["on_progress"] = lambda _, what, share: on_progress(what.decode("utf-8", "replace"), share)
        if on_save:
            calls["on_save"] = lambda _, path, s, size: on_save(path.decode("utf-8", "surrogateescape"), s, size)
        if on_memory:
            calls["on_memory"] = lambda _, state: on_memory(MemoryState._of(state.contents))
        self._functions = {name: _TYPES[name](self.guarded(call)) for name, call in calls.items()}
        self.struct = _abi.hy_observer(**self._functions)

    def guarded(self, call: Callable[..., object]) -> Callable[..., None]:
        def guard(*arguments: Any) -> None:
            if self.raised is not None:
                return  # one is enough
            try:
                call(*arguments)
            except BaseException as error:  # noqa: B902 (KeyboardInterrupt too: it must not be lost)
                self.raised = error
                self.stop()

        return guard

    def raise_again(self) -> None:
        """Raises the exception of a callback after the library has returned."""
        if self.raised is not None:
            error, self.raised = self.raised, None
            raise error
