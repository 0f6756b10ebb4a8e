"""The caller's parameters as one list: names, memory, groups, and addresses of gradients.

There are two kinds. TorchParameters have their gradients in `.grad`, in new tensors at every step.
ArrayParameters (NumPy, DLPack, tensors without autograd) have them in arrays that the caller passes. Both keep
references to all memory that the library uses, and check at each step that it has not moved.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import itertools
import operator
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable

from . import _abi, _names
from ._views import DTYPES, View, is_array, is_numpy, is_torch, loaded, numpy_pointer, view_of
from .errors import InputError

GROUP_KEYS = ("lr_scale", "weight_decay")


@dataclass(frozen=True)
class Group:
    lr_scale: float = 1.0
    weight_decay: float = -1.0  # the run's decay, only for parameters of two or more dimensions


@dataclass
class Given:
    """One parameter as the caller passed it."""

    name: str
    value: Any
    group: Group | None  # None: not set


# ---- reading what was given ------------------------------------------------------------------------------------


def _group_of(values: Mapping[str, Any], what: str) -> Group:
    unknown = [key for key in values if key not in (*GROUP_KEYS, "params", "name")]
    if unknown:
        hint = "; lr_scale is a factor on the run's lr" if "lr" in unknown else ""
        raise InputError(f"{what} has the key {unknown[0]!r}; accepted are {', '.join(GROUP_KEYS)}{hint}")
    try:
        return Group(**{key: float(values[key]) for key in GROUP_KEYS if key in values})
    except (TypeError, ValueError):
        raise InputError(f"{what} has a value that is not a number: {dict(values)!r}") from None


def _entries(parameters: Any, group: Group | None, numbers: Iterable[int]) -> Iterable[Given]:
    """Tensors, (name, tensor) pairs or dicts with "params", in order."""
    if hasattr(parameters, "named_parameters"):
        parameters = parameters.named_parameters()
    if isinstance(parameters, Mapping):
        parameters = parameters.items()
    if is_array(parameters):
        parameters = [parameters]
    numbers = iter(numbers)
    for i, one in enumerate(parameters):
        if isinstance(one, Mapping):
            if "params" not in one:
                raise InputError(f"group {i} has no 'params'; it has {', '.join(map(repr, one))}")
            yield from _entries(one["params"], _group_of(one, f"group {i}"), numbers)
        elif isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str):
            yield Given(one[0], one[1], group)
        else:
            yield Given(f"p{next(numbers)}", one, group)


def _by_pattern(given: list[Given], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Sets the group of each parameter without one: that of the first pattern that matches its name."""
    read = {pattern: _group_of(values, f"group {pattern!r}") for pattern, values in groups.items()}
    for pattern in read:
        if not any(fnmatch.fnmatchcase(one.name, pattern) for one in given):
            names = ", ".join(one.name for one in given[:5])
            raise InputError(f"no parameter name matches the pattern {pattern!r} of groups; the names are {names}, ...")
    for one in given:
        fitting = (group for pattern, group in read.items() if fnmatch.fnmatchcase(one.name, pattern))
        if one.group is None:
            one.group = next(fitting, None)


def _once(given: Iterable[Given]) -> list[Given]:
    """Lists each parameter once, because tied ones occur several times, and omits frozen tensors."""
    seen: dict[int, str] = {}
    names: set[str] = set()
    out: list[Given] = []
    for one in given:
        if id(one.value) in seen:
            continue
        if not is_array(one.value):
            raise InputError(
                f"parameter {one.name} is a {type(one.value).__name__}; expected a torch tensor, a NumPy array "
                "or something with __dlpack__"
            )
        if one.name in names:
            raise InputError(f"two parameters have the name {one.name!r}")
        seen[id(one.value)] = one.name
        names.add(one.name)
        out.append(one)
    return out


def _must_not_overlap(names: list[str], views: list[View]) -> None:
    spans = sorted((v.pointer, v.pointer + v.bytes, name) for v, name in zip(views, names) if v.pointer)
    for (_, end, first), (begin, _, second) in zip(spans, spans[1:]):
        if begin < end:
            raise InputError(f"parameters {first} and {second} share memory; pass tied parameters as one tensor")


