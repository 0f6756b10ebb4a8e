"""Files that follow from the public headers: ctypes declarations, classes of results, and a check of layouts.

    python3 write.py INCLUDE-FOLDER PACKAGE-FOLDER     writes _abi.py and results.py there
    python3 write.py INCLUDE-FOLDER --layout FILE.c    a program that prints every layout as JSON

No struct is described twice: the Python declarations are generated from the header that the library was
compiled with.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headers import CType, Function, Header, Struct, read_headers

SCALARS = {
    "void": "None",
    "bool": "C.c_bool",
    "char": "C.c_char",
    "int": "C.c_int",
    "float": "C.c_float",
    "double": "C.c_double",
    "size_t": "C.c_size_t",
    "int32_t": "C.c_int32",
    "int64_t": "C.c_int64",
    "uint64_t": "C.c_uint64",
}

# Structs that Python programs use, and their names in Python.
RESULTS = {
    "hy_config_key_info": "ConfigKey",
    "hy_gpu_state": "GpuState",
    "hy_step_info": "StepInfo",
    "hy_reward_figures": "RewardFigures",
    "hy_row_scores": "RowScores",
    "hy_eval_info": "EvalInfo",
    "hy_plan_facts": "PlanFacts",
    "hy_memory_cell": "MemoryCell",
    "hy_phase_summary": "PhaseSummary",
    "hy_summary": "Summary",
    "hy_memory_pool": "MemoryPool",
    "hy_memory_class": "MemoryClass",
    "hy_memory_advice": "MemoryAdvice",
    "hy_memory_state": "MemoryState",
    "hy_saving": "Saving",
    "hy_loop_step": "LoopStep",
    "hy_tokenize_result": "TokenizeResult",
    "hy_evaluation": "Evaluation",
    "hy_machine": "Machine",
    "hy_ranks_info": "RanksInfo",
    "hy_rank_info": "RankInfo",
    "hy_run_point": "RunPoint",
    "hy_run_event": "RunEvent",
    "hy_run_facts": "RunFacts",
    "hy_generator_facts": "GeneratorFacts",
    "hy_generator_state": "GeneratorState",
}

ABOUT = '"""Made from include/*.h by builder/write.py. Do not edit."""\n'


# ---- ctypes -------------------------------------------------------------------------------------------------


class AbiWriter:
    def __init__(self, header: Header) -> None:
        self.header = header

    def scalar(self, base: str) -> str:
        if base in SCALARS:
            return SCALARS[base]
        if base in self.header.enums:
            return "C.c_int"
        if base in self.header.structs:
            return base
        raise SystemExit(f"builder/write.py does not know the type {base}")

    def pointer(self, t: CType, is_inside: bool) -> str:
        """char pointers are text; in callbacks and results, pointers to known structs are typed."""
        if t.base == "char" and t.stars == 1 and t.is_const:
            return "C.c_char_p"
        if not is_inside or t.base in self.header.handles or t.base in ("void", "char") and t.stars == 1:
            return "C.c_void_p"
        if t.stars == 1:
            return f"C.POINTER({self.scalar(t.base)})"
        return "C.POINTER(C.c_void_p)"

    def of(self, t: CType, is_inside: bool) -> str:
        if t.function is not None:
            return self.callback(t.function)
        if t.stars == 0 and t.base in self.header.callbacks:
            return t.base
        text = self.pointer(t, is_inside) if t.stars else self.scalar(t.base)
        for dim in reversed(t.dims):
            text = f"{text} * {self.header.number(dim)}"
        return text

    def callback(self, f: Function) -> str:
        parts = [self.of(f.result, True), *(self.of(p, True) for p in f.parameters)]
        return f"C.CFUNCTYPE({', '.join(parts)})"

    def struct(self, s: Struct) -> str:
        fields = "".join(f'    ("{f.name}", {self.of(f.type, True)}),\n' for f in s.fields)
        return f"{s.name}._fields_ = [\n{fields}]\n"

    def function(self, f: Function) -> str:
        arguments = ", ".join(self.of(p, False) for p in f.parameters)
        result = self.of(f.result, True)
        return f'    "{f.name}": ({result}, [{arguments}]),\n'

    def write(self) -> str:
        h = self.header
        out = [ABOUT, "import ctypes as C\n\n"]
        out += [f"{name} = {value!r}\n" for name, value in h.constants.items()]
        out.append("\nENUMS = {\n")
        out += [f'    "{e.name}": {dict(e.members)!r},\n' for e in h.enums.values()]
        out.append("}\n\n")
        out += [f"class {s.name}(C.Structure):\n    pass\n\n\n" for s in h.structs.values()]
        out += [f"{name} = {self.callback(f)}\n" for name, f in h.callbacks.items()]
        out += [self.struct(s) + "\n" for s in h.structs.values()]
        out.append("FUNCTIONS = {\n")
        out += [self.function(f) for f in h.functions.values()]
        out.append("}\n")
        return "".join(out)


# ---- results ------------------------------------------------------------------------------------------------


class ResultWriter:
    """A frozen dataclass for each struct that is a result, and the code that fills it from the C struct."""

    def __init__(self, header: Header) -> None:
        self.header = header

    def names_of(self, enum: str) -> str:
        """The tuple in _names with the names of an enumeration's values."""
        return f"_names.{enum.removeprefix('hy_').upper()}"

    def count_of(self, s: Struct, name: str) -> str | None:
        """The field with the number of valid entries of an array."""
        counts = {f.name for f in s.fields if f.name.endswith("_count")}
        for candidate in (f"{name}_count", f"{name.removesuffix('s')}_count"):
            if candidate in counts:
                return candidate
        return None

    def enum_indexing(self, dim: str) -> str | None:
        """hy_class for HY_CLASS_SLOTS: such an array has an entry for each value, and room for more."""
        enum = dim.removesuffix("_SLOTS").lower()
        return enum if dim.endswith("_SLOTS") and enum in self.header.enums else None

    def one(self, t: CType, value: str) -> tuple[str, str]:
        """Annotation and expression of a single value."""
        if t.base == "char":
            return "str", f"text({value})"
        if t.base in self.header.enums:
            return "str", f"{self.names_of(t.base)}[{value}]"
        if t.base in RESULTS:
            return RESULTS[t.base], f"{RESULTS[t.base]}._of({value})"
        kind = {"double": "float", "bool": "bool"}.get(t.base, "int")
        return kind, value

    def field(self, s: Struct, name: str, t: CType) -> tuple[str, str]:
        dims = t.dims[:-1] if t.base == "char" and t.dims else t.dims  # char[N] is one text
        if not dims:
            return self.one(t, f"c.{name}")
        kind, expression = self.one(t, "x")
        enum = self.enum_indexing(dims[0])
        if enum is not None:
            return f"dict[str, {kind}]", f"{{n: {expression} for n, x in zip({self.names_of(enum)}[:-1], c.{name})}}"
        count = self.count_of(s, name)
        entries = f"c.{name}[: c.{count}]" if count else f"c.{name}"
        if t.base == "char":
            expression = "text(x.value)" if t.dims else expression
        return f"tuple[{kind}, ...]", f"tuple({expression} for x in {entries})"

    def struct(self, s: Struct) -> str:
        counts = {self.count_of(s, f.name) for f in s.fields if f.type.dims}
        fields = [f for f in s.fields[s.is_sized :] if f.name not in counts]
        about = s.comment or f"As {s.name} of the C interface."
        told = "".join(f"    {f.name}: {f.comment}\n" for f in fields if f.comment)
        text = (about + "\n" + ("\n" + told if told else "")).replace("\\", "\\\\").replace('"', "'")
        lines = [f'@dataclass(frozen=True)\nclass {RESULTS[s.name]}(Result):\n    """{text}    """\n\n']
        filled = []
        for f in fields:
            kind, expression = self.field(s, f.name, f.type)
            lines.append(f"    {f.name}: {kind}\n")
            filled.append(f"            {f.name}={expression},\n")
        lines.append("\n    def _fill(self, c: Any) -> None:\n        self.__dict__.update(\n")
        lines += [*filled, "        )\n\n\n"]
        return "".join(lines)

    def write(self) -> str:
        names = ", ".join(f'"{name}"' for name in RESULTS.values())
        head = f"""{ABOUT}
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _names
from ._result import Result, text

__all__ = [{names}]


"""
        body = "".join(self.struct(s) for s in self.header.structs.values() if s.name in RESULTS)
        return head + body.rstrip() + "\n"


# ---- layouts ------------------------------------------------------------------------------------------------


def layout_program(header: Header) -> str:
    """A C program that prints {"hy_x": [size, {"field": [offset, size], ...}], ...}."""
    out = ["/* Made by builder/write.py. */\n#include <stddef.h>\n#include <stdio.h>\n"]
    out += ['#include "hybrid.h"\n#include "hybrid_generate.h"\n#include "hybrid_report.h"\n#include "hybrid_tools.h"\n\nint main(void) {\n    puts("{");\n']
    for i, s in enumerate(header.structs.values()):
        out.append(f'    printf("%s\\"{s.name}\\": [%zu, {{", "{"," if i else ""}", sizeof({s.name}));\n')
        for j, f in enumerate(s.fields):
            out.append(
                f'    printf("{"," if j else ""}\\"{f.name}\\": [%zu, %zu]", offsetof({s.name}, {f.name}),\n'
                f"           sizeof((({s.name} *)0)->{f.name}));\n"
            )
        out.append('    puts("}]");\n')
    out.append('    puts("}");\n    return 0;\n}\n')
    return "".join(out)


def write_package(include: Path, package: Path) -> None:
    header = read_headers(include)
    for name, text in (("_abi.py", AbiWriter(header).write()), ("results.py", ResultWriter(header).write())):
        path = package / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    if len(arguments) == 3 and arguments[1] == "--layout":
        text = layout_program(read_headers(Path(arguments[0])))
        Path(arguments[2]).write_text(text, encoding="utf-8")
    elif len(arguments) == 2:
        write_package(Path(arguments[0]), Path(arguments[1]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
