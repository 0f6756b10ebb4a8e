"""Trains a built-in model: to the end with `train`, or step by step with a Trainer."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Callable

from . import _abi, _library
from ._library import check, encoded, lib, sized, take_bytes, take_text
from ._observer import Observer, OnEval, OnMemory, OnMessage, OnProgress, OnSave, OnStep
from ._plan import Plan
from ._turn import Turn
from .config import Config, ConfigValue, as_config
from .errors import StateError, error_of
from .ranks import ranks_of
from .results import EvalInfo, MemoryState, PlanFacts, RanksInfo, Saving, StepInfo, Summary

__all__ = ["Trainer", "train", "plan"]


def summary_of(trainer: Any) -> Summary:
    c = _abi.hy_summary()
    lib.hy_trainer_summary_sized(trainer, *sized(c))
    return Summary._of(c)


def memory_of(trainer: Any) -> MemoryState:
    c = _abi.hy_memory_state()
    check(lib.hy_trainer_memory_sized(trainer, *sized(c)))
    return MemoryState._of(c)


def savings_of(trainer: Any) -> list[Saving]:
    c = _abi.hy_savings()
    check(lib.hy_trainer_savings_sized(trainer, *sized(c)))
    return [Saving._of(one) for one in c.list[: c.count]]


def facts_of(trainer: Any) -> PlanFacts:
    c = _abi.hy_plan_facts()
    lib.hy_trainer_plan_facts_sized(trainer, *sized(c))
    return PlanFacts._of(c)


def plan_of(trainer: Any) -> Plan:
    """The plan as JSON."""
    text = ctypes.c_void_p()
    check(lib.hy_trainer_plan_json(trainer, ctypes.byref(text)))
    return Plan(json.loads(take_text(text)))


def planned(create: Any, *arguments: Any) -> Plan:
    """The plan from a call of hy_trainer_plan or _plan_custom."""
    handle = ctypes.c_void_p()
    check(create(*arguments, ctypes.byref(handle)))
    try:
        return plan_of(handle)
    finally:
        lib.hy_trainer_destroy(handle)


class _Interrupts:
    """Handles Ctrl-C while the library runs: requests a stop, and raises KeyboardInterrupt after the library returns.

    Python handles signals inside callbacks, where an exception could be lost.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._is_ours = self._was_pressed = False

    def _note(self, *_: Any) -> None:
        self._was_pressed = True
        self._stop()

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_ours = True

    def __exit__(self, *_: Any) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._was_pressed:
            raise KeyboardInterrupt


