"""Runs the units of a torch module with weights that the library keeps.

The forward pass of a block holds its weights, runs it without a graph, keeps its input and releases the weights. The
backward pass holds them again, runs the block with a graph, and gives the gradients to the library. Between a hold and
its release `p.data` is the library's memory; otherwise it is empty, so that code which reads weights too late fails.
Autograd keeps references to weights, so no graph of a block may outlive its release.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
from collections.abc import Iterator
from typing import Any, Callable, Protocol

import torch
from torch.utils import _pytree as pytree

from ._blocks import Unit
from ._inputs import Inputs
from ._kept import KeptGraphs, SavedBytes, is_cache
from ._library import check, lib
from ._parameters import count_change
from .errors import InputError, StateError

# A block that is run again must give the same result: so many values are compared, up to this part of their norm.
_FINGERPRINT = 1 << 20
_TOLERANCE = 0.01

_AS_IT_IS = contextlib.nullcontext()


class Store(Protocol):
    """What keeps the weights and sums the gradients. Addresses are in the order of a unit's parameters."""

    def hold(self, unit: int) -> tuple[int, ...]: ...
    def release(self, unit: int) -> None: ...
    def fetch(self, unit: int) -> None: ...
    def stays(self, unit: int) -> bool: ...
    def add_gradients(self, unit: int, tokens: int, addresses: list[int | None]) -> None: ...
    def write(self, parameter: int, first: int, count: int, address: int) -> None: ...
    def read(self, parameter: int, first: int, count: int, address: int) -> None: ...


class LibraryStore:
    """The store of a hy_loop."""

    def __init__(self, handle: ctypes.c_void_p, sizes: list[int]) -> None:
        self._handle = handle
        self._arrays = [(ctypes.c_void_p * size)() for size in sizes]

    def hold(self, unit: int) -> tuple[int, ...]:
        out = self._arrays[unit]
        check(lib.hy_loop_hold(self._handle, unit, out))
        return tuple(out)

    def release(self, unit: int) -> None:
        check(lib.hy_loop_release(self._handle, unit))

    def fetch(self, unit: int) -> None:
        check(lib.hy_loop_fetch(self._handle, unit))

    def stays(self, unit: int) -> bool:
        return bool(lib.hy_loop_stays(self._handle, unit))

    def add_gradients(self, unit: int, tokens: int, addresses: list[int | None]) -> None:
        given = self._arrays[unit]
        for i, address in enumerate(addresses):
            given[i] = address
        check(lib.hy_loop_add_gradients(self._handle, unit, tokens, given))

    def write(self, parameter: int, first: int, count: int, address: int) -> None:
        check(lib.hy_loop_write_weights(self._handle, parameter, first, count, address))

    def read(self, parameter: int, first: int, count: int, address: int) -> None:
        check(lib.hy_loop_read_weights(self._handle, parameter, first, count, address))


# ---- memory at an address ----------------------------------------------------------------------------------------


