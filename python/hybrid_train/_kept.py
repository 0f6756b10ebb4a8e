"""Units that keep their graph from the forward to the backward pass, as in plain torch, instead of running twice.

Only units with weights that stay at one address may: the graph refers to them. Their gradients go to the library as
soon as the last of a unit has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.utils import _pytree as pytree

from ._blocks import Unit

if TYPE_CHECKING:
    from ._units import Units


def is_cache(value: Any) -> bool:
    """Whether it is a key-value cache of transformers. A second run of a block would append to it again."""
    return any(c.__name__ == "Cache" and c.__module__.startswith("transformers.") for c in type(value).__mro__)


class SavedBytes:
    """Counts the bytes that a graph keeps, without the memory in `known` (weights and inputs)."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        self._seen = {t.untyped_storage().data_ptr() for t in known}
        self.bytes = 0

    def __enter__(self) -> SavedBytes:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def _branch(value: Any) -> Any:
    """A tensor as an input of its own: gradients that come from the unit are summed before others are added.

    A unit that is run again gives one gradient for each input, so the bits are the same. Like such a unit, this one
    gets no cache.
    """
    if is_cache(value):
        return None
    return value.view_as(value) if isinstance(value, torch.Tensor) and value.requires_grad else value


class KeptGraphs:
    def __init__(self, units: Units) -> None:
        self._units = units
        self._kept: dict[int, int] = {}  # gradients of the unit that have arrived in this pass
        self._hooks: list[Any] = []

    def __contains__(self, unit: Unit) -> bool:
        return unit.number in self._kept

    def choose(self, units: list[Unit]) -> None:
        """From now on these keep their graph."""
        if list(self._kept) == [unit.number for unit in units]:
            return
        for hook in self._hooks:
            hook.remove()
        self._kept = {unit.number: 0 for unit in units}
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrival_of(u)) for u in units for p in u.trained]

    def run(self, unit: Unit, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Holds the unit until the pass ends."""
        units = self._units
        units.hold_for_pass(unit)
        args, kwargs = pytree.tree_map(_branch, (args, kwargs), is_leaf=is_cache)
        with units.autocast(units.autocast_type()):
            out = function(*args, **kwargs)
        number = units.pass_number
        for x in pytree.tree_leaves(out, is_cache):
            if isinstance(x, torch.Tensor) and x.grad_fn is not None:
                x.register_hook(lambda _: units.must_be_in_backward(unit, number))  # type: ignore[no-untyped-call]
        return out

    def _arrival_of(self, unit: Unit) -> Callable[[Any], None]:
        def arrived(_: Any) -> None:
            self._kept[unit.number] += 1
            if self._kept[unit.number] == len(unit.trained):
                self._give(unit)

        return arrived

    def _give(self, unit: Unit) -> None:
        self._units.add(unit, [p.grad for p in unit.trained])
        self._forget(unit)

    def _forget(self, unit: Unit) -> None:
        self._kept[unit.number] = 0
        for p in unit.trained:
            p.grad = None

    def _all(self) -> list[Unit]:
        return [self._units.list[number] for number in self._kept]

    @property
    def has_gradients(self) -> bool:
        return any(count > 0 for count in self._kept.values())

    def end(self) -> None:
        """After the backward pass: gradients of units that did not use all of their parameters."""
        for unit in reversed(self._all()):
            if self._kept[unit.number] > 0:
                self._give(unit)

    def rest(self) -> None:
        for unit in self._all():
            self._forget(unit)
