"""Converts text to token ids and back, by a model's tokenizer."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable
from typing import Any, Callable

from . import _abi
from ._library import check, encoded, lib, sized, take_bytes
from .errors import InputError, StateError
from .results import TokenizeResult

__all__ = ["Tokenizer"]

_OPTIONS: dict[str, Any] = dict(_abi.hy_tokenize_options._fields_)  # type: ignore[arg-type]


class Tokenizer:
    """Opens a tokenizer.json or tokenizer.model, or the one in a model's folder. Any number of threads may use it.

    Ids are those of Hugging Face's tokenizers.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        handle = ctypes.c_void_p()
        check(lib.hy_tokenizer_open(encoded(path), ctypes.byref(handle)))
        self._handle: ctypes.c_void_p | None = handle
        self._finalizer = weakref.finalize(self, lib.hy_tokenizer_close, handle)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise StateError("this tokenizer is closed")
        return self._handle

    @property
    def vocab_size(self) -> int:
        """All ids are below this number."""
        return int(lib.hy_tokenizer_vocab(self._open()))

    @property
    def eos(self) -> int | None:
        """The id of the end token; None if there is none."""
        token = int(lib.hy_tokenizer_eos(self._open()))
        return None if token < 0 else token

    def encode(
        self, text: str | bytes, *, add_special: bool = False, plain: bool = False, inside: bool = False
    ) -> list[int]:
        """The ids of a text.

        add_special: add bos and eos as the tokenizer defines. plain: treat special tokens in the text as plain text.
        inside: the text continues another text, so it gets no prefix.
        """
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
        flags = _abi.HY_TOKENS_SPECIAL * add_special | _abi.HY_TOKENS_PLAIN * plain | _abi.HY_TOKENS_INSIDE * inside
        ids, count = ctypes.c_void_p(), ctypes.c_size_t()
        check(lib.hy_tokenize(self._open(), data, len(data), flags, ctypes.byref(ids), ctypes.byref(count)))
        try:
            return list((ctypes.c_int32 * count.value).from_address(ids.value)) if ids.value else []
        finally:
            lib.hy_free(ids)

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The text of ids, byte for byte; it may end within a character."""
        numbers = [int(one) for one in ids]
        if any(not -(2**31) <= one < 2**31 for one in numbers):
            raise InputError(f"a token id is out of range; expected 0 to {self.vocab_size - 1}")
        flags = _abi.HY_TOKENS_SKIP_SPECIAL * skip_special
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        array = (ctypes.c_int32 * len(numbers))(*numbers)
        check(lib.hy_untokenize(self._open(), array, len(numbers), flags, ctypes.byref(text), ctypes.byref(size)))
        return take_bytes(text, size.value)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of ids; bytes that are not valid UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def tokenize_files(
        self,
        paths: Iterable[str | os.PathLike[str]],
        out: str | os.PathLike[str],
        *,
        val_fraction: float = 0.0,
        shard_tokens: int = 0,
        threads: int = 0,
        plain: bool = False,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> TokenizeResult:
        """Converts files and folders to token shards in `out`, on all cores. on_progress gets done and total bytes."""
        raised: list[BaseException] = []

        def report(_: Any, progress: Any) -> bool:
            try:
                if on_progress is not None:
                    on_progress(progress.contents.bytes_done, progress.contents.bytes_total)
            except BaseException as error:  # noqa: B902
                raised.append(error)
            return not raised

        names = [encoded(path) for path in paths]
        array = (ctypes.c_char_p * len(names))(*names)
        callback = _OPTIONS["on_progress"](report)
        options = _abi.hy_tokenize_options(
            tokenizer=self._open(),
            paths=ctypes.cast(array, _OPTIONS["paths"]),
            path_count=len(names),
            out=encoded(out),
            val_fraction=val_fraction,
            shard_tokens=shard_tokens,
            threads=threads,
            is_plain=plain,
            on_progress=callback,
        )
        c = _abi.hy_tokenize_result()
        status = lib.hy_tokenize_files_sized(ctypes.byref(options), *sized(c))
        if raised:
            raise raised[0]
        check(status)
        return TokenizeResult._of(c)

    def close(self) -> None:
        self._handle = None
        self._finalizer()
