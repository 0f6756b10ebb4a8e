"""What a Loop needs before it starts: its configuration, the caller's data in checkpoints, and plans."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from . import _abi
from ._blocks import must_be_free
from ._library import lib, malloc_copy
from ._observer import Observer, OnMessage
from ._parameters import Parameters, shapes_to_c
from .config import Config, ConfigValue, as_config
from .errors import InputError
from .ranks import find_rank
from .trainer import planned

_NEEDED = ("train.steps", "optimizer.lr")
_OF_BLOCKS = ("weights_place", "grads_place", "frozen_dtype", "activations_place")


def _settle_resume(keys: dict[str, Any]) -> None:
    """The meaning of resume=True: continue if `out` has a checkpoint, else start a new run."""
    if keys.get("resume") is not True:
        return
    if not keys.get("out"):
        raise InputError("resume=True needs out=FOLDER, the folder of the run to continue")
    folder = Path(keys["out"])
    has_checkpoint = any(folder.glob("checkpoint-*")) if folder.is_dir() else False
    keys["resume"] = folder if has_checkpoint else None
    if not has_checkpoint:
        keys.setdefault("overwrite", True)


def configured(config: Any, keys: dict[str, Any], parameters: Parameters) -> Config:
    _settle_resume(keys)
    out = as_config(config)
    if keys.get("epochs") is not None:
        raise InputError(f"epochs is {keys['epochs']!r}, but a loop counts steps; set steps= instead")
    if keys.get("device") is not None:
        keys["device"] = str(keys["device"])  # it may be a torch.device
    # A run may continue on another device, so the device in its folder is ignored.
    said = str(keys.get("device") or out.get("device"))
    if keys.get("resume") and config is None:
        out.load_run(keys["resume"])
    for key, value in keys.items():
        if value is not None:
            out.set(key, value)
    for key in _NEEDED:
        if not out.is_chosen(key):
            name = key.split(".")[1]
            raise InputError(f"a loop needs {name}=, which is not set")
    out.use_custom()
    # fp16 gradients always need a scaled loss.
    if parameters.dtype == "fp16" and not out.is_chosen("precision"):
        out.set("precision", "fp16")
    _set_device(out, said, parameters.device)
    return out


def module_of(
    parameters: Any, blocks: Any, groups: Any, config: Config, keys: dict[str, Any], is_only_planned: bool = False
) -> Any:
    """The module as units, if the library keeps its weights; None: they are in the caller's memory."""
    is_module = hasattr(parameters, "named_modules")
    if blocks and not is_module:
        raise InputError(f"blocks is for a torch module; parameters is a {type(parameters).__name__}")
    said = str(keys.get("device") or config.get("device"))
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", said):
        raise InputError(f"device is {said}; expected auto, cpu, cuda or cuda:N")
    if blocks is None and is_module:
        blocks = any(p.is_meta for p in parameters.parameters())
    if is_module:
        must_be_free(parameters)
    if not blocks:
        _must_not_need_blocks(keys)
        return None
    who = find_rank()
    if who.count > 1:
        raise InputError(
            f"blocks train in one process, but {who.launcher} started this one as rank {who.rank} of {who.count}; start "
            "one process, or leave out blocks, so that each process keeps the whole module on its device"
        )
    from ._module import Module, device_for

    return Module(parameters, blocks, device_for(said, parameters), groups, is_only_planned)


def _must_not_need_blocks(keys: dict[str, Any]) -> None:
    key = next((key for key in _OF_BLOCKS if keys.get(key) not in (None, "auto")), None)
    if key is not None:
        raise InputError(
            f"{key} is {keys[key]}, but the weights and gradients are in your own memory; pass a torch module and "
            "blocks=True, or leave out the key"
        )


def _set_device(config: Config, said: str, device: str) -> None:
    if said not in ("auto", device.split(":")[0], device):
        raise InputError(
            f"device is {said}, but the parameters are on {device}; move them there, or pass the module and blocks=True "
            "to train it from host memory"
        )
    config.set("device", device)


# ---- the caller's part of a checkpoint -----------------------------------------------------------------------------

_OWN: dict[str, Any] = dict(_abi.hy_custom_parameters._fields_)  # type: ignore[arg-type]

SaveState = Optional[Callable[[], bytes]]
LoadState = Optional[Callable[[bytes], object]]


