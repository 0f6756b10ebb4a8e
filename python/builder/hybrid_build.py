"""Makes wheels: a build backend (PEP 517 and 660) that needs nothing but Python.

A wheel holds the package, what is made from the headers (write.py), the shared library of build/lib, and what
that needs and a system may lack. `pip install ./python` calls it, and so does `make wheel`:

    python3 hybrid_build.py OUT-FOLDER

The library is built with make where it is missing. HYBRID_BUILD names another build folder than build/. A folder with
libraries of its own, as packaging/dist.sh makes it, is taken whole: the wheel then includes the programs.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from headers import read_headers  # noqa: E402
from write import write_package  # noqa: E402

PYTHON = Path(__file__).resolve().parent.parent
ROOT = PYTHON.parent
PACKAGE = "hybrid_train"
CARRIED = re.compile(r"lib(config|yaml-0|pcre2-8)\.so\S*")  # libraries that the wheel includes
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same wheel


# ---- the library ---------------------------------------------------------------------------------------------


def build_folder() -> Path:
    return Path(os.environ.get("HYBRID_BUILD") or ROOT / "build")


def library() -> Path:
    """build/lib/libhybrid.so; builds it if it is missing."""
    path = build_folder() / "lib" / "libhybrid.so"
    if path.exists():
        return path
    if not (ROOT / "Makefile").exists():
        raise SystemExit(f"{path} is missing, and {ROOT} is not the source tree; install from a clone")
    print(f"{path} is missing; building it with make", file=sys.stderr, flush=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "-C", str(ROOT), "--no-print-directory", "lib", f"BUILD={build_folder()}"]
    if subprocess.run(command, env=environment).returncode != 0 or not path.exists():
        raise SystemExit("the library could not be built; `make deps` in the source tree installs what is missing")
    return path


def carried(path: Path) -> list[Path]:
    """Linked libraries that some systems lack."""
    try:
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout
    except OSError:
        return []
    found = re.findall(r"(\S+) => (/\S+)", said)
    return [Path(where).parent / name for name, where in found if CARRIED.fullmatch(name)]


def is_whole() -> bool:
    return any((build_folder() / "lib").glob("libconfig.so*"))


def programs() -> list[Path]:
    return sorted((build_folder() / "bin").iterdir()) if is_whole() else []


def libraries() -> dict[str, Path]:
    """The files for hybrid_train/lib, by their names there."""
    main = library()
    out = {"libhybrid.so": main}
    if is_whole():
        others = (p for p in main.parent.glob("*.so*") if not p.name.startswith("libhybrid.so"))
        return {**out, **{p.name: p for p in others}}
    cuda = main.parent / "libhybrid_cuda.so"
    if cuda.exists():
        out["libhybrid_cuda.so"] = cuda
    for path in carried(main):
        out[path.name] = path
    return out


def glibc_of(files: list[Path]) -> str | None:
    """The newest glibc version that the files need, as "2_34". None: they need no version."""
    found = [
        (int(major), int(minor))
        for path in files
        for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", path.read_bytes())
    ]
    return "_".join(map(str, max(found))) if found else None


def tag(files: list[Path]) -> str:
    machine = platform.machine().lower()
    glibc = glibc_of(files)
    return f"py3-none-{f'manylinux_{glibc}' if glibc else 'linux'}_{machine}"


# ---- what is in a wheel ------------------------------------------------------------------------------------------


def version() -> str:
    return str(read_headers(ROOT / "include").constants["HYBRID_VERSION"])


def _project() -> dict[str, str]:
    """The plain values of pyproject.toml that metadata needs (tomllib is not in every Python)."""
    text = (PYTHON / "pyproject.toml").read_text(encoding="utf-8")
    return dict(re.findall(r'^([a-z-]+) = "(.*)"$', text, re.MULTILINE))


def metadata() -> str:
    project = _project()
    head = (
        "Metadata-Version: 2.1\n"
        f"Name: {project['name']}\n"
        f"Version: {version()}\n"
        f"Summary: {project['description']}\n"
        "License: MIT\n"
        f"Requires-Python: {project['requires-python']}\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Typing :: Typed\n"
        "Description-Content-Type: text/markdown\n\n"
    )
    return head + (PYTHON / "README.md").read_text(encoding="utf-8")


def wheel_file(wheel_tag: str) -> str:
    return f"Wheel-Version: 1.0\nGenerator: hybrid_build\nRoot-Is-Purelib: false\nTag: {wheel_tag}\n"


class Wheel:
    """A zip file with a list of its contents."""

    def __init__(self, path: Path, info: str) -> None:
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.info, self.record = info, ""

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record += f"{name},sha256={digest},{len(data)}\n"

    def close(self) -> None:
        name = f"{self.info}/RECORD"
        self.record += f"{name},,\n"
        self.zip.writestr(zipfile.ZipInfo(name, EPOCH), self.record)
        self.zip.close()


def _licences(files: dict[str, Path]) -> dict[str, Path]:
    out = {"LICENSE": ROOT / "LICENSE"}
    if is_whole():
        return {**out, **{p.name: p for p in (build_folder() / "licenses").iterdir()}}
    packages = {"libconfig": "libconfig9", "libyaml": "libyaml-0-2", "libpcre2": "libpcre2-8-0"}
    for name, package in packages.items():
        theirs = Path(f"/usr/share/doc/{package}/copyright")
        if any(file.startswith(name) for file in files) and theirs.exists():
            out[f"LICENCE.{name}"] = theirs
    return out


def make_in_tree() -> None:
    """Writes the files generated from the headers into the package of this tree."""
    write_package(ROOT / "include", PYTHON / PACKAGE)


def _info() -> str:
    return f"{PACKAGE}-{version()}.dist-info"


def _stripped(path: Path) -> bytes:
    """Removes debug information, if strip is installed."""
    copy = build_folder() / f".{path.name}.stripped"
    try:
        shutil.copyfile(path, copy)
        subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True, capture_output=True)
        return copy.read_bytes()
    except (OSError, subprocess.CalledProcessError):
        return path.read_bytes()
    finally:
        copy.unlink(missing_ok=True)


def make_wheel(folder: Path, wheel_tag: str, files: dict[str, bytes]) -> str:
    """Writes a wheel from files by their names in it; returns the wheel's name."""
    name = f"{PACKAGE}-{version()}-{wheel_tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = Wheel(folder / name, _info())
    for path, data in sorted(files.items()):
        wheel.add(path, data, 0o755 if ".so" in path or "/bin/" in path else 0o644)
    commands = "".join(f"{p.name} = {PACKAGE}._programs:main\n" for p in programs())
    if commands:
        wheel.add(f"{_info()}/entry_points.txt", f"[console_scripts]\n{commands}".encode())
    wheel.add(f"{_info()}/METADATA", metadata().encode())
    wheel.add(f"{_info()}/WHEEL", wheel_file(wheel_tag).encode())
    wheel.close()
    return name


