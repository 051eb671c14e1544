"""Parses the texts of policy files. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.agent.errors import FilesError, ManifestError
from penstock.agent.parsing.yaml_documents import Document, DocumentError, read_documents
from penstock.agent.policy.manifest import Manifest, check_manifest, prefix_errors
from penstock.agent.policy.store import FILE_PREFIX, MAX_POLICIES, OwnedManifest

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ParsedFiles:
    """The policies of all files.

    Attributes:
        expired: ``file:line: policy`` of skipped expired policies.

    """

    policies: tuple[OwnedManifest, ...]
    expired: tuple[str, ...]


def parse_files(texts: Mapping[str, str], known: Container[str], now: datetime) -> ParsedFiles:
    """Parse and validate all files.

    Args:
        texts: by file name.
        known: canonical texts of the policies in force; their expiry is not checked again.
        now: the current time, for expiry.

    Raises:
        FilesError: one sentence about the first error.

    """
    policies: list[OwnedManifest] = []
    expired: list[str] = []
    places: dict[str, str] = {}
    for file, text in sorted(texts.items()):
        for place, manifest in _manifests(file, text, known, now):
            if manifest.name in places:
                raise FilesError(
                    f"{place}: policy {manifest.name!r} is in {places[manifest.name]} already; keep one"
                )
            places[manifest.name] = place
            if manifest.expired(now):
                expired.append(f"{place}: policy {manifest.name}")
            else:
                policies.append(OwnedManifest(manifest, FILE_PREFIX + file))
            if len(places) > MAX_POLICIES:
                raise FilesError(f"{place}: there are more than {MAX_POLICIES} policies; combine some")
    return ParsedFiles(tuple(policies), tuple(expired))


def _manifests(file: str, text: str, known: Container[str], now: datetime) -> Iterator[tuple[str, Manifest]]:
    try:
        documents = read_documents(text)
        if not documents:
            # A file being written may be empty for a moment.
            raise DocumentError(  # noqa: TRY301
                "the file has no policy; remove it, or write kind: List and items: []", 1
            )
        for document in documents:
            for item in document.items():
                place = f"{file}:{item.line_of(())}"
                yield place, _manifest(file, _without_status(item), known, now)
    except DocumentError as error:
        raise FilesError(f"{file}:{error.line}: {error}") from None


def _manifest(file: str, document: Document, known: Container[str], now: datetime) -> Manifest:
    metadata = document.value.get("metadata") if isinstance(document.value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    try:
        if not isinstance(name, str):
            return check_manifest(document.value)
        with prefix_errors(name):
            manifest = check_manifest(document.value)
            # Expired policies are skipped, not refused: they must not block the others.
            if manifest.canonical not in known and not manifest.expired(now):
                manifest.check_times(now)
            return manifest
    except ManifestError as error:
        raise FilesError(f"{file}:{document.line_of(error.location)}: {error}") from None


def _without_status(document: Document) -> Document:
    """Remove the ``status`` that ``agentctl get policy -o yaml`` adds."""
    if not isinstance(document.value, dict):
        return document
    return replace(
        document, value={name: value for name, value in document.value.items() if name != "status"}
    )
