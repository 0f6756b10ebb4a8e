"""A torch.optim.Optimizer for code that has its own loop: transformers' Trainer, TRL, Lightning, or a plain loop."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Callable

import torch

from . import _abi, _names
from ._library import check, lib, sized
from ._observer import OnMessage
from ._parameters import Given, TorchParameters
from .config import Config, ConfigValue
from .errors import InputError, StateError
from .loop import Loop
from .ranks import find_rank

__all__ = ["Optimizer"]

State = dict[Any, dict[str, Any]]  # of each parameter, as torch's optimizers have it

_ENDLESS = 10**9  # steps of a run without end
# Names of the library's arrays in torch's optimizers; other arrays keep their names.
_IN_TORCH = {
    "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
    "lion": {"m": "exp_avg"},
    "sgd": {"momentum": "momentum_buffer"},
}
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Keys of a run that the caller's loop decides.
_LOOPS_OWN = ("out", "resume", "schedule", "lr_warmup_steps", "grad_accum_steps", "eval_every", "groups", "precision")


class _Skipping(TorchParameters):
    """Parameters of which some may have no gradient: their weights take its place, and the update skips them."""

    def __init__(self, given: list[Given]) -> None:
        super().__init__(given)
        self.missing: list[bool] = []
        self._now: list[Any] = []
        self.versions: list[int] = []  # torch's counts of changes by us

    def look(self) -> None:
        """Reads the gradients of a step."""
        grads = [p.grad for p in self.values]
        self.missing = [g is None for g in grads]
        self._now = [
            own if g is None else g if g.is_sparse or g.is_contiguous() else g.contiguous()
            for g, own in zip(grads, self._kept)
        ]

    def _gradients(self) -> list[Any]:
        return self._now

    def have_changed(self) -> None:
        before = self.values[0]._version
        super().have_changed()
        by = self.values[0]._version - before
        self.versions = [version + by for version in self.versions]

    def let_go(self) -> None:
        """After a step: the gradients may be freed."""
        self._now = self._held = []


class Optimizer(torch.optim.Optimizer):
    """The library's optimizers as a torch.optim.Optimizer, with state on the card, in pinned memory or on disk.

        optimizer = hybrid_train.Optimizer(model.parameters(), lr=3e-4, max_gpu_mem="8GiB")
        loss.backward()
        optimizer.step()

    params: as for torch's optimizers: parameters, named parameters, or dicts with "params", "lr", "weight_decay".
        Schedulers change group["lr"]; each step uses the current values.
    optimizer: "adamw", "lion", "sgd", "muon" or "adafactor". lr, betas, eps and weight_decay default to those of
        torch's AdamW.
    grad_clip: limits the norm of all gradients; 0: no limit.
    steps, predictor: the expected number of steps, and "outer" or "line": predicted jumps, which need step(closure).
    keys: max_gpu_mem, cpu_mem, optim_place, optim_dtype, master_place, momentum, ... (docs/configuration.md).

    Memory is planned and allocated at the first step, when activations and gradients already have theirs. A parameter
    without a gradient is skipped, as by torch. A step with a gradient that is not finite changes nothing; after 20 of
    them in a row, step raises a NumericError.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        optimizer: str = "adamw",
        grad_clip: float = 0.0,
        predictor: str = "none",
        steps: int | None = None,
        on_message: OnMessage = None,
        **keys: ConfigValue | None,
    ) -> None:
        for key in keys:
            if key.rsplit(".", 1)[-1] in _LOOPS_OWN:
                raise InputError(f"an Optimizer has no {key}: your loop decides it (hybrid_train.Loop has {key})")
        ranks = find_rank()
        if ranks.count > 1:
            raise InputError(
                f"this process is rank {ranks.rank} of {ranks.count} ({ranks.launcher}), but an Optimizer trains in "
                "one process; hybrid_train.Loop trains with several"
            )
        self._loop: Loop | None = None
        self._pending: State = {}  # state for the next loop
        self._pending_steps = 0
        self._on_message = on_message
        self._predicts = predictor != "none"
        self._name = optimizer
        betas = betas or ((0.9, 0.999) if optimizer == "adamw" else None)
        self._fixed: dict[str, Any] = {"eps": float(eps)} if optimizer == "adamw" else {}
        self._keys: dict[str, Any] = {**keys, "optimizer": optimizer, "grad_clip": grad_clip, "predictor": predictor}
        if betas is not None:
            self._fixed["betas"] = (float(betas[0]), float(betas[1]))
            self._keys.update(beta1=betas[0], beta2=betas[1])
        self._keys.update(adam_eps=eps, schedule="constant", lr_warmup_steps=0, divergence_factor=0)
        self._keys.update(self._prediction(steps))
        plain = Config(**self._keys)  # refuses unknown keys and values now
        # Values that groups of other optimizers may have, though ours has none in its groups.
        self._common = {"betas": (plain.get("beta1"), plain.get("beta2")), **self._fixed}
        momentum = {"sgd": "momentum", "muon": "muon_momentum"}.get(optimizer)
        if momentum:
            self._common["momentum"] = plain.get(momentum)
        if hasattr(params, "named_parameters"):
            params = params.named_parameters()
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **self._fixed})

    def _prediction(self, steps: int | None) -> dict[str, Any]:
        """The part of the run in which jumps are tried, as shares of a run without end."""
        if not self._predicts:
            return {}
        if steps is None or steps < 1:
            raise InputError("prediction needs steps=, the number of steps that your loop will make")
        plain = Config(**{key: self._keys[key] for key in ("predict_from", "predict_until") if key in self._keys})
        return {key: plain.get(key) * steps / _ENDLESS for key in ("predict_from", "predict_until")}

    # ---- groups --------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. A loop that has begun is made anew with all parameters, and keeps its state."""
        self._restart()
        super().add_param_group(param_group)
        try:
            self._check_group(len(self.param_groups) - 1)
        except InputError:
            self.param_groups.pop()
            raise

    def _check_group(self, number: int) -> tuple[float, float]:
        """Checks the values of a group, and returns its learning rate and decay."""
        group = self.param_groups[number]
        for key, value in self._common.items():
            given = group.get(key, value)
            if (tuple(given) if isinstance(value, tuple) else given) != value:
                raise InputError(
                    f"group {number} has {key}={given}, but the optimizer has {key}={value} for all groups and steps"
                    " (OneCycleLR and CyclicLR: cycle_momentum=False)"
                )
        for key in ("amsgrad", "maximize", "nesterov", "dampening"):
            if group.get(key):
                raise InputError(f"group {number} has {key}={group[key]}, which this optimizer does not support")
        rates = float(group["lr"]), float(group.get("weight_decay", 0))
        if not (rates[0] >= 0 and rates[1] >= 0):
            raise InputError(f"group {number} has lr={rates[0]} and weight_decay={rates[1]}; expected 0 or more")
        return rates

    def _named(self) -> Iterator[tuple[int, str, Any]]:
        """The group, name and tensor of each parameter, in torch's order."""
        numbers, seen = itertools.count(), set()
        for number, group in enumerate(self.param_groups):
            names = group.get("param_names") or itertools.repeat("")
            for p, name in zip(group["params"], names):
                i = next(numbers)
                name = name if name and name not in seen else f"p{i}"
                seen.add(name)
                yield number, name, p

    # ---- the loop ------------------------------------------------------------------------------------------------

    def _begin(self) -> Loop:
        """Creates the loop, with the state that waits for it."""
        entries = [(group, Given(name, p, None)) for group, name, p in self._named() if _is_trained(p)]
        self._frozen = [p for _, _, p in self._named() if not _is_trained(p)]
        self._given = _Skipping([given for _, given in entries])
        if self._given.dtype == "fp16":
            raise InputError(
                f"parameter {self._given.names[0]} has type fp16; an Optimizer trains fp32 and bf16 parameters (with "
                "torch.autocast and a GradScaler, fp32 parameters compute in fp16)"
            )
        self._group_of = [group for group, _ in entries]
        self._rates: Any = None
        self._packed = ctypes.create_string_buffer(ctypes.sizeof(_abi.hy_parameter_group) * len(entries))
        loop = Loop(self._given, steps=_ENDLESS, lr=1.0, on_message=self._on_message, **self._keys)
        try:
            self._write(loop)
        except BaseException:
            loop.close()
            raise
        self._loop, self._pending = loop, {}
        self._given.versions = [p._version for p in self._given.values]
        return loop

    def _restart(self) -> None:
        """Ends the loop; the next step begins another with the same state."""
        if self._loop is not None:
            self._pending = self._read()
            self._loop.close()
            self._loop = None

    def _set_rates(self, loop: Loop) -> None:
        """Gives the library the rates that the groups have now, and the parameters without gradients."""
        pairs = [self._check_group(number) for number in range(len(self.param_groups))]
        rates = pairs, self._given.missing
        if rates == self._rates:
            return
        flat = [
            value
            for group, is_missing in zip(self._group_of, self._given.missing)
            for value in ((-1.0, 0.0) if is_missing else pairs[group])
        ]
        struct.pack_into(f"{len(flat)}d", self._packed, 0, *flat)
        array = ctypes.cast(self._packed, ctypes.POINTER(_abi.hy_parameter_group))
        check(lib.hy_loop_set_rates(loop._open(), array))
        self._rates = rates

    def _take_changes(self, loop: Loop) -> None:
        """Copies 16-bit weights that the caller has changed to their master copy, which the update changes."""
        if self._given.dtype == "fp32":
            return
        for i, p in enumerate(self._given.values):
            if p._version != self._given.versions[i]:
                self._given.versions[i] = p._version
                for index, array in self._arrays(loop, i):
                    if array.name == b"master":
                        self._put(loop, i, index, array, p.detach())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one optimizer step with the gradients in `.grad`.

        closure: clears the gradients, computes the loss and its gradients, and returns the loss. With a predictor it
        is called again for the same batch with proposed weights, and its losses decide whether they are kept.
        """
        loss = None
        if self._loop is not None:
            self._must_run(self._loop)
            if self._predicts and closure is not None:
                self._judge(self._loop, closure)  # an exception may have interrupted it
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        elif self._predicts:
            raise InputError("an Optimizer with a predictor needs step(closure): the loss decides on a jump")
        if self._loop is not None and any(p.grad is not None for p in self._frozen):
            self._restart()  # with the parameters that are trained from now on
        if all(p.grad is None for group in self.param_groups for p in group["params"]):
            return loss
        loop = self._loop or self._begin()
        self._given.look()
        self._take_changes(loop)
        self._set_rates(loop)
        try:
            loop.answer(loss if self._predicts else 1.0)
        finally:
            self._given.let_go()
        if self._predicts:
            self._judge(loop, closure)
        return loss

    def _must_run(self, loop: Loop) -> None:
        if loop.is_over:
            raise StateError(
                "the optimizer has ended, because too many steps in a row had gradients that are not finite; continue "
                "with load_state_dict of a state that was saved before"
            )

    def _judge(self, loop: Loop, closure: Any) -> None:
        """Answers questions of the guard. There is one batch, so a pass over several has its loss for each."""
        seen, loss = -1, None
        while (question := loop.question) is not None and question.todo == "loss":
            if loss is None or question.batch <= seen:  # a new pass, with other weights
                with torch.enable_grad():
                    loss = closure()
            seen = question.batch
            loop.answer(loss)

    # ---- state ---------------------------------------------------------------------------------------------------

    def _arrays(self, loop: Loop, i: int) -> Iterator[tuple[int, Any]]:
        """The arrays of a parameter's state."""
        for index in itertools.count():
            array = _abi.hy_state_array()
            status = lib.hy_loop_state_sized(loop._open(), i, index, *sized(array))
            if status == _abi.HY_ERR_INPUT:
                return  # there are no more
            check(status)
            yield index, array

    def _key(self, array: Any) -> str:
        text: str = array.name.decode()
        name, dot, scale = text.partition(".")
        return _IN_TORCH.get(self._name, {}).get(name, name) + dot + scale

    def _read(self) -> State:
        """The state of each parameter that was updated."""
        loop = self._loop
        if loop is None:
            return self._pending
        self._must_run(loop)
        if (question := loop.question) is not None and question.todo == "loss":
            raise StateError(
                "an exception interrupted step(closure) at proposed weights; call step(closure) again first"
            )
        updates, steps = (ctypes.c_int64 * len(self._given.values))(), ctypes.c_int64()
        check(lib.hy_loop_read_updates(loop._open(), updates, ctypes.byref(steps)))
        self._pending_steps = steps.value
        out: State = {}
        for i, p in enumerate(self._given.values):
            if updates[i] == 0:
                continue
            out[p] = {"step": torch.tensor(float(updates[i]))}
            for index, array in self._arrays(loop, i):
                shape = tuple(array.shape[: array.ndim])
                tensor = torch.empty(shape, dtype=_TYPES.get(_names.DTYPE[array.dtype], torch.uint8))
                check(lib.hy_loop_read_state(loop._open(), i, index, tensor.data_ptr(), array.bytes))
                out[p][self._key(array)] = tensor
        return out

    def _put(self, loop: Loop, i: int, index: int, array: Any, tensor: Any) -> None:
        """Writes an array of state; numbers are converted to its type."""
        key, name, shape = self._key(array), self._given.names[i], tuple(array.shape[: array.ndim])
        dtype = _TYPES.get(_names.DTYPE[array.dtype], torch.uint8)
        if tuple(tensor.shape) != shape:
            raise InputError(f"{key} of parameter {name} has shape {tuple(tensor.shape)}; expected {shape}")
        if (tensor.dtype == torch.uint8) != (dtype == torch.uint8):
            raise InputError(
                f"{key} of parameter {name} has type {tensor.dtype}, but this optimizer stores {dtype}; create it with "
                f'optim_dtype="{"8bit" if tensor.dtype == torch.uint8 else "fp32"}"'
            )
        tensor = tensor.detach().to("cpu", dtype).contiguous()
        check(lib.hy_loop_write_state(loop._open(), i, index, tensor.data_ptr(), array.bytes))

    def _write(self, loop: Loop) -> None:
        """Gives a new loop the state that waits for it."""
        if not self._pending:
            return
        updates = (ctypes.c_int64 * len(self._given.values))()
        for i, p in enumerate(self._given.values):
            state = self._pending.get(p)
            if not state:
                continue
            updates[i] = int(state.get("step", 0))
            for index, array in self._arrays(loop, i):
                key = self._key(array)
                if state.get(key) is not None:
                    self._put(loop, i, index, array, state[key])
                elif key not in state and key != "master":  # torch's have no master: it begins as a copy of the weights
                    have = ", ".join(state)
                    raise InputError(f"the state of parameter {self._given.names[i]} has no {key}; it has {have}")
        check(lib.hy_loop_write_updates(loop._open(), updates, max(self._pending_steps, *updates)))

    def state_dict(self) -> dict[str, Any]:
        """As torch's, in host memory: `step`, `exp_avg`, `exp_avg_sq` and so on of each parameter.

        16-bit parameters have their fp32 `master`, too. An 8-bit array has the type uint8 and its scales beside it
        (`exp_avg.scale`).
        """
        self.state = defaultdict(dict, self._read())
        try:
            out = super().state_dict()
        finally:
            self.state = defaultdict(dict)
        return {**out, "steps": self._pending_steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a state_dict of an Optimizer or, for AdamW and SGD, of torch's. The next step uses it."""
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict({**state_dict, "state": {}})
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        try:
            for number in range(len(self.param_groups)):
                self._check_group(number)
            pending = {p: state_dict["state"].get(i) for (_, _, p), i in zip(self._named(), saved)}
            for (_, name, p), i in zip(self._named(), saved):
                self._check_state(name, p, state_dict["state"].get(i, {}))
        except BaseException:
            self.param_groups[:] = before
            raise
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        self._pending = {p: dict(state) for p, state in pending.items() if state}
        self._pending_steps = int(state_dict.get("steps", 0))

    def _check_state(self, name: str, p: Any, state: Mapping[str, Any]) -> None:
        if "max_exp_avg_sq" in state:
            raise InputError(f"the state of parameter {name} is that of amsgrad, which this optimizer does not support")
        for key in ("exp_avg", "exp_avg_sq", "momentum_buffer", "master"):
            shape = getattr(state.get(key), "shape", p.shape)
            if shape != p.shape:
                raise InputError(f"{key} of parameter {name} has shape {tuple(shape)}; expected {tuple(p.shape)}")

    # ---- looking -------------------------------------------------------------------------------------------------

    @property
    def loop(self) -> Loop | None:
        """The loop that makes the updates: its `plan()`, `memory()` and `last`; None before the first step."""
        return self._loop

    def __repr__(self) -> str:
        count = sum(len(group["params"]) for group in self.param_groups)
        rates = ", ".join(dict.fromkeys(f"{float(group['lr']):g}" for group in self.param_groups))
        return f"hybrid_train.Optimizer({self._name}, {count} parameters, lr {rates})"

    def __reduce__(self) -> Any:
        raise TypeError("an Optimizer cannot be copied or pickled; state_dict() has its state")


def _is_trained(p: Any) -> bool:
    return bool(p.requires_grad or p.grad is not None)
