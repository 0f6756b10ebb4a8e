"""Micro-batches by number, from a DataLoader or any other source of batches.

A loop asks for batches that training has not reached, goes back to earlier ones, and continues at any number. So batch
n must always be the same. For a DataLoader over a dataset with a length, the order of an epoch and all random numbers
of a batch follow from the run's seed and the number. Other sources are read from their beginning.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from ._views import loaded
from .errors import InputError, StateError

_MOST = 64  # batches that are read ahead, or past, before a loader begins at another number

IsOurs = Optional[Callable[[int], bool]]


class Batches:
    """The micro-batches of `source`. keep: how many may be asked for again after they were trained on."""

    def __init__(self, source: Any, seed: int, can_rewind: bool, keep: int, device: str, is_ours: IsOurs) -> None:
        self.source = source
        self._device = device
        self._of = _reader_of(source, seed, can_rewind, keep, is_ours)

    def get(self, number: int, is_trained: bool) -> Any:
        """Batch `number`, on the device. is_trained: earlier batches are not needed for the next steps."""
        batch = self._of(number, is_trained)
        return batch if self._device == "cpu" else _moved(batch, self._device)


def _reader_of(source: Any, seed: int, can_rewind: bool, keep: int, is_ours: IsOurs) -> Callable[[int, bool], Any]:
    torch = loaded("torch")
    kind = torch.utils.data.DataLoader if torch else ()
    if isinstance(source, kind):
        data = torch.utils.data
        is_plain = type(source).__iter__ is kind.__iter__ and not isinstance(source.dataset, data.IterableDataset)
        if is_plain and hasattr(source.batch_sampler or source.sampler, "__len__"):
            return _Loader(source, seed, is_ours).get
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, (str, Mapping)):
        _must_have_batches(len(source))
        return lambda number, _: source[number % len(source)]
    elif not hasattr(source, "__iter__") or isinstance(source, (str, Mapping)):
        raise InputError(
            f"data is a {type(source).__name__}; expected a DataLoader, a list or dataset of micro-batches, or an iterable"
        )
    if can_rewind:
        raise InputError(
            f"can_rewind=True needs data that can go back, and data is a {type(source).__name__} that is read in order; "
            "pass a DataLoader over a dataset with a length, or a list of micro-batches"
        )
    return _Stream(source, seed, keep).get


def _must_have_batches(count: int) -> None:
    if count == 0:
        raise InputError("data has no micro-batches: its length is 0")


def _moved(batch: Any, device: str) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    def moved(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one.to(device, non_blocking=True)
        return one.to(device) if hasattr(one, "to") else one  # such as a BatchEncoding of transformers

    return pytree.tree_map(moved, batch)


# ---- random numbers ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _drawn_from(seed: int, what: str, number: int) -> Iterator[int]:
    """In here, random numbers of torch, Python and NumPy follow from the arguments; yields their seed."""
    torch, numpy = loaded("torch"), loaded("numpy")
    text = f"{seed} {what} {number}".encode()
    own = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    was = random.getstate(), torch and torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(own)
    if torch:
        torch.default_generator.manual_seed(own)
    if numpy:
        numpy.random.seed(own % 2**32)
    try:
        yield own
    finally:
        random.setstate(was[0])
        if torch:
            torch.set_rng_state(was[1])
        if numpy:
            numpy.random.set_state(was[2])


@contextlib.contextmanager
def _in_epoch(source: Any, seed: int, epoch: int) -> Iterator[None]:
    """An iterator that is created in here gives the order of this epoch."""
    parts: list[Any] = [source, *(getattr(source, name, None) for name in ("dataset", "sampler", "batch_sampler"))]
    parts.append(getattr(parts[-1], "sampler", None))
    for part in parts:
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)
    found: dict[int, Any] = {
        id(g): g for g in (getattr(part, "generator", None) for part in parts) if hasattr(g, "manual_seed")
    }
    was = [(g, g.get_state()) for g in found.values()]
    with _drawn_from(seed, "epoch", epoch) as own:
        for g, _ in was:
            g.manual_seed(own)
        try:
            yield
        finally:
            for g, state in was:
                g.set_state(state)


# ---- a DataLoader over a dataset with a length ----------------------------------------------------------------------


class _Fetch:
    """A dataset of (number, indices): loads a batch with random numbers of its own, also in a worker.

    Everything else is the caller's dataset, which a worker_init_fn may open or change.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        self.__dict__.update(dataset=loader.dataset, collate=loader.collate_fn, seed=seed)
        self.__dict__["is_batch"] = loader.batch_sampler is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __reduce__(self) -> Any:
        return _again, (self.__dict__,)

    def __getitem__(self, numbered: tuple[int, Any]) -> Any:
        number, indices = numbered
        with _drawn_from(self.seed, "batch", number):
            if not self.is_batch:
                return self.collate(self.dataset[indices])
            many = getattr(self.dataset, "__getitems__", None)
            return self.collate(many(indices) if many else [self.dataset[i] for i in indices])


def _again(state: dict[str, Any]) -> _Fetch:
    out = _Fetch.__new__(_Fetch)
    out.__dict__.update(state)
    return out


def _as_it_is(batch: Any) -> Any:
    return batch