# ---- the hooks -----------------------------------------------------------------------------------------------------


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    make_in_tree()
    shared = libraries()
    files = {f"{PACKAGE}/{p.name}": p.read_bytes() for p in (PYTHON / PACKAGE).glob("*.py")}
    files[f"{PACKAGE}/py.typed"] = b""
    for name, path in shared.items():
        files[f"{PACKAGE}/lib/{name}"] = _stripped(path)
    for path in programs():
        files[f"{PACKAGE}/bin/{path.name}"] = path.read_bytes()
    for name, path in _licences(shared).items():
        files[f"{_info()}/licenses/{name}"] = path.read_bytes()
    return make_wheel(Path(wheel_directory), tag([*shared.values(), *programs()]), files)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """The package stays in the tree, and uses the library of the tree's build."""
    make_in_tree()
    library()
    return make_wheel(Path(wheel_directory), "py3-none-any", {f"_{PACKAGE}.pth": f"{PYTHON}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    raise SystemExit("the Python package has no source distribution; install from a clone, or a wheel")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else build_folder() / "wheels")
    name = build_wheel(str(folder))
    size = (folder / name).stat().st_size
    print(f"{folder / name}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    if sys.argv[1:] == ["--in-tree"]:
        make_in_tree()
    else:
        main()
