"""The entry point of the staged engine part: vLLM calls :func:`register` in each of its processes.

It loads Penstock only if every staged file is as it was built, and says in one log line why it does not. Standard
library only; written for Python 3.8, so that an interpreter that is too old gets a sentence, too. ``python -m
penstock_payload`` prints what it finds.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Iterator, NamedTuple  # noqa: UP035  (Python 3.8)

ROOT = Path(__file__).resolve().parent
OLDEST = (3, 11)
DEPENDENCIES = ("grpc", "google.protobuf")
FALLBACK = "penstock-fallback"
"""The directory below the root that has gRPC and protobuf; not a name that Python can import."""

_logger = logging.getLogger("vllm.penstock")


class PayloadError(Exception):
    """The staged files cannot be used; the text says why."""


class StagedFile(NamedTuple):
    """A row of RECORD: the path below the root, ``sha256=…`` and the size in bytes; both empty for RECORD itself."""

    path: str
    digest: str
    size: str


def register() -> None:
    """Load Penstock's plugin if ``PENSTOCK_ENDPOINT`` is set. Never raises; idempotent."""
    if not os.environ.get("PENSTOCK_ENDPOINT"):
        return
    try:
        prepare(ROOT)
        importlib.import_module("penstock.instrumentation.plugin").register()
    except PayloadError as error:
        _logger.warning("penstock stays off, vLLM is not affected: %s", error)
    except Exception:
        _logger.exception("penstock stays off, vLLM is not affected: its staged engine part does not load")


def prepare(root: Path) -> str:
    """Verify the files below *root*, and make gRPC and protobuf importable; return where these come from.

    What the interpreter finds by itself is never replaced: the fallback is the last entry of ``sys.path``, and only
    where one of the two is missing.

    Raises:
        PayloadError: a file is missing, unreadable or not as it was built, or the interpreter cannot use them.

    """
    if sys.version_info < OLDEST:
        running, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST))
        raise PayloadError(f"this is Python {running}, it needs {oldest} or newer")
    files = read_record(root)
    fallback = str(root / FALLBACK)
    for file in files:
        if not file.path.startswith(f"{FALLBACK}/"):
            read_verified(root, file)
    missing = [name for name in DEPENDENCIES if _is_missing(name)]
    if missing:
        _add_fallback(root, files, missing)
    return fallback if fallback in sys.path else "the interpreter's own"


def read_record(root: Path) -> list[StagedFile]:
    """Return the rows of the only distribution's RECORD below *root*.

    Raises:
        PayloadError: there is none, or it is incomplete.

    """
    try:
        found = sorted(path.name for path in root.glob("penstock_vllm-*.dist-info"))
        if len(found) != 1:
            raise PayloadError(f"{root} holds {len(found)} versions of the engine part, not one")
        record = f"{found[0]}/RECORD"
        rows = [StagedFile(*row) for row in csv.reader((root / record).read_text("utf-8").splitlines())]
    except OSError as error:
        raise PayloadError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (TypeError, ValueError, csv.Error):
        raise PayloadError(f"{root}/{record} is damaged") from None
    # Its own row is the last one.
    if not rows or rows[-1] != StagedFile(record, "", ""):
        raise PayloadError(f"{root}/{record} is incomplete")
    return rows


def read_verified(root: Path, file: StagedFile) -> bytes:
    """Return the content of a file of RECORD.

    Raises:
        PayloadError: it cannot be read, or is not as it was built.

    """
    try:
        content = (root / file.path).read_bytes()
    except OSError as error:
        raise PayloadError(f"{error.filename} cannot be read: {error.strerror}") from None
    if file.digest and file.digest != digest(content):
        raise PayloadError(
            f"{root}/{file.path} is not as it was built: {len(content)} bytes instead of {file.size}, "
            "or another content"
        )
    return content


def digest(content: bytes) -> str:
    """Return a digest as RECORD writes it."""
    encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={encoded.decode().rstrip('=')}"


def top_level_names(files: list[StagedFile]) -> Iterator[str]:
    """Yield the names in the root, the one that makes the others visible to vLLM last."""
    names = {file.path.partition("/")[0] for file in files}
    yield from sorted(names, key=lambda name: (name.endswith(".dist-info"), name))


def _add_fallback(root: Path, files: list[StagedFile], missing: list[str]) -> None:
    """Make the fallback the last entry of ``sys.path``.

    Raises:
        PayloadError: it has no library for this interpreter, is damaged, or does not help.

    """
    extension = importlib.machinery.EXTENSION_SUFFIXES[0]
    names = " and ".join(missing)
    if not any(file.path == f"{FALLBACK}/grpc/_cython/cygrpc{extension}" for file in files):
        raise PayloadError(
            f"{names} cannot be imported here, and the payload has nothing for *{extension}; install grpcio and "
            "protobuf into the engine's image"
        )
    for file in files:
        if file.path.startswith(f"{FALLBACK}/") and _is_for(file.path, extension):
            read_verified(root, file)
    sys.path.append(str(root / FALLBACK))
    if any(_is_missing(name) for name in missing):
        sys.path.pop()
        raise PayloadError(f"{names} cannot be imported here: another package has that name")


def _is_for(path: str, extension: str) -> bool:
    """Whether an interpreter with that suffix of extension modules may read the file; each has a library of its own."""
    return not path.endswith(".so") or path.endswith((extension, ".abi3.so"))


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        # Its parent is missing.
        return True
    except ValueError:
        # It is imported already, by other means.
        return False


def main() -> int:
    """Print whether this interpreter can use the files, and where gRPC comes from; return the exit code."""
    try:
        source = prepare(ROOT)
    except PayloadError as error:
        sys.stderr.write(f"penstock stays off here: {error}\n")
        return 1
    sys.stdout.write(f"the engine part in {ROOT} is whole; gRPC and protobuf: {source}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