def _must_be_fit(name: str, v: View) -> None:
    if not v.dtype:
        raise InputError(f"parameter {name} has type {v.said_dtype}; expected fp32, bf16 or fp16")
    if v.device != "cpu" and not v.device.startswith("cuda:"):
        raise InputError(f"parameter {name} is on {v.device}; expected the CPU or a CUDA device")
    if not v.is_contiguous:
        raise InputError(f"parameter {name} is not contiguous; call .contiguous() before you create the loop")
    if not v.is_writable:
        raise InputError(f"parameter {name} is read-only, but the library must write the weights")
    if 0 in v.shape:
        raise InputError(f"parameter {name} is empty: its shape is {v.shape}")


def _must_be_alike(names: list[str], views: list[View]) -> None:
    for name, v in zip(names, views):
        first = views[0]
        if v.dtype != first.dtype:
            raise InputError(
                f"parameter {name} has type {v.dtype}, but {names[0]} has {first.dtype}; all must have one type "
                "(module.to(torch.bfloat16) or module.float() converts them)"
            )
        if v.device != first.device:
            raise InputError(f"parameter {name} is on {v.device}, but {names[0]} is on {first.device}")


# ---- the list --------------------------------------------------------------------------------------------------


class Parameters:
    """The list in the library's form. `packed` has the addresses of the gradients after they were collected."""

    def __init__(self, given: list[Given], views: list[View]) -> None:
        self.names = [one.name for one in given]
        self.values = [one.value for one in given]
        self.views = views
        for name, v in zip(self.names, views):
            _must_be_fit(name, v)
        trained = self._trained()
        _must_be_alike([self.names[i] for i in trained], [views[i] for i in trained])
        _must_not_overlap(self.names, views)
        self.dtype = views[trained[0]].dtype
        self.grad_dtype = self.dtype
        self.device = views[0].device
        self._pack = struct.Struct(f"{len(given)}P")
        self.packed: Any = ctypes.create_string_buffer(self._pack.size)
        self._structs(given)

    def _trained(self) -> list[int]:
        """Indices of parameters that are trained; they have one type."""
        return list(range(len(self.views)))

    def _structs(self, given: list[Given]) -> None:
        kinds = list(dict.fromkeys(one.group or Group() for one in given))
        self.groups = (_abi.hy_parameter_group * len(kinds))(
            *(_abi.hy_parameter_group(g.lr_scale, g.weight_decay) for g in kinds)
        )
        self.list = (_abi.hy_parameter * len(given))()
        for c, one, v in zip(self.list, given, self.views):
            shape = v.shape
            if len(shape) > _abi.HY_PARAMETER_DIMS:
                raise InputError(
                    f"parameter {one.name} has {len(shape)} dimensions; at most {_abi.HY_PARAMETER_DIMS} are supported"
                )
            c.name, c.weights, c.ndim = one.name.encode(), v.pointer or None, len(shape)
            c.shape[: len(shape)] = shape
            c.group = kinds.index(one.group or Group())

    def to_c(self, out: _abi.hy_custom_parameters) -> None:
        out.list, out.count = self.list, len(self.list)
        out.groups, out.group_count = self.groups, len(self.groups)
        out.dtype = _names.DTYPE.index(self.dtype)
        out.grad_dtype = _names.DTYPE.index(self.grad_dtype)

    # What a step needs; the two kinds implement it differently.

    def clear_gradients(self) -> None:
        """Before gradients are computed: drops those of the previous step."""

    def gather(self, is_fresh: bool) -> None:
        """Checks weights and gradients; `packed` then has pointers to the gradients.

        is_fresh: the gradients come directly from backward; no other code has changed them.
        """
        raise NotImplementedError

    def scale_gradients(self, factor: float) -> None:
        raise NotImplementedError

    def have_changed(self) -> None:
        """After the library has written weights."""

    def _must_fit(self, i: int, g: View) -> None:
        """Compares a gradient with its parameter."""
        name, v = self.names[i], self.views[i]
        if g.shape != v.shape:
            raise InputError(f"the gradient of parameter {name} has shape {g.shape}; expected {v.shape}")
        if g.dtype != self.grad_dtype:
            said = g.said_dtype if not g.dtype else g.dtype
            raise InputError(f"the gradient of parameter {name} has type {said}; expected {self.grad_dtype}")
        if g.device != v.device:
            raise InputError(f"the gradient of parameter {name} is on {g.device}; expected {v.device}")
        if not g.is_contiguous:
            raise InputError(f"the gradient of parameter {name} is not contiguous")


