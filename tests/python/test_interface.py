"""The C interface as ctypes has it, against the compiler's own view of the headers."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import abi
from hybrid_train import _abi, _library, _names, results
from support import ROOT, InFolder

sys.path.insert(0, str(ROOT / "python" / "builder"))
import headers  # noqa: E402
import write  # noqa: E402

COMPILER = next((c for c in (os.environ.get("CC", ""), "cc", "gcc", "clang") if c and shutil.which(c.split()[0])), None)


class Layouts(InFolder):
    @unittest.skipUnless(COMPILER, "there is no C compiler")
    def test_every_struct_has_the_layout_that_the_compiler_gives_it(self):
        header = headers.read_headers(ROOT / "include")
        (self.folder / "layout.c").write_text(write.layout_program(header))
        command = [*COMPILER.split(), "-std=c17", f"-I{ROOT / 'include'}", "layout.c", "-o", "layout"]
        subprocess.run(command, check=True)
        layouts = json.loads(subprocess.run(["./layout"], check=True, capture_output=True).stdout)
        self.assertGreater(len(layouts), 35)
        for name, (size, fields) in layouts.items():
            struct = getattr(_abi, name)
            self.assertEqual(ctypes.sizeof(struct), size, name)
            ours = {
                field[0]: [getattr(struct, field[0]).offset, getattr(struct, field[0]).size]
                for field in struct._fields_
            }
            self.assertEqual(ours, fields, name)

    @unittest.skipUnless(COMPILER, "there is no C compiler")
    def test_a_field_that_the_parser_would_lose_is_found(self):
        header = headers.read_headers(ROOT / "include")
        header.structs["hy_eval_info"].fields.pop(1)
        text = write.AbiWriter(header).write()
        namespace = {}
        exec(compile(text, "abi", "exec"), namespace)
        self.assertNotEqual(ctypes.sizeof(namespace["hy_eval_info"]), ctypes.sizeof(_abi.hy_eval_info))


class Headers(unittest.TestCase):
    def parsed(self, text):
        out = headers.Header()
        headers._Parser("x.h", text, out).parse()
        return out

    def test_what_is_not_understood_is_an_error_that_says_where(self):
        for text in ("int hy_counter;", "typedef union x { int a; } x;", "#define HY_MAX (1 << 4)\nint f(void);"):
            with self.assertRaises(headers.HeaderError) as caught:
                self.parsed(text)
            self.assertIn("x.h", str(caught.exception))

    def test_pointers_arrays_and_callbacks(self):
        h = self.parsed(
            """#define N 3
            typedef struct s { const char *a, *b; /* two */ double c[N][2]; void (*call)(void *user, int x); } s;
            hy_status f(const s *one, char **out, int list[N]);
            #define HY_KNOWS(p, m) \\
                ((p)->size > 1)
            static inline int g(s *one);
            static inline int g(s *one) { return f(one, 0, 0); }"""
        )
        fields = {f.name: f for f in h.structs["s"].fields}
        self.assertEqual(list(fields), ["a", "b", "c", "call"])
        self.assertEqual((fields["b"].type.stars, fields["b"].comment), (1, "two"))
        self.assertEqual(fields["c"].type.dims, ("N", "2"))
        self.assertEqual(len(fields["call"].type.function.parameters), 2)
        self.assertEqual([p.stars for p in h.functions["f"].parameters], [1, 2, 1])
        self.assertEqual((list(h.functions), list(h.inlines)), (["f"], ["g"]))

    def test_what_is_installed_is_made_from_these_headers(self):
        header = headers.read_headers(ROOT / "include")
        namespace = {}
        exec(compile(write.AbiWriter(header).write(), "abi", "exec"), namespace)
        self.assertEqual(list(namespace["FUNCTIONS"]), list(_abi.FUNCTIONS))
        self.assertEqual(namespace["ENUMS"], _abi.ENUMS)


class Number(unittest.TestCase):
    def test_a_changed_interface_has_another_number(self):
        number, *was = (ROOT / "tests" / "python" / "abi.txt").read_text().splitlines()
        now, found = abi.now()
        gone = [line for line in was if line not in found]
        hint = "raise HYBRID_ABI, then: python tests/python/abi.py > tests/python/abi.txt"
        self.assertEqual((str(now), gone), (number, []), hint)

    def gone_with(self, change):
        """The lines that a change of the headers takes away."""
        header = headers.read_headers(ROOT / "include")
        change(header)
        return set(abi.now()[1]) - set(abi.lines(header))

    def test_a_struct_with_size_may_grow_at_its_end(self):
        more = headers.Field("more", headers.CType("int"))
        self.assertFalse(self.gone_with(lambda h: h.structs["hy_summary"].fields.append(more)))

    def test_other_changes_of_structs_are_another_interface(self):
        more = headers.Field("more", headers.CType("int"))
        for change in (
            lambda h: h.structs["hy_summary"].fields.insert(3, more),
            lambda h: h.structs["hy_summary"].fields.pop(),
            lambda h: h.structs["hy_phase_summary"].fields.append(more),
            lambda h: h.constants.update(HY_PHASE_SLOTS=9),
        ):
            self.assertTrue(self.gone_with(change))

    def test_structs_that_the_library_fills_carry_their_size(self):
        header = headers.read_headers(ROOT / "include")
        sized = {name for name, s in header.structs.items() if s.is_sized}
        filled = set()
        for name, f in header.inlines.items():
            if not any(p.base in header.structs for p in f.parameters):
                continue
            self.assertIn(f"{name}_sized", header.functions)
            filled |= {p.base for p in f.parameters if p.base in header.structs and not p.is_const}
        self.assertEqual(filled - sized, {"hy_merge_losses"})  # its two evaluations are passed one by one
        for f in header.functions.values():
            for p in f.parameters:
                is_filled = p.base in header.structs and p.stars and not p.is_const
                self.assertFalse(is_filled and not f.name.endswith("_sized"), f.name)

    def test_a_struct_that_may_grow_is_no_part_of_another(self):
        header = headers.read_headers(ROOT / "include")
        for name, s in header.structs.items():
            grown = [f.name for f in s.fields if not f.type.stars and f.type.base in header.structs]
            inside = [n for n in grown if header.structs[{f.name: f for f in s.fields}[n].type.base].is_sized]
            self.assertEqual(inside, ["trained", "folder"] if name == "hy_merge_losses" else [], name)

    def test_the_library_says_what_it_is(self):
        self.assertEqual(_library.lib.hy_abi(), _abi.HYBRID_ABI)
        self.assertEqual(_library.lib.hy_version().decode(), _abi.HYBRID_VERSION)


class Words(unittest.TestCase):
    def test_enumerations_have_the_librarys_words(self):
        self.assertEqual(_names.PHASE[:4], ("warmup", "full", "predict", "correct"))
        self.assertEqual(_names.TODO, ("gradients", "loss", "evaluate", "nothing"))
        self.assertEqual(_names.DTYPE[:3], ("fp32", "bf16", "fp16"))

    def test_results_are_filled_from_structs(self):
        c = _abi.hy_memory_state(step=7, advice_count=1)
        c.advice[0].key = b"batch_size"
        c.classes[_abi.HY_OPTIM].live[_abi.HY_PINNED] = 12
        state = results.MemoryState._of(c)
        self.assertEqual((state.step, len(state.advice), state.advice[0].key), (7, 1, "batch_size"))
        self.assertEqual(state.classes["optim"].live["pinned"], 12)
        self.assertEqual(state.to_dict()["classes"]["optim"]["live"]["pinned"], 12)

    def test_members_that_an_older_library_does_not_have_are_zero(self):
        c = _abi.hy_eval_info(step=3, loss=1.5, tokens=9, is_final=True)
        c.size = _abi.hy_eval_info.tokens.offset
        info = results.EvalInfo._of(c)
        self.assertEqual((info.step, info.loss, info.tokens, info.is_final), (3, 1.5, 0, False))

    def test_results_that_are_filled_later_are_the_same(self):
        c = _abi.hy_step_info(step=3, loss=1.5, phase=_abi.HY_FULL, reason=b"why")
        later = results.StepInfo._later(c)
        self.assertEqual((later.loss, later.phase, later.reason), (1.5, "full", "why"))
        self.assertEqual(later.to_dict()["step"], 3)
        with self.assertRaises(AttributeError):
            later.nothing


class Library(unittest.TestCase):
    def test_a_library_that_is_not_there_is_named(self):
        code = "import hybrid_train"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "HYBRID_LIBRARY": "/nowhere/libhybrid.so"},
            capture_output=True,
            text=True,
        )
        self.assertIn("/nowhere/libhybrid.so", done.stderr)
        self.assertIn("ImportError", done.stderr)

    def test_a_library_of_another_version_is_refused(self):
        code = "import hybrid_train"
        libc = "libm.so.6"
        done = subprocess.run(
            [sys.executable, "-c", f"import ctypes, ctypes.util, os; {code}"],
            env={**os.environ, "HYBRID_LIBRARY": self.some_library(libc)},
            capture_output=True,
            text=True,
        )
        self.assertIn("a version without an interface number", done.stderr)

    @unittest.skipUnless(COMPILER, "there is no C compiler")
    def test_a_library_of_another_interface_is_refused_with_both_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            made = f"{folder}/libhybrid.so"
            text = 'const char *hy_version(void) { return "0.0.7"; } int hy_abi(void) { return 4321; }'
            command = [*COMPILER.split(), "-shared", "-fPIC", "-x", "c", "-", "-o", made]
            subprocess.run(command, input=text, text=True, check=True)
            done = subprocess.run(
                [sys.executable, "-c", "import hybrid_train"],
                env={**os.environ, "HYBRID_LIBRARY": made},
                capture_output=True,
                text=True,
            )
        self.assertIn("ImportError", done.stderr)
        self.assertIn("is version 0.0.7 with interface 4321", done.stderr)
        self.assertIn(f"version {_abi.HYBRID_VERSION} and needs interface {_abi.HYBRID_ABI}", done.stderr)

    def some_library(self, name):
        for line in open("/proc/self/maps"):
            if line.rstrip().endswith(".so.6") and name in line:
                return line.split()[-1]
        self.skipTest(f"{name} is not loaded here")

    def test_neither_numpy_nor_torch_is_imported(self):
        code = "import sys, hybrid_train; print([m for m in ('numpy', 'torch') if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "[]")

    def test_the_file_that_was_opened_is_known(self):
        self.assertTrue(os.path.exists(_library.path()))


if __name__ == "__main__":
    unittest.main()
