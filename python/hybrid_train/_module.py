"""A torch module with weights that the library keeps: its units, its weights and its loss in one object for a Loop."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any, Callable

import torch

from . import _abi
from ._blocks import find_units, must_not_read
from ._card import TorchsPart
from ._causal_lm import CausalLM, find_models
from ._library import lib
from ._parameters import UnitParameters, collect_units
from ._peft import is_adapted, make_adapters
from ._units import LibraryStore, Units, nodes_of, swap
from ._weights import Weights
from .config import Config
from .errors import DeviceError, InputError


def device_for(said: str, module: Any) -> str:
    """The device of the passes: the chosen one, or that of the module, or a card if there is one."""
    device = _chosen(said, module)
    if device.startswith("cuda:") and torch.cuda.is_available() and int(device[5:]) != torch.cuda.current_device():
        raise DeviceError(
            f"the device is {device}, but torch's current one is cuda:{torch.cuda.current_device()}; call "
            f"torch.cuda.set_device({device[5:]}) first"
        )
    return device


def _chosen(said: str, module: Any) -> str:
    if said.startswith("cuda:") and int(said[5:]) >= torch.cuda.device_count():
        raise DeviceError(f"device is {said}, but torch finds {torch.cuda.device_count()} cards")
    if said not in ("auto", "cuda"):
        return said
    cards = [p.device for p in module.parameters() if p.device.type == "cuda"]
    if cards:
        return f"cuda:{cards[0].index or 0}"
    if torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    if said == "cuda":
        raise DeviceError("device is cuda, but torch finds no card")
    return "cpu"


class Module:
    def __init__(self, module: Any, blocks: Any, device: str, groups: Any, is_only_planned: bool = False) -> None:
        self._module = module
        if is_adapted(module) and not is_only_planned:
            make_adapters(module)
        found = find_units(module, blocks)
        self.parameters: UnitParameters = collect_units(found, device, groups)
        self.units = Units(found, device)
        self.weights = Weights(module, self.units)
        numbers = [unit.number for unit in found for _ in unit.parameters]
        self.unit_of = (ctypes.c_int32 * len(numbers))(*numbers)
        self._models: list[CausalLM] = []
        self._is_resumed = False
        self._is_looked_at = False
        self._hooks: list[Any] = []

    def plan_with(self, options: _abi.hy_loop_options, config: Config, say: Callable[[str, str], object]) -> None:
        """Before the loop is created: its plan leaves room for torch."""
        options.unit_of = self.unit_of
        self.part = TorchsPart(self.units, config, say)
        self.part.to_c(options)

    def attach(self, handle: ctypes.c_void_p, step: int) -> None:
        """After the first question: the store gets the weights, and the module uses them there."""
        self._is_resumed = bool(lib.hy_loop_is_resumed(handle))
        store = LibraryStore(handle, [len(unit.parameters) for unit in self.units.list])
        self.weights.attach(store, self._is_resumed)
        self.units.attach(store)
        self._models = [CausalLM(one, self.units) for one in find_models(self._module)]
        self._refuse_reading()
        self.part.attach(handle, step)

    def load(self, folder: str | os.PathLike[str], restored: set[int]) -> None:
        self.weights.load(folder, self._is_resumed, restored)

    def _refuse_reading(self) -> None:
        kept = {id(p) for p in self.parameters.values}
        owners = [m for m in self._module.modules() if not kept.isdisjoint(map(id, m._parameters.values()))]
        self._hooks = [m.register_state_dict_pre_hook(must_not_read) for m in owners]

    def _allow_reading(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        self._allow_reading()  # transformers and PEFT get the values from us, but may look for names
        try:
            self._save_pretrained(folder)
        finally:
            self._refuse_reading()

    def _save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        save = getattr(self._module, "save_pretrained", None)
        if save is not None and is_adapted(self._module):
            save(folder, state_dict=self.weights.state_dict(only_trained=True))  # PEFT writes the adapter
            return
        if save is not None and not self.weights.came_in:
            save(folder, state_dict=self.weights.state_dict())  # transformers may have renamed tensors, and PEFT
            return
        self.weights.save(folder)
        for name in ("config", "generation_config"):
            save = getattr(getattr(self._module, name, None), "save_pretrained", None)
            if save is not None:
                save(folder)

    def begin(self, wants_gradients: bool) -> None:
        self.weights.must_be_complete()
        self.units.begin(wants_gradients)

    @contextlib.contextmanager
    def passing(self, wants_gradients: bool) -> Iterator[None]:
        self.weights.must_be_complete()
        self.part.begin()
        try:
            with self.units.passing(wants_gradients):
                yield
        except torch.cuda.OutOfMemoryError as error:
            raise self.part.out_of_memory(error) from error

    def must_use_blocks(self, loss: Any) -> None:
        """Checks, before the first backward pass, that the loss reaches weights of blocks only through their calls."""
        if self._is_looked_at:
            return
        unit_of = {id(p): (unit, name) for unit in self.units.list for name, p in zip(unit.names, unit.parameters)}
        for node in nodes_of([loss]):
            unit, name = unit_of.get(id(getattr(node, "variable", None)), (None, ""))
            if unit is not None and unit.modules:
                raise InputError(
                    f"the loss uses parameter {name} outside of its block {unit.name}, where the library has its values; "
                    "use it in the block's forward, or name other blocks (for an L2 term, use the key weight_decay)"
                )
        self._is_looked_at = True

    def close(self, destroy: Callable[[], object]) -> None:
        """Ends the loop with `destroy`. The module has its weights again; without values it is on the meta device."""
        try:
            give_back = self.detach()
        finally:
            self._allow_reading()
            destroy()
        give_back()
        for unit, shapes in zip(self.units.list, self.units.shapes):
            for p, shape in zip(unit.parameters, shapes):
                if p.shape != shape:
                    none = torch.nn.Parameter(torch.empty(shape, dtype=p.dtype, device="meta"), p.requires_grad)
                    with contextlib.suppress(RuntimeError):  # torch refuses if a weakref refers to the parameter
                        swap(p, none)

    def detach(self) -> Callable[[], None]:
        """Before the loop is destroyed: the module has its own functions again.

        Returns a function that gives it memory of its own, for the time when the library's is free.
        """
        try:
            self.units.give_up()
            values = self.weights.read_all()
        finally:
            for one in self._models:
                one.remove()
            self._models = []
            self.units.detach()
        return lambda: self.weights.give_back(values)
