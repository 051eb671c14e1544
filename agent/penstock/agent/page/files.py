"""The page's own files as they are sent: compressed, and its scripts without their comments."""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_VENDOR: Final = "vendor/"


class File(NamedTuple):
    """A file as it is served; *etag* is that of its content, compressed or not."""

    gzipped: bytes
    content_type: str
    etag: str

    @property
    def content(self) -> bytes:
        """The same for who does not take gzip."""
        return gzip.decompress(self.gzipped)


def read_files() -> dict[str, File]:
    """Return the files by their names, such as ``views/peers.js``; those of other types are not served."""
    return dict(_walk(resources.files("penstock.agent.page") / "static", ""))


def _walk(directory: Traversable, prefix: str) -> Iterator[tuple[str, File]]:
    for each in sorted(directory.iterdir(), key=lambda item: item.name):
        suffix = each.name[each.name.rfind(".") :]
        if each.is_dir():
            yield from _walk(each, f"{prefix}{each.name}/")
        elif suffix in _TYPES:
            text = each.read_text(encoding="utf-8")
            if suffix == ".js" and prefix != _VENDOR:
                text = without_comments(text)
            content = text.encode()
            # Weak: the same for both encodings.
            etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
            yield prefix + each.name, File(gzip.compress(content, mtime=0), _TYPES[suffix], etag)


def without_comments(script: str) -> str:
    """Return a script of the page without the comments that have lines of their own. Pure.

    They are half of its bytes: types, which TypeScript reads. Comments within a line stay.
    """
    kept = []
    inside = False
    for line in script.splitlines(keepends=True):
        said = line.strip()
        inside = inside or (said.startswith("/**") and said.find("*/") in {-1, len(said) - 2})
        if not inside and not said.startswith("//"):
            kept.append(line)
        inside = inside and not said.endswith("*/")
    return "".join(kept)


def takes_gzip(accepted: str) -> bool:
    """Return whether an ``Accept-Encoding`` header allows gzip. Pure."""
    for each in accepted.split(","):
        coding, _, weight = each.partition(";")
        if coding.strip().lower() in {"gzip", "*"}:
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight, re.IGNORECASE)
    return False
