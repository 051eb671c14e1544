"""From the files' texts to the policies that they claim. Pure."""

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
    """What all files together come to.

    Attributes:
        expired: ``file:line: policy`` of those that are left out because they have run out.

    """

    policies: tuple[OwnedManifest, ...]
    expired: tuple[str, ...]


def parse_files(texts: Mapping[str, str], known: Container[str], now: datetime) -> ParsedFiles:
    """Check all files.

    Args:
        texts: by the file's name.
        known: canonical texts of the policies that hold already: their expiry was checked when they came.

    Raises:
        FilesError: one sentence about the first thing that is wrong.

    """
    policies: list[OwnedManifest] = []
    expired: list[str] = []
    places: dict[str, str] = {}
    for file, text in sorted(texts.items()):
        for place, manifest in _manifests(file, text, known, now):
            if manifest.name in places:
                raise FilesError(
                    f"{place}: policy {manifest.name!r} is in {places[manifest.name]} already; leave one"
                )
            places[manifest.name] = place
            if manifest.expired(now):
                expired.append(f"{place}: policy {manifest.name}")
            else:
                policies.append(OwnedManifest(manifest, FILE_PREFIX + file))
            if len(places) > MAX_POLICIES:
                raise FilesError(f"{place}: there are more than {MAX_POLICIES} policies; put some together")
    return ParsedFiles(tuple(policies), tuple(expired))


def _manifests(file: str, text: str, known: Container[str], now: datetime) -> Iterator[tuple[str, Manifest]]:
    try:
        documents = read_documents(text)
        if not documents:
            # A file that is being written is empty for a moment.
            raise DocumentError(  # noqa: TRY301
                "there is no policy; to have none, remove the file or write kind: List and items: []", 1
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
            # What has run out is left out rather than refused: it must not keep the others out.
            if manifest.canonical not in known and not manifest.expired(now):
                manifest.check_times(now)
            return manifest
    except ManifestError as error:
        raise FilesError(f"{file}:{document.line_of(error.location)}: {error}") from None


def _without_status(document: Document) -> Document:
    """Take away what ``agentctl get policy -o yaml`` adds."""
    if not isinstance(document.value, dict):
        return document
    return replace(
        document, value={name: value for name, value in document.value.items() if name != "status"}
    )
