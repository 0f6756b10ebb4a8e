"""Generates answers to many prompts at once, with a model that stays loaded."""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Callable

from . import _abi
from ._library import check, encoded, lib, message, sized, take_bytes
from ._observer import Observer, OnMessage, OnProgress
from ._request import Answer, Generated, OnDone, OnText, Prompt, Request, Sampling, request_of
from .config import Config, ConfigValue
from .errors import Error, InputError, StateError, Stopped, error_of
from .results import GeneratorFacts, GeneratorState

__all__ = ["Answer", "Generated", "Generator", "Request", "Sampling", "generate"]

_SAMPLING = {field.name for field in fields(Sampling)}


class _Served:
    """The library's generator and the thread that runs it. It outlives the Generator until it is closed."""

    def __init__(self, handle: ctypes.c_void_p, observer: Observer) -> None:
        self.handle: ctypes.c_void_p | None = handle
        self.observer = observer
        self.made_in = os.getpid()
        self.lock = threading.Lock()  # of handle, against closing
        self.requests: dict[int, Request] = {}
        self.keys = itertools.count(1)
        self.error: Error | None = None
        self.on_piece = _abi.hy_piece_callback(self.take)
        self.thread = threading.Thread(target=self.serve, args=(handle,), name="hybrid-generator", daemon=True)

    @contextmanager
    def using(self) -> Iterator[ctypes.c_void_p]:
        """The handle, which is not closed meanwhile."""
        with self.lock:
            if self.handle is None:
                raise StateError("this generator is closed")
            yield self.handle

    def serve(self, handle: ctypes.c_void_p) -> None:
        status = lib.hy_generator_serve(handle)
        with self.lock:
            self.error = Stopped("the generator was closed")
            if status != _abi.HY_STOPPED:
                self.error = error_of(status, message())
            left = list(self.requests.values())
            self.requests.clear()
        for request in left:
            request._fail(self.error)

    def take(self, key: int, piece: Any) -> None:
        """The callback of all requests."""
        request = self.requests.get(key)
        if request is not None and request._take(piece.contents):
            self.requests.pop(key, None)
            request._finish(piece.contents)

    def cancel(self, request: Request) -> None:
        with self.lock:
            if self.handle is not None and self.error is None:
                lib.hy_generator_cancel(self.handle, request.id)

    def add(self, prompt: Prompt, how: Sampling, on_text: OnText, on_done: OnDone = None) -> Request:
        c, number = request_of(prompt, how), ctypes.c_int64()
        request = Request(how, on_text, on_done, self.cancel)
        c.on_piece = self.on_piece
        with self.using() as handle:
            if self.error is not None:
                raise self.error
            c.user = key = next(self.keys)
            self.requests[key] = request
            status = lib.hy_generator_add_sized(handle, *sized(c), ctypes.byref(number))
            request.id = number.value
            if status != _abi.HY_OK:
                del self.requests[key]
        check(status)
        return request

    def close(self) -> None:
        with self.lock:
            handle, self.handle = self.handle, None
        if handle is None or os.getpid() != self.made_in:  # a child of fork has no thread
            return
        if threading.current_thread() is self.thread:  # the last reference was dropped in a callback
            threading.Thread(target=self.end, args=(handle,)).start()
        else:
            self.end(handle)

    def end(self, handle: ctypes.c_void_p) -> None:
        lib.hy_generator_request_stop(handle)
        if self.thread.ident is not None:  # it was started
            self.thread.join()
        lib.hy_generator_close(handle)


