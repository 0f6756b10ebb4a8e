"""The public headers, read into lists of constants, enumerations, structs and functions.

This parser knows only the style of include/*.h. An unknown construct is an error that shows the line, so that no
declaration is ever omitted silently. Comments of fields are kept: they become the documentation of the Python
classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HEADERS = (
    "hybrid_types.h",
    "hybrid_tokenizer.h",
    "hybrid.h",
    "hybrid_sized.h",
    "hybrid_tools.h",
    "hybrid_report.h",
    "hybrid_generate.h",
)


class HeaderError(Exception):
    """A declaration that this parser does not understand."""


@dataclass
class CType:
    """A type as it is written: base name, how many stars, array dimensions, or a function's signature."""

    base: str
    stars: int = 0
    dims: tuple[str, ...] = ()
    is_const: bool = False
    function: Function | None = None


@dataclass
class Field:
    name: str
    type: CType
    comment: str = ""


@dataclass
class Struct:
    name: str
    fields: list[Field]
    comment: str = ""

    @property
    def is_sized(self) -> bool:
        """Whether it may grow at its end: its first member is the number of bytes that are filled."""
        return bool(self.fields) and self.fields[0].name == "size"


@dataclass
class Enum:
    name: str  # "" if it has none
    members: list[tuple[str, int]]


@dataclass
class Function:
    name: str
    result: CType
    parameters: list[CType]


@dataclass
class Header:
    constants: dict[str, int | str] = field(default_factory=dict)
    enums: dict[str, Enum] = field(default_factory=dict)
    structs: dict[str, Struct] = field(default_factory=dict)
    callbacks: dict[str, Function] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    inlines: dict[str, Function] = field(default_factory=dict)  # only for C: the library does not export them
    handles: set[str] = field(default_factory=set)

    def number(self, text: str) -> int:
        """An array's dimension: a number, or the name of a constant."""
        value = self.constants.get(text, text)
        return int(value)


