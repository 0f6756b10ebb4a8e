"""What a checkpoint needs of a torch module besides its parameters: buffers and the state of random generators.

A checkpoint has one part for the caller's bytes. Ours come before them, with their length, behind a mark; checkpoints
without the mark have only the caller's.
"""

from __future__ import annotations

import io
from typing import Any

from ._views import loaded
from .errors import InputError
from .ranks import find_rank

_MARK = b"hybrid_train module 1\n"


def _buffers(module: Any) -> dict[str, tuple[Any, str, Any]]:
    """(owner, name, buffer) by the name in state_dict, without those that state_dict leaves out."""
    out = {}
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                out[f"{prefix}.{name}" if prefix else name] = (owner, name, buffer)
    return out


class ModuleState:
    """The functions save_state and load_state of a loop over a module; the caller's own are called by them."""

    def __init__(self, module: Any, save_state: Any, load_state: Any) -> None:
        self._module = module
        self._save_state, self._load_state = save_state, load_state
        self._restored: list[tuple[Any, str]] = []  # buffers of the checkpoint: their owner and name

    def restored(self) -> set[int]:
        """The ids of buffers with values from a checkpoint."""
        return {id(owner._buffers[name]) for owner, name in self._restored}

    def save(self) -> Any:
        theirs = self._save_state() if self._save_state else b""
        if not isinstance(theirs, (bytes, bytearray, memoryview)):
            return theirs  # which is refused
        torch: Any = loaded("torch")
        state: dict[str, Any] = {
            "buffers": {k: b.detach().cpu() for k, (_, _, b) in _buffers(self._module).items() if not b.is_meta}
        }
        if find_rank().count == 1:  # one rank saves for all, but each has random numbers of its own
            state["random"] = torch.get_rng_state()
            if torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        ours = io.BytesIO()
        torch.save(state, ours)
        return b"".join((_MARK, ours.tell().to_bytes(8, "little"), ours.getbuffer(), theirs))

    def load(self, data: bytes) -> None:
        begin = len(_MARK) + 8
        if not data.startswith(_MARK):
            self._give(data)
            return
        torch: Any = loaded("torch")
        end = begin + int.from_bytes(data[begin - 8 : begin], "little")
        state = torch.load(io.BytesIO(data[begin:end]), weights_only=True, map_location="cpu")
        self._set_buffers(state["buffers"])
        if "random" in state:
            torch.set_rng_state(state["random"])
        for i, one in enumerate(state.get("cuda", ())):
            if torch.cuda.is_available() and i < torch.cuda.device_count():
                torch.cuda.set_rng_state(one, i)
        if end < len(data):
            self._give(data[end:])

    def _give(self, data: bytes) -> None:
        if self._load_state:
            self._load_state(data)

    def _set_buffers(self, values: dict[str, Any]) -> None:
        torch: Any = loaded("torch")
        found = _buffers(self._module)
        for key, value in values.items():
            if key not in found or found[key][2].shape != value.shape:
                has = f"it has the shape {tuple(found[key][2].shape)}" if key in found else "it has none"
                raise InputError(f"the checkpoint has the buffer {key} {tuple(value.shape)} of the module, but {has}")
            owner, name, buffer = found[key]
            self._restored.append((owner, name))
            if buffer.is_meta:
                owner._buffers[name] = value
            else:
                with torch.no_grad():
                    buffer.copy_(value)
