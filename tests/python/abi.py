"""What HYBRID_ABI stands for: a line for each value, struct and function of the headers.

    python tests/python/abi.py > tests/python/abi.txt

after the number was raised. What is only added needs no new number and no new file. A struct that begins with `size` has
a line for each member, with its position: new members at its end are only added lines. Any other struct is one line.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "builder"))
import headers  # noqa: E402


def lines(header):
    """Lengths of arrays are numbers here, so that an enumeration that grew shows in the structs that it lengthens."""

    def word(t):
        if t.function:
            return f"{word(t.function.result)} (*)({', '.join(map(word, t.function.parameters))})"
        dims = "".join(f"[{header.number(n)}]" for n in t.dims)
        return f"{'const ' * t.is_const}{t.base}{'*' * t.stars}{dims}"

    out = []
    for enum in header.enums.values():
        out += [f"enum {enum.name} {name}={value}" for name, value in enum.members if not name.endswith("_COUNT")]
    for struct in header.structs.values():
        members = [f"{word(f.type)} {f.name}" for f in struct.fields]
        if struct.is_sized:
            out += [f"struct {struct.name} {i}: {member}" for i, member in enumerate(members)]
        else:
            out.append(f"struct {struct.name} " + "; ".join(members))
    for function in [*header.callbacks.values(), *header.functions.values()]:
        out.append(f"function {word(function.result)} {function.name}({', '.join(map(word, function.parameters))})")
    return out


def now():
    header = headers.read_headers(ROOT / "include")
    return header.constants["HYBRID_ABI"], lines(header)


if __name__ == "__main__":
    number, found = now()
    print(number, *found, sep="\n")
