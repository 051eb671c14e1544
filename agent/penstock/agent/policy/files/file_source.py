"""Policies from files: polled once a second, applied as a whole once they are unchanged for 0.25 s.

Polling instead of inotify: inotify sees no change on network and overlay filesystems, loses its watch when a symlink is
replaced, and kubelet takes a minute to update a ConfigMap anyway.
"""

from __future__ import annotations

import asyncio
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog
from penstock.agent.aio import run_on_daemon_thread
from penstock.agent.errors import FilesError, FullError, PenstockError, StateError
from penstock.agent.policy.files.parse import parse_files
from penstock.agent.policy.store import IMPERATIVE, Clock, OwnedManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.agent.policy.store import AppliedAll, StoredPolicy
    from penstock.proto.v1.admin_pb2 import AgentStatus

MAX_FILES = 64
MAX_BYTES = 512 * 1024
_SUFFIXES = (".yaml", ".yml")
_VERSION = "..data"


class FileState(NamedTuple):
    """The stat fields that change when a file is written or replaced."""

    device: int
    inode: int
    size: int
    modified: int
    # ctime: unlike mtime, tools cannot set it back.
    changed: int


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The result of one scan; equal for unchanged files.

    Attributes:
        files: ordered by name.
        problem: why they cannot be read; empty if they can.

    """

    files: tuple[tuple[Path, FileState], ...] = ()
    problem: str = ""


def scan_directory(path: Path) -> DirectoryState:
    """Return the files at *path* with their state."""
    try:
        files = tuple((file, _mark(file)) for file in _list(path))
    except OSError as error:
        return DirectoryState(problem=f"{error.filename or path} cannot be read ({error.strerror})")
    except FilesError as error:
        return DirectoryState(problem=str(error))
    if sum(mark.size for _, mark in files) > MAX_BYTES:
        return DirectoryState(problem=f"{path} has more than {MAX_BYTES} bytes of policies; shorten them")
    return DirectoryState(files)


def read_files(found: DirectoryState) -> dict[str, str]:
    """Return the texts by file name.

    Raises:
        FilesError: *found* has a problem, or a file is not UTF-8.
        OSError: a file was removed meanwhile.

    """
    if found.problem:
        raise FilesError(found.problem)
    return {file.name: _text(file) for file, _ in found.files}


def _list(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    version = path / _VERSION
    directory = version.resolve(strict=True) if version.is_symlink() else path
    files = sorted(file for file in directory.iterdir() if file.suffix in _SUFFIXES and file.name[0] != ".")
    if not files:
        raise FilesError(
            f"{path} has no file *.yaml or *.yml; for no policies, write one with kind: List and items: []"
        )
    if len(files) > MAX_FILES:
        raise FilesError(f"{path} has {len(files)} files, the limit is {MAX_FILES}; combine policies")
    return files


def _mark(file: Path) -> FileState:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FilesError(f"{file} is not a regular file; name a file or a directory of files")
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    try:
        return content[:MAX_BYTES].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FilesError(f"{file.name}:{line}: this is not UTF-8; save it as UTF-8") from None


_log = structlog.get_logger(__name__)

# Between polls; and after one that found a change, which is applied only if it stays the same.
POLL_SECONDS = 1.0
SETTLE_SECONDS = 0.25
# Maximum wait at the start: files may keep changing, and a filesystem may hang.
START_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The state of the policy files.

    Attributes:
        error: why the current content is refused; empty while it is in force.
        applied: number of contents applied.
        refused: number of contents refused.
        last_success: time of the last apply, seconds since the epoch; 0 for never.

    """

    error: str = ""
    applied: int = 0
    refused: int = 0
    last_success: float = 0.0


class FileStore(Protocol):
    """What the files are applied to: a store, or the merge of several sources before it."""

    def policies(self) -> Sequence[StoredPolicy]:
        """Return all policies in force."""

    async def replace_files(self, policies: Sequence[OwnedManifest]) -> AppliedAll:
        """Replace the policies of files, all or none."""