_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/)|(?P<space>\s+)|(?P<line>\#(?:\\\n|[^\n])*)
      |(?P<string>"[^"]*")|(?P<word>[A-Za-z_]\w*)|(?P<number>\d\w*)|(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_MACRO = re.compile(r"#define \w+\(")  # with arguments: only for C
_DEFINE = re.compile(r'#define (\w+) ("[^"]*"|\d+)\s*(?:/\*.*)?$')


@dataclass
class _Token:
    kind: str
    text: str
    line: int


def _tokens(text: str) -> list[_Token]:
    out, line = [], 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            out.append(_Token(kind, match.group(), line))
        line += match.group().count("\n")
    return out


def _plain(comment: str) -> str:
    """A comment's text, on one line."""
    inner = comment.strip()[2:-2]
    return " ".join(part.strip().lstrip("*").strip() for part in inner.splitlines()).strip()


class _Parser:
    def __init__(self, name: str, text: str, out: Header) -> None:
        self.name, self.out = name, out
        self.tokens = _tokens(text)
        self.at = 0
        self.said = ""  # the comment that stands right before

    def fail(self, what: str) -> HeaderError:
        token = self.tokens[min(self.at, len(self.tokens) - 1)]
        return HeaderError(f"{self.name}:{token.line}: {what} at {token.text!r}")

    def peek(self) -> _Token:
        while self.tokens[self.at].kind == "comment":
            self.at += 1
        return self.tokens[self.at]

    def take(self, text: str | None = None) -> str:
        token = self.peek()
        if text is not None and token.text != text:
            raise self.fail(f"expected {text!r}")
        self.at += 1
        return token.text

    def has(self, text: str) -> bool:
        if self.peek().text != text:
            return False
        self.at += 1
        return True

    # ---- files ------------------------------------------------------------------------------------------

    def parse(self) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "comment":
                self.said = _plain(token.text)
                self.at += 1
            elif token.kind == "line":
                self.at += 1
                self.directive(token.text)
            else:
                self.declaration()
                self.said = ""

    def directive(self, line: str) -> None:
        match = _DEFINE.match(line)
        if match:
            name, value = match.groups()
            self.out.constants[name] = value.strip('"') if value.startswith('"') else int(value)
        elif line.startswith("#define") and not line.strip().endswith("_H") and not _MACRO.match(line):
            raise HeaderError(f"{self.name}: a constant that is neither a number nor a text: {line}")

    def declaration(self) -> None:
        if self.has("extern"):
            self.take()  # "C"
            self.take("{")
        elif self.peek().text == "}":  # of extern "C"
            self.take()
        elif self.has("typedef"):
            self.typedef()
        elif self.peek().text == "enum":
            self.enum_body()
            self.take(";")
        elif self.peek().text == "struct" and self.tokens[self.at + 2].text == ";":
            self.at += 3  # struct NAME, which is declared later
        else:
            self.function()

    def typedef(self) -> None:
        word = self.peek().text
        if word == "enum":
            name = self.enum_body()
            if self.take() != name:
                raise self.fail("an enumeration of two names")
            self.take(";")
        elif word == "struct":
            self.struct()
        else:
            one = self.declarators(ends=";")
            self.out.callbacks[one[0].name] = self.callback_of(one[0])

    def callback_of(self, one: Field) -> Function:
        if one.type.function is None:
            raise self.fail("a typedef that is not a callback, enumeration or struct")
        return one.type.function

    # ---- enumerations and structs ---------------------------------------------------------------------------

    def enum_body(self) -> str:
        self.take("enum")
        name = "" if self.peek().text == "{" else self.take()
        self.take("{")
        members: list[tuple[str, int]] = []
        while not self.has("}"):
            member = self.take()
            value = int(self.take()) if self.has("=") else (members[-1][1] + 1 if members else 0)
            members.append((member, value))
            self.out.constants[member] = value
            self.has(",")
        if name:
            self.out.enums[name] = Enum(name, members)
        return name

    def struct(self) -> None:
        comment = self.said
        self.take("struct")
        name = self.take()
        if self.peek().text != "{":
            self.take(name)
            self.take(";")
            self.out.handles.add(name)
            return
        self.take("{")
        fields: list[Field] = []
        while not self.has("}"):
            fields += self.field_line()
        self.take(name)
        self.take(";")
        self.out.structs[name] = Struct(name, fields, comment)

    def field_line(self) -> list[Field]:
        """One declaration with the comment that follows it, or else the one before."""
        before = ""
        while self.tokens[self.at].kind == "comment":
            before = _plain(self.tokens[self.at].text)
            self.at += 1
        fields = self.declarators(ends=";")
        last = self.tokens[self.at - 1]
        after = self.tokens[self.at]
        comment = before
        if after.kind == "comment" and after.line == last.line:
            comment = _plain(after.text)
            self.at += 1
        for one in fields:
            one.comment = comment
        return fields

    # ---- types -----------------------------------------------------------------------------------------------

    def base_type(self) -> tuple[str, bool]:
        is_const = self.has("const")
        self.has("struct")
        words = [self.take()]
        while words[-1] in ("unsigned", "long"):
            words.append(self.take())
        is_const |= self.has("const")
        return " ".join(words), is_const

    def stars(self) -> int:
        count = 0
        while self.peek().text in ("*", "const"):
            count += self.take() == "*"
        return count

    def declarators(self, ends: str) -> list[Field]:
        base, is_const = self.base_type()
        out = []
        while True:
            out.append(self.declarator(base, is_const))
            if self.has(ends):
                return out
            self.take(",")

    def declarator(self, base: str, is_const: bool) -> Field:
        stars = self.stars()
        if self.has("("):  # a pointer to a function
            self.take("*")
            name = self.take()
            self.take(")")
            result = CType(base, stars, is_const=is_const)
            function = Function(name, result, self.parameters())
            return Field(name, CType("function", 1, function=function))
        name = self.take()
        dims = []
        while self.has("["):
            dims.append(self.take())
            self.take("]")
        return Field(name, CType(base, stars, tuple(dims), is_const))

    def parameters(self) -> list[CType]:
        self.take("(")
        out: list[CType] = []
        if self.has("void") and self.has(")"):
            return out
        if self.tokens[self.at - 1].text == "void":
            self.at -= 1
        while True:
            base, is_const = self.base_type()
            one = self.declarator(base, is_const)
            stars = one.type.stars + len(one.type.dims)  # an array is passed as a pointer
            out.append(CType(one.type.base, stars, (), is_const, one.type.function))
            if self.has(")"):
                return out
            self.take(",")

    def function(self) -> None:
        is_inline = self.has("static")
        if is_inline:
            self.take("inline")
        base, is_const = self.base_type()
        result = CType(base, self.stars(), is_const=is_const)
        name = self.take()
        if self.peek().text != "(":
            raise self.fail("a declaration that is not a function, struct or enumeration")
        into = self.out.inlines if is_inline else self.out.functions
        into[name] = Function(name, result, self.parameters())
        if is_inline and self.peek().text == "{":
            while not self.has("}"):  # no braces inside
                self.take()
        else:
            self.take(";")


def read_headers(folder: Path) -> Header:
    """All public headers of a folder."""
    out = Header()
    for name in HEADERS:
        _Parser(name, (folder / name).read_text(encoding="utf-8"), out).parse()
    return out