# ---- torch, with autograd ----------------------------------------------------------------------------------------

_grad_of = operator.attrgetter("grad")
_dtype_of = operator.attrgetter("dtype")
_shape_of = operator.attrgetter("shape")

# Every step checks for common mistakes (a gradient that is missing, sparse or strided) and the addresses of some
# weights. Complete checks take longer; they may take at most 1/_SHARE of the time.
_SHARE = 1000
_PART = 16


def count_change(tensors: list[Any]) -> None:
    """Counts a change of the tensors, as torch does for its own. Older versions take one at a time, or do not count."""
    torch: Any = loaded("torch")
    count: Any = getattr(torch.autograd.graph, "increment_version", None)
    try:
        if count:
            count(tensors)
    except TypeError:
        for t in tensors:
            count(t)


class TorchParameters(Parameters):
    def __init__(self, given: list[Given]) -> None:
        views = [view_of(one.value, f"parameter {one.name}") for one in given]
        super().__init__(given, views)
        torch: Any = loaded("torch")
        self.torch = torch
        self._data_ptr: Callable[[Any], int] = torch.Tensor.data_ptr
        self._is_contiguous: Callable[[Any], bool] = torch.Tensor.is_contiguous
        self._numel: Callable[[Any], int] = torch.Tensor.numel
        self._weights = [v.pointer for v in views]
        self._shapes = list(map(_shape_of, self.values))
        self._sizes = list(map(self._numel, self.values))
        # The old memory of a moved parameter must not be freed while the library writes to it.
        self._kept = [one.value.detach() for one in given]
        self._held: list[Any] = []
        self._looked = 0  # weights before this index were checked
        self._due = 0.0  # time of the next full check

    def clear_gradients(self) -> None:
        self._held = []
        for p in self.values:
            p.grad = None

    def _gradients(self) -> list[Any]:
        return list(map(_grad_of, self.values))

    def gather(self, is_fresh: bool) -> None:
        grads = self._gradients()
        try:
            self._pack.pack_into(self.packed, 0, *map(self._data_ptr, grads))
            is_fit = is_fresh or self._are_whole(grads)
        except (TypeError, RuntimeError):
            is_fit = False
        now = time.perf_counter()
        if is_fit and now >= self._due:
            is_fit = self._look_at_all(grads)
            self._due = now + _SHARE * (time.perf_counter() - now)
        elif is_fit:
            is_fit = self._look_at_some()
        if not is_fit:
            self._explain_weights()
            self._explain_gradients(grads)
        self._held = grads

    def have_changed(self) -> None:
        """A graph that was kept from before then raises an exception instead of giving wrong gradients."""
        count_change(self.values)

    def _are_whole(self, grads: list[Any]) -> bool:
        return all(map(self._is_contiguous, grads)) and list(map(self._numel, grads)) == self._sizes

    def _look_at_some(self) -> bool:
        """Checks that the weights have not moved, a part of them at a time."""
        part = slice(self._looked, self._looked + _PART)
        self._looked = part.stop if part.stop < len(self.values) else 0
        return list(map(self._data_ptr, self.values[part])) == self._weights[part]

    def _look_at_all(self, grads: list[Any]) -> bool:
        raw = self.views[0].raw_dtype
        return (
            list(map(self._data_ptr, self.values)) == self._weights
            and self._are_whole(grads)
            and list(map(_shape_of, self.values)) == self._shapes == list(map(_shape_of, grads))
            and {raw} == set(map(_dtype_of, self.values)) == set(map(_dtype_of, grads))
        )

    def _explain_weights(self) -> None:
        for name, p, v in zip(self.names, self.values, self.views):
            now = view_of(p, f"parameter {name}")
            for what, is_now, was in (
                ("type", now.said_dtype, v.said_dtype),
                ("shape", now.shape, v.shape),
                ("device", now.device, v.device),
            ):
                if is_now != was:
                    raise InputError(
                        f"the {what} of parameter {name} is {is_now}, but was {was} when the loop was created; "
                        "change a module before you create its loop"
                    )
            if now.pointer != v.pointer:
                raise InputError(
                    f"the memory of parameter {name} has moved since the loop was created (by .data = ..., "
                    ".to(...) or load_state_dict(assign=True)); copy values instead: with torch.no_grad(): p.copy_(...)"
                )

    def _explain_gradients(self, grads: list[Any]) -> None:
        for i, g in enumerate(grads):
            name = self.names[i]
            if g is None:
                raise InputError(
                    f"parameter {name} has no gradient, because backward did not reach it; remove it from the loop, or "
                    "set zeros (p.grad = torch.zeros_like(p))"
                )
            self._must_fit(i, view_of(g, f"the gradient of parameter {name}"))

    def scale_gradients(self, factor: float) -> None:
        with self.torch.no_grad():
            self.torch._foreach_mul_([p.grad for p in self.values if p.grad is not None], factor)