class _CudaMemory:
    """Memory on a card, in the form that torch.as_tensor reads."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def tensor_at(address: int, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    size = shape.numel() * dtype.itemsize
    if device.type == "cuda":
        return torch.as_tensor(_CudaMemory(address, size), device=device).view(dtype).view(shape)
    memory = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


swap: Callable[[Any, Any], None] = torch.utils.swap_tensors  # exchanges two tensors, on any devices


# ---- one call of a block -----------------------------------------------------------------------------------------


def _tensors_in(value: Any) -> list[Any]:
    """Floating-point tensors in an object that is no tuple, list or dict, where autograd does not find them."""
    inside = getattr(value, "__dict__", None) if not isinstance(value, torch.Tensor) and not is_cache(value) else None
    return [x for x in (inside or {}).values() if isinstance(x, torch.Tensor) and x.is_floating_point()]


_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


def _flat(value: Any, leaves: list[Any]) -> Any:
    """Appends the leaves of a tree, and returns its structure. The usual containers need no pytree, which is slow."""
    kind = type(value)
    if kind is torch.Tensor or kind in _PLAIN:
        leaves.append(value)
        return None
    if kind is tuple or kind is list:
        return kind, [_flat(x, leaves) for x in value]
    if kind is dict:
        return kind, {key: _flat(x, leaves) for key, x in value.items()}
    found, spec = pytree.tree_flatten(value, is_leaf=is_cache)
    leaves += found
    return spec, len(found)


def _built(structure: Any, leaves: Iterator[Any]) -> Any:
    """The tree of this structure with other leaves."""
    if structure is None:
        return next(leaves)
    kind, parts = structure
    if kind is tuple or kind is list:
        return kind([_built(x, leaves) for x in parts])
    if kind is dict:
        return {key: _built(x, leaves) for key, x in parts.items()}
    return pytree.tree_unflatten([next(leaves) for _ in range(parts)], kind)


class _Random:
    """The random generators, and whether a block has used them since then.

    A card's generator is its seed and an offset, and a block that uses it changes the offset.
    """

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.default_generator.get_state()
        self._card: Any = None
        if device.type == "cuda":
            self._card = torch.cuda.default_generators[torch.cuda._utils._get_device_index(device, optional=True)]
            self._number = self._card.initial_seed(), self._card.get_offset()

    def is_used(self) -> bool:
        is_other = not torch.equal(self._cpu, torch.default_generator.get_state())
        return is_other or (
            self._card is not None and self._number != (self._card.initial_seed(), self._card.get_offset())
        )

    def restore(self) -> None:
        torch.default_generator.set_state(self._cpu)
        if self._card is not None:
            self._card.manual_seed(self._number[0])
            self._card.set_offset(self._number[1])


def _allocated(device: torch.device) -> int:
    """Bytes that torch has in use on a card; their peak begins anew."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _has_gradients(unit: Unit, arguments: Any) -> bool:
    """Whether a call has a backward pass: not one of a frozen block below everything that is trained."""
    if unit.trained or unit.borrowed:
        return True
    leaves = pytree.tree_leaves(arguments, is_cache)
    tensors = [t for x in leaves for t in ([x] if isinstance(x, torch.Tensor) else _tensors_in(x))]
    return any(t.requires_grad for t in tensors)


def _uses_others(unit: Unit) -> InputError:
    return InputError(
        f"block {unit.name} uses a tensor with gradients that is none of its arguments or parameters, or calls another "
        "block; pass the tensor as an argument, or name other modules in blocks="
    )


