"""What a bundle holds: the names of its files, and the manifest that lists them. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.errors import BundleError
from penstock.agent.parsing import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT: Final = 1
"""Version of the format; a reader refuses a higher one."""

MANIFEST: Final = "manifest.json"
STATE: Final = "state.json"
METRICS: Final = "metrics.txt"
CONFIGURATION: Final = "configuration.json"
JOURNAL: Final = "journal.db"
POLICIES: Final = "policy.db"
DUMPS: Final = "watchdog-dumps.txt"
SENT: Final = (STATE, METRICS, CONFIGURATION, POLICIES)
"""The files that an agent sends as they are."""
NEEDED: Final = (STATE, JOURNAL, POLICIES)
"""Without them nothing can be read."""
MAX_BYTES: Final[Mapping[str, int]] = {
    STATE: 64 << 20,
    METRICS: 256 << 20,
    CONFIGURATION: 1 << 20,
    POLICIES: 1 << 30,
    JOURNAL: 4 << 30,
    DUMPS: 8 << 20,
}
"""Of each file, unpacked."""
MAX_VALUES: Final = 2_000_000
"""Of a JSON text. Each costs about a hundred bytes when it is parsed; 10,000 sources have a fifth of it."""
# What a database holds.
_MAX_NUMBER = (1 << 63) - 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BundledFile:
    """A file of the bundle: its bytes, unpacked, and their SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """The table of contents.

    Attributes:
        created: the agent's time, RFC 3339.
        agent_version: of Penstock.
        agentctl_version: likewise.
        address: where the agent answered; without user and password.
        since_seconds: how far the window was to go back.
        first_batch: the oldest batch; 0 for none.
        first_time: when it came in, RFC 3339; empty for none.
        last_batch: the newest batch of the log.
        batches: how many there are.
        left_out_batches: batches of the window that the limit left out: the oldest.
        left_out_bytes: their bytes as stored.

    """

    created: str
    agent_version: str
    agentctl_version: str
    address: str
    since_seconds: float
    first_batch: int
    first_time: str
    last_batch: int
    batches: int
    left_out_batches: int
    left_out_bytes: int
    files: tuple[BundledFile, ...]

    def gaps(self) -> list[str]:
        """Return a sentence about what was left out; none if that is nothing."""
        if not self.left_out_batches:
            return []
        begins = f"begins at {self.first_time}" if self.batches else "is empty"
        size = format_size(self.left_out_bytes)
        return [
            f"{self.left_out_batches} older batches ({size}) were left out by --max-size: the log {begins}"
        ]

    def encoded(self) -> bytes:
        """Return it as JSON."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n").encode()


def check_values(name: str, pieces: Iterable[bytes], most: int = MAX_VALUES) -> None:
    """Check how many values the JSON text of *name* has, before it is parsed.

    Raises:
        BundleError: more than *most*; commas and brackets within strings count, too.

    """
    left = most
    for piece in pieces:
        left -= sum(map(piece.count, (b",", b"[", b"{")))
        if left < 0:
            raise BundleError(f"its {name} has more than {most:,} values; no agent makes such a file")


def read_manifest(text: bytes) -> BundleManifest:
    """Return the manifest that *text* holds.

    Raises:
        BundleError: it is of a newer format, or no manifest.

    """
    try:
        document = json.loads(text)
        version = int(document["format"])
        if version > FORMAT:
            raise BundleError(
                f"it has format {version}, made by Penstock {str(document.get('agentctl_version'))[:40]!r}; this agentctl reads up to "
                f"format {FORMAT}: use a newer agentctl"
            )
        return _checked(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BundleError(f"its {MANIFEST} cannot be read; it is damaged or not a bundle") from error


def _checked(document: Mapping[str, Any]) -> BundleManifest:
    files = tuple(
        BundledFile(str(each["name"]), int(each["size"]), str(each["sha256"])) for each in document["files"]
    )
    names = [each.name for each in files]
    if len(set(names)) != len(names) or not set(names) <= MAX_BYTES.keys() or not set(NEEDED) <= set(names):
        raise ValueError
    if any(each.size < 0 or not _DIGEST.fullmatch(each.sha256) for each in files):
        raise ValueError
    numbers = ("first_batch", "last_batch", "batches", "left_out_batches", "left_out_bytes")
    first, last, batches, left_out, left_out_bytes = (int(document[name]) for name in numbers)
    if not all(0 <= each <= _MAX_NUMBER for each in (first, last, batches, left_out, left_out_bytes)):
        raise ValueError
    return BundleManifest(
        created=str(document["created"]),
        agent_version=str(document["agent_version"]),
        agentctl_version=str(document["agentctl_version"]),
        address=str(document["address"]),
        since_seconds=float(document["since_seconds"]),
        first_batch=first,
        first_time=str(document["first_time"]),
        last_batch=last,
        batches=batches,
        left_out_batches=left_out,
        left_out_bytes=left_out_bytes,
        files=files,
    )