class _Order:
    """The indices of each batch. The iterator of a loader refers to it, so it must not refer to the iterator."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader, self._seed = loader, seed
        self._sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._length = len(self._sampler)
        _must_have_batches(self._length)
        self._orders: dict[int, list[Any]] = {}
        if repr(self._drawn(0)) != repr(self._drawn(0)):  # indices may be tensors, too
            raise InputError(
                f"the {type(loader.sampler).__name__} of data gives another order each time it is asked, so a resumed run "
                "would see other batches; let it use torch's random numbers, or give it set_epoch(epoch)"
            )

    def _drawn(self, epoch: int) -> list[Any]:
        with _in_epoch(self._loader, self._seed, epoch):
            return list(itertools.islice(self._sampler, self._length))

    def numbered(self, number: int) -> tuple[int, Any]:
        """(number, indices)"""
        epoch, at = divmod(number, self._length)
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if abs(e - epoch) <= 1}
            self._orders[epoch] = self._drawn(epoch)
        return number, self._orders[epoch][at]


class _Loader:
    def __init__(self, loader: Any, seed: int, is_ours: IsOurs) -> None:
        self._loader, self._seed, self._is_ours = loader, seed, is_ours
        if is_ours and getattr(loader.sampler, "num_replicas", 1) > 1:
            raise InputError(
                f"data has a {type(loader.sampler).__name__}, but the loop itself divides micro-batches among ranks; "
                "create the DataLoader without it (shuffle=True)"
            )
        self._order, self._fetch = _Order(loader, seed), _Fetch(loader, seed)
        self._kept: dict[int, Any] = {}
        self._iterator: Iterator[Any] | None = None
        self._next = 0  # what the iterator gives next

    def _begin(self, number: int) -> None:
        """Workers load batches from this number on, without a pause between epochs."""
        import torch

        theirs, has_workers = self._loader, self._loader.num_workers > 0
        loader: Any = torch.utils.data.DataLoader
        numbers: Iterator[int] = itertools.count(number)
        ours = loader(
            self._fetch,
            batch_size=None,
            sampler=map(self._order.numbered, filter(self._is_ours, numbers) if self._is_ours else numbers),
            collate_fn=_as_it_is,
            num_workers=theirs.num_workers,
            pin_memory=theirs.pin_memory,
            timeout=theirs.timeout,
            worker_init_fn=theirs.worker_init_fn,
            multiprocessing_context=theirs.multiprocessing_context if has_workers else None,
            prefetch_factor=theirs.prefetch_factor if has_workers else None,
        )
        self._kept, self._iterator, self._next = {}, None, number
        with _drawn_from(self._seed, "workers", number):
            self._iterator = iter(ours)

    def get(self, number: int, is_trained: bool) -> Any:
        if self._is_ours and not self._is_ours(number):
            return self._fetch[self._order.numbered(number)]
        if is_trained:
            self._kept = {n: batch for n, batch in self._kept.items() if n >= number}
        if number not in self._kept:
            if self._iterator is None or not self._next <= number < self._next + _MOST:
                self._begin(number)
            assert self._iterator is not None
            while self._next <= number:
                if self._is_ours is None or self._is_ours(self._next):
                    self._kept[self._next] = next(self._iterator)
                self._next += 1
            while len(self._kept) > _MOST:
                del self._kept[min(self._kept)]
        return self._kept[number]


# ---- everything else ------------------------------------------------------------------------------------------------


class _Stream:
    def __init__(self, source: Any, seed: int, keep: int) -> None:
        self._source, self._seed, self._keep = source, seed, keep
        self._kept: dict[int, Any] = {}
        self._next = self._epoch = 0
        self._least = -1  # the first number that may be asked for again; -1: none was asked for
        self._first = -1  # the first number of this epoch; -1: none has begun
        self._iterator: Iterator[Any] = iter(())

    def _begin(self) -> None:
        if self._first == self._next:
            raise InputError("data has no micro-batches")
        with _in_epoch(self._source, self._seed, self._epoch):
            iterator = iter(self._source)
        if self._first >= 0 and iterator is self._source:
            raise InputError(
                f"data ended after {self._next} micro-batches, and an iterator cannot begin again; pass the DataLoader or "
                "list that it came from"
            )
        self._iterator, self._first = iterator, self._next
        self._epoch += 1

    def _read(self) -> Any:
        while True:
            with _drawn_from(self._seed, "batch", self._next), contextlib.suppress(StopIteration):
                return next(self._iterator)
            self._begin()

    def get(self, number: int, is_trained: bool) -> Any:
        if number > self._next + _MOST:
            log = logging.getLogger("hybrid_train")
            log.info("reading past %d micro-batches of data, up to number %d", number - self._next, number)
        if is_trained or self._least < 0:
            self._least = max(number - self._keep, 0)
            self._kept = {n: batch for n, batch in self._kept.items() if n >= self._least}
        while self._next <= number:
            batch = self._read()
            if self._next >= self._least:
                self._kept[self._next] = batch
            self._next += 1
        if number not in self._kept:
            raise StateError(
                f"the loop needs micro-batch {number} again, but data was read up to {self._next} and cannot go back; pass "
                "a DataLoader over a dataset with a length, or a list of micro-batches"
            )
        return self._kept[number]