class _Call:
    """One call of a block with gradients: everything that is needed to make the same call again."""

    def __init__(self, units: Units, unit: Unit, function: Callable[..., Any], arguments: Any) -> None:
        self._units, self._unit, self._function = units, unit, function
        self._graph_is_known = units.is_checked(unit)
        self._pass = units.pass_number
        leaves: list[Any] = []
        self._spec = _flat(arguments, leaves)
        self._slots = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensors = [leaves[i] for i in self._slots]
        self._leaves = [None if isinstance(x, torch.Tensor) or is_cache(x) else x for x in leaves]
        self._kept: int | None = None  # its number in `units.inputs`
        hidden = next((x for x in self._leaves if any(t.requires_grad for t in _tensors_in(x))), None)
        if hidden is not None:
            raise InputError(
                f"block {unit.name} was called with a {type(hidden).__name__} that has tensors with gradients; pass "
                "them as arguments, or in a tuple, list or dict"
            )
        self._position = units.reached(unit)
        self._save_state()
        self.result: Any = None  # leaves and structure of what the block returned
        self._shapes: list[torch.Size] = []  # of its tensors
        self._expected: list[Any] | None = None  # fingerprints of its tensors

    def _save_state(self) -> None:
        """Random generators, autocast and buffers, as torch.utils.checkpoint does for the first two."""
        self._random: _Random | None = _Random(self._units.device)
        self._autocast = self._units.autocast_type()
        self._buffers = [
            (m, name, b, _version_of(b, name, m), _clone_of(b)) for m, name, b in self._units.buffers_of(self._unit)
        ]

    def _arguments(self, tensors: Any) -> Any:
        leaves = list(self._leaves)
        for i, tensor in zip(self._slots, tensors):
            leaves[i] = tensor
        return _built(self._spec, iter(leaves))

    def _run(self, tensors: Any) -> tuple[list[Any], Any]:
        args, kwargs = self._arguments(tensors)
        with self._units.autocast(self._autocast):
            out = self._function(*args, **kwargs)
        leaves: list[Any] = []
        return leaves, _flat(out, leaves)

    def keep(self, tensors: Any) -> Any:
        """Begins to copy inputs to host memory, if that is chosen; returns those that stay."""
        if self._units.inputs is None:
            return tensors
        self._kept = self._units.inputs.keep(self.tensors, self._unit.name)
        return self._units.inputs.stay(self._kept, tensors)

    def forward(self, tensors: Any) -> list[torch.Tensor]:
        """Returns the tensors of the result; all leaves and their structure are in `result`."""
        versions = [t._version for t in tensors]
        with self._units.held(self._unit, self._units.after(self._position)) as weights:
            leaves, spec = self._run(tensors) if self._graph_is_known else self._run_first(tensors)
            leaves = [_copied(x, weights) for x in leaves]
        for i, (t, version) in enumerate(zip(tensors, versions)):
            if t._version != version:
                raise InputError(
                    f"block {self._unit.name} changes tensor {i} of its input in place, so it cannot be computed again "
                    "in the backward pass; use inplace=False, or clone the input first"
                )
        given = [x for x in self._leaves if x is not None]
        hidden = next((x for x in leaves if _tensors_in(x) and not any(x is g for g in given)), None)
        if hidden is not None:
            raise InputError(
                f"block {self._unit.name} returned a {type(hidden).__name__} with tensors in it; expected tensors, or "
                "tuples, lists and dicts of them, so that gradients can reach them"
            )
        self._buffers = [one for one in self._buffers if _is_changed(*one[:4])]
        if self._random is not None and not self._random.is_used():
            self._random = None
        self.result = leaves, spec
        out = [x for x in leaves if isinstance(x, torch.Tensor)]
        self._shapes = [x.shape for x in out]
        if not self._graph_is_known:
            self._expected = [_fingerprint(x) for x in out]
            self._result_bytes = sum(x.nbytes for x in out)
        return out

    def _run_first(self, tensors: Any) -> tuple[list[Any], Any]:
        """With a graph, which nobody needs if the block gives nothing away besides its result.

        Other tensors of the block would be constants to autograd, because it is computed without a graph later.
        """
        before = _with_graph()
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        try:
            with torch.enable_grad():
                leaves, spec = self._run(inputs)
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
            return self._run(tensors)  # `forward` says what is wrong
        leaves = [x.detach() if isinstance(x, torch.Tensor) else x for x in leaves]
        if _with_graph(before) and not any(map(_tensors_in, leaves)):  # `forward` refuses these by name
            gc.collect()  # circles of references
            if _with_graph(before):
                raise InputError(
                    f"block {self._unit.name} gives away a tensor other than in its result: as an attribute, through a "
                    "hook, or as router logits or attentions of transformers; a loss that uses it would have wrong "
                    "gradients. Return it, detach it, or name other modules in blocks="
                )
        return leaves, spec

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """The states as they were before the forward pass; at the end they are again what they are now."""
        now = [(m, name, m._buffers[name], _clone_of(m._buffers[name])) for m, name, *_ in self._buffers]
        random = _Random(self._units.device) if self._random is not None else None
        if self._random is not None:
            self._random.restore()
        _set_buffers([(m, name, b, was) for m, name, b, _, was in self._buffers])
        try:
            yield
        finally:
            _set_buffers(now)
            if random is not None:
                random.restore()

    def backward(self, tensors: Any, needs: Any, grads: Any) -> list[Any]:
        """Runs the block again, adds the gradients of its parameters and returns those of its input."""
        unit = self._unit
        self._units.must_be_in_backward(unit, self._pass)
        if self._kept is not None and self._units.inputs is not None:
            tensors = self._units.inputs.bring(self._kept, tensors)
        inputs = [t.detach().requires_grad_(is_needed) for t, is_needed in zip(tensors, needs)]
        wanted = [x for x in inputs if x.requires_grad]
        own = len(wanted), len(wanted) + len(unit.trained)
        with self._units.held(unit, self._units.before(self._position)):
            allocated = 0 if self._graph_is_known else _allocated(self._units.device)
            with self._as_it_was():
                found = self._differentiate(inputs, [*wanted, *unit.trained, *unit.borrowed], grads)
            if not self._graph_is_known:
                self._units.note_sizes(unit, sum(x.nbytes for x in inputs), self._result_bytes, allocated)
            if unit.trained:
                self._units.add(unit, found[own[0] : own[1]])
        for p, g in zip(unit.borrowed, found[own[1] :]):
            if g is not None:
                p.grad = g.clone() if p.grad is None else p.grad + g  # g may be a tensor of the caller's
        rest = iter(found)
        return [next(rest) if x.requires_grad else None for x in inputs]

    def _differentiate(self, inputs: list[Any], wanted: list[Any], grads: Any) -> list[Any]:
        """The graph refers to weights, so it ends with this function."""
        is_first = not self._graph_is_known
        saved = SavedBytes([*inputs, *self._unit.parameters]) if is_first else contextlib.nullcontext()
        with torch.enable_grad(), saved:
            leaves = [x for x in self._run(inputs)[0] if isinstance(x, torch.Tensor)]
        self._must_be_the_same(leaves)
        if isinstance(saved, SavedBytes):
            self._must_be_alone(leaves, wanted)
            self._units.checked(self._unit, saved.bytes)
        pairs = [(x, g) for x, g in zip(leaves, grads) if g is not None and x.requires_grad]
        if not pairs:
            return [None] * len(wanted)
        outputs, given = zip(*pairs)
        return list(torch.autograd.grad(outputs, wanted, given, allow_unused=True))

    def _must_be_alone(self, leaves: list[Any], wanted: list[Any]) -> None:
        """Checks that the graph ends at the block's own arguments and parameters: other gradients would be lost."""
        known = {id(x) for x in wanted}
        for node in nodes_of(leaves):
            leaf = getattr(node, "variable", None)
            if (leaf is not None and id(leaf) not in known) or type(node).__name__ == "_RunBackward":
                raise _uses_others(self._unit)

    def _must_be_the_same(self, leaves: list[Any]) -> None:
        is_same = [x.shape for x in leaves] == self._shapes
        if is_same and self._expected is not None:
            is_same = all(map(_is_close, map(_fingerprint, leaves), self._expected))
        if not is_same:
            raise InputError(
                f"block {self._unit.name} gave another result when it was computed again for the backward pass; it must "
                "not depend on data that its forward pass changes, such as a cache or a random generator of its own"
            )


