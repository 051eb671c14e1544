#!/usr/bin/env python3
"""``penstock-stage TARGET``: copy the engine part into a volume that is on the engine's ``PYTHONPATH``.

The command of the payload's init container. It never stops the pod: on any error it leaves the target without an
engine part, writes one sentence to standard error and to the container's termination message, and exits with 0. vLLM
then starts as without Penstock. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import penstock_payload
from penstock_payload import PayloadError

TREE = Path(__file__).resolve().parent / "tree"
TERMINATION_LOG = Path("/dev/termination-log")
STAGING = ".penstock-staging-"


def stage(tree: Path, target: Path) -> str:
    """Copy *tree* to *target*, and return a sentence about it. Nothing of it is visible to vLLM before it is complete.

    Files are copied beside their places and renamed, the entry point last. What is there already, and whole, stays.

    Raises:
        PayloadError: the tree is damaged.
        OSError: the target cannot be written.

    """
    files = penstock_payload.read_record(tree)
    version = files[-1].path.removeprefix("penstock_vllm-").partition(".dist-info")[0]
    target.mkdir(parents=True, exist_ok=True)
    if _is_there(tree, target):
        return f"the engine part {version} is in {target} already"
    remove(target)
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=target))
    size = 0
    for file in files:
        content = penstock_payload.read_verified(tree, file)
        place = staging / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        size += len(content)
    _make_readable(staging)
    for name in penstock_payload.top_level_names(files):
        (staging / name).rename(target / name)
    staging.rmdir()
    return f"the engine part {version} is in {target}: {len(files)} files, {size / 1024**2:.0f} MiB"


def remove(target: Path) -> None:
    """Remove an engine part, whole or not, from *target*, its entry point first; other files stay.

    Raises:
        OSError: a file cannot be removed.

    """
    names = (
        "penstock_vllm-*.dist-info",
        "penstock_payload.py",
        "penstock",
        penstock_payload.FALLBACK,
        f"{STAGING}*",
    )
    for found in [path for name in names for path in target.glob(name)]:
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()


def _is_there(tree: Path, target: Path) -> bool:
    """Whether *target* holds all of *tree* as it was built."""
    try:
        files = penstock_payload.read_record(target)
        if files != penstock_payload.read_record(tree):
            return False
        for file in files:
            penstock_payload.read_verified(target, file)
    except PayloadError:
        return False
    return True


def _make_readable(directory: Path) -> None:
    """Let every user read: the engine's container has another one."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def main() -> int:
    """Stage, say what happened, and return 0."""
    if len(sys.argv) != 2:  # noqa: PLR2004  (the program and its argument)
        _say("usage: penstock-stage TARGET; no engine part is staged, vLLM starts without Penstock")
        return 0
    target = Path(sys.argv[1])
    try:
        _say(stage(TREE, target))
    except Exception as error:  # noqa: BLE001  (the pod starts whatever happens here)
        reason = f"{error.filename or target}: {error.strerror}" if isinstance(error, OSError) else str(error)
        _say(f"no engine part is staged, vLLM starts without Penstock: {reason}")
        with contextlib.suppress(OSError):
            remove(target)
    return 0


def _say(sentence: str) -> None:
    sys.stderr.write(f"penstock-stage: {sentence}\n")
    with contextlib.suppress(OSError):
        # Only where the container has one: Kubernetes shows it in the pod's status.
        descriptor = os.open(TERMINATION_LOG, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(descriptor, "w") as log:
            log.write(sentence)


if __name__ == "__main__":
    sys.exit(main())
