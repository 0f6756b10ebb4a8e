"""What is in the wheel, and what it says of itself."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import subprocess
import unittest
import zipfile
from importlib import metadata
from pathlib import Path

import hybrid_train
from support import ROOT, InFolder

WHEEL = os.environ.get("HYBRID_WHEEL")
MAKE_WHEEL = str(ROOT / "packaging" / "wheel.sh")


@unittest.skipUnless(WHEEL, "HYBRID_WHEEL names no wheel")
class Wheel(InFolder):
    def setUp(self):
        super().setUp()
        self.zip = zipfile.ZipFile(WHEEL)
        self.addCleanup(self.zip.close)
        self.names = set(self.zip.namelist())

    def test_it_holds_the_package_the_library_and_licences(self):
        sources = {f"hybrid_train/{p.name}" for p in (ROOT / "python" / "hybrid_train").glob("*.py")}
        info = f"hybrid_train-{hybrid_train.__version__}.dist-info"
        self.assertLessEqual(sources, self.names)
        self.assertLessEqual(
            {
                "hybrid_train/_abi.py",
                "hybrid_train/results.py",
                "hybrid_train/py.typed",
                "hybrid_train/lib/libhybrid.so",
            },
            self.names,
        )
        self.assertLessEqual({f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"}, self.names)
        self.assertTrue(self.names & {f"{info}/LICENSE", f"{info}/licenses/LICENSE"})  # as setuptools chooses
        others = {n for n in self.names if not n.startswith(("hybrid_train/", f"{info}/"))}
        self.assertEqual(others, set())

    def test_the_record_has_every_file_and_its_sum(self):
        (record,) = (name for name in self.names if name.endswith("/RECORD"))
        listed = dict(line.split(",", 1) for line in self.zip.read(record).decode().splitlines())
        self.assertEqual(set(listed), self.names)
        for name, rest in listed.items():
            if name != record:
                data = self.zip.read(name)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual(rest, f"sha256={digest},{len(data)}", name)

    def test_its_tag_is_this_machines_and_asks_for_the_glibc_that_it_needs(self):
        tag = Path(WHEEL).stem.split("-", 2)[2]
        self.assertRegex(tag, rf"^py3-none-(manylinux_2_\d+|linux)_{platform.machine()}$")
        self.assertIn(f"Tag: {tag}", self.zip.read(next(n for n in self.names if n.endswith("/WHEEL"))).decode())
        asked = int((re.search(r"manylinux_2_(\d+)", tag) or [0, "0"])[1])
        for name in self.names:
            if ".so" in name:
                needed = [int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", self.zip.read(name))]
                self.assertLessEqual(max(needed, default=0), asked, name)

    def test_two_wheels_of_one_build_are_the_same(self):
        subprocess.run([MAKE_WHEEL, "again"], check=True, capture_output=True)
        (again,) = Path("again").iterdir()
        self.assertEqual(again.read_bytes(), Path(WHEEL).read_bytes())

    def test_what_is_imported_is_what_was_installed(self):
        installed = Path(hybrid_train.__file__).resolve()
        self.assertNotIn(ROOT / "python", installed.parents)
        self.assertEqual(Path(hybrid_train._library.path()).resolve().parent, installed.parent / "lib")
        self.assertEqual(metadata.version("hybrid-train"), hybrid_train.__version__)
        self.assertFalse(metadata.requires("hybrid-train"))

    def test_libraries_that_not_every_system_has_come_along(self):
        needed = subprocess.run(["ldd", hybrid_train._library.path()], capture_output=True, text=True).stdout
        self.assertIn("libconfig.so", needed)
        for name in ("libconfig.so", "libyaml-0.so", "libpcre2-8.so"):
            if name not in needed:
                continue  # built without PCRE2
            carried = [n for n in self.names if name in n]
            self.assertEqual(len(carried), 1)
            loaded = {line.split()[-1] for line in open("/proc/self/maps") if name in line}
            self.assertEqual([Path(p).parent.name for p in loaded], ["lib"])


@unittest.skipUnless(WHEEL, "HYBRID_WHEEL names no wheel")
class FromTheTree(InFolder):
    def import_from(self, folder, *options):
        """Installs the source tree into a folder with pip; returns the file of the package that is imported."""
        self.assertEqual(self.pip("install", "--prefix", folder, *options).returncode, 0)
        (site,) = Path(folder).glob("**/*-packages")
        code = f"import site; site.addsitedir({str(site)!r}); import hybrid_train; print(hybrid_train.__file__)"
        done = subprocess.run([os.environ["PYTHON"], "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return Path(done.stdout.strip())

    def pip(self, command, *options, **environment):
        python = os.environ["PYTHON"]
        has_tools = subprocess.run([python, "-c", "import wheel, setuptools"], capture_output=True).returncode == 0
        tools = ["--no-index", "--no-build-isolation"] if has_tools else []
        return subprocess.run(
            [python, "-m", "pip", command, "--no-deps", *tools, *options, str(ROOT / "python")],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )

    def test_pip_install_of_the_source_tree(self):
        self.assertIn(self.folder, self.import_from("into").resolve().parents)

    def test_an_editable_install_uses_the_source_tree(self):
        self.assertEqual(self.import_from("into", "--editable").parent, ROOT / "python" / "hybrid_train")

    def test_nothing_of_a_build_stays_in_the_source_tree(self):
        subprocess.run([MAKE_WHEEL, "out"], check=True, capture_output=True)
        left = {p.name for p in (ROOT / "python").iterdir() if p.name in ("build", "dist") or "egg-info" in p.name}
        self.assertEqual(left, set())

    def test_a_missing_library_that_cannot_be_built_is_reported(self):
        Path("make").write_text("#!/bin/sh\nexit 1\n")
        Path("make").chmod(0o755)
        path = f"{self.folder}:{os.environ['PATH']}"
        done = self.pip("wheel", HYBRID_BUILD=str(self.folder / "empty"), PATH=path)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libhybrid.so is missing", done.stderr + done.stdout)
        self.assertIn("`make deps`", done.stderr + done.stdout)

    def test_missing_tools_are_told_from_a_failed_build(self):
        python = Path("python")
        for works, code in (("-c", 3), ("-c | --version", 1)):  # pip is missing; pip works, but the build fails
            python.write_text(
                f'#!/bin/sh\nfor word in "$@"; do case "$word" in {works}) exit 0 ;; esac; done; exit 1\n'
            )
            python.chmod(0o755)
            environment = {**os.environ, "PYTHON": str(python.resolve())}
            done = subprocess.run([MAKE_WHEEL, "out"], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual("no wheel:" in done.stderr, code == 3)


if __name__ == "__main__":
    unittest.main()