def nodes_of(tensors: list[Any]) -> Iterator[Any]:
    """The nodes of the tensors' graph."""
    nodes: list[Any] = [getattr(x, "grad_fn", None) for x in tensors]
    seen: set[Any] = {None}
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            yield node
            nodes += [following for following, _ in node.next_functions]


def _with_graph(known: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Tensors with a graph that Python code refers to, without the known ones."""
    seen = {id(x) for x in known or ()}
    return [x for x in gc.get_objects() if type(x) is torch.Tensor and x.grad_fn is not None and id(x) not in seen]


def _version_of(buffer: Any, name: str, owner: Any) -> int:
    """torch counts changes of a tensor, except those of running statistics: -1 says that these will change."""
    return -1 if buffer is None or (owner.training and name.startswith("running_")) else int(buffer._version)


def _is_changed(owner: Any, name: str, buffer: Any, version: int) -> bool:
    """Whether a buffer is another tensor than before, or has other values."""
    return owner._buffers[name] is not buffer or (buffer is not None and buffer._version != version)


def _clone_of(buffer: Any) -> Any:
    return None if buffer is None else buffer.clone()


@torch.no_grad()
def _set_buffers(buffers: list[tuple[Any, str, Any, Any]]) -> None:
    """(owner, name, tensor, values)"""
    for owner, name, buffer, values in buffers:
        owner._buffers[name] = buffer
        if buffer is not None:
            buffer.copy_(values)


def _fingerprint(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weighted sum and the norm of its first values."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    part = tensor.detach().flatten()[:_FINGERPRINT].float()
    return part @ torch.arange(len(part), dtype=torch.float32, device=part.device).cos(), part.norm()


def _is_close(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether fingerprints agree. Two runs on a card may differ in roundings; NaN is reported as a loss."""
    return not bool((a[0] - b[0]).abs() > _TOLERANCE * b[1])


def _copied(value: Any, weights: set[int]) -> Any:
    """A copy of a result that is in the memory of the weights, which other units will use soon."""
    if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in weights:
        return value.clone()
    return value


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, _: torch.Tensor, *tensors: torch.Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        stay = call.keep(tensors)
        out = call.forward(tensors)
        ctx.save_for_backward(*stay)
        ctx.mark_non_differentiable(*(x for x in out if not (x.is_floating_point() or x.is_complex())))
        return tuple(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, None, *ctx.call.backward(ctx.saved_tensors, ctx.needs_input_grad[2:], grads))


# ---- all units ---------------------------------------------------------------------------------------------------


class Units:
    """The units of a module during passes. `begin` and `end` enclose the passes of one micro-batch."""

    def __init__(self, units: list[Unit], device: str) -> None:
        self.list = units
        self.device = torch.device(device)
        self.shapes = [[p.shape for p in unit.parameters] for unit in units]
        self.inputs: Inputs | None = None  # keeps inputs of blocks in host memory; None: they stay on the device
        self.tokens = 1  # targets of the micro-batch whose backward pass runs
        self._always = units[0] if not units[0].modules else None  # parameters outside of blocks
        self._store: Store | None = None
        self._is_begun = False
        self.pass_number = 0
        self.check_stream: Callable[[], None] = lambda: None
        self._has_added = False  # the library has gradients that no accepted answer covers
        self._unfinished: set[int] = set()  # backward passes (torch's numbers) that have not ended, or failed
        self._hooks: list[Any] = []
        self._depth = [0] * len(units)
        self._tensors: list[dict[tuple[int, ...], list[Any]]] = [{} for _ in units]
        self._owners: dict[int, list[Any]] = {}  # all modules of a unit
        self._was_checked: set[int] = set()
        self.sizes: dict[int, tuple[int, int, int]] = {}  # bytes of input, result and computing, of measured units
        self._order: list[int] = []  # units of this pass
        self._orders: dict[bool, list[int]] = {}  # of the last passes with gradients (True) and without
        self._last: list[int] = []  # the one that this pass is expected to have
        self._wants_gradients = True  # in this pass
        dtypes = {p.dtype for unit in units for p in unit.parameters}
        self._empty = {dtype: torch.empty(0, dtype=dtype, device=self.device) for dtype in dtypes}
        self.anchor = torch.empty(0, device=self.device, requires_grad=True)  # makes autograd call our backward pass
        self._wrapped: list[tuple[Any, Any]] = []
        self.graph_room: float = -1  # bytes for graphs that live from forward to backward; -1: all units run again
        self.graph_bytes: dict[int, int] = {}  # of each unit, from its first pass
        self._kept = KeptGraphs(self)

    def attach(self, store: Store) -> None:
        """From now on the modules run with the weights of the store."""
        self._store = store
        for unit in self.list:
            for p in unit.parameters:
                p.grad = None
                if p.is_meta:  # torch does not allow `p.data =` for these
                    swap(p, torch.nn.Parameter(self._empty[p.dtype].clone(), p.requires_grad))
                p.data = self._empty[p.dtype]
            for m in unit.modules:
                if getattr(m, "_compiled_call_impl", None) is not None:
                    raise InputError(
                        f"block {unit.name} was compiled with its compile(); use block.forward = "
                        "torch.compile(block.forward), so that its weights are in place before compiled code runs"
                    )
                self._wrapped.append((m, m.__dict__.get("forward")))
                m.forward = self.wrapped(unit, m.forward)
        if self._always:
            self._hooks = [p.register_hook(lambda _: self._note_backward()) for p in self._always.trained]

    def detach(self) -> None:
        """Gives the modules their own forward functions back."""
        for m, forward in self._wrapped:
            if forward is None:
                del m.forward
            else:
                m.forward = forward
        for hook in self._hooks:
            hook.remove()
        self._kept.choose([])
        self._wrapped, self._hooks, self._store = [], [], None

    def keep_inputs(self, in_host_memory: bool) -> None:
        """Between passes: where the inputs of blocks are until the backward pass."""
        if in_host_memory and self.inputs is None:
            self.inputs = Inputs(self.device)
        elif not in_host_memory and self.inputs is not None:
            self.inputs.close()
            self.inputs = None

    def forget_addresses(self) -> None:
        """The library has moved the weights."""
        for known in self._tensors:
            known.clear()

    def unit_of(self, module: Any) -> Unit | None:
        return next((unit for unit in self.list if any(m is module for m in unit.modules)), None)

    # ---- passes

    def wrapped(self, unit: Unit, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the unit's weights in place."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._must_be_begun(unit)
            if not torch.is_grad_enabled() or not _has_gradients(unit, (args, kwargs)):
                position = self.reached(unit)
                with self.held(unit, self.after(position)) as weights, self.autocast(self.autocast_type()):
                    out = pytree.tree_map(lambda x: _copied(x, weights), function(*args, **kwargs), is_leaf=is_cache)
                if any(isinstance(x, torch.Tensor) and x.requires_grad for x in pytree.tree_leaves(out, is_cache)):
                    raise _uses_others(unit)
                return out
            self._must_be_whole()
            if unit in self._kept:
                return self._kept.run(unit, function, args, kwargs)
            call = _Call(self, unit, function, (args, kwargs))
            tensors = iter(_Run.apply(call, self.anchor, *call.tensors))
            leaves, spec = call.result
            call.tensors, call.result = [], None  # autograd keeps the call, so the call must not keep its tensors
            return _built(spec, iter([next(tensors) if isinstance(x, torch.Tensor) else x for x in leaves]))

        return run

    def _must_be_begun(self, unit: Unit) -> None:
        if not self._is_begun:
            raise StateError(
                f"block {unit.name} was called, but the library has its weights; call the module in a loss function, "
                "or in `with loop.using_weights():`"
            )

    def must_be_in_backward(self, unit: Unit, pass_number: int) -> None:
        """Before the backward pass of a call: it belongs to the pass that has begun, and its gradients are wanted."""
        if not torch.autograd._is_checkpoint_valid():  # type: ignore[no-untyped-call]
            raise StateError(
                f"torch.autograd.grad or backward(inputs=...) reached block {unit.name}, which always adds the "
                "gradients of its weights to the step; use backward() on the loss, or compute this gradient without "
                "the block"
            )
        if not self._is_begun or pass_number != self.pass_number:
            raise StateError(
                f"backward() reached block {unit.name} with a loss of an earlier pass; call backward() before the "
                "answer, and before save, load, state_dict or using_weights"
            )
        self._note_backward()

    def _note_backward(self) -> None:
        """torch calls back at the end of a backward pass, but not if it fails."""
        task = torch._C._current_graph_task_id()
        if task not in self._unfinished:
            self._unfinished.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._unfinished.discard(task))

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients that no accepted answer covers."""
        outside = self._always.trained if self._always else ()
        return self._has_added or self._kept.has_gradients or any(p.grad is not None for p in outside)

    def _must_be_whole(self) -> None:
        """Outside of backward: refuses to add gradients to those of a backward pass that failed."""
        if self._unfinished and torch._C._current_graph_task_id() < 0:
            if self.has_gradients:
                self._refuse()
            self._unfinished.clear()

    def _refuse(self) -> None:
        raise StateError(
            "an exception interrupted this step, but the library already has a part of its gradients; close the loop: "
            "a module that had memory of its own then has the weights of the last finished step, and if the loop has a "
            "folder (out=), another with resume=True continues from its last checkpoint"
        )

    def answered(self) -> None:
        """The library has accepted an answer, or the run has ended."""
        self._has_added = False

    def begin(self, wants_gradients: bool = True) -> None:
        """Before the passes of a micro-batch."""
        if wants_gradients and self._has_added:
            self._refuse()
        self.rest()
        self._unfinished.clear()
        self.pass_number += 1
        if self._order:
            self._orders[self._wants_gradients] = self._order
        self._wants_gradients, self._order = wants_gradients, []
        self._last = self._orders.get(wants_gradients) or self._orders.get(True, [])
        if wants_gradients and self._last:
            self._keep_graphs()
        if self._always:
            self._take(self._always)
            count_change(self._always.parameters)  # refuses graphs of earlier passes
        if self._last:
            self._fetch(self._last[0])
        self._is_begun = True

    def end(self) -> None:
        """After the backward pass."""
        self._must_be_whole()
        self._kept.end()
        if self._always and any(p.grad is not None for p in self._always.trained):
            self.add(self._always, [p.grad for p in self._always.trained])
        self.rest()

    def rest(self) -> None:
        """Releases what is held. If that fails, everything else is still done, and the first error is raised."""
        failed: Exception | None = None
        self._kept.rest()
        for unit in self.list:
            if self._depth[unit.number] > 0:
                self._depth[unit.number] = 1
                try:
                    self._give_back(unit)
                except Exception as error:
                    failed = failed or error
        if self._always:
            for p in self._always.trained:
                p.grad = None
        self._is_begun = False
        if self.inputs is not None:
            self.inputs.clear()
        if failed is not None:
            raise failed

    def give_up(self) -> None:
        """As `rest`, after a failure that is reported: the library refuses to release units after one of its own."""
        with contextlib.suppress(Exception):
            self.rest()

    @property
    def is_begun(self) -> bool:
        return self._is_begun

    @contextlib.contextmanager
    def passing(self, wants_gradients: bool) -> Iterator[None]:
        """Encloses the passes of one micro-batch."""
        self.begin(wants_gradients)
        try:
            yield
            if wants_gradients:
                self.end()
        except BaseException:
            self.give_up()
            raise
        self.rest()

    # ---- weights and gradients

    def _take(self, unit: Unit) -> set[int]:
        number = unit.number
        self.check_stream()
        self._depth[number] += 1
        if self._depth[number] > 1:
            return {p.untyped_storage().data_ptr() for p in unit.parameters}
        assert self._store is not None
        try:
            addresses = self._store.hold(number)
        except BaseException:
            self._depth[number] = 0
            raise
        known = self._tensors[number]
        if addresses not in known:
            kinds = zip(addresses, self.shapes[number], unit.parameters)
            with torch.inference_mode(False):  # later passes may have a graph
                known[addresses] = [tensor_at(a, shape, p.dtype, self.device) for a, shape, p in kinds]
        for p, tensor in zip(unit.parameters, known[addresses]):
            p.data = tensor
        return set(addresses)

    def _give_back(self, unit: Unit) -> None:
        self._depth[unit.number] -= 1
        if self._depth[unit.number] > 0:
            return
        for p in unit.parameters:
            p.data = self._empty[p.dtype]
        assert self._store is not None
        self._store.release(unit.number)

    @contextlib.contextmanager
    def held(self, unit: Unit, then: int | None) -> Iterator[set[int]]:
        """Yields the addresses of the unit's weights. Begins to fetch the unit `then`."""
        weights = self._take(unit)
        try:
            if then is not None:
                self._fetch(then)
            yield weights
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._give_back(unit)
            raise
        self._give_back(unit)

    def hold_for_pass(self, unit: Unit) -> None:
        """Holds it until `rest`, once however often it is called."""
        then = self.after(self.reached(unit))
        if self._depth[unit.number] == 0:
            self._take(unit)
        if then is not None:
            self._fetch(then)

    def _keep_graphs(self) -> None:
        """The last units of the pass keep their graph, as many as there is room for and the plan leaves on the device.

        Both ways of running a unit add gradients in the same order only if they come from one call.
        """
        assert self._store is not None
        room, chosen = self.graph_room, []
        for number in reversed(self._last):
            unit, size = self.list[number], self._bytes_of_graph(number)
            is_alone = not unit.borrowed and self._last.count(number) == 1
            if is_alone and unit.trained and math.inf > size <= room and self._store.stays(number):
                room -= size
                chosen.append(unit)
        self._kept.choose(chosen)

    def add(self, unit: Unit, grads: list[Any]) -> None:
        """Gradients of the unit's trained parameters."""
        given, kept = iter(grads), []
        for name, p, is_frozen in zip(unit.names, unit.parameters, unit.is_frozen):
            g = None if is_frozen else next(given)
            if g is not None and g.is_sparse:
                raise InputError(f"the gradient of parameter {name} is sparse; create its Embedding with sparse=False")
            if g is not None and not (g.dtype is p.dtype and g.is_contiguous()):
                g = g.to(p.dtype).contiguous()
            kept.append(g)
        assert self._store is not None
        self._has_added = True
        self._store.add_gradients(unit.number, self.tokens, [None if g is None else g.data_ptr() for g in kept])

    # ---- order

    def _fetch(self, unit: int) -> None:
        assert self._store is not None
        if self._depth[unit] == 0:
            self._store.fetch(unit)

    def reached(self, unit: Unit) -> int:
        self._order.append(unit.number)
        return len(self._order) - 1

    def after(self, position: int) -> int | None:
        """The unit that the last pass of this kind used next."""
        return self._last[position + 1] if position + 1 < len(self._last) else None

    def before(self, position: int) -> int | None:
        return self._order[position - 1] if position > 0 else None

    # ---- the rest

    def buffers_of(self, unit: Unit) -> list[tuple[Any, str, Any]]:
        """(owner, name, buffer) of the unit's modules."""
        owners = self._owners.get(unit.number)
        if owners is None:
            owners = list(dict.fromkeys(m for one in unit.modules for m in one.modules()))
            self._owners[unit.number] = owners
        return [(m, name, b) for m in owners if m._buffers for name, b in m._buffers.items()]

    @property
    def kept_graph_bytes(self) -> int:
        """Of the units that keep their graph."""
        return sum(int(self._bytes_of_graph(unit.number)) for unit in self.list if unit in self._kept)

    def _bytes_of_graph(self, number: int) -> float:
        """With the inputs of the unit, if those of other units are not on the device."""
        inputs = self.sizes[number][0] if self.inputs is not None and number in self.sizes else 0
        return self.graph_bytes.get(number, math.inf) + inputs

    def is_checked(self, unit: Unit) -> bool:
        return unit.number in self._was_checked

    def note_sizes(self, unit: Unit, inputs: int, results: int, allocated: int) -> None:
        """After a unit was computed for the first time: on a card the peak of memory, else what its graph keeps."""
        is_card = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) - allocated if is_card else self.graph_bytes[unit.number]
        self.sizes[unit.number] = inputs, results, peak

    def checked(self, unit: Unit, graph_bytes: int) -> None:
        self._was_checked.add(unit.number)
        self.graph_bytes[unit.number] = graph_bytes

    def autocast_type(self) -> torch.dtype | None:
        """The type of autocast; None: it is off."""
        kind = self.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def autocast(self, dtype: torch.dtype | None) -> Any:
        """Autocast of this type, without its cache, which would keep copies of all weights and use them too long."""
        kind = self.device.type
        if dtype is not None:
            return torch.autocast(kind, dtype=dtype, cache_enabled=False)
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _AS_IT_IS
