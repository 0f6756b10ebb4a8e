"""Weights of a module on their way into a store and out of it: from its tensors, from safetensors files, and back.

Parameters go through the store, piece by piece; frozen ones at once, because their codes depend on all elements.
Buffers, and frozen parameters of types that the library does not have, stay torch's, on the device of the passes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ._peft import base_name, is_adapted, must_have_a_base
from ._units import Store, Units, swap
from .errors import FileError, InputError, StateError

_PIECE = 1 << 24  # elements that are converted at a time
_SHARD = 4 << 30  # bytes of a file
_INDEX = "model.safetensors.index.json"
_FILES = ("model.safetensors", "model-?????-of-?????.safetensors")
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_TYPE_NAMES = {dtype: name for name, dtype in _TYPES.items()}


# ---- safetensors -------------------------------------------------------------------------------------------------


def _files_of(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    raise FileError(f"{folder} has neither model.safetensors nor {_INDEX}")


def _read_file(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a file in its order. Each refers to the mapped file, so nothing is read before it is used."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        for name, one in header.items():
            if name == "__metadata__":
                continue
            if one["dtype"] not in _TYPES:
                raise InputError(f"tensor {name} of {path} has type {one['dtype']}; expected {', '.join(_TYPES)}")
            dtype, shape, begin = _TYPES[one["dtype"]], one["shape"], 8 + length + one["data_offsets"][0]
            count = math.prod(shape)
            empty = torch.empty(0, dtype=dtype)
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=begin) if count else empty
            yield name, flat.view(shape)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        if isinstance(error, InputError):
            raise
        raise FileError(f"{path} cannot be read as safetensors: {error}") from error


def _write_file(path: Path, tensors: list[tuple[str, torch.Size, torch.dtype]], values: Iterable[torch.Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape, dtype in tensors:
        size = shape.numel() * dtype.itemsize
        header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in values:
            file.write(value.contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


# ---- a module's ----------------------------------------------------------------------------------------------------


class Weights:
    def __init__(self, module: Any, units: Units) -> None:
        self._module, self._units = module, units
        self._store: Store | None = None
        self._kept = [p for unit in units.list for p in unit.parameters]
        self._is_frozen = [is_frozen for unit in units.list for is_frozen in unit.is_frozen]
        self._numbers = {id(p): i for i, p in enumerate(self._kept)}
        self._shapes = [shape for shapes in units.shapes for shape in shapes]
        self._devices = [p.device for p in self._kept]
        self.came_in: list[str] | None = None  # names in the folder that was read
        self._moved: list[tuple[Any, torch.device]] = []  # what stays torch's, and where it was
        self._taken: set[int] = set()  # numbers of parameters that had values of their own
        self._missing: set[int] = set()  # numbers of parameters without values

    def _move_others(self) -> None:
        """What stays torch's goes to the device of the passes."""
        for t in (*self._module.parameters(), *self._module.buffers()):
            if id(t) not in self._numbers and not t.is_meta:
                self._moved.append((t, t.device))
                t.data = t.data.to(self._units.device)

    def attach(self, store: Store, is_resumed: bool) -> None:
        """Fills the store with the module's own values, and frees those. A checkpoint has no frozen parameters."""
        self._store = store
        self._move_others()
        for i, p in enumerate(self._kept):
            is_known = is_resumed and not self._is_frozen[i]
            if p.is_meta:
                if not is_known:
                    self._missing.add(i)
                continue
            if not is_known:
                self._put(i, p.detach())
            p.data = p.data.new_empty(0)
            self._taken.add(i)
        self._make_buffers()

    def _put(self, number: int, value: torch.Tensor) -> None:
        assert self._store is not None
        flat, dtype = value.reshape(-1), self._kept[number].dtype
        size = flat.numel() if self._is_frozen[number] else _PIECE
        for first in range(0, flat.numel(), size):
            piece = flat[first : first + size].to("cpu", dtype).contiguous()
            self._store.write(number, first, piece.numel(), piece.data_ptr())
        self._missing.discard(number)

    def get(self, number: int) -> torch.Tensor:
        """A parameter's weights in host memory."""
        assert self._store is not None
        out = torch.empty(self._shapes[number], dtype=self._kept[number].dtype)
        self._store.read(number, 0, out.numel(), out.data_ptr())
        return out

    def _make_buffers(self) -> None:
        """Buffers on the meta device that no file has: transformers' models compute them from their configuration."""
        for m in self._module.modules():
            names = [n for n, b in m._buffers.items() if b is not None and b.is_meta]
            names = [n for n in names if n in m._non_persistent_buffers_set]
            for name in names:
                m._buffers[name] = torch.empty_like(m._buffers[name], device=self._units.device)
                if m._buffers[name].is_floating_point():
                    m._buffers[name].fill_(math.nan)
            owner = next((o for o in self._module.modules() if hasattr(o, "_init_weights")), None)
            is_bare = all(p is None or p.is_meta for p in m._parameters.values())  # there is nothing to overwrite
            if names and owner is not None and is_bare:
                with torch.no_grad():
                    owner._init_weights(m)
            for name in names:
                if owner is None or not is_bare or m._buffers[name].isnan().any():
                    raise InputError(
                        f"buffer {name} of a {type(m).__name__} is on the meta device, and no file has its values; "
                        "create the module's buffers on the CPU, for example with accelerate's init_empty_weights()"
                    )

    def must_be_complete(self) -> None:
        missing = next((name for name, t in self._named() if self._lacks(t)), None)
        if missing is not None:
            raise StateError(f"{missing} has no values: it is on the meta device; call loop.load(folder) first")
        self.must_be_complete = lambda: None  # type: ignore[method-assign]

    def _lacks(self, tensor: Any) -> bool:
        number = self._numbers.get(id(tensor))
        return tensor.is_meta if number is None else number in self._missing

    def _named(self) -> Iterator[tuple[str, Any]]:
        """(name, tensor) of everything that files have; tied tensors occur several times."""
        for path, m in self._module.named_modules(remove_duplicate=False):
            dot = f"{path}." if path else ""
            for name, p in m._parameters.items():
                if p is not None:
                    yield dot + name, p
            for name, b in m._buffers.items():
                if b is not None and name not in m._non_persistent_buffers_set:
                    yield dot + name, b

    # ---- files

    def load(self, folder: str | os.PathLike[str], is_resumed: bool, restored: set[int]) -> None:
        """Reads a folder of transformers. If the run was resumed, only what its checkpoint does not have.

        restored: ids of buffers with values from the checkpoint.
        """
        if is_adapted(self._module):
            must_have_a_base(self._module)
        files = _files_of(Path(folder))
        named = self._by_file_names()
        found = {name: t for path in files for name, t in _read_file(path)}
        self._must_match(found, named, folder)
        done: set[int] = set()
        for target, value in ((target, value) for name, value in found.items() for target in named[name]):
            if id(target) in done:
                continue
            done.add(id(target))
            number = self._numbers.get(id(target))
            if number is None and id(target) not in restored:
                self._set_other(target, value)
            elif number is not None and (not is_resumed or self._is_frozen[number]):
                self._put(number, value)
        self.came_in = list(found)

    def _by_file_names(self) -> dict[str, list[Any]]:
        """The tensors that a name in the files of a model stands for; PEFT has copies of modules that it saves."""
        named: dict[str, list[Any]] = {}
        adapters = self._module.peft_config if is_adapted(self._module) else None
        for name, t in self._named():
            named.setdefault(name if adapters is None else base_name(name, adapters), []).append(t)
        return named

    def _shape_of(self, tensor: Any) -> torch.Size:
        number = self._numbers.get(id(tensor))
        return torch.Size(tensor.shape) if number is None else self._shapes[number]

    def _must_match(self, found: dict[str, Any], named: dict[str, list[Any]], folder: Any) -> None:
        for name, value in found.items():
            if name not in named:
                raise InputError(
                    f"{folder} has the tensor {name}, but the module has no parameter or buffer of this name; names "
                    "must be equal (models that transformers converts when it loads them are not supported)"
                )
            expected = self._shape_of(named[name][0])
            if value.shape != expected:
                raise InputError(f"{name} has shape {tuple(value.shape)} in {folder}; expected {tuple(expected)}")
        there = {id(t) for name in found for t in named[name]}
        for name, tensor in ((name, t) for name, tensors in named.items() for t in tensors):
            is_own = is_adapted(self._module) and not self._lacks(tensor)  # of an adapter, which has its values
            if id(tensor) not in there and not is_own:
                hint = "; adapters of this kind need a base model in memory" if is_adapted(self._module) else ""
                raise InputError(f"{folder} has no tensor {name}, which the module needs{hint}")

    def _set_other(self, target: Any, value: torch.Tensor) -> None:
        value = value.to(self._units.device, target.dtype, copy=True)
        if target.is_meta:
            is_parameter = isinstance(target, torch.nn.Parameter)
            swap(target, torch.nn.Parameter(value, False) if is_parameter else value)
        else:
            target.data.copy_(value)

    def _value(self, tensor: Any) -> torch.Tensor:
        number = self._numbers.get(id(tensor))
        return tensor.detach().cpu() if number is None else self.get(number)

    def state_dict(self, only_trained: bool = False) -> dict[str, torch.Tensor]:
        """Everything in host memory, under all of its names; only_trained: without frozen parameters."""
        values: dict[int, torch.Tensor] = {}
        named = [(name, t) for name, t in self._named() if not only_trained or not self._stays(t)]
        for _, t in named:
            if id(t) not in values:
                values[id(t)] = self._value(t)
        return {name: values[id(t)] for name, t in named}

    def _stays(self, tensor: Any) -> bool:
        number = self._numbers.get(id(tensor))
        return number is not None and self._is_frozen[number]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the names that came in, or each tensor once, in files of at most 4 GiB."""
        named: dict[str, Any] = {}
        seen: set[int] = set()
        for name, t in self._named():
            if name in self.came_in if self.came_in is not None else id(t) not in seen:
                if t.dtype not in _TYPE_NAMES:
                    raise InputError(
                        f"{name} has type {t.dtype}, which cannot be written; expected {', '.join(_TYPES)} (a buffer "
                        "with persistent=False is not written)"
                    )
                named[name] = t
                seen.add(id(t))
        shards: list[list[str]] = [[]]
        size = 0
        for name, t in named.items():
            bytes_ = self._shape_of(t).numel() * t.dtype.itemsize
            if shards[-1] and size + bytes_ > _SHARD:
                shards.append([])
                size = 0
            shards[-1].append(name)
            size += bytes_
        self._write_shards(Path(folder), named, shards)

    def _write_shards(self, folder: Path, named: dict[str, Any], shards: list[list[str]]) -> None:
        """Files get their names when all of them are complete."""
        folder.mkdir(parents=True, exist_ok=True)
        count = len(shards)
        files = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        if count == 1:
            files = ["model.safetensors"]
        weight_map = {name: file for file, names in zip(files, shards) for name in names}
        size = sum(self._shape_of(t).numel() * t.dtype.itemsize for t in named.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        try:
            for file, names in zip(files, shards):
                kinds = [(name, self._shape_of(named[name]), named[name].dtype) for name in names]
                _write_file(folder / f"{file}.partial", kinds, (self._value(named[name]) for name in names))
            if count > 1:
                (folder / f"{_INDEX}.partial").write_text(json.dumps(index, indent=2) + "\n")
                files.append(_INDEX)
            for file in files:
                os.replace(folder / f"{file}.partial", folder / file)
            for old in (folder / _INDEX, *(one for pattern in _FILES for one in folder.glob(pattern))):
                if old.name not in files:
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"the weights cannot be written to {folder}: {error}") from error
        finally:
            for file in files:
                (folder / f"{file}.partial").unlink(missing_ok=True)

    def read_all(self) -> list[torch.Tensor | None]:
        """The weights for `give_back`; None for parameters that had no memory of their own."""
        return [self.get(i) if i in self._taken else None for i in range(len(self._kept))]

    def give_back(self, values: list[torch.Tensor | None]) -> None:
        """The module's parameters have their own memory again."""
        for p, value, where in zip(self._kept, values, self._devices):
            if value is not None:
                p.data = value.to(where)
        for t, where in self._moved:
            t.data = t.data.to(where)
