"""The Python blocks of the pages are run, in order, as one program for each section of a page."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

from support import ROOT, InFolder, has

PAGES = (ROOT / "docs" / "python.md", ROOT / "python" / "README.md")


def sections(page: Path):
    """(heading, [(line, code), ...]) of each section that has Python in it."""
    heading, blocks, code, begin = page.name, [], None, 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if code is not None:
            if line.startswith("```"):
                blocks.append((begin, "\n".join(code)))
                code = None
            else:
                code.append(line)
        elif line.startswith("```python"):
            code, begin = [], number
        elif line.startswith("## "):
            if blocks:
                yield heading, blocks
            heading, blocks = line[3:], []
    if blocks:
        yield heading, blocks


def needed(blocks):
    text = "\n".join(code for _, code in blocks)
    return [m for m in ("numpy", "torch") if re.search(rf"^\s*(import|from) .*\b{m}\b", text, re.MULTILINE)]


class Pages(InFolder):
    def run_section(self, page, blocks):
        lacking = [m for m in needed(blocks) if not has(m)]
        if lacking:
            self.skipTest(f"{lacking[0]} is not here")
        namespace = {"__name__": "__main__"}
        for line, code in blocks:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)


def _add(page, heading, blocks):
    name = "test_" + re.sub(r"\W+", "_", f"{page.stem} {heading}".lower()).strip("_")
    setattr(Pages, name, lambda self: self.run_section(page, blocks))


for _page in PAGES:
    if _page.exists():
        for _heading, _blocks in sections(_page):
            _add(_page, _heading, _blocks)


if __name__ == "__main__":
    unittest.main()
