"""A training loop over your own parameters, with the library's phases, optimizer and memory plans."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable

from . import _abi, _library, _names
from ._data import Batches
from ._in_turn import InTurn, must_be_current, stream_of
from ._library import lib, sized
from ._loop_setup import LoadState, SaveState, State, configured, groups_of, module_of, plan_parameters
from ._module_state import ModuleState
from ._observer import Observer, OnEval, OnMemory, OnMessage, OnProgress, OnSave, OnStep
from ._parameters import TorchParameters, collect
from ._plan import Plan, bytes_text
from ._turn import Turn
from ._views import is_torch, loaded
from ._watched import Watched
from .config import Config, ConfigValue, as_config
from .errors import InputError, StateError, error_of
from .ranks import ranks_of
from .results import LoopStep, MemoryState, RanksInfo, Saving, StepInfo, Summary
from .trainer import facts_of, memory_of, plan_of, savings_of, summary_of

if TYPE_CHECKING:
    from ._card import Activations

__all__ = ["Loop", "Step", "plan_parameters"]

LossFunction = Callable[[Any], Any]  # of a micro-batch's number, or of the micro-batch itself (data=)

_INFO_SIZE = ctypes.sizeof(_abi.hy_step_info)
_AS_IT_IS = contextlib.nullcontext()


class Step(LoopStep):
    """What the loop needs now.

    todo: "gradients", "loss" or "evaluate"
    batch, count: the first micro-batch and their number
    loss_scale: compute gradients of this times the loss; 1 except in fp16
    """

    @property
    def batches(self) -> range:
        """The numbers of the micro-batches."""
        return range(self.batch, self.batch + self.count)

    @property
    def torch_dtype(self) -> Any:
        """`precision` as a torch type."""
        import torch

        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    @property
    def numpy_dtype(self) -> Any:
        """`precision` as a NumPy type; float32 for bf16, which NumPy does not have."""
        import numpy

        return numpy.dtype("float16" if self.precision == "fp16" else "float32")


# ---- losses ------------------------------------------------------------------------------------------------------


def _number(loss: Any) -> float:
    """The loss as a number. For a tensor on a card this waits for the result."""
    if isinstance(loss, (float, int)):
        return float(loss)
    size = getattr(loss, "numel", None)
    count = size() if callable(size) else getattr(loss, "size", 1)
    if not isinstance(count, int) or count != 1:
        shape = tuple(getattr(loss, "shape", ()))
        raise InputError(f"the loss has shape {shape}; expected a scalar, such as its mean")
    try:
        return float(loss.item() if hasattr(loss, "item") else loss)
    except (TypeError, ValueError):
        raise InputError(f"the loss is a {type(loss).__name__}; expected a number or a scalar tensor") from None


def _with_tokens(answer: Any) -> tuple[Any, int]:
    """Reads the result of a loss function: a loss, or a loss and its number of targets."""
    if not isinstance(answer, tuple):
        return answer, 1
    if len(answer) != 2:
        raise InputError(f"the loss function returned {len(answer)} values; expected a loss, or (loss, tokens)")
    return answer[0], _count(answer[1])


def _count(tokens: Any) -> int:
    """A number of targets; also a tensor of one, as from (labels != -100).sum()."""
    shape = tuple(getattr(tokens, "shape", ()))
    number = tokens.item() if hasattr(tokens, "item") and math.prod(shape) == 1 else tokens
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not 1 <= number < math.inf or number != int(number):
        said = f"a {type(tokens).__name__} of shape {shape}" if shape else repr(number)
        raise InputError(
            f"tokens is {said}; expected the number of targets, 1 or more: a loss function returns the loss, or "
            "(loss, tokens)"
        )
    return int(number)


class Loop:
    """Your code computes losses and gradients; the library does the rest of training.

        loop = Loop(module.named_parameters(), steps=1000, lr=3e-4)
        loop.run(lambda batch: loss_of(module, data[batch]))

    or step by step (`loop.step(loss_function)`), or question by question:

        for step in loop:
            if step.todo == "gradients":
                module.zero_grad()
                loss = sum(loss_of(module, data[batch]) for batch in step.batches) / step.count
                (loss * step.loss_scale).backward()
            else:  # "loss": of one micro-batch, with the current weights
                with torch.no_grad():
                    loss = loss_of(module, data[step.batch])
            loop.answer(loss)

    parameters: a module, `module.parameters()`, `module.named_parameters()`, a list of dicts with "params" and
        "lr_scale" or "weight_decay", or a dict of arrays, which also needs `gradients`, a dict of arrays.
        The library uses the memory of the tensors; nothing is copied.
    config, keys: the configuration, as for `train`. `steps` and `lr` must be set.
    evaluate: a function that returns the held-out loss; True: the loop asks for it ("evaluate").
    can_rewind: the loop may ask for earlier micro-batches again, to test whether prediction pays.
    groups: {pattern of names: {"lr_scale": ..., "weight_decay": ...}}, or a text as for the key `groups`.
    sum_gradients: the library sums the gradients of a step's micro-batches and asks for one at a time.
    save_state, load_state: functions that store your own bytes in every checkpoint. If `parameters` is a module, its
        buffers and the state of torch's random generators are stored without them.
    in_turn: modules of the model in the order of its forward pass; no other module may read their parameters. If
        optimizer state is in pinned memory or on disk, `step` and `run` then apply an update during the next
        forward pass. The results have the same bits.
    blocks: the library keeps the weights and gradients of the module, too, so it may be larger than the card; frozen
        weights are quantised if you set the key `frozen_dtype`. True finds
        its repeated blocks; a list names them (modules, or names such as "layers.*"). Default: True only if the module
        is on the meta device (see `load`). After `close`, or when the loop is dropped, a module that had memory of its
        own has it again, with the trained weights; one from the meta device is there again.
    autocast: run loss functions under torch.autocast if the phase's `precision` has 16 bits.
    out, resume (keys): the run's folder; resume=True continues the run in it.

    Nothing is written unless `out` names a folder. Only one thread at a time may use a loop.

    If torchrun, mpirun or srun started this process as one of several, the loop is one of several ranks. It computes
    its share of each step's grad_accum_steps micro-batches; the number of ranks must divide that number.
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
        blocks: Iterable[Any] | bool | None = None,
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
        self._module = module_of(parameters, blocks, groups, as_config(config), keys)
        self._parameters = self._module.parameters if self._module else collect(parameters, gradients, groups)
        self._has_autograd = isinstance(self._parameters, TorchParameters)
        self._watched = Watched(parameters) if hasattr(parameters, "named_modules") else None
        self._autocast = autocast
        self._can_rewind = can_rewind
        self._data: Batches | None = None
        self._evaluate = evaluate if callable(evaluate) else None
        self.config = configured(config, {"steps": steps, "lr": lr, **keys}, self._parameters)
        if sum_gradients is None:
            sum_gradients = not self._has_autograd and self.config.get("grad_accum_steps") > 1
        sum_gradients = sum_gradients or self._module is not None
        self._in_turn = self._turns_of(in_turn)
        self._observer = Observer(on_step, on_eval, on_message, on_progress, on_save, on_memory)
        if hasattr(parameters, "named_modules"):
            self._of_module = ModuleState(parameters, save_state, load_state)
            save_state, load_state = self._of_module.save, self._of_module.load
        self._state = State(save_state, load_state, self._observer)
        options = _abi.hy_loop_options(
            can_evaluate=bool(evaluate), can_rewind=can_rewind, uses_in_turn=self._in_turn is not None
        )
        own = options.parameters
        self._parameters.to_c(own)
        own.sums_gradients = sum_gradients
        if self._module:
            self._module.plan_with(options, self.config, self._observer.say)
        self._stream = own.stream = stream_of(self._parameters, stream)
        own.save, own.load = self._state.save, self._state.load
        self._finalizer: Any = None
        self._create(options)
        self._stream_of: TorchParameters | None = None  # parameters whose stream must be current
        if isinstance(self._parameters, TorchParameters) and self._parameters.device != "cpu":
            self._stream_of = self._parameters
        self._c_step = _abi.hy_loop_step()
        self._question, self._question_size = sized(self._c_step)
        self._is_asked = False  # _c_step is the question that waits for an answer
        self._is_shown = False  # and iteration has shown it
        self._is_lent = False  # using_weights has the weights
        if self._module:
            self._attach(self._module)

    def _turns_of(self, in_turn: Iterable[Any] | None) -> InTurn | None:
        if in_turn is None:
            return None
        if self._module:
            raise InputError("in_turn is for weights in torch's memory; blocks are always updated in turn")
        if not isinstance(self._parameters, TorchParameters):
            raise InputError("in_turn is for torch modules; these parameters are arrays")
        return InTurn(in_turn, self._parameters)

    def _attach(self, module: Any) -> None:
        try:
            self._forgotten = weakref.finalize(self, _forget, module, self._finalizer, self._observer.say, os.getpid())
            self._forgotten.atexit = False
            self._ask()  # the weights exist with the first question
            module.attach(self._handle, self._c_step.step)
            if self._stream_of is not None:
                module.units.check_stream = functools.partial(must_be_current, self._stream, self._stream_of)
        except BaseException:
            self.close()
            raise

    def _create(self, options: _abi.hy_loop_options) -> None:
        handle = ctypes.c_void_p()
        status = lib.hy_loop_create(
            self.config._handle,
            ctypes.byref(options),
            ctypes.byref(self._observer.struct),
            ctypes.byref(handle),
        )
        # All that the library has pointers to lives as long as its loop.
        keep = (self._parameters, self._observer, self._state)
        self._finalizer = weakref.finalize(self, _destroy, handle, keep, self._module, self._in_turn, os.getpid())
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
        """Makes sure that _c_step has the current question, and returns its todo."""
        if not self._is_asked:
            self._finish(lib.hy_loop_next_sized(self._open(), self._question, self._question_size))
            self._is_asked = True
        todo: int = self._c_step.todo
        return todo

    def _give(self, loss: Any, tokens: int, is_fresh: bool = False, info: Any = None) -> None:
        """Answers and reads the next question; `info` refers to a hy_step_info for the results of the step.

        It is one call of the library, because each call takes microseconds.
        """
        parameters, packed = self._parameters, None
        if self._stream_of is not None:
            must_be_current(self._stream, self._stream_of)
        if self._c_step.todo == _abi.HY_DO_GRADIENTS:
            parameters.gather(is_fresh)
            packed = parameters.packed
        # This comes last, because on a card it waits for the backward pass.
        number = loss.item() if is_fresh else _number(loss)
        self._is_asked = self._is_shown = False
        was = self._c_step.todo, self._c_step.step
        status = lib.hy_loop_exchange_sized(
            self._handle, packed, number, tokens, self._question, self._question_size, info, _INFO_SIZE
        )
        self._is_asked = status == _abi.HY_OK
        if self._module and self._is_asked:
            self._module.units.answered()
            if self._c_step.todo == _abi.HY_DO_GRADIENTS:
                self._module.part.look(self._c_step.step)
        # Only the next micro-batch of the same step has the same weights.
        if was != (_abi.HY_DO_GRADIENTS, self._c_step.step) or self._c_step.todo != _abi.HY_DO_GRADIENTS:
            parameters.have_changed()
        self._finish(status)

    def _must_be_ready(self) -> None:
        """Before a step, or a part of one."""
        self._open()
        if self._is_lent:
            raise StateError("a step cannot run inside `with loop.using_weights():`; leave it first")
        if self._watched is not None:
            self._watched.check()

    @property
    def is_over(self) -> bool:
        """Whether the run is over."""
        with self._turn:
            self._open()
            return self._ask() == _abi.HY_DO_NOTHING

    @property
    def question(self) -> Step | None:
        """The current question; None if the run is over. A loss function may read it, too."""
        is_passing = self._module is not None and self._module.units.is_begun  # autograd has threads of its own
        if self._is_asked and (self._turn.is_mine() or is_passing) and self._c_step.todo != _abi.HY_DO_NOTHING:
            return Step._of(self._c_step)
        with self._turn:
            self._open()
            if self._ask() == _abi.HY_DO_NOTHING:
                return None
            self._begin_passes()
            return Step._of(self._c_step)

    def _begin_passes(self) -> None:
        """The caller's code will run the module."""
        if self._module and not self._module.units.is_begun:
            self._module.begin(self._c_step.todo == _abi.HY_DO_GRADIENTS)

    def _end_passes(self, tokens: int) -> None:
        if not self._module or not self._module.units.is_begun:
            return
        if self._c_step.todo != _abi.HY_DO_GRADIENTS:
            self._module.units.rest()
        elif tokens != self._module.units.tokens:
            raise InputError(
                f"the answer has {tokens} tokens, but blocks gave their gradients before that was known; use loop.step "
                "or loop.run with a function that returns (loss, tokens)"
            )
        else:
            self._module.units.end()

    def _passes(self, wants_gradients: bool) -> Any:
        """Encloses a call of the caller's function."""
        return self._module.passing(wants_gradients) if self._module else _AS_IT_IS

    def answer(self, loss: Any, tokens: int = 1) -> None:
        """Answers the current question with its loss, a mean over `tokens` targets.

        If the question asks for gradients, they are read from `.grad` of torch parameters, or from `gradients`.
        """
        with self._turn:
            self._must_be_ready()
            if self._ask() == _abi.HY_DO_NOTHING:
                raise StateError("the run is over, so there is no question to answer")
            tokens = _count(tokens)
            self._end_passes(tokens)
            self._give(loss, tokens)

    def __iter__(self) -> Iterator[Step]:
        """Yields questions until the run is over. If `evaluate` is a function, its questions are answered by it."""
        while True:
            with self._turn:
                self._open()
                if self._is_shown:
                    raise StateError(
                        f"the loop asked for {_names.TODO[self._c_step.todo]}, but the question was not answered; call "
                        "loop.answer(loss) for each step"
                    )
                while self._ask() == _abi.HY_DO_EVALUATE and self._evaluate is not None:
                    self._give(*self._evaluated())
                if self._ask() == _abi.HY_DO_NOTHING:
                    return
                if self._in_turn and self._c_step.todo == _abi.HY_DO_GRADIENTS:
                    self._finish(lib.hy_loop_use(self._open(), -1))  # your code may change gradients at any time
                self._must_be_ready()
                self._begin_passes()
                self._is_shown = True
                step = Step._of(self._c_step)
            yield step

    # ---- with a loss function ------------------------------------------------------------------------------------

    def _numbered(self, loss_function: LossFunction, data: Any) -> LossFunction:
        """The loss function of a micro-batch's number."""
        if data is None:
            return loss_function
        if self._data is None or self._data.source is not data:
            keep = int(self.config.get("grad_accum_steps"))
            who, is_ours = ranks_of(self._run()), None
            if who is not None:
                share = keep // who.count
                is_ours = functools.partial(_is_of_rank, who.rank, who.count, share)
            device = self._parameters.device if self._has_autograd else "cpu"
            self._data = Batches(data, int(self.config.get("seed")), self._can_rewind, keep, device, is_ours)
        get, step = self._data.get, self._c_step
        return lambda number: loss_function(get(number, step.todo == _abi.HY_DO_GRADIENTS))

    def step(self, loss_function: LossFunction, data: Any = None) -> StepInfo:
        """Makes one optimizer step and answers all questions up to the next one.

        loss_function(batch) returns the loss of micro-batch number `batch`: a scalar tensor, or (loss, tokens) if
        micro-batches have different weights. Backward, scaling and summing happen here. With arrays, the function
        returns a number and also writes the gradients of that loss.

        data: a DataLoader, a list or dataset of micro-batches, or an iterable of them. The function then gets the
        micro-batch itself, with its tensors on the device of the parameters. The order of a DataLoader and its random
        numbers follow from the key `seed`.
        """
        with self._turn:
            self._must_be_ready()
            loss_function = self._numbered(loss_function, data)
            if self._ask() == _abi.HY_DO_NOTHING:
                raise StateError("the run is over, so there are no more steps")
            info = self._advance(loss_function)
        if info is None:
            raise StateError("the run ended before its first step")
        return info

    def run(self, loss_function: LossFunction, data: Any = None) -> Summary:
        """Runs all remaining steps. The arguments are those of `step`."""
        with self._turn:
            self._open()
            loss_function = self._numbered(loss_function, data)
            while self._ask() != _abi.HY_DO_NOTHING:
                self._must_be_ready()
                self._advance(loss_function, wants_info=False)
            return summary_of(self._run())

    def _advance(self, loss_function: LossFunction, wants_info: bool = True) -> StepInfo | None:
        """Makes one optimizer step, answers the questions before and after it, and returns the step's results."""
        step = self._c_step
        if step.todo != _abi.HY_DO_GRADIENTS:
            self._answer_losses(loss_function)
        number, info = step.step, _abi.hy_step_info()
        result = ctypes.byref(info) if wants_info else None
        # Repeats if the library sums: each answer brings the next question.
        while step.todo == _abi.HY_DO_GRADIENTS and step.step == number:
            self._answer_with_gradients(loss_function, result)
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
            raise StateError("the loop needs the held-out loss: create it with evaluate=, or call loop.answer(loss)")
        with self._passes(False), self._context(False):
            return _with_tokens(self._evaluate())

    def _answer_without_gradients(self, loss_function: LossFunction) -> None:
        if self._c_step.todo == _abi.HY_DO_EVALUATE:
            self._give(*self._evaluated())
            return
        with self._passes(False), self._context(False):
            answer = _with_tokens(loss_function(self._c_step.batch))
        self._give(*answer)

    def _answer_with_gradients(self, loss_function: LossFunction, info: Any) -> None:
        if self._in_turn:
            self._in_turn.begin(self._open())  # gradients are read until the pass is over
        else:
            self._parameters.clear_gradients()
        if self._has_autograd:
            with self._passes(True):
                answer = self._backward(loss_function)
            self._give(*answer, True, info)
        else:
            self._give(*self._filled(loss_function), False, info)

    def _backward(self, loss_function: LossFunction) -> tuple[Any, int]:
        """Computes the gradients of the mean loss over the step's targets.

        Micro-batches are weighted by their targets. The sum of targets is known only at the end, so each micro-batch is
        weighted relative to the first, and the gradients are scaled afterwards if the weights differ.
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
            if self._module:
                self._module.units.tokens = tokens
                self._module.must_use_blocks(loss)
            try:
                (loss if factor == 1 else loss * factor).backward()
            except (AttributeError, RuntimeError, TypeError) as error:
                self._must_be_scalar(loss, str(error))  # clearer messages than torch's
                raise
            if count == 1:
                return loss, tokens
            total = total + loss.detach() * tokens
            weight += tokens
        if count * first != weight:
            self._parameters.scale_gradients(count * first / weight)
        return total / weight, weight

    def _must_be_scalar(self, loss: Any, error: str) -> None:
        if "backward through the graph a second time" in error:
            raise InputError(
                "the loss function has called backward(), or uses results of an earlier pass; return the loss, because "
                "the loop calls backward() itself"
            )
        if not is_torch(loss):
            raise InputError(f"the loss function returned a {type(loss).__name__}; expected a scalar tensor")
        if loss.numel() != 1:
            raise InputError(f"the loss has shape {tuple(loss.shape)}; expected a scalar, such as its mean")
        if not loss.requires_grad:
            raise InputError(
                "the loss does not depend on the parameters, so it has no gradient; it was computed under no_grad, or "
                "detached"
            )

    def _filled(self, loss_function: LossFunction) -> tuple[Any, int]:
        if self._c_step.count != 1:
            raise StateError(
                f"the loop needs {self._c_step.count} micro-batches at once; create it with sum_gradients=True, "
                "or iterate over it and call loop.answer"
            )
        loss, tokens = _with_tokens(loss_function(self._c_step.batch))
        if self._c_step.loss_scale != 1:
            self._parameters.scale_gradients(self._c_step.loss_scale)
        return loss, tokens

    # ---- saving and ending -------------------------------------------------------------------------------------

    def save(self) -> None:
        """Saves a checkpoint now, between two steps."""
        with self._turn, self._without_passes():
            self._finish(lib.hy_loop_save(self._open()))

    def stop(self) -> None:
        """Ends the run after its last finished step, and saves it if it has a folder."""
        with self._turn:
            handle = self._open()
            self._is_asked = self._is_shown = False
            if self._module:
                self._module.units.give_up()
                self._module.units.answered()
            self._finish(lib.hy_loop_stop(handle))

    def close(self) -> None:
        """Frees the library's memory. Everything since the last checkpoint is lost; `stop` saves."""
        if self._handle is None:
            return
        with self._turn:
            self._handle = self._data = None
            if self._module:
                self._forgotten.detach()
                self._module.close(self._finalizer)
            else:
                self._finalizer()

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops and saves the run, then closes the loop."""
        try:
            if self._handle is not None:
                self.stop()
        except Exception:
            if kind is None:
                raise
        finally:
            self.close()

    # ---- weights that the library keeps --------------------------------------------------------------------------

    def _kept(self) -> Any:
        self._open()
        if not self._module:
            raise StateError("the weights are in the module's own memory; this is for a loop with blocks")
        return self._module

    @contextlib.contextmanager
    def _without_passes(self) -> Iterator[None]:
        """Nothing is held in here, because the library reads or writes all weights."""
        was_begun = self._module is not None and self._module.units.is_begun
        if self._module and was_begun:
            if self._module.units.has_gradients:
                raise StateError(
                    "this call would lose the gradients that backward() has computed; call loop.answer(loss) before it"
                )
            self._module.units.rest()
        try:
            yield
        finally:
            if was_begun and self._is_asked and self._handle is not None:
                self._begin_passes()

    @contextlib.contextmanager
    def using_weights(self) -> Iterator[None]:
        """Lets you call a module with blocks between two steps, without gradients, for example to sample."""
        with self._turn:
            module = self._kept()
            self._ask()
        import torch

        with self._without_passes(), module.passing(False), torch.no_grad():
            self._is_lent = True
            try:
                yield
            finally:
                self._is_lent = False

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Reads the safetensors files of a folder into a module with blocks, for example one on the meta device.

        The names must be those of the module; with PEFT, those of its base model. If the run was resumed, the trained
        weights and the buffers of its checkpoint stay.
        """
        with self._turn, self._without_passes():
            self._kept().load(folder, self._of_module.restored())

    def state_dict(self) -> dict[str, Any]:
        """The module's state_dict with the weights of its blocks, in host memory."""
        with self._turn, self._without_passes():
            out: dict[str, Any] = self._kept().weights.state_dict()
            return out

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Writes the weights of a module with blocks as safetensors, and its configuration if it has one.

        If the weights came from a folder, the names are the same. PEFT writes its adapter.
        """
        with self._turn, self._without_passes():
            self._kept().save_pretrained(folder)

    # ---- looking -----------------------------------------------------------------------------------------------

    def _last(self) -> StepInfo | None:
        c = _abi.hy_step_info()
        return StepInfo._later(c) if lib.hy_loop_last_sized(self._open(), *sized(c)) else None

    @property
    def last(self) -> StepInfo | None:
        """The result of the last step or jump; None before the first."""
        with self._turn:
            return self._last()

    def _run(self) -> Any:
        return lib.hy_loop_trainer(self._open())

    def summary(self) -> Summary:
        """The results of the run so far."""
        with self._turn:
            return summary_of(self._run())

    def memory(self) -> MemoryState:
        """The library's memory now, with the planned values."""
        with self._turn:
            return memory_of(self._run())

    def savings(self) -> list[Saving]:
        """The techniques that save memory in this run or could, with their bytes and time."""
        with self._turn:
            return savings_of(self._run())

    def plan(self) -> Plan:
        """The plan: places, types and reasons. `print(loop.plan())` shows it as a table."""
        with self._turn:
            out = plan_of(self._run())
        if self._module and self._module.units.inputs is not None:
            out["choices"]["activations_place"] = "pinned"
        return out

    def estimate_activations(self) -> Activations:
        """Bytes that the blocks of the module need, as measured in the first step: of each kind of block, and in total."""
        from ._card import activations_of

        with self._turn:
            return activations_of(self._kept().units)

    def ranks(self) -> RanksInfo | None:
        """The rank of this loop among several; None: there is only one."""
        with self._turn:
            return ranks_of(self._run())

    def __repr__(self) -> str:
        count, of = len(self._parameters.names), self.config.get("steps")
        state = "closed"
        if self._handle is not None:
            step, planned = self._c_step.step, ""
            with contextlib.suppress(StateError), self._turn:  # in a callback there is no figure
                step = max(step, summary_of(self._run()).steps)  # a resumed run has no question yet
                planned = f", {bytes_text(facts_of(self._run()).vram_bytes)} planned on the device"
            state = f"{_names.PHASE[self._c_step.phase]}, step {step} of {of}{planned}"
        return f"hybrid_train.Loop({self.config.get('optimizer')}, {count} parameters, {state})"

    def __reduce__(self) -> Any:
        raise TypeError("a Loop cannot be copied or pickled; save() stores its state")


def _is_of_rank(rank: int, count: int, share: int, number: int) -> bool:
    return number // share % count == rank


def _forget(module: Any, destroy: Callable[[], object], say: Any, made_in: int) -> None:
    """A loop was dropped without close(): its module gets the weights. Runs before _destroy, which is older."""
    if os.getpid() == made_in:
        try:
            module.close(destroy)
        except Exception as error:
            say("warning", f"a loop was dropped without close(), and the weights of its module are lost: {error}")


def _destroy(handle: ctypes.c_void_p, keep: Any, module: Any, in_turn: InTurn | None, made_in: int) -> None:
    if in_turn:
        in_turn.remove()
    # A child of fork has the memory but not the thread of the run.
    if os.getpid() == made_in:
        if module:
            module.units.give_up()
        lib.hy_loop_destroy(handle)
    del keep
