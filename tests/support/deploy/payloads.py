"""Payloads, and interpreters without Penstock that find them on ``PYTHONPATH``."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "deploy" / "payload"
_PRODUCT = ("instrumentation", "proto", "agent")
_DEPENDENCIES = ("grpcio", "protobuf", "typing_extensions")


def source_wheel(directory: Path) -> Path:
    """Write a wheel of this checkout: the files that a build backend would pack, without asking for one."""
    own = distribution("penstock-vllm")
    metadata = f"penstock_vllm-{own.version}.dist-info"
    wheel = directory / f"penstock_vllm-{own.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for top in _PRODUCT:
            for path in sorted((ROOT / top / "penstock").rglob("*.py")):
                archive.write(path, path.relative_to(ROOT / top))
        archive.writestr(f"{metadata}/METADATA", own.read_text("METADATA") or "")
        archive.write(ROOT / "LICENSE", f"{metadata}/licenses/LICENSE")
    return wheel


def installed_wheels(directory: Path, *names: str) -> Path:
    """Pack distributions as they are installed here into wheels, and return their directory.

    Args:
        directory: to be made.
        names: of the distributions; without any, gRPC and protobuf.

    """
    directory.mkdir()
    for name in names or _DEPENDENCIES:
        found = distribution(name)
        tag = message_from_string(found.read_text("WHEEL") or "")["Tag"]
        metadata = next(file for file in found.files or () if file.name == "METADATA")
        wheel = directory / f"{metadata.parts[0].removesuffix('.dist-info')}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for file in found.files or ():
                if file.suffix != ".pyc" and ".." not in file.parts:
                    archive.write(Path(str(found.locate_file(file))), str(file))
    return directory


def requirements(name: str, extra: str) -> set[str]:
    """Return the names of what is installed here and a distribution needs, directly or not; one extra included."""
    needed: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = _lines(name, extra)
    while waiting:
        wanted = Requirement(waiting.pop())
        each = canonicalize_name(wanted.name)
        for part in ("", *wanted.extras):
            if (each, part) in seen:
                continue
            seen.add((each, part))
            try:
                waiting += _lines(each, part)
            except PackageNotFoundError:
                break  # for another Python or system
            needed.add(each)
    return needed


def _lines(name: str, extra: str) -> list[str]:
    """Return what a distribution needs here: without an extra, or for one."""
    lines = [str(line) for line in distribution(name).requires or ()]
    markers = [(line, Requirement(line).marker) for line in lines]
    return [line for line, marker in markers if marker is None or marker.evaluate({"extra": extra})]


def build_payload(output: Path, wheel: Path, wheels: Path | None = None) -> Path:
    """Run the program that assembles a payload, and return *output*."""
    fallback = ["--fallback", str(wheels)] if wheels is not None else []
    command = [
        sys.executable,
        str(PROGRAMS / "build_payload.py"),
        "--wheel",
        str(wheel),
        *fallback,
        str(output),
    ]
    subprocess.run(command, check=True, timeout=120)
    return output


def run_stage(payload: Path, target: Path, *wrapper: str) -> str:
    """Run the init container's command, which never fails; return what it says."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-B", str(payload / "penstock_stage.py"), str(target)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def bare_python(directory: Path, *without: str) -> Path:
    """Make an environment of links to this one's packages without some distributions; return its Python.

    Args:
        directory: of the environment.
        without: names of distributions, Penstock's among them for an image that lacks it.

    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    left_out = {
        file.parts[0] for name in without for file in distribution(name).files or () if file.parts[0] != ".."
    }
    packages = Path(sysconfig.get_path("purelib"))
    (site,) = directory.glob("lib/python*/site-packages")
    for path in packages.iterdir():
        if path.name not in left_out:
            (site / path.name).symlink_to(path)
    return directory / "bin" / "python"