class UnitParameters(TorchParameters):
    """Parameters that the library keeps: it has their memory, and it gets gradients during the backward pass."""

    def __init__(self, given: list[Given], device: str) -> None:
        views = [view_of(one.value, f"parameter {one.name}") for one in given]
        _must_not_overlap([one.name for one in given], views)
        views = [replace(v, pointer=0, device=device, is_contiguous=True, is_writable=True) for v in views]
        self._is_frozen = [not one.value.requires_grad for one in given]
        Parameters.__init__(self, given, views)
        self.torch: Any = loaded("torch")
        self.packed = None
        for c, v, is_frozen in zip(self.list, views, self._is_frozen):
            c.is_frozen, c.dtype = is_frozen, _names.DTYPE.index(v.dtype)

    def _trained(self) -> list[int]:
        return [i for i, is_frozen in enumerate(self._is_frozen) if not is_frozen]

    def clear_gradients(self) -> None:
        pass

    def gather(self, is_fresh: bool) -> None:
        pass

    def have_changed(self) -> None:
        pass  # see Units.begin


# ---- arrays, with gradients beside them ---------------------------------------------------------------------------


class ArrayParameters(Parameters):
    def __init__(self, given: list[Given], where: Any, gradients: Any) -> None:
        views = [view_of(one.value, f"parameter {one.name}") for one in given]
        super().__init__(given, views)
        self._where = where if isinstance(where, Mapping) else None
        self._look_up = self._gradients(gradients)
        self._held: list[Any] = [None] * len(given)
        self._grads: list[View | None] = [None] * len(given)
        first = next((g for i in range(len(given)) if (g := self._look_up(i)) is not None), None)
        if first is not None:
            v = view_of(first, f"the gradient of parameter {self.names[0]}")
            if v.dtype not in DTYPES:
                raise InputError(
                    f"the gradient of parameter {self.names[0]} has type {v.said_dtype}; expected fp32, bf16 or fp16"
                )
            self.grad_dtype = v.dtype

    def _gradients(self, gradients: Any) -> Callable[[int], Any]:
        if isinstance(gradients, Mapping):
            unknown = [name for name in gradients if name not in self.names]
            if unknown:
                raise InputError(f"gradients has the name {unknown[0]!r}, but no parameter has it")
            return lambda i: gradients.get(self.names[i])
        if len(gradients) != len(self.names):
            raise InputError(f"there are {len(gradients)} gradients, but {len(self.names)} parameters")
        return lambda i: gradients[i]

    def gather(self, is_fresh: bool) -> None:
        pointers = []
        for i, name in enumerate(self.names):
            self._look_at_weights(i, name)
            g = self._look_up(i)
            if g is None:
                raise InputError(f"parameter {name} has no gradient")
            known = self._grads[i]
            if known is None or g is not self._held[i] or not _is_unchanged(g, known):
                known = view_of(g, f"the gradient of parameter {name}")
                self._must_fit(i, known)
                self._held[i], self._grads[i] = g, known
            pointers.append(known.pointer)
        self._pack.pack_into(self.packed, 0, *pointers)

    def _look_at_weights(self, i: int, name: str) -> None:
        value = self.values[i]
        if self._where is not None and self._where.get(name) is not value:
            raise InputError(
                f"parameter {name} is not the array that was passed to the loop; change it in place: w[...] = x, w += x"
            )
        if not _is_unchanged(value, self.views[i]):
            raise InputError(f"the memory, shape or type of parameter {name} has changed since the loop was created")

    def scale_gradients(self, factor: float) -> None:
        numpy: Any = loaded("numpy")
        # The library finds values that are too large for fp16, and lowers the scale.
        with numpy.errstate(over="ignore") if numpy else contextlib.nullcontext():
            for i in range(len(self.names)):
                g = self._look_up(i)
                g *= factor


