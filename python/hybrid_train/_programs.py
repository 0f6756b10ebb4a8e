"""The commands that pip makes for the programs in the wheel: hybrid-train, hybrid-chat, ..."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).resolve().parent / "bin" / Path(sys.argv[0]).name
    os.execv(program, [str(program), *sys.argv[1:]])