class FileSource:
    """Applies policy files to the store.

    Attributes:
        path: a file or a directory.
        status: replaced as a whole, so that any thread may read it.

    """

    def __init__(
        self,
        path: Path,
        store: FileStore,
        *,
        clock: Clock = time.time,
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Apply the files at *path* to *store*; *on_refused* gets the sentence when a content is refused."""
        self.path = path
        self.status = FileStatus()
        self._store = store
        self._clock = clock
        self._on_refused = on_refused
        self._seen: DirectoryState | None = None
        self._applied: DirectoryState | None = None
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Apply the files and keep polling. A refusal or a hung filesystem does not block the start for more than 5 s."""
        self._task = asyncio.ensure_future(self._follow())
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            _log.warning(
                "policy files not read in time; the last policies stay in force",
                path=str(self.path),
            )

    async def stop(self) -> None:
        """Stop polling. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def describe(self, status: AgentStatus) -> None:
        """Fill the fields of ``GetStatus`` about the files."""
        status.policy_file = str(self.path)
        status.policy_file_error = self.status.error

    async def _follow(self) -> None:
        while True:
            try:
                seconds = await self.poll()
            except Exception:  # noqa: BLE001  (a bug must not end the loop)
                _log.exception("policy files could not be polled", path=str(self.path))
                seconds = POLL_SECONDS
            if seconds == POLL_SECONDS:
                self._settled.set()
            await asyncio.sleep(seconds)

    async def poll(self) -> float:
        """Poll once, apply files that are stable, and return the seconds until the next poll."""
        found = await run_on_daemon_thread(scan_directory, self.path)
        if found == self._applied:
            return POLL_SECONDS
        if found != self._seen:
            self._seen = found
            return SETTLE_SECONDS
        try:
            texts = await run_on_daemon_thread(read_files, found)
            if await run_on_daemon_thread(scan_directory, self.path) != found:
                return SETTLE_SECONDS
            await self._apply(texts)
        except OSError:
            # A file was removed between two polls.
            return SETTLE_SECONDS
        except (FullError, StateError) as error:
            # Not an error of the files: retry the same content.
            if str(error) != self.status.error:
                self._refuse(error)
            return POLL_SECONDS
        except FilesError as error:
            self._refuse(error)
        self._applied = found
        return POLL_SECONDS

    async def _apply(self, texts: dict[str, str]) -> None:
        present = {policy.manifest.canonical for policy in self._store.policies()}
        now = datetime.fromtimestamp(self._clock(), UTC)
        checked = await asyncio.to_thread(parse_files, texts, present, now)
        for place in checked.expired:
            _log.warning("a policy of a file has expired and is skipped", policy=place)
        self._warn_of_takeovers(checked.policies)
        applied = await self._store.replace_files(checked.policies)
        changed = {item.name for item in applied.results}
        for item in checked.policies:
            # agentctl requires --all; files are expected to be reviewed.
            if item.manifest.fails_everywhere and item.manifest.name in changed:
                _log.warning("a policy of a file makes every engine fail loads", policy=item.manifest.name)
        _log.info(
            "policy files in force",
            path=str(self.path),
            policies=len(checked.policies),
            changes=[f"{item.name} {item.result}" for item in applied.results],
            store_generation=applied.store_generation,
        )
        self.status = replace(
            self.status, error="", applied=self.status.applied + 1, last_success=self._clock()
        )

    def _warn_of_takeovers(self, policies: tuple[OwnedManifest, ...]) -> None:
        owners = {item.manifest.name: item.owner for item in policies}
        for policy in self._store.policies():
            name = policy.manifest.name
            if name in owners and policy.owner == IMPERATIVE:
                _log.warning(
                    "a file takes over a policy that was set by hand; 'agentctl get audit' has its content",
                    policy=name,
                    file=owners[name],
                    author=policy.author,
                    generation=policy.generation,
                )

    def _refuse(self, error: PenstockError) -> None:
        owned = sum(policy.owner != IMPERATIVE for policy in self._store.policies())
        _log.error(
            "policy files refused; the last valid ones stay in force",
            path=str(self.path),
            error=str(error),
            in_force=owned,
        )
        self.status = replace(self.status, error=str(error), refused=self.status.refused + 1)
        self._on_refused(str(error))
