"""The protobuf runtimes that vLLM versions in use pin, each in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RUNTIMES = ("5.29.6", "6.33.5", "7.36.2")
_DOWNLOAD_SECONDS = 180


def runtime_directory(version: str) -> Path:
    """Return a directory that holds protobuf *version* and nothing else; download it at the first call."""
    cache = ROOT / ".cache" / "protobuf"
    target = cache / version
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=cache))
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--target", str(draft), f"protobuf=={version}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    if done.returncode != 0:
        shutil.rmtree(draft)
        raise AssertionError(f"protobuf {version} could not be downloaded: {done.stderr.strip()[-1000:]}")
    draft.rename(target)
    return target


def run_with_runtime(version: str, module: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` with protobuf *version* and warnings as errors."""
    path = os.pathsep.join([str(runtime_directory(version)), str(ROOT / "proto"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", module],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
