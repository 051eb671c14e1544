"""The files of the page: all that lies in ``static``, read once."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
"""The document."""


class File(NamedTuple):
    """A file as it is served."""

    content: bytes
    content_type: str
    etag: str


def read_files() -> dict[str, File]:
    """Return the files by their names, such as ``views/peers.js``; those of other types are not served."""
    return dict(_walk(resources.files("penstock.agent.page") / "static", ""))


def _walk(directory: Traversable, prefix: str) -> Iterator[tuple[str, File]]:
    for each in sorted(directory.iterdir(), key=lambda item: item.name):
        suffix = each.name[each.name.rfind(".") :]
        if each.is_dir():
            yield from _walk(each, f"{prefix}{each.name}/")
        elif suffix in _TYPES:
            content = each.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            yield prefix + each.name, File(content, _TYPES[suffix], etag)
