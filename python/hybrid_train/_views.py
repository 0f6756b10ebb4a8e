"""The memory of an array or tensor: pointer, device, shape and type, without a copy.

Torch tensors and NumPy arrays are read directly, other objects through DLPack. The view keeps the DLPack
capsule, so the memory lives as long as the view. Neither torch nor NumPy is imported: if a module is not
loaded, it cannot have created the object.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from .errors import InputError

DTYPES = ("fp32", "bf16", "fp16")
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass
class View:
    pointer: int
    shape: tuple[int, ...]
    dtype: str  # the library's name; "" if it does not support the type
    said_dtype: str  # the owner's name of the type
    device: str  # "cpu", "cuda:0"; other names are not supported
    is_contiguous: bool
    is_writable: bool
    keep: Any  # keeps the memory alive
    raw_dtype: Any = None  # the owner's type object

    @property
    def bytes(self) -> int:
        size = SIZES.get(self.dtype, 0)
        for n in self.shape:
            size *= n
        return size


def loaded(module: str) -> Any:
    """A module if the program has imported it, else None."""
    return sys.modules.get(module)


def is_torch(value: Any) -> bool:
    torch = loaded("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_numpy(value: Any) -> bool:
    numpy = loaded("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))


def is_array(value: Any) -> bool:
    return is_torch(value) or is_numpy(value) or hasattr(value, "__dlpack__")


def view_of(value: Any, name: str) -> View:
    """`name` is its name in messages."""
    if is_torch(value):
        return _of_torch(value, name)
    if is_numpy(value):
        return _of_numpy(value)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(value, name)
    raise InputError(
        f"{name} is a {type(value).__name__}; expected a torch tensor, a NumPy array or something with __dlpack__"
    )


# ---- torch -----------------------------------------------------------------------------------------------------

_TORCH = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def _of_torch(tensor: Any, name: str) -> View:
    said = str(tensor.dtype)
    if str(tensor.layout) != "torch.strided":
        raise InputError(f"{name} is a tensor of layout {tensor.layout}; expected a dense tensor (torch.strided)")
    device = tensor.device
    where = f"cuda:{device.index or 0}" if device.type == "cuda" else str(device.type)
    pointer = 0 if device.type == "meta" else tensor.data_ptr()
    return View(
        pointer,
        tuple(tensor.shape),
        _TORCH.get(said, ""),
        said,
        where,
        tensor.is_contiguous(),
        True,
        tensor,
        tensor.dtype,
    )


# ---- NumPy -----------------------------------------------------------------------------------------------------

_NUMPY = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def _of_numpy(array: Any) -> View:
    dtype = array.dtype
    known = _NUMPY.get(dtype.name, "") if dtype.isnative else ""
    return View(
        numpy_pointer(array),
        array.shape,
        known,
        str(dtype),
        "cpu",
        array.flags.c_contiguous,
        array.flags.writeable,
        array,
        dtype,
    )


def numpy_pointer(array: Any) -> int:
    out: int = array.__array_interface__["data"][0]
    return out


# ---- DLPack ----------------------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY = 1
_CODES = {(2, 32): "fp32", (2, 16): "fp16", (4, 16): "bf16"}  # kDLFloat, kDLBfloat
_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}  # kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged

_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p


def _exported(value: Any, name: str) -> Any:
    try:
        try:
            return value.__dlpack__(max_version=(1, 0))
        except TypeError:
            return value.__dlpack__()
    except Exception as error:
        raise InputError(f"the memory of {name} cannot be read through __dlpack__: {error}") from error


def _of_dlpack(value: Any, name: str) -> View:
    capsule = _exported(value, name)
    is_writable = True
    if _api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        at = _api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        managed = ctypes.cast(at, ctypes.POINTER(_Versioned)).contents
        if managed.major != 1:
            raise InputError(f"{name} uses DLPack {managed.major}; expected version 1")
        t, is_writable = managed.tensor, not managed.flags & _READ_ONLY
    elif _api.PyCapsule_IsValid(capsule, b"dltensor"):
        at = _api.PyCapsule_GetPointer(capsule, b"dltensor")
        t = ctypes.cast(at, ctypes.POINTER(_DLTensor)).contents
    else:
        raise InputError(f"__dlpack__ of {name} did not return a tensor capsule")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    kind = _DEVICES.get(t.device_type, f"DLPack's number {t.device_type}")
    return View(
        (t.data or 0) + t.byte_offset,
        shape,
        _CODES.get((t.code, t.bits), "") if t.lanes == 1 else "",
        f"type {t.code} of {t.bits} bits in DLPack's numbers",
        f"cuda:{t.device_id}" if kind == "cuda" else kind,
        _is_dense(t, shape),
        is_writable,
        (value, capsule),
    )


def _is_dense(t: _DLTensor, shape: tuple[int, ...]) -> bool:
    """Whether the array is contiguous in row-major order. Strides of dimensions with one entry are ignored."""
    if not t.strides:
        return True
    expected = 1
    for i in reversed(range(t.ndim)):
        if shape[i] != 1 and t.strides[i] != expected:
            return False
        expected *= shape[i]
    return True
