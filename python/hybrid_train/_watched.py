"""The parameters of a module as they were when its loop was created: changes that training would ignore are refused."""

from __future__ import annotations

import itertools
import operator
from typing import Any

from .errors import InputError

_requires_grad = operator.attrgetter("requires_grad")


class Watched:
    """`check` is called in every step, so it compares two lists before it looks for names."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._note()

    def _note(self) -> None:
        module = self._module
        owners = list(module.modules())
        self._tables = [m._parameters for m in owners] + [m._modules for m in owners]
        self._known = {name: (p, p.requires_grad) for name, p in module.named_parameters()}
        self._all = [p for p, _ in self._known.values()]
        self._was = self._state()

    def _state(self) -> tuple[list[int], list[bool]]:
        parts = itertools.chain.from_iterable(map(dict.values, self._tables))
        return list(map(id, parts)), list(map(_requires_grad, self._all))

    def check(self) -> None:
        now = self._state()
        if now == self._was:
            return
        named = dict(self._module.named_parameters(remove_duplicate=False))
        for name, (p, was) in self._known.items():
            if was and named.get(name) is not p:
                raise _changed(name, f"was {'replaced' if name in named else 'removed'} after the loop was created")
            if p.requires_grad != was:
                raise _changed(name, f"has requires_grad={p.requires_grad}, but {was} when the loop was created")
        known = set(map(id, self._all))
        for name, p in named.items():
            if p.requires_grad and id(p) not in known:
                raise _changed(name, "was added after the loop was created")
        self._note()  # only frozen parts have changed


def _changed(name: str, what: str) -> InputError:
    return InputError(f"parameter {name} {what}; undo this, or close the loop and create another")
