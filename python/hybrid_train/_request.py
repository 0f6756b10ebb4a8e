"""A prompt that is being answered: the request as the library takes it, and the answers as they come."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from . import _abi, _names
from .errors import InputError, NumericError

# A text, token ids, messages, or {"messages": [...], "tools": [...]}.
Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]], Mapping[str, Any]]
OnText = Optional[Callable[[int, str], object]]
OnDone = Optional[Callable[[], object]]


@dataclass(frozen=True)
class Sampling:
    """How answers are generated.

    max_tokens: of an answer; 0: until the context is full
    temperature: 0: always the most likely token
    top_p: sample from the most likely tokens with this total probability; 1: from all
    top_k: sample from the k most likely tokens; 0: from all
    min_p: sample only tokens with at least this share of the most likely token's probability; 0: all
    repetition_penalty: above 1: tokens that are there already become less likely
    seed: of the first answer to the first prompt; each further answer has the next seed
    stop: a text, or several; an answer ends before it
    answers: so many different answers to each prompt
    logprobs: the log-probability of each token
    top_logprobs: the log-probabilities of so many most likely tokens at each position
    prompt_logprobs: the log-probability of each token of the prompt
    """

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 1
    stop: str | Sequence[str] = ()
    answers: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class Answer:
    """One answer.

    text: without the stop text
    end: "model", "max_tokens", "context", "stop_text", or "stopped" (cancelled)
    tokens: their ids, without the token that ended the answer
    logprobs: of the tokens, if they were wanted
    top_logprobs: for each token the ids and log-probabilities of the most likely, most likely first
    """

    text: str
    end: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[dict[int, float], ...] | None = None


@dataclass(frozen=True)
class Generated:
    """The answers to one prompt. `text` and `end` are those of the first.

    reused_tokens: tokens of the prompt that the library had computed already, for another prompt
    prompt_logprobs: of the prompt's tokens, if they were wanted; the first is NaN
    """

    answers: tuple[Answer, ...]
    prompt_tokens: int
    reused_tokens: int
    prompt_logprobs: tuple[float, ...] | None = None

    @property
    def text(self) -> str:
        return self.answers[0].text

    @property
    def end(self) -> str:
        return self.answers[0].end


# ---- to the library -----------------------------------------------------------------------------------------


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_conversation(prompt: Prompt) -> bool:
    return isinstance(prompt, Mapping) or (len(prompt) > 0 and isinstance(prompt[0], Mapping))


def _ids_of(prompt: Any) -> list[int]:
    try:
        ids = [int(one) for one in prompt]
    except (TypeError, ValueError) as error:
        raise InputError(f"a prompt is neither a text nor messages nor token ids: {error}") from None
    wrong = next((one for one in ids if not 0 <= one < 2**31), None)
    if wrong is not None:
        raise InputError(f"{wrong} in a prompt is not a token id")
    return ids


def _put_prompt(c: Any, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        c.text = data = _bytes_of(prompt)
        c.text_size = len(data)
    elif not hasattr(prompt, "__len__") or not hasattr(prompt, "__getitem__") or isinstance(prompt, bytes):
        raise InputError(f"a prompt is of type {type(prompt).__name__}; expected a text, token ids or messages")
    elif _is_conversation(prompt):
        c.messages = data = json.dumps(prompt).encode()
        c.messages_size = len(data)
    else:  # also an array of NumPy or torch
        ids = _ids_of(prompt)
        c.tokens = (ctypes.c_int32 * max(len(ids), 1))(*ids)
        c.token_count = len(ids)


def _put_stops(c: Any, stop: str | Sequence[str]) -> None:
    texts = [_bytes_of(text) for text in ([stop] if isinstance(stop, str) else stop)]
    if any(b"\0" in text for text in texts):
        raise InputError("a stop text contains a zero byte")
    array = (ctypes.c_char_p * len(texts))(*texts)
    c.stop = ctypes.cast(array, type(c.stop))
    c.stops = array  # kept alive
    c.stop_count = len(texts)


def _check_integers(how: Sampling) -> None:
    """ctypes would cut off their upper bits."""
    for name, most in (("answers", 2**31), ("max_tokens", 2**31), ("top_k", 2**31), ("seed", 2**64)):
        if not 0 <= getattr(how, name) < most:
            raise InputError(f"{name} is {getattr(how, name)}; accepted: 0 to {most - 1}")


def request_of(prompt: Prompt, how: Sampling) -> Any:
    """A hy_request without callback, which keeps what it points to alive."""
    _check_integers(how)
    c = _abi.hy_request(
        answers=how.answers,
        max_tokens=how.max_tokens,
        temperature=how.temperature,
        top_p=how.top_p,
        top_k=how.top_k,
        min_p=how.min_p,
        repetition_penalty=how.repetition_penalty,
        seed=how.seed,
        wants_logprobs=how.logprobs or how.top_logprobs > 0,
        wants_prompt_logprobs=how.prompt_logprobs,
        top_logprobs=how.top_logprobs,
    )
    _put_prompt(c, prompt)
    _put_stops(c, how.stop)
    return c


# ---- from the library ---------------------------------------------------------------------------------------


def _text_of(piece: Any) -> str:
    """The text of a piece, which may contain zero bytes."""
    at = ctypes.c_void_p.from_buffer(piece, _abi.hy_piece.text.offset).value
    return ctypes.string_at(at, piece.text_size).decode("utf-8", "replace") if at else ""


class _Growing:
    """An answer while it is generated."""

    def __init__(self, how: Sampling) -> None:
        self.text: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[float] | None = [] if how.logprobs or how.top_logprobs else None
        self.top: list[dict[int, float]] | None = [] if how.top_logprobs else None

    def take(self, piece: Any) -> str:
        for one in piece.tokens[: piece.token_count]:
            self.tokens.append(one.chosen.token)
            if self.logprobs is not None:
                self.logprobs.append(one.chosen.logprob)
            if self.top is not None:
                self.top.append({top.token: top.logprob for top in one.top[: one.top_count]})
        text = _text_of(piece) if piece.text_size else ""
        if text:
            self.text.append(text)
        return text

    def finished(self, end: int) -> Answer:
        return Answer(
            text="".join(self.text),
            end=_names.END[end],
            tokens=tuple(self.tokens),
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            top_logprobs=None if self.top is None else tuple(self.top),
        )


class Request:
    """A prompt that is being answered, from Generator.add. Any thread may use it."""

    def __init__(self, how: Sampling, on_text: OnText, on_done: OnDone, cancel: Callable[[Request], object]) -> None:
        self.id = -1
        self._on_text, self._on_done, self._cancel = on_text, on_done, cancel
        self._growing = [_Growing(how) for _ in range(max(how.answers, 1))]
        self._answers: dict[int, Answer] = {}
        self._prompt_logprobs: tuple[float, ...] | None = None
        self._result: Generated | None = None
        self._error: BaseException | None = None
        self._is_done = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._is_done.is_set()

    def result(self, timeout: float | None = None) -> Generated:
        """Waits for all answers. Raises TimeoutError after so many seconds, and what on_text raised."""
        if not self._is_done.wait(timeout):
            raise TimeoutError(f"the prompt is not answered after {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Ends the answers; those that have not ended yet get the end "stopped"."""
        if not self.is_done:
            self._cancel(self)

    # What follows is called by the generator's thread.

    def _tell(self, answer: int, text: str) -> None:
        """An exception cannot pass through C: it is kept for result()."""
        if not text or self._on_text is None or self._error is not None:
            return
        try:
            self._on_text(answer, text)
        except BaseException as error:  # noqa: B902
            self._error = error
            self.cancel()

    def _take(self, piece: Any) -> bool:
        """Takes a piece; True: it was the last."""
        if piece.is_prompt:
            self._prompt_logprobs = tuple(one.chosen.logprob for one in piece.tokens[: piece.token_count])
            return False
        growing = self._growing[piece.answer]
        text = growing.take(piece)
        if piece.is_last:
            self._answers[piece.answer] = growing.finished(piece.end)
        self._tell(piece.answer, text)
        return len(self._answers) == len(self._growing)

    def _finish(self, piece: Any) -> None:
        answers = tuple(self._answers[i] for i in range(len(self._growing)))
        if self._error is None and any(one.end == "not_finite" for one in answers):
            self._error = NumericError("the model's logits are not finite")
        self._result = Generated(answers, piece.prompt_tokens, piece.reused_tokens, self._prompt_logprobs)
        self._end()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._end()

    def _end(self) -> None:
        self._is_done.set()
        if self._on_done is not None:
            self._on_done()
