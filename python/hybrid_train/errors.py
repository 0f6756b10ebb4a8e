"""Errors of the library as exceptions, each with the library's message and status."""

from __future__ import annotations

from . import _abi

__all__ = [
    "Error",
    "InputError",
    "MemoryError_",
    "FileError",
    "DeviceError",
    "NumericError",
    "StateError",
    "InternalError",
    "Stopped",
]


class Error(Exception):
    """An error of the library. `status` is the name of its status code."""

    status: str = "HY_ERR_INTERNAL"


class InputError(Error, ValueError):
    """Wrong input: a key, a value, a file, a shape, a tensor."""

    status = "HY_ERR_INPUT"


class MemoryError_(Error, MemoryError):
    """Memory could not be allocated, on the host or on the card."""

    status = "HY_ERR_MEMORY"


class FileError(Error, OSError):
    """Reading or writing failed."""

    status = "HY_ERR_IO"


class DeviceError(Error, RuntimeError):
    """A device or its driver is missing, too old, or failed."""

    status = "HY_ERR_DEVICE"


class NumericError(Error, ArithmeticError):
    """The run diverged, or many updates in a row were not finite."""

    status = "HY_ERR_NUMERIC"


class StateError(Error, RuntimeError):
    """The call is not possible now: wrong order, after the end, or from two threads at once."""

    status = "HY_ERR_STATE"


class InternalError(Error):
    """A bug in the library."""


class Stopped(Error):
    """The run was stopped on request; it was saved if it has a folder."""

    status = "HY_STOPPED"


_BY_NUMBER = {
    getattr(_abi, kind.status): kind
    for kind in (
        InputError,
        MemoryError_,
        FileError,
        DeviceError,
        NumericError,
        StateError,
        InternalError,
        Stopped,
    )
}


def error_of(status: int, message: str) -> Error:
    """The exception for a status of the C interface."""
    return _BY_NUMBER.get(status, InternalError)(message)
