"""What a failing test's report names: the test, the part of the product that it is about, and the logs of what was running."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "failed"
_ROOTS = {
    "agent": "agent/penstock/agent",
    "instrumentation": "instrumentation/penstock/instrumentation",
    "proto": "proto/penstock/proto",
    "rules": "proto/penstock/rules",
    "demo": "demo",
    "benchmarks": "benchmarks",
    "dashboards": "dashboards",
    "deploy": "deploy",
}
_rescued: list[Path] = []
_E2E = ("tests/e2e/conftest.py", "tests/support/engine", "demo/servers.py")


def places(test: Path) -> list[str]:
    """Return what a test file is about, below the root: the module that it mirrors, else the package."""
    if not test.is_relative_to(ROOT / "tests"):
        return []
    parts = test.relative_to(ROOT / "tests").parts
    if parts[0] == "e2e":
        return list(_E2E)
    top = _ROOTS.get(parts[0])
    if top is None:
        return []
    package = ROOT / top
    for part in parts[1:-1]:
        if not (package / part).is_dir():
            break
        package /= part
    module = package / f"{test.stem.removeprefix('test_')}.py"
    return [str((module if module.exists() else package).relative_to(ROOT))]


def logs(since: float, *directories: Path) -> list[Path]:
    """Return the files that processes below this one write to, and log files in *directories* changed after *since*."""
    found = {path for pid in _descendants(os.getpid()) for path in _outputs(pid)}
    for directory in (*directories, *_rescued):
        found.update(path for path in directory.rglob("*.log") if path.stat().st_mtime >= since)
    return sorted(found)


def rescue(directory: Path) -> None:
    """Copy the logs of a directory that is about to be removed: a test has failed that used it."""
    target = Path(tempfile.mkdtemp(prefix="penstock-logs-"))
    for path in directory.glob("*.log"):
        shutil.copyfile(path, target / path.name)
    _rescued.append(target)


def keep(test: str, paths: list[Path]) -> Path:
    """Copy *paths*, which may be gone when the run ends, to a directory of the test; return it."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in test)
    directory = KEPT / name[-120:]
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path in paths:
        shutil.copyfile(path, directory / f"{path.parent.name}-{path.name}")
    while _rescued:
        shutil.rmtree(_rescued.pop())
    return directory


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the command, which is in brackets: state, parent.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        children.setdefault(parent, []).append(int(stat.parent.name))
    left = [root]
    while left:
        below = children.get(left.pop(), [])
        left += below
        yield from below


def _outputs(pid: int) -> Iterator[Path]:
    for descriptor in (1, 2):
        try:
            path = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
        except OSError:
            continue
        if path.suffix == ".log" and path.is_file():
            yield path
