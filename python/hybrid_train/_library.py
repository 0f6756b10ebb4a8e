"""Finds and opens the shared library and declares its functions. All other modules use `lib` and `check`.

An installed package has the library in its folder lib/. In a source tree it is the library of the last build.
HYBRID_LIBRARY names another file, which must have the same interface number as this package.
"""

from __future__ import annotations

import ctypes
import os
import sys
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
            for pattern in ("libconfig.so*", "libpcre2-8.so*") if path.parent == _BESIDE else ():
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


# ---- the CUDA backend ------------------------------------------------------------------------------------------


def _nvidia_folders() -> list[Path]:
    """Folders of NVIDIA's libraries from pip packages, which torch depends on."""
    out: list[Path] = []
    for entry in sys.path:
        out += sorted((Path(entry or ".") / "nvidia").glob("*/lib"))
    return out


def _load_missing(said: str) -> bool:
    """Loads a library that the loader did not find from a pip package; `said` is the loader's message with its name."""
    name = said.split(":", 1)[0].strip()
    for folder in _nvidia_folders():
        if name.startswith("lib") and (folder / name).exists():
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
            return True
    return False


_is_cuda_ready = False


def prepare_cuda() -> None:
    """Loads libraries that the CUDA backend needs, such as cuBLASLt, from pip packages if the loader cannot find them.

    If one is missing, the library reports it when a card is used.
    """
    global _is_cuda_ready
    backend = Path(path()).parent / "libhybrid_cuda.so"
    if _is_cuda_ready or not backend.exists():
        return
    _is_cuda_ready = True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # no driver
    for _ in range(4):
        try:
            ctypes.CDLL(str(backend))
            return
        except OSError as error:
            if not _load_missing(str(error)):
                return
