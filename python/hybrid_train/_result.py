"""The base of all results: they are filled from a C struct and can be converted to plain dicts."""

from __future__ import annotations

from ctypes import byref, memmove, sizeof
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T", bound="Result")


def text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


def _complete(c: Any) -> Any:
    """The struct with all members that this package knows; members that an older library lacks are zero."""
    if not 0 < getattr(c, "size", 0) < sizeof(c):
        return c
    out = type(c)()
    memmove(byref(out), byref(c), c.size)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


class Result:
    @classmethod
    def _of(cls: type[_T], c: Any) -> _T:
        """Reads a C struct at once, because its pointers may become invalid."""
        self = object.__new__(cls)
        self._fill(_complete(c))
        return self

    @classmethod
    def _later(cls: type[_T], c: Any) -> _T:
        """Reads a C struct when a value is first used, because most programs use few values of few steps. The struct
        must belong to this object and point only to constants."""
        self = object.__new__(cls)
        self.__dict__["_c"] = c
        return self

    def _fill(self, c: Any) -> None:
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            waiting = None if name.startswith("__") else self.__dict__.pop("_c", None)
            if waiting is None:
                raise AttributeError(f"{type(self).__name__} has no {name!r}")
            self._fill(waiting)
            return getattr(self, name)

    def __getstate__(self) -> dict[str, Any]:
        getattr(self, fields(self)[0].name)  # type: ignore[arg-type]
        return self.__dict__

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts and lists, which JSON can store except for NaN."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]
