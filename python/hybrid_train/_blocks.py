"""Divides a torch module into units: its repeated blocks, its large layers, and one for everything else.

Each parameter is in one unit, trained or frozen; frozen ones of other types than the library has (8-bit codes, say)
stay torch's. Unit 0 has the small parameters outside of blocks, if there are any; the library
holds it during a whole pass. The others follow in the order in which the module defines them, which is the order of
the forward pass in most modules.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import InputError, StateError

# A layer outside of blocks is a unit if it has at least this part of all parameters.
_LARGE = 64
_LARGE_LAYERS = {"Linear", "Embedding", "EmbeddingBag", "Bilinear", "Conv1D", "_ConvNd"}
_FROZEN_TYPES = {"torch.float32", "torch.bfloat16", "torch.float16"}
_COMPILED = "; to compile a block, use block.forward = torch.compile(block.forward)"
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "OptimizedModule")


@dataclass(eq=False)
class Unit:
    number: int
    name: str  # of its first module, for messages
    modules: list[Any]
    parameters: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of its parameters
    is_frozen: list[bool] = field(default_factory=list)  # for each of them
    trained: list[Any] = field(default_factory=list)  # those that are not
    borrowed: list[Any] = field(default_factory=list)  # trained parameters of unit 0 that its modules use


def find_units(module: Any, blocks: Any) -> list[Unit]:
    """blocks: True, or modules or names of modules (patterns such as "layers.*"), in the order of the forward pass."""
    _must_be_plain(module)
    kept = {id(p): (name, p) for name, p in module.named_parameters() if _is_kept(p)}
    if not any(p.requires_grad for _, p in kept.values()):
        raise InputError("there is no parameter to train: all parameters of the module are frozen, or it has none")
    names = {id(m): name for name, m in module.named_modules()}
    if blocks is True:
        chosen = list(_repeated(module))
    else:
        chosen = list(_named(module, blocks, names))
    least = sum(p.numel() for _, p in kept.values()) / _LARGE
    chosen = _with_large_layers(module, chosen, least, is_ordered=blocks is not True)
    units = _joined(chosen, kept, names, least)
    return _numbered(units, kept)


def must_not_read(*_: Any) -> None:
    """A hook of torch: before state_dict() of a module without its weights."""
    raise StateError(
        "the library has the weights of this module; use loop.state_dict() or loop.save_pretrained(folder), or close the "
        "loop first"
    )


def must_be_free(module: Any) -> None:
    """Refuses a module with weights that another loop has."""
    for name, one in module.named_modules():
        if must_not_read in getattr(one, "_state_dict_pre_hooks", {}).values():
            raise StateError(
                f"another loop has the weights of {name or type(one).__name__}; close it first (loop.close(), or use it "
                "in `with`)"
            )


def _must_be_plain(module: Any) -> None:
    for name, one in module.named_modules():
        kind = next((c.__name__ for c in type(one).__mro__ if c.__name__ in _WRAPPERS), None)
        if kind:
            raise InputError(
                f"the module {name or type(one).__name__} is wrapped by {kind}; pass the module inside it, because the "
                "loop places weights and gradients itself" + _COMPILED * (kind == "OptimizedModule")
            )
    for name, p in module.named_parameters():
        if type(p).__name__ in ("UninitializedParameter", "DTensor"):
            raise InputError(f"parameter {name} is a {type(p).__name__}; expected a parameter with a shape of its own")


def _kinds(module: Any) -> set[str]:
    return {c.__name__ for c in type(module).__mro__}


def _is_kept(p: Any) -> bool:
    """Whether the library keeps it: trained parameters, and frozen ones that it can store."""
    is_plain = str(p.dtype) in _FROZEN_TYPES and p.numel() > 0 and type(p.data).__name__ == "Tensor"
    return p.requires_grad or is_plain


def _has_parameters(module: Any) -> bool:
    return any(_is_kept(p) for p in module.parameters())


# ---- which modules are blocks ------------------------------------------------------------------------------------


def _repeated(module: Any) -> Iterator[Any]:
    """The elements of the outermost lists of layers: of a ModuleList, or of a Sequential with one kind of layer."""
    parts = [part for part in module.children() if _has_parameters(part)]
    is_list = _is_list(module)
    for part in parts:
        if is_list and not (_is_list(part) and any(True for one in part.children() for _ in one.children())):
            yield part
        else:
            yield from _repeated(part)


def _is_list(module: Any) -> bool:
    kinds = _kinds(module)
    parts = [part for part in module.children() if _has_parameters(part)]
    is_chain = "Sequential" in kinds and len(parts) > 1 and len(set(map(type, parts))) == 1
    return is_chain or "ModuleList" in kinds


def _named(module: Any, blocks: Iterable[Any], names: dict[int, str]) -> Iterator[Any]:
    seen: list[str] = []
    if not hasattr(type(blocks), "__iter__"):
        raise InputError(f"blocks is {blocks!r}; expected True, or a list of modules or of their names")
    for one in [blocks] if isinstance(blocks, str) else blocks:
        if isinstance(one, str):
            found = [m for name, m in module.named_modules() if fnmatch.fnmatchcase(name, one)]
            # "layers.*" means the layers, not everything in them.
            least = min((names[id(m)].count(".") for m in found), default=0)
            found = [m for m in found if names[id(m)].count(".") == least]
        else:
            found = [one] if id(one) in names else []
        if not found:
            said = repr(one) if isinstance(one, str) else f"a {type(one).__name__}"
            some = ", ".join([name for name in names.values() if name][:8])
            raise InputError(f"blocks has {said}, which is no module of the model; its modules are {some}, ...")
        for m in _elements(found):
            name = names[id(m)]
            if name in seen:
                raise InputError(f"blocks has {name!r} twice")
            outer = next((s for s in seen if f"{name}.".startswith(f"{s}.") or f"{s}.".startswith(f"{name}.")), None)
            if outer is not None or not name:
                raise InputError(f"blocks has {name or 'the model itself'!r} and {outer!r}, one inside the other")
            seen.append(name)
            if _has_parameters(m):
                yield m


def _elements(modules: Iterable[Any]) -> Iterator[Any]:
    """The modules, with the elements of lists in place of the lists, which have no forward pass."""
    for m in modules:
        yield from _elements(m.children()) if {"ModuleList", "ModuleDict"} & _kinds(m) else [m]


def _is_layer(module: Any) -> bool:
    """Whether its forward is what uses its weights. MultiheadAttention uses those of its out_proj directly."""
    kinds = _kinds(module)
    is_known = bool(_LARGE_LAYERS & kinds) and "NonDynamicallyQuantizableLinear" not in kinds
    return is_known and next(module.children(), None) is None


def _with_large_layers(module: Any, chosen: list[Any], least: float, is_ordered: bool) -> list[Any]:
    inside = {id(m) for block in chosen for m in block.modules()}
    blocks = {id(block) for block in chosen}
    out = []
    for m in module.modules():
        size = sum(p.numel() for p in m.parameters() if _is_kept(p))
        if id(m) in blocks or (id(m) not in inside and _is_layer(m) and size >= least):
            out.append(m)
    if not is_ordered or not chosen:
        return out
    # The caller's order of blocks; layers before the first of them stay before it.
    position = min(i for i, m in enumerate(out) if id(m) in blocks)
    rest = [m for m in out if id(m) not in blocks]
    return rest[:position] + chosen + rest[position:]


# ---- parameters --------------------------------------------------------------------------------------------------


def _joined(chosen: list[Any], kept: dict[int, tuple[str, Any]], names: dict[int, str], least: float) -> list[Unit]:
    """One unit for each module, except that modules that share a large parameter are one unit together.

    Small shared parameters belong to no block, so that they are always held.
    """
    uses: dict[int, int] = {}
    for m in chosen:
        for p in m.parameters():
            uses[id(p)] = uses.get(id(p), 0) + 1
    units: list[Unit] = []
    owner: dict[int, Unit] = {}
    for m in chosen:
        own = [p for p in m.parameters() if id(p) in kept and (uses[id(p)] == 1 or p.numel() >= least)]
        others = list(dict.fromkeys(owner[id(p)] for p in own if id(p) in owner))
        unit = others[0] if others else Unit(0, names[id(m)], [])
        for other in others[1:]:
            unit.modules += other.modules
            unit.parameters += other.parameters
            units.remove(other)
        if not others:
            units.append(unit)
        unit.modules.append(m)
        unit.parameters += [p for p in own if id(p) not in owner]
        owner.update((id(p), unit) for p in unit.parameters)
    return [unit for unit in units if unit.parameters]


def _numbered(units: list[Unit], kept: dict[int, tuple[str, Any]]) -> list[Unit]:
    inside = {id(p) for unit in units for p in unit.parameters}
    rest = [p for key, (_, p) in kept.items() if key not in inside]
    out = [Unit(0, "", [], rest), *units] if rest else units
    outside = {id(p) for p in rest if p.requires_grad}
    for number, unit in enumerate(out):
        unit.number = number
        unit.names = [kept[id(p)][0] for p in unit.parameters]
        unit.is_frozen = [not p.requires_grad for p in unit.parameters]
        unit.trained = [p for p in unit.parameters if p.requires_grad]
        reached = {id(p): p for m in unit.modules for p in m.parameters() if id(p) in outside}
        unit.borrowed = list(reached.values())
    return out
