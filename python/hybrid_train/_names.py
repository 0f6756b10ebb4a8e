"""The library's names of enumeration values: "full", "bf16", "pinned", ...

There is one tuple for each enumeration of the headers: PHASE for hy_phase. If the enumeration ends with a
count, the last entry of the tuple is "all".
"""

from __future__ import annotations

import os

from . import _abi
from ._library import lib


def _words(enum: str, members: dict[str, int]) -> tuple[str, ...]:
    name_of = getattr(lib, f"{enum}_name", None) if f"{enum}_name" in _abi.FUNCTIONS else None
    common = os.path.commonprefix(list(members))
    common = common[: common.rfind("_") + 1]
    out = [""] * (max(members.values()) + 1)
    for member, value in members.items():
        if member.endswith("_COUNT"):
            out[value] = "all"
        elif name_of is not None:
            out[value] = name_of(value).decode()
        else:
            out[value] = member[len(common) :].lower()
    return tuple(out)


STATUS = _words("hy_status", _abi.ENUMS["hy_status"])
PHASE = _words("hy_phase", _abi.ENUMS["hy_phase"])
DTYPE = _words("hy_dtype", _abi.ENUMS["hy_dtype"])
CLASS = _words("hy_class", _abi.ENUMS["hy_class"])
PLACE = _words("hy_place", _abi.ENUMS["hy_place"])
MEMORY_STATUS = _words("hy_memory_status", _abi.ENUMS["hy_memory_status"])
TODO = _words("hy_todo", _abi.ENUMS["hy_todo"])
MESSAGE_LEVEL = _words("hy_message_level", _abi.ENUMS["hy_message_level"])
END = _words("hy_end", _abi.ENUMS["hy_end"])