class Trainer:
    """A run created from a configuration: memory is allocated, data opened, weights initialised or loaded.

        with Trainer(Config(model="nano", steps=200)) as trainer:
            while trainer.step().step < 200:
                ...

    `step` only makes a step, without validation and saving; `run` does everything. Only one thread at a time may use a
    trainer, except that `request_stop` may be called from any thread.
    """

    def __init__(
        self,
        config: Config | Mapping[str, ConfigValue] | str | os.PathLike[str] | None = None,
        *,
        on_step: OnStep = None,
        on_eval: OnEval = None,
        on_message: OnMessage = None,
        on_progress: OnProgress = None,
        on_save: OnSave = None,
        on_memory: OnMemory = None,
        **keys: ConfigValue | None,
    ) -> None:
        self.config = as_config(config, **keys)
        self._turn = Turn("trainer")
        # There is always a callback at each step and in validations, because Python notices Ctrl-C there.
        on_step = on_step or (lambda info: None)
        on_progress = on_progress or (lambda what, fraction: None)
        self._observer = Observer(on_step, on_eval, on_message, on_progress, on_save, on_memory)
        handle = ctypes.c_void_p()
        status = lib.hy_trainer_create(self.config._handle, ctypes.byref(self._observer.struct), ctypes.byref(handle))
        self._finalizer = weakref.finalize(self, _destroy, handle, self._observer, os.getpid())
        self._handle: ctypes.c_void_p | None = handle
        self._observer.stop = lambda: lib.hy_trainer_request_stop(handle)
        self._finish(status)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise StateError("this trainer is closed")
        return self._handle

    def _finish(self, status: int) -> None:
        """Raises the exception of a callback first, because it is the reason for the stop."""
        message = _library.message() if status != _abi.HY_OK else ""
        self._observer.raise_again()
        if status != _abi.HY_OK:
            raise error_of(status, message)

    def run(self) -> Summary:
        """Runs to the end: steps, validation, checkpoints, metrics. Raises Stopped after a request to stop."""
        with self._turn, _Interrupts(self._observer.stop):
            self._finish(lib.hy_trainer_run(self._open()))
            return summary_of(self._open())

    def step(self) -> StepInfo:
        """Makes one optimizer step, or one jump if Predict is next."""
        c = _abi.hy_step_info()
        with self._turn:
            self._finish(lib.hy_trainer_step_sized(self._open(), *sized(c)))
        return StepInfo._of(c)

    def evaluate(self) -> EvalInfo:
        """Measures the held-out loss."""
        c = _abi.hy_eval_info()
        with self._turn:
            self._finish(lib.hy_trainer_evaluate_sized(self._open(), *sized(c)))
        return EvalInfo._of(c)

    def scale(self, scale: float) -> None:
        """Sets the weights of a resumed run to start + scale x (trained - start), for evaluate().

        1: as trained; 0: what the run began with. The trainer can then not train or save.
        """
        with self._turn:
            self._finish(lib.hy_trainer_scale(self._open(), scale))

    def sample(
        self, prompt: str = "", *, tokens: int = 200, temperature: float = 0.8, top_k: int = 0, seed: int = 1
    ) -> str:
        """Text with which the model continues the prompt; the prompt is not repeated."""
        options = _abi.hy_sample_options(
            prompt=encoded(prompt), tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
        )
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        with self._turn:
            status = lib.hy_trainer_sample(self._open(), ctypes.byref(options), ctypes.byref(text), ctypes.byref(size))
            self._finish(status)
        return take_bytes(text, size.value).decode("utf-8", "replace")

    def save(self) -> None:
        """Saves a checkpoint into the run's folder now."""
        with self._turn:
            self._finish(lib.hy_trainer_save(self._open()))

    def request_stop(self) -> None:
        """Asks `run` to stop after the step in progress or in a validation. Safe from other threads."""
        lib.hy_trainer_request_stop(self._open())

    def summary(self) -> Summary:
        """The results of the run so far."""
        with self._turn:
            return summary_of(self._open())

    def memory(self) -> MemoryState:
        """The run's memory now, with the planned values and advice to save memory."""
        with self._turn:
            return memory_of(self._open())

    def savings(self) -> list[Saving]:
        """The techniques that save memory in this run or could, with their bytes and time."""
        with self._turn:
            return savings_of(self._open())

    def plan(self) -> dict[str, Any]:
        """The plan of the run."""
        with self._turn:
            return plan_of(self._open())

    def plan_facts(self) -> PlanFacts:
        with self._turn:
            return facts_of(self._open())

    def ranks(self) -> RanksInfo | None:
        """The rank of this process among several; None: there is only one."""
        with self._turn:
            return ranks_of(self._open())

    def close(self) -> None:
        """Frees all memory. Everything since the last checkpoint is lost."""
        with self._turn:
            self._handle = None
            self._finalizer()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _destroy(handle: ctypes.c_void_p, observer: Observer, made_in: int) -> None:
    # A child of fork has the memory but not the threads of the run.
    if os.getpid() == made_in:
        lib.hy_trainer_destroy(handle)
    observer.stop = lambda: None


def train(
    config: Config | Mapping[str, ConfigValue] | str | os.PathLike[str] | None = None,
    *,
    on_step: OnStep = None,
    on_eval: OnEval = None,
    on_message: OnMessage = None,
    on_progress: OnProgress = None,
    on_save: OnSave = None,
    on_memory: OnMemory = None,
    **keys: ConfigValue | None,
) -> Summary:
    """Runs a configuration to its end and returns the results.

    Callbacks are called between steps. After an exception in a callback, or Ctrl-C, the run stops after the step in
    progress, is saved, and the exception is raised.
    """
    with Trainer(
        config,
        on_step=on_step,
        on_eval=on_eval,
        on_message=on_message,
        on_progress=on_progress,
        on_save=on_save,
        on_memory=on_memory,
        **keys,
    ) as trainer:
        return trainer.run()


def plan(
    config: Config | Mapping[str, ConfigValue] | str | os.PathLike[str] | None = None,
    *,
    ranks: int = 1,
    has_cards: bool = False,
    on_message: OnMessage = None,
    **keys: ConfigValue | None,
) -> dict[str, Any]:
    """Plans a run of this configuration: places, types, bytes, and whether it fits. Nothing is allocated or written.

    If the plan does not fit, "fits" is False and "problem" says which memory is short. With `ranks` the result is the
    plan of one of that many ranks. has_cards: each rank has its own card; otherwise they share one or use the CPU.
    """
    ours, observer = as_config(config, **keys), Observer(on_message=on_message)
    seen = ctypes.byref(observer.struct)
    out = planned(lib.hy_trainer_plan_ranks, ours._handle, ranks, has_cards, seen)
    observer.raise_again()
    return out
