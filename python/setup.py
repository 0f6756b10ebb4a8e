"""What setuptools cannot know of the package: files made from the headers, the shared library, the platform.

The wheel carries the shared library of build/lib, and linked libraries that some systems lack. The library is built
with make where it is missing. HYBRID_BUILD names another build folder than build/. A folder with libraries of its own,
as packaging/dist.sh makes it, is taken whole: the wheel then includes the programs.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

PYTHON = Path(__file__).resolve().parent
ROOT = PYTHON.parent
BUILD = Path(os.environ.get("HYBRID_BUILD") or ROOT / "build").resolve()
LIBRARY = BUILD / "lib" / "libhybrid.so"
IS_WHOLE = any(LIBRARY.parent.glob("libconfig.so*"))
PROGRAMS = sorted((BUILD / "bin").iterdir()) if IS_WHOLE else []
CARRIED = re.compile(r"lib(config|yaml-0|pcre2-8)\.so\S*")  # libraries that the wheel includes


def build_library() -> None:
    print(f"{LIBRARY} is missing; building it with make", file=sys.stderr, flush=True)
    command = ["env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "-u", "MFLAGS"]
    command += ["make", "-C", str(ROOT), "--no-print-directory", "lib", f"BUILD={BUILD}"]
    if shutil.which("make") is None or subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("the library could not be built; `make deps` in the source tree installs what is missing")


def libraries() -> list[Path]:
    """The files for hybrid_train/lib."""
    if not LIBRARY.exists():
        build_library()
    if IS_WHOLE:
        return [LIBRARY, *(p for p in LIBRARY.parent.glob("*.so*") if not p.name.startswith("libhybrid.so"))]
    linked = subprocess.run(["ldd", str(LIBRARY)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"(\S+) => (/\S+)", linked)
    carried = [Path(where).parent / name for name, where in found if CARRIED.fullmatch(name)]
    return [LIBRARY, *LIBRARY.parent.glob("libhybrid_cuda.so"), *carried]


def licences() -> dict[str, Path]:
    """Licences of the other libraries by package; Debian's packages have them."""
    if IS_WHOLE:
        return {path.name: path for path in (BUILD / "licenses").iterdir()}
    names = ("libconfig[0-9]*", "libyaml-0-2", "libpcre2-8-0")
    found = (path for name in names for path in Path("/usr/share/doc").glob(f"{name}/copyright"))
    return {path.parent.name: path for path in found}


class Build(build_py):
    """Adds libraries, programs and licences to the package. An editable install uses those of the build folder."""

    def run(self) -> None:
        super().run()
        carried = libraries()
        if self.editable_mode:
            return
        for path in carried:
            copy = self.add(path, f"lib/{path.name}", 0o755)
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-unneeded", copy], check=False)  # it may be of another system
        for path in PROGRAMS:
            self.add(path, f"bin/{path.name}", 0o755)
        for name, path in licences().items():
            self.add(path, f"licenses/{name}", 0o644)

    def add(self, path: Path, name: str, mode: int) -> str:
        copy = Path(self.build_lib) / "hybrid_train" / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(mode)
        return str(copy)


class Wheel(bdist_wheel):
    """A wheel for every Python 3 on this architecture, with the newest glibc version that its files need."""

    def get_tag(self) -> tuple[str, str, str]:
        found = [
            (int(major), int(minor))
            for path in [*libraries(), *PROGRAMS]
            for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", path.read_bytes())
        ]
        system = "manylinux_{}_{}".format(*max(found)) if found else "linux"
        return "py3", "none", f"{system}_{platform.machine().lower()}"


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # compiled code, though it is no extension module


class Refused(sdist):
    def run(self) -> None:
        raise SystemExit("the Python package has no source distribution; install from a clone, or a wheel")


if not (ROOT / "Makefile").exists():
    raise SystemExit(
        f"{ROOT} is not the source tree of hybrid-train; install from a clone, or a wheel, or use pip 21.3 or newer"
    )
sys.path.insert(0, str(PYTHON / "builder"))
from write import write_package  # noqa: E402

write_package(ROOT / "include", PYTHON / "hybrid_train")
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980: the same files give the same wheel
with tempfile.TemporaryDirectory() as scratch:  # nothing stays in the tree, and no old file gets into a wheel
    setup(
        distclass=Package,
        license="MIT",  # not in pyproject.toml: setuptools 66 and 77 expect different forms there
        cmdclass={"build_py": Build, "bdist_wheel": Wheel, "sdist": Refused},
        entry_points={"console_scripts": [f"{p.name} = hybrid_train._programs:main" for p in PROGRAMS]},
        options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
    )
