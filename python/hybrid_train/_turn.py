"""One call at a time: a handle of the library belongs to one thread at a time."""

from __future__ import annotations

import threading
from typing import Any

from .errors import StateError


class Turn:
    """Use `with turn:` around a call. A second call at that time, from a thread or a callback, is a StateError."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._owner = 0

    def is_mine(self) -> bool:
        """Whether this thread is inside a call, for example in a loss function."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            whose = "from a callback" if self.is_mine() else "in another thread"
            raise StateError(
                f"this {self._what} was called {whose} while another call was in progress; a "
                f"{self._what} allows one call at a time"
            )
        self._owner = threading.get_ident()

    def __exit__(self, *_: Any) -> None:
        self._owner = 0
        self._lock.release()
