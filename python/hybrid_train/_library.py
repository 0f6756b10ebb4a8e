"""Finds and opens the shared library and declares its functions. All other modules use `lib` and `check`.

An installed package has the library in its folder lib/. In a source tree it is the library of the last build.
HYBRID_LIBRARY names another file, which must have the same interface number as this package.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from . import _abi
from .errors import InputError, error_of

_HERE = Path(__file__).resolve().parent
_BESIDE = _HERE / "lib"


def _candidates() -> list[Path]:
    given = os.environ.get("HYBRID_LIBRARY")
    if given:
        return [Path(given)]
    return [_BESIDE / "libhybrid.so", _HERE.parent.parent / "build" / "lib" / "libhybrid.so"]


def _open() -> ctypes.CDLL:
    for path in _candidates():
        if path.exists():
            # Libraries in the package are loaded first, so that the loader finds them by name.
            own = ("libconfig.so*", "libyaml-0.so*", "libpcre2-8.so*")
            for pattern in own if path.parent == _BESIDE else ():
                for other in sorted(path.parent.glob(pattern)):
                    ctypes.CDLL(str(other))
            return ctypes.CDLL(str(path))
    looked = " and ".join(str(path) for path in _candidates())
    raise ImportError(f"libhybrid.so was not found at {looked}; build it with `make lib`")


def _must_fit(library: ctypes.CDLL) -> None:
    """Checks the interface number: with another one, structs would be read wrongly."""
    theirs = "a version without an interface number"
    if hasattr(library, "hy_abi") and hasattr(library, "hy_version"):
        library.hy_version.restype = ctypes.c_char_p
        if library.hy_abi() == _abi.HYBRID_ABI:
            return
        theirs = f"version {library.hy_version().decode()} with interface {library.hy_abi()}"
    raise ImportError(
        f"{library._name} is {theirs}; this package is version {_abi.HYBRID_VERSION} and needs interface "
        f"{_abi.HYBRID_ABI}: build and install both again"
    )


def _declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"{library._name} has no {name}: its version differs from this package's "
                f"({_abi.HYBRID_VERSION}); build and install both again"
            ) from None
        function.restype, function.argtypes = result, arguments


lib = _open()
_must_fit(lib)
_declare(lib)
_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


def path() -> str:
    """The path of the opened library."""
    return str(lib._name)


# ---- calls ---------------------------------------------------------------------------------------------------


def message() -> str:
    """The message of this thread's last failed call."""
    return (lib.hy_error_message() or b"").decode("utf-8", "replace")


def check(status: int) -> None:
    """Raises the exception of a status other than HY_OK."""
    if status != _abi.HY_OK:
        raise error_of(status, message())


def sized(c: ctypes.Structure) -> tuple[Any, int]:
    """A struct for the library to fill, and its size in this package."""
    return ctypes.byref(c), ctypes.sizeof(c)


def take_bytes(pointer: ctypes.c_void_p, size: int | None = None) -> bytes:
    """Converts a text that the library allocated, and frees it."""
    try:
        if not pointer.value:
            return b""
        return ctypes.string_at(pointer.value, -1 if size is None else size)
    finally:
        lib.hy_free(pointer)


def take_text(pointer: ctypes.c_void_p) -> str:
    return take_bytes(pointer).decode("utf-8", "replace")


def malloc_copy(data: bytes) -> int:
    """Copies bytes into memory from malloc, which the library will free."""
    at = _libc.malloc(max(len(data), 1))
    if not at:
        raise MemoryError(f"no memory for {len(data)} bytes")
    ctypes.memmove(at, data, len(data))
    return int(at)


def encoded(text: str | os.PathLike[str]) -> bytes:
    """Text or a path as bytes for the library."""
    data = os.fsencode(text)
    if b"\0" in data:
        raise InputError(f"{os.fspath(text)!r} contains a zero byte")
    return data
