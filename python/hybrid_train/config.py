"""The configuration of a run: named values with defaults, profiles, files and overrides."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Union

from . import _abi
from ._library import check, encoded, lib, take_text
from .errors import InputError
from .results import ConfigKey

__all__ = ["Config", "ConfigValue"]

ConfigValue = Union[str, int, float, bool, "os.PathLike[str]"]

_WEAK = ("default", "preset", "profile", "depends", "replaced", "set", "auto")  # origins that the user did not choose
_READ: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "switch": lambda text: text == "true",
}


def _as_text(key: str, value: ConfigValue) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, (int, float)):
        return repr(value).encode()
    if isinstance(value, (str, os.PathLike)):
        return encoded(value)
    if hasattr(value, "item") and callable(value.item):  # a number of NumPy's
        return _as_text(key, value.item())
    said = repr(value).split("\n")[0]
    raise InputError(f"{key} is {said[:40]} (of type {type(value).__name__}); expected a number, a bool or text")


class Config:
    """Every value of a run has a key such as "train.batch_size"; the part after the dot is enough.

        config = Config(model="nano", steps=200, lr=1e-3)
        config.load("my.cfg")
        config["batch_size"] = 8

    Values that you set override those of files, regardless of the order of calls; files override profiles and
    presets. A wrong key or value raises an InputError that names what is accepted.
    """

    def __init__(self, values: Mapping[str, ConfigValue | None] | None = None, /, **keys: ConfigValue | None) -> None:
        handle = ctypes.c_void_p()
        check(lib.hy_config_create(ctypes.byref(handle)))
        self._handle = handle
        self._done: list[tuple[Callable[..., int], tuple[Any, ...]]] = []  # calls that copy() repeats
        weakref.finalize(self, lib.hy_config_destroy, handle).atexit = False
        for key, value in {**(values or {}), **keys}.items():
            if value is not None:
                self.set(key, value)

    def _do(self, function: Callable[..., int], *arguments: Any) -> None:
        check(function(self._handle, *arguments))
        self._done.append((function, arguments))

    def set(self, key: str, value: ConfigValue) -> None:
        """Sets one value. "profile" and "model" also set other keys, with weaker origins."""
        self._do(lib.hy_config_set, encoded(key), _as_text(key, value), _abi.HY_FROM_CALLER)

    def get(self, key: str) -> Any:
        """The current value: an int, float, bool or text, by the key's type."""
        text = self._look(key)[0]
        read = _READ.get(self.find(key).type)
        try:
            return read(text) if read else text
        except ValueError:
            return text

    def origin(self, key: str) -> str:
        """Where the value came from: "default", "preset nano", "my.cfg:12", ..."""
        return self._look(key)[1]

    def is_chosen(self, key: str) -> bool:
        """Whether a file or a call of set has set the key."""
        return self.origin(key).split(" ")[0] not in _WEAK

    def _look(self, key: str) -> tuple[str, str]:
        value, origin = ctypes.c_char_p(), ctypes.c_char_p()
        check(lib.hy_config_get(self._handle, encoded(key), ctypes.byref(value), ctypes.byref(origin)))
        return tuple((text.value or b"").decode("utf-8", "replace") for text in (value, origin))  # type: ignore[return-value]

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads a configuration file. If it has an error, none of its values is used."""
        self._do(lib.hy_config_load, encoded(path))

    def load_run(self, folder: str | os.PathLike[str] = "auto") -> None:
        """Loads the configuration of a run; "auto" is the newest run in runs/."""
        self._do(lib.hy_config_load_run, encoded(folder))

    def use_model(self, name: str | os.PathLike[str]) -> None:
        """Sets the model: the folder of a run, a checkpoint, a model folder, or a preset."""
        self._do(lib.hy_config_use_model, encoded(name))

    def use_custom(self) -> None:
        """Sets the defaults of a Loop: no values of a model preset, one micro-batch per step, no warm-up unless one is
        set. A Loop does this itself, on a copy."""
        self._do(lib.hy_config_use_custom)

    use_own = use_custom  # the old name, until version 0.3

    def copy(self) -> Config:
        """A copy with the same values. Loaded files are read again."""
        out = Config()
        for function, arguments in self._done:
            out._do(function, *arguments)
        return out

    @staticmethod
    def keys() -> list[ConfigKey]:
        """All keys: type, what is accepted, default and help of each."""
        out: list[ConfigKey] = []
        while True:
            info = lib.hy_config_key(len(out))
            if not info:
                return out
            out.append(ConfigKey._of(info.contents))

    @staticmethod
    def find(name: str) -> ConfigKey:
        """Finds a key by its name, its last part, its flag, or its name in other tools."""
        info = lib.hy_config_find(encoded(name))
        if not info:
            raise InputError(f"there is no key {name!r}; Config.keys() lists them")
        return ConfigKey._of(info.contents)

    def __getitem__(self, key: str) -> Any:
        return self.get(key)

    def __setitem__(self, key: str, value: ConfigValue) -> None:
        self.set(key, value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(lib.hy_config_find(encoded(name)))

    def __iter__(self) -> Iterator[str]:
        return (key.key for key in self.keys())

    def __str__(self) -> str:
        """All values as a configuration file, each with its origin."""
        text = ctypes.c_void_p()
        check(lib.hy_config_print(self._handle, ctypes.byref(text)))
        return take_text(text)

    def __repr__(self) -> str:
        said = [key for key in self if self.is_chosen(key)]
        return f"Config({', '.join(f'{key.split(chr(46))[-1]}={self.get(key)!r}' for key in said)})"


def as_config(config: Config | Mapping[str, ConfigValue] | str | os.PathLike[str] | None, **keys: Any) -> Config:
    """A new configuration from a Config, a dict or a file, with `keys` set afterwards."""
    if config is None:
        out = Config()
    elif isinstance(config, Config):
        out = config.copy()
    elif isinstance(config, Mapping):
        out = Config(config)
    elif isinstance(config, (str, os.PathLike)):
        out = Config()
        out.load(config)
    else:
        raise InputError(
            f"config is a {type(config).__name__}; expected a Config, a dict of keys or the path of a file"
        )
    for key, value in keys.items():
        if value is not None:
            out.set(key, value)
    return out