class State:
    """The caller's data in a checkpoint, as the two functions that the library calls."""

    def __init__(self, save_state: SaveState, load_state: LoadState, observer: Observer) -> None:
        self._observer = observer
        self._save_state, self._load_state = save_state, load_state
        self.save = _OWN["save"](self._save) if save_state else _OWN["save"]()
        self.load = _OWN["load"](self._load) if load_state else _OWN["load"]()

    def _failed(self, error: BaseException) -> int:
        self._observer.raised = self._observer.raised or error
        return int(_abi.HY_ERR_INPUT)

    def _save(self, _: Any, data: Any, size: Any) -> int:
        try:
            assert self._save_state is not None
            state = self._save_state()
            if not isinstance(state, (bytes, bytearray, memoryview)):
                raise InputError(f"save_state returned a {type(state).__name__}; expected bytes")
            state = bytes(state)
            data[0], size[0] = malloc_copy(state), len(state)
            return int(_abi.HY_OK)
        except BaseException as error:  # noqa: B902
            return self._failed(error)

    def _load(self, _: Any, data: Any, size: int) -> int:
        try:
            assert self._load_state is not None
            self._load_state(ctypes.string_at(data, size))
            return int(_abi.HY_OK)
        except BaseException as error:  # noqa: B902
            return self._failed(error)


# ---- groups ---------------------------------------------------------------------------------------------------------


def groups_of(
    groups: Mapping[str, Mapping[str, Any]] | str | None, keys: dict[str, ConfigValue | None]
) -> tuple[Mapping[str, Mapping[str, Any]] | None, dict[str, ConfigValue | None]]:
    """Separates the two forms of groups: a text for the key `groups`, or a mapping of the caller."""
    return (None, {**keys, "groups": groups}) if isinstance(groups, str) else (groups, keys)


# ---- planning without memory ---------------------------------------------------------------------------------------


def plan_parameters(
    parameters: Any,
    *,
    blocks: Any = None,
    dtype: str = "fp32",
    grad_dtype: str | None = None,
    groups: Mapping[str, Mapping[str, Any]] | str | None = None,
    sum_gradients: bool = False,
    ranks: int = 1,
    has_cards: bool = False,
    caller_bytes: int = 0,
    config: Config | Mapping[str, ConfigValue] | str | os.PathLike[str] | None = None,
    on_message: OnMessage = None,
    **keys: ConfigValue | None,
) -> dict[str, Any]:
    """Plans a Loop over {name: shape}: places, types, bytes, and whether it fits. Nothing is allocated.

    A value may also be an object with a shape, such as a tensor. dtype is "fp32", "bf16" or "fp16". With `ranks` the
    result is the plan of one of that many ranks. has_cards: each rank has its own card; otherwise they share one or
    compute on the CPU. A step then has one micro-batch per rank, unless grad_accum_steps is set.

    `parameters` may also be a module with `blocks`, as for a Loop. Types are then those of the module. On the meta
    device, it needs no memory of its own, and `blocks` is True by default. caller_bytes: device memory of torch's passes,
    for example from `loop.plan()["caller_bytes"]` of a run on another card.
    """
    groups, keys = groups_of(groups, keys)
    ours = as_config(config, **keys)
    for key, value in (("train.steps", 1000), ("optimizer.lr", 1e-3), ("train.grad_accum_steps", ranks)):
        if not ours.is_chosen(key):
            ours.set(key, value)
    ours.use_custom()
    observer = Observer(on_message=on_message)
    seen = ctypes.byref(observer.struct)
    module = module_of(parameters, blocks, groups, ours, keys, is_only_planned=True)
    if module:
        if ranks != 1:
            raise InputError(
                f"blocks train in one process, but the plan is for {ranks} ranks; leave out ranks or blocks"
            )
        options = _abi.hy_loop_options(unit_of=module.unit_of, caller_bytes=caller_bytes)
        module.parameters.to_c(options.parameters)
        out = planned(lib.hy_loop_plan, ours._handle, ctypes.byref(options), seen)
    elif caller_bytes:
        raise InputError("caller_bytes is for a module with blocks; leave room for other passes with max_gpu_mem")
    else:
        own, keep = shapes_to_c(parameters, dtype, grad_dtype or dtype, groups)
        own.sums_gradients = sum_gradients
        out = planned(lib.hy_trainer_plan_custom_ranks, ours._handle, ctypes.byref(own), ranks, has_cards, seen)
        del keep
    observer.raise_again()
    return out