class Generator:
    """A model that answers many prompts at once.

        with Generator("runs/mine") as generator:
            for one in generator.generate(["Once upon a time", "Nina"], max_tokens=100):
                print(one.text)

    The model is a run, a checkpoint, a model folder, a GGUF file, or a name in the hub cache. `streams` answers are
    generated at a time; the result does not depend on it. `top_logprobs` is the most that a call may ask for. Other keys
    are those of the configuration: device, precision, threads, max_gpu_mem, adapter, base, frozen_dtype.

    A prompt is a text, which the model continues; token ids; or messages ([{"role": "user", "content": ...}]), or
    {"messages": ..., "tools": ...}, which the chat template writes. Any number of threads may use a generator.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        streams: int = 0,
        context: int = 0,
        top_logprobs: int = 0,
        tokenizer: str | os.PathLike[str] | None = None,
        chat_template: str | None = None,
        no_think: bool = False,
        on_message: OnMessage = None,
        on_progress: OnProgress = None,
        **keys: ConfigValue | None,
    ) -> None:
        config = Config(keys)
        config.use_model(model)
        options = _abi.hy_generator_options(
            streams=streams,
            context=context,
            top_logprobs=top_logprobs,
            tokenizer=None if tokenizer is None else encoded(tokenizer),
            chat_template=None if chat_template is None else encoded(chat_template),
            without_thinking=no_think,
        )
        observer, handle = Observer(on_message=on_message, on_progress=on_progress), ctypes.c_void_p()
        seen = ctypes.byref(observer.struct)
        status = lib.hy_generator_open_sized(config._handle, *sized(options), seen, ctypes.byref(handle))
        served = _Served(handle, observer)
        if observer.raised is not None:
            lib.hy_generator_close(handle)
            observer.raise_again()
        check(status)
        self._served = served
        self._finalizer = weakref.finalize(self, served.close)
        served.thread.start()

    def add(self, prompt: Prompt, *, on_text: OnText = None, **sampling: Any) -> Request:
        """Adds a prompt and returns at once. Keywords are those of Sampling.

        on_text gets the number of the answer and each new piece of its text, on the generator's thread.
        """
        return self._served.add(prompt, Sampling(**sampling), on_text)

    def generate(
        self,
        prompts: Iterable[Prompt],
        *,
        on_text: Callable[[int, int, str], object] | None = None,
        **sampling: Any,
    ) -> list[Generated]:
        """Answers all prompts. Keywords are those of Sampling; prompt i has the seed seed + i * answers.

        on_text gets the numbers of the prompt and the answer and each new piece of text, on the generator's thread.
        After an exception, also Ctrl-C, the prompts that are left are cancelled.
        """
        if isinstance(prompts, (str, bytes, Mapping)):
            raise InputError(f"prompts is a single {type(prompts).__name__}; expected a list of prompts")
        how, requests = Sampling(**sampling), []
        try:
            for i, prompt in enumerate(prompts):
                call = None if on_text is None else _numbered(on_text, i)
                try:
                    one = self._served.add(prompt, replace(how, seed=how.seed + i * max(how.answers, 1)), call)
                except InputError as error:
                    raise InputError(f"prompt {i}: {error}") from None
                requests.append(one)
            return [one.result() for one in requests]
        except BaseException:
            for one in requests:
                one.cancel()
            raise

    def stream(self, prompt: Prompt, **sampling: Any) -> Iterator[str]:
        """The text of one answer, piece by piece. Keywords are those of Sampling. Leaving the loop ends the answer."""
        if sampling.get("answers", 1) != 1:
            raise InputError(f"answers is {sampling['answers']}; a stream has one answer")
        return self._pieces(prompt, Sampling(**sampling))

    def _pieces(self, prompt: Prompt, how: Sampling) -> Iterator[str]:
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        request = self._served.add(prompt, how, lambda answer, text: pieces.put(text), lambda: pieces.put(None))
        try:
            while (text := pieces.get()) is not None:
                yield text
            request.result()
        finally:
            request.cancel()

    def encode(self, text: str, *, is_prompt: bool = False) -> list[int]:
        """The ids of a text; is_prompt: with the tokenizer's start tokens."""
        data, ids, count = text.encode("utf-8", "surrogateescape"), ctypes.c_void_p(), ctypes.c_size_t()
        with self._served.using() as handle:
            check(lib.hy_generator_encode(handle, data, len(data), is_prompt, ctypes.byref(ids), ctypes.byref(count)))
        try:
            return list((ctypes.c_int32 * count.value).from_address(ids.value)) if ids.value else []
        finally:
            lib.hy_free(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are not valid UTF-8 become U+FFFD."""
        numbers = [int(one) for one in ids]
        array, text, size = (ctypes.c_int32 * len(numbers))(*numbers), ctypes.c_void_p(), ctypes.c_size_t()
        with self._served.using() as handle:
            check(lib.hy_generator_decode(handle, array, len(numbers), ctypes.byref(text), ctypes.byref(size)))
        return take_bytes(text, size.value).decode("utf-8", "replace")

    @property
    def facts(self) -> GeneratorFacts:
        """The model, its device, streams, context and memory."""
        c = _abi.hy_generator_facts()
        with self._served.using() as handle:
            lib.hy_generator_describe_sized(handle, *sized(c))
            return GeneratorFacts._of(c)

    def state(self) -> GeneratorState:
        """What runs and waits now, and the tokens so far."""
        c = _abi.hy_generator_state()
        with self._served.using() as handle:
            lib.hy_generator_now_sized(handle, *sized(c))
        return GeneratorState._of(c)

    def close(self) -> None:
        """Ends all requests, which then raise Stopped, and frees the memory."""
        if threading.current_thread() is self._served.thread:
            raise StateError("a generator cannot be closed by its own callback")
        self._finalizer()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _numbered(on_text: Callable[[int, int, str], object], prompt: int) -> OnText:
    return lambda answer, text: on_text(prompt, answer, text)


def generate(
    model: str | os.PathLike[str],
    prompts: Iterable[Prompt],
    *,
    on_text: Callable[[int, int, str], object] | None = None,
    **keywords: Any,
) -> list[Generated]:
    """Answers all prompts with a model that is loaded for this call.

    Keywords are those of Sampling (max_tokens, temperature, answers, ...) and of Generator (device, streams, ...).
    """
    sampling = {name: value for name, value in keywords.items() if name in _SAMPLING}
    others = {name: value for name, value in keywords.items() if name not in _SAMPLING}
    most = sampling.get("top_logprobs", 0)
    with Generator(model, top_logprobs=most, **others) as generator:
        return generator.generate(prompts, on_text=on_text, **sampling)