def _is_unchanged(value: Any, v: View) -> bool:
    if is_numpy(value):
        pointer = numpy_pointer(value)
    elif is_torch(value):
        pointer = value.data_ptr()
    else:
        return True  # the capsule keeps the memory alive
    return bool(pointer == v.pointer and value.shape == v.shape and value.dtype == v.raw_dtype)


# ---- one way in --------------------------------------------------------------------------------------------------


def collect(
    parameters: Any, gradients: Any = None, groups: Mapping[str, Mapping[str, Any]] | None = None
) -> Parameters:
    if isinstance(parameters, Parameters):
        return parameters
    try:
        given = _once(_entries(parameters, None, itertools.count()))
    except TypeError as error:
        raise InputError(f"parameters cannot be read: {error}") from error
    has_autograd = gradients is None
    if has_autograd:
        others = [one for one in given if not is_torch(one.value)]
        if others:
            raise InputError(
                f"parameter {others[0].name} is a {type(others[0].value).__name__}, which has no .grad; pass the "
                "gradient arrays as gradients={name: array}"
            )
        given = [one for one in given if one.value.requires_grad]
    if not given:
        raise InputError("there is no parameter to train" + (": all are frozen, or none was passed" * has_autograd))
    if groups is not None:
        _by_pattern(given, groups)
    if has_autograd:
        for one in given:
            if not one.value.is_leaf:
                raise InputError(f"parameter {one.name} is computed from other tensors (it is not a leaf of autograd)")
        return TorchParameters(given)
    return ArrayParameters(given, parameters, gradients)


def collect_units(units: Any, device: str, groups: Mapping[str, Mapping[str, Any]] | None) -> UnitParameters:
    given = [Given(name, p, None) for unit in units for name, p in zip(unit.names, unit.parameters)]
    if groups is not None:
        _by_pattern(given, groups)
    return UnitParameters(given, device)


def shapes_to_c(
    shapes: Any, dtype: str, grad_dtype: str, groups: Mapping[str, Mapping[str, Any]] | None
) -> tuple[_abi.hy_custom_parameters, Parameters]:
    """Parameters without memory, for a plan; also returns the objects that must live as long as the struct."""
    for one in (dtype, grad_dtype):
        if one not in DTYPES:
            raise InputError(f"the type {one!r} is not supported; expected {', '.join(DTYPES)}")
    pairs = list(shapes.items() if isinstance(shapes, Mapping) else shapes)
    given = [Given(str(name), None, None) for name, _ in pairs]
    sizes = [tuple(int(n) for n in getattr(shape, "shape", shape)) for _, shape in pairs]
    if not given:
        raise InputError("there is no parameter to plan for")
    if groups is not None:
        _by_pattern(given, groups)
    ours = Parameters(given, [View(0, size, dtype, dtype, "cpu", True, True, None) for size in sizes])
    ours.grad_dtype = grad_dtype
    out = _abi.hy_custom_parameters()
    ours.to_c(out)
    return out, ours
