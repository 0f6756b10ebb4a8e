"""Your own training loop over your own parameters, with the library's phases, optimizer and memory plans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Callable

from . import _abi, _library, _names
from ._in_turn import InTurn, must_be_current, stream_of
from ._library import lib, sized
from ._loop_setup import LoadState, SaveState, State, configured, groups_of, plan_parameters
from ._observer import Observer, OnEval, OnMemory, OnMessage, OnProgress, OnSave, OnStep
from ._parameters import TorchParameters, collect
from ._turn import Turn
from ._views import is_torch, loaded
from .config import Config, ConfigValue
from .errors import InputError, StateError, error_of
from .ranks import ranks_of
from .results import LoopStep, MemoryState, RanksInfo, StepInfo, Summary
from .trainer import memory_of, plan_of, summary_of

__all__ = ["Loop", "Step", "plan_parameters"]

LossFunction = Callable[[int], Any]

_INFO_SIZE = ctypes.sizeof(_abi.hy_step_info)
_AS_IT_IS = contextlib.nullcontext()


class Step(LoopStep):
    """What the loop wants to know now.

    todo: "gradients", "loss" or "evaluate"
    batch, count: which micro-batches: batch, batch + 1, ..., count of them
    loss_scale: gradients are wanted of this times the loss; 1 but for fp16
    """

    @property
    def batches(self) -> range:
        """The numbers of the micro-batches."""
        return range(self.batch, self.batch + self.count)

    @property
    def torch_dtype(self) -> Any:
        """`precision` as torch calls it."""
        import torch

        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    @property
    def numpy_dtype(self) -> Any:
        """`precision` as NumPy calls it; bf16, which NumPy does not have, is float32."""
        import numpy

        return numpy.dtype("float16" if self.precision == "fp16" else "float32")


# ---- losses ------------------------------------------------------------------------------------------------------


def _number(loss: Any) -> float:
    """A loss as a number. Of a tensor on a card this waits for it."""
    if isinstance(loss, (float, int)):
        return float(loss)
    size = getattr(loss, "numel", None)
    count = size() if callable(size) else getattr(loss, "size", 1)
    if not isinstance(count, int) or count != 1:
        shape = tuple(getattr(loss, "shape", ()))
        raise InputError(f"the loss has shape {shape}; expected a scalar: take its mean")
    try:
        return float(loss.item() if hasattr(loss, "item") else loss)
    except (TypeError, ValueError):
        raise InputError(f"the loss is a {type(loss).__name__}; expected a number or a tensor of one") from None


def _with_tokens(answer: Any) -> tuple[Any, int]:
    """A loss, or a loss with how many targets it is a mean of."""
    if not isinstance(answer, tuple):
        return answer, 1
    if len(answer) != 2:
        raise InputError(f"a loss function gave {len(answer)} values; expected a loss, or (loss, tokens)")
    return answer[0], int(answer[1])


class Loop:
    """The library says what it wants to know, you compute it, it does the rest.

        loop = Loop(module.named_parameters(), steps=1000, lr=3e-4)
        loop.run(lambda batch: loss_of(module, data[batch]))

    or step by step (`loop.step(loss_function)`), or question by question:

        for step in loop:
            if step.todo == "gradients":
                module.zero_grad()
                loss = sum(loss_of(module, data[batch]) for batch in step.batches) / step.count
                (loss * step.loss_scale).backward()
            else:  # "loss": of one micro-batch, under the weights as they are now
                with torch.no_grad():
                    loss = loss_of(module, data[step.batch])
            loop.answer(loss)

    parameters: a module, `module.parameters()`, `module.named_parameters()`, a list of dicts with "params" and
        "lr_scale" or "weight_decay", or a dict of arrays, which needs `gradients`, a dict of arrays likewise.
        Tensors are used where they are: nothing is copied.
    config, keys: the configuration, as for `train`. `steps` and `lr` have to be said.
    evaluate: a function that gives the held-out loss; True: the loop asks you ("evaluate").
    can_rewind: micro-batches may be asked for again, so that the loop can test whether predicting pays.
    groups: {pattern of names: {"lr_scale": ..., "weight_decay": ...}}, or a text as the key `groups` takes it.
    sum_gradients: the library sums the gradients of a step's micro-batches, asking for one at a time.
    save_state, load_state: bytes of your own in every checkpoint (a data loader's place, random states).
    in_turn: modules of the model in the order in which its forward pass comes to them, each of which alone reads its
        parameters. Where optimizer state is in pinned memory or on disk, `step` and `run` then make a step's update
        while the next forward pass goes on. The same bits.
    autocast: run loss functions under torch.autocast where `precision` of the phase has 16 bits.
    out, resume (keys): the run's folder; resume=True goes on with what is there.

    Nothing is written unless `out` names a folder. A loop belongs to one thread at a time.

    In a process that torchrun, mpirun or srun has started as one of several, the loop is one of as many ranks: it is
    asked for its share of each step's grad_accum_steps micro-batches, which the number of ranks has to divide.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        config: Config | Mapping[str, ConfigValue] | str | os.PathLike[str] | None = None,
        steps: int | None = None,
        lr: float | None = None,
        gradients: Any = None,
        evaluate: Callable[[], Any] | bool | None = None,
        can_rewind: bool = False,
        groups: Mapping[str, Mapping[str, Any]] | str | None = None,
        sum_gradients: bool | None = None,
        in_turn: Iterable[Any] | None = None,
        autocast: bool = False,
        stream: Any = None,
        on_step: OnStep = None,
        on_eval: OnEval = None,
        on_message: OnMessage = None,
        on_progress: OnProgress = None,
        on_save: OnSave = None,
        on_memory: OnMemory = None,
        save_state: SaveState = None,
        load_state: LoadState = None,
        **keys: ConfigValue | None,
    ) -> None:
        self._handle: ctypes.c_void_p | None = None
        self._turn = Turn("loop")
        groups, keys = groups_of(groups, keys)
        self._parameters = collect(parameters, gradients, groups)
        self._has_autograd = isinstance(self._parameters, TorchParameters)
        self._autocast = autocast
        self._evaluate = evaluate if callable(evaluate) else None
        self.config = configured(config, {"steps": steps, "lr": lr, **keys}, self._parameters)
        if sum_gradients is None:
            sum_gradients = not self._has_autograd and self.config.get("grad_accum_steps") > 1
        self._in_turn = self._turns_of(in_turn)
        self._observer = Observer(on_step, on_eval, on_message, on_progress, on_save, on_memory)
        self._state = State(save_state, load_state, self._observer)
        options = _abi.hy_loop_options(
            can_evaluate=bool(evaluate), can_rewind=can_rewind, uses_in_turn=self._in_turn is not None
        )
        own = options.parameters
        self._parameters.to_c(own)
        own.sums_gradients = sum_gradients
        self._stream = own.stream = stream_of(self._parameters, stream)
        own.save, own.load = self._state.save, self._state.load
        self._create(options)
        self._stream_of: TorchParameters | None = None  # whose stream has to be the current one
        if isinstance(self._parameters, TorchParameters) and self._parameters.device != "cpu":
            self._stream_of = self._parameters
        self._c_step = _abi.hy_loop_step()
        self._question, self._question_size = sized(self._c_step)
        self._is_asked = False  # _c_step is the question that waits for an answer
        self._is_shown = False  # and iteration has shown it

    def _turns_of(self, in_turn: Iterable[Any] | None) -> InTurn | None:
        if in_turn is None:
            return None
        if not isinstance(self._parameters, TorchParameters):
            raise InputError("in_turn is for torch modules; these parameters are arrays")
        return InTurn(in_turn, self._parameters)

    def _create(self, options: _abi.hy_loop_options) -> None:
        handle = ctypes.c_void_p()
        _library.prepare_cuda()
        status = lib.hy_loop_create(
            self.config._handle,
            ctypes.byref(options),
            ctypes.byref(self._observer.struct),
            ctypes.byref(handle),
        )
        # All that the library has pointers to lives as long as its loop.
        keep = (self._parameters, self._observer, self._state)
        self._finalizer = weakref.finalize(self, _destroy, handle, keep, self._in_turn, os.getpid())
        try:
            self._finish(status)
        except BaseException:
            self._finalizer()
            raise
        self._handle = handle

    # ---- questions and answers ---------------------------------------------------------------------------------

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise StateError("this loop is closed")
        return self._handle

    def _finish(self, status: int) -> None:
        if status == _abi.HY_OK and self._observer.raised is None:
            return
        message = _library.message() if status != _abi.HY_OK else ""
        self._observer.raise_again()
        raise error_of(status, message)

    def _ask(self) -> int:
        """The question that waits now, in _c_step; what is to do."""
        if not self._is_asked:
            self._finish(lib.hy_loop_next_sized(self._open(), self._question, self._question_size))
            self._is_asked = True
        todo: int = self._c_step.todo
        return todo

    def _give(self, loss: Any, tokens: int, is_fresh: bool = False, info: Any = None) -> None:
        """The answer, and the next question; `info` refers to the hy_step_info that gets what the step came to.

        One call of the library: each takes microseconds where a forward and a backward pass were in between.
        """
        parameters, packed = self._parameters, None
        if self._stream_of is not None:
            must_be_current(self._stream, self._stream_of)
        if self._c_step.todo == _abi.HY_DO_GRADIENTS:
            parameters.gather(is_fresh)
            packed = parameters.packed
        # Last: on a card this waits for the backward pass. What torch could go back from is one number.
        number = loss.item() if is_fresh else _number(loss)
        self._is_asked = self._is_shown = False
        status = lib.hy_loop_exchange_sized(
            self._handle, packed, number, tokens, self._question, self._question_size, info, _INFO_SIZE
        )
        self._is_asked = status == _abi.HY_OK
        self._finish(status)

    @property
    def is_over(self) -> bool:
        """Whether the run has come to its end."""
        with self._turn:
            self._open()
            return self._ask() == _abi.HY_DO_NOTHING

    @property
    def question(self) -> Step | None:
        """What the loop wants to know now; None when it is over. A loss function may ask, too."""
        if self._turn.is_mine() and self._is_asked:
            return Step._of(self._c_step)
        with self._turn:
            self._open()
            return None if self._ask() == _abi.HY_DO_NOTHING else Step._of(self._c_step)

    def answer(self, loss: Any, tokens: int = 1) -> None:
        """Answers the question that waits: its loss, a mean over `tokens` targets.

        Where gradients are asked for, they are taken from where they are: of torch parameters from `.grad`.
        """
        with self._turn:
            self._open()
            if self._ask() == _abi.HY_DO_NOTHING:
                raise StateError("the run is over: there is nothing to answer")
            self._give(loss, tokens)

    def __iter__(self) -> Iterator[Step]:
        """Question by question, until the run is over. Where `evaluate` is a function, it answers for itself."""
        while True:
            with self._turn:
                self._open()
                if self._is_shown:
                    raise StateError(
                        f"the loop asked for {_names.TODO[self._c_step.todo]} and got no answer: call "
                        "loop.answer(loss) for each step"
                    )
                while self._ask() == _abi.HY_DO_EVALUATE and self._evaluate is not None:
                    self._give(*self._evaluated())
                if self._ask() == _abi.HY_DO_NOTHING:
                    return
                if self._in_turn and self._c_step.todo == _abi.HY_DO_GRADIENTS:
                    self._finish(lib.hy_loop_use(self._open(), -1))  # what you do with gradients is not known
                self._is_shown = True
                step = Step._of(self._c_step)
            yield step

    # ---- with a loss function ------------------------------------------------------------------------------------

    def step(self, loss_function: LossFunction) -> StepInfo:
        """One optimizer step, with all that the loop wants to know before the next one.

        loss_function(batch) gives the loss of micro-batch number `batch`: a scalar tensor, or (loss, tokens)
        where micro-batches weigh differently. Backward, scaling and summing happen here. With arrays it also
        writes the gradients of that loss, and gives a number.
        """
        with self._turn:
            self._open()
            if self._ask() == _abi.HY_DO_NOTHING:
                raise StateError("the run is over: there are no more steps")
            info = self._advance(loss_function)
        if info is None:
            raise StateError("the run ended before its first step")
        return info

    def run(self, loss_function: LossFunction) -> Summary:
        """Steps to the end of the run."""
        with self._turn:
            self._open()
            while self._ask() != _abi.HY_DO_NOTHING:
                self._advance(loss_function, wants_info=False)
            return summary_of(self._run())

    def _advance(self, loss_function: LossFunction, wants_info: bool = True) -> StepInfo | None:
        """One optimizer step, and answers to what is asked before and after it; what the step came to."""
        step = self._c_step
        if step.todo != _abi.HY_DO_GRADIENTS:
            self._answer_losses(loss_function)
        number, info = step.step, _abi.hy_step_info()
        told = ctypes.byref(info) if wants_info else None
        # Several times where the library sums. Each answer brings the next question.
        while step.todo == _abi.HY_DO_GRADIENTS and step.step == number:
            self._answer_with_gradients(loss_function, told)
        if step.todo != _abi.HY_DO_GRADIENTS:
            self._answer_losses(loss_function)
        return StepInfo._later(info) if info.steps_total > 0 else None  # 0: there was no step

    def _answer_losses(self, loss_function: LossFunction) -> None:
        while self._ask() in (_abi.HY_DO_LOSS, _abi.HY_DO_EVALUATE):
            self._answer_without_gradients(loss_function)

    def _context(self, wants_gradients: bool) -> Any:
        torch = loaded("torch")
        if not self._has_autograd or torch is None:
            return _AS_IT_IS
        grad = _AS_IT_IS if wants_gradients else torch.no_grad()
        if not self._autocast or _names.DTYPE[self._c_step.precision] == "fp32":
            return grad
        kind = self._parameters.device.split(":")[0]
        stack = contextlib.ExitStack()
        stack.enter_context(grad)
        stack.enter_context(torch.autocast(kind, dtype=Step._of(self._c_step).torch_dtype))
        return stack

    def _evaluated(self) -> tuple[Any, int]:
        if self._evaluate is None:
            raise StateError("the loop wants the held-out loss: give it evaluate=, or answer it with loop.answer")
        with self._context(False):
            return _with_tokens(self._evaluate())

    def _answer_without_gradients(self, loss_function: LossFunction) -> None:
        if self._c_step.todo == _abi.HY_DO_EVALUATE:
            self._give(*self._evaluated())
            return
        with self._context(False):
            answer = _with_tokens(loss_function(self._c_step.batch))
        self._give(*answer)

    def _answer_with_gradients(self, loss_function: LossFunction, info: Any) -> None:
        if self._in_turn:
            self._in_turn.begin(self._open())  # gradients are read until the pass is over
        else:
            self._parameters.clear_gradients()
        if self._has_autograd:
            self._give(*self._backward(loss_function), True, info)
        else:
            self._give(*self._filled(loss_function), False, info)

    def _backward(self, loss_function: LossFunction) -> tuple[Any, int]:
        """Gradients of the mean over the step's targets.

        Micro-batches weigh by their targets, whose sum is known at the end: each is weighed against the first,
        and only where they differ the sum is put right afterwards.
        """
        batch, count, scale = self._c_step.batch, self._c_step.count, self._c_step.loss_scale
        total: Any = 0.0
        weight = first = 0
        for number in range(batch, batch + count):
            if self._autocast:
                with self._context(True):
                    loss, tokens = _with_tokens(loss_function(number))
            else:
                loss, tokens = _with_tokens(loss_function(number))
            if self._in_turn and number == batch:
                self._finish(self._in_turn.end())
                self._parameters.clear_gradients()
            first = first or tokens
            factor = scale * tokens / (count * first)
            try:
                (loss if factor == 1 else loss * factor).backward()
            except (AttributeError, RuntimeError, TypeError):
                self._must_be_scalar(loss)  # in words that say more than torch's
                raise
            if count == 1:
                return loss, tokens
            total = total + loss.detach() * tokens
            weight += tokens
        if count * first != weight:
            self._parameters.scale_gradients(count * first / weight)
        return total / weight, weight

    def _must_be_scalar(self, loss: Any) -> None:
        if not is_torch(loss):
            raise InputError(f"the loss function gave a {type(loss).__name__}; expected a scalar tensor")
        if loss.numel() != 1:
            raise InputError(f"the loss has shape {tuple(loss.shape)}; expected a scalar: take its mean")
        if not loss.requires_grad:
            raise InputError("the loss does not depend on the parameters: it has no gradient (no_grad, detach?)")

    def _filled(self, loss_function: LossFunction) -> tuple[Any, int]:
        if self._c_step.count != 1:
            raise StateError(
                f"{self._c_step.count} micro-batches are asked for at once: make the loop with sum_gradients=True, "
                "or answer its questions yourself"
            )
        loss, tokens = _with_tokens(loss_function(self._c_step.batch))
        if self._c_step.loss_scale != 1:
            self._parameters.scale_gradients(self._c_step.loss_scale)
        return loss, tokens

    # ---- saving and ending -------------------------------------------------------------------------------------

    def save(self) -> None:
        """Saves a checkpoint now, between two steps."""
        with self._turn:
            self._finish(lib.hy_loop_save(self._open()))

    def stop(self) -> None:
        """Ends the run as it is after its last step; it is saved where there is a folder."""
        with self._turn:
            handle = self._open()
            self._is_asked = self._is_shown = False
            self._finish(lib.hy_loop_stop(handle))

    def close(self) -> None:
        """Gives the library's memory back. What was not saved is lost: `stop` saves."""
        if self._handle is None:
            return
        with self._turn:
            self._handle = None
            self._finalizer()

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops, so that what there is is saved, and closes."""
        try:
            if self._handle is not None:
                self.stop()
        except Exception:
            if kind is None:
                raise
        finally:
            self.close()

    # ---- looking -----------------------------------------------------------------------------------------------

    def _last(self) -> StepInfo | None:
        c = _abi.hy_step_info()
        return StepInfo._later(c) if lib.hy_loop_last_sized(self._open(), *sized(c)) else None

    @property
    def last(self) -> StepInfo | None:
        """What the last step or jump came to; None before the first."""
        with self._turn:
            return self._last()

    def _run(self) -> Any:
        return lib.hy_loop_trainer(self._open())

    def summary(self) -> Summary:
        """What the run has come to so far, or came to."""
        with self._turn:
            return summary_of(self._run())

    def memory(self) -> MemoryState:
        """What the library keeps in memory now, beside what was planned."""
        with self._turn:
            return memory_of(self._run())

    def plan(self) -> dict[str, Any]:
        """What is kept where, and why."""
        with self._turn:
            return plan_of(self._run())

    def ranks(self) -> RanksInfo | None:
        """Which of several ranks this loop is; None: it is alone."""
        with self._turn:
            return ranks_of(self._run())

    def __reduce__(self) -> Any:
        raise TypeError("a Loop cannot be copied or pickled: save() keeps its state")


def _destroy(handle: ctypes.c_void_p, keep: Any, in_turn: InTurn | None, made_in: int) -> None:
    if in_turn:
        in_turn.remove()
    # A child of fork has the memory but not the thread of the run.
    if os.getpid() == made_in:
        lib.hy_loop_destroy(handle)
    del keep
