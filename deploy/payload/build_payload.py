"""Assembles the payload: ``build_payload.py --wheel penstock_vllm-….whl --fallback DIRECTORY OUTPUT``.

OUTPUT gets the command ``penstock_stage.py`` and ``tree``, what it stages: of the wheel the engine part, the rules and
the wire contract, the entry point, and gRPC and protobuf of all wheels in DIRECTORY in one directory. The wheels of one version of
grpcio differ by their library only, whose name has the interpreter's version and machine in it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import penstock_payload

PACKAGES: Final = ("penstock/instrumentation/", "penstock/proto/", "penstock/rules/")
ENTRY_POINTS: Final = "[vllm.general_plugins]\npenstock=penstock_payload:register\n"
# What another tool wrote about another set of files.
_REWRITTEN: Final = frozenset({"RECORD", "entry_points.txt"})
_OF_ONE_WHEEL: Final = frozenset({"RECORD", "WHEEL"})


class BuildError(Exception):
    """The text says what is wrong with the wheels."""


def engine_part(wheel: Path) -> dict[str, bytes]:
    """Return the files of the engine part by their path, without RECORD.

    Raises:
        BuildError: the wheel is not Penstock's.

    """
    files: dict[str, bytes] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            of_metadata = path.parts[0].endswith(".dist-info") and path.name not in _REWRITTEN
            if of_metadata or (name.startswith(PACKAGES) and path.suffix == ".py"):
                files[name] = archive.read(name)
    if not any(name.startswith(PACKAGES[0]) for name in files):
        raise BuildError(f"{wheel} has no {PACKAGES[0]}")
    files["penstock_payload.py"] = Path(penstock_payload.__file__).read_bytes()
    files[f"{_metadata_of(files)}/entry_points.txt"] = ENTRY_POINTS.encode()
    return files


def fallback(wheels: Path) -> dict[str, bytes]:
    """Return the files of all wheels in a directory, merged.

    Raises:
        BuildError: two wheels have a different file of the same name.

    """
    files: dict[str, bytes] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                path = PurePosixPath(name)
                if name.endswith("/") or (path.parent.suffix == ".dist-info" and path.name in _OF_ONE_WHEEL):
                    continue
                place = f"{penstock_payload.FALLBACK}/{name}"
                content = archive.read(name)
                if files.setdefault(place, content) != content:
                    raise BuildError(f"{wheel.name} has another {name}; give wheels of one version")
    return files


def build(wheel: Path, wheels: Path | None, output: Path) -> None:
    """Write the payload to *output*, in place of what is there.

    Raises:
        BuildError: the wheels do not fit.

    """
    files = engine_part(wheel)
    if wheels is not None:
        files |= fallback(wheels)
    record = f"{_metadata_of(files)}/RECORD"
    rows = [f"{name},{penstock_payload.digest(files[name])},{len(files[name])}\n" for name in sorted(files)]
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    if output.exists():
        shutil.rmtree(output)
    for name, content in files.items():
        place = output / "tree" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    for program in ("penstock_payload.py", "penstock_stage.py"):
        shutil.copy(Path(__file__).with_name(program), output / program)


def _metadata_of(files: dict[str, bytes]) -> str:
    return next(name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA"))


def main() -> int:
    """Build, and return the exit code."""
    parser = argparse.ArgumentParser(description="Assemble the payload from wheels.")
    parser.add_argument("--wheel", type=Path, required=True, help="of Penstock")
    parser.add_argument("--fallback", type=Path, help="a directory with wheels of grpcio and protobuf")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    try:
        build(options.wheel, options.fallback, options.output)
    except (BuildError, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"build_payload: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
