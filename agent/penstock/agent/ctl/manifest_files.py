"""Manifests from files, directories or standard input: YAML or JSON, several documents, and lists."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from penstock.agent.ctl.errors import UsageError
from penstock.agent.parsing.yaml_documents import MAX_CHARACTERS, DocumentError, read_documents

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIXES = (".json", ".yaml", ".yml")


class ManifestText(NamedTuple):
    """A manifest from a file.

    Attributes:
        text: JSON, without the ``status`` that ``get policy`` adds.
        name: ``metadata.name``; empty if it has none.
        where: its file.

    """

    text: str
    name: str
    where: str


def read_paths(paths: Iterable[str]) -> list[ManifestText]:
    """Return the manifests of files, of the ``*.yaml``, ``*.yml`` and ``*.json`` of directories, and of ``-``.

    Raises:
        UsageError: a file cannot be read, is not YAML, has no manifest, or a policy name comes twice.

    """
    found = [manifest for path in paths for manifest in _read_path(path)]
    by_name: dict[str, ManifestText] = {}
    for manifest in found:
        other = by_name.setdefault(manifest.name, manifest)
        if manifest.name and other is not manifest:
            raise UsageError(
                f"policy {manifest.name!r} is in {other.where} and in {manifest.where}; keep one"
            )
    return found


def _read_path(path: str) -> list[ManifestText]:
    place = Path(path)
    try:
        if path == "-":
            return _manifests(sys.stdin, "<stdin>")
        if not place.is_dir():
            with place.open(encoding="utf-8") as stream:
                return _manifests(stream, path)
        # Dot files are skipped: editors and mounted ConfigMaps leave some.
        files = sorted(
            file for file in place.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith(".")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path!r} cannot be read: {getattr(error, 'strerror', error)}") from None
    if not files:
        raise UsageError(f"directory {path!r} has no file that ends in {', '.join(_SUFFIXES)}")
    return [manifest for file in files for manifest in _read_path(str(file))]


def _manifests(stream: IO[str], where: str) -> list[ManifestText]:
    text = stream.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{where} has more than {MAX_CHARACTERS} characters; split it")
    try:
        manifests = [item.value for document in read_documents(text) for item in document.items()]
    except DocumentError as error:
        raise UsageError(f"{where}:{error.line}: {error}") from None
    if not manifests:
        raise UsageError(f"{where} has no manifest; for an example see 'agentctl get policy -o yaml'")
    return [_written(manifest, where) for manifest in manifests]


def _written(manifest: Any, where: str) -> ManifestText:
    name = ""
    if isinstance(manifest, dict):
        manifest = {key: value for key, value in manifest.items() if key != "status"}
        metadata = manifest.get("metadata")
        name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
    return ManifestText(json.dumps(manifest), name, where)
