"""Policies that follow files: looked at once a second, taken as a whole once they have come to rest.

Looking beats being told here: inotify sees no change on network and overlay
filesystems, has to be set up anew after every swap of a symlink, and kubelet
takes a minute to bring a ConfigMap anyway.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from penstock.agent.aio import run_on_daemon_thread
from penstock.agent.errors import FilesError, FullError, PenstockError, StateError
from penstock.agent.policy.files.directory_state import DirectoryState, look, read
from penstock.agent.policy.files.parse import check
from penstock.agent.policy.store import IMPERATIVE, Clock, OwnedManifest

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.policy.store import Store
    from penstock.proto.v1.admin_pb2 import AgentStatus

_log = structlog.get_logger(__name__)

# Between looks; and after one that found something new, which is only taken if it stays the same.
LOOK_SECONDS = 1.0
SETTLE_SECONDS = 0.25
# How long the start waits: files may not come to rest, and a filesystem may hang.
START_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class FileStatus:
    """How the files are.

    Attributes:
        error: why their present content is refused; empty while it is in force.
        applied: how often a content was taken.
        refused: how often one was refused.
        last_success: when one was last taken, in seconds since the epoch; 0 for never.

    """

    error: str = ""
    applied: int = 0
    refused: int = 0
    last_success: float = 0.0


class FileSource:
    """Keeps the store's policies of files as the files have them.

    Attributes:
        path: a file or a directory.
        status: replaced as a whole, so that any thread may read it.

    """

    def __init__(self, path: Path, store: Store, *, clock: Clock = time.time) -> None:
        self.path = path
        self.status = FileStatus()
        self._store = store
        self._clock = clock
        self._seen: DirectoryState | None = None
        self._taken: DirectoryState | None = None
        self._looked = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take what there is, and follow it; neither a refusal nor a filesystem that hangs stops the start."""
        self._following = asyncio.ensure_future(self._follow())
        try:
            await asyncio.wait_for(self._looked.wait(), START_SECONDS)
        except TimeoutError:
            _log.warning(
                "policy files cannot be read in time; what was in force last stays until then",
                path=str(self.path),
            )

    async def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    def describe(self, status: AgentStatus) -> None:
        """Fill in what ``GetStatus`` says about the files."""
        status.policy_file = str(self.path)
        status.policy_file_error = self.status.error

    async def _follow(self) -> None:
        while True:
            try:
                seconds = await self.poll()
            except Exception:  # noqa: BLE001  (a bug in here must not end the following for good)
                _log.exception("policy files could not be looked at", path=str(self.path))
                seconds = LOOK_SECONDS
            if seconds == LOOK_SECONDS:
                self._looked.set()
            await asyncio.sleep(seconds)

    async def poll(self) -> float:
        """Look once, and take what has come to rest; returns the seconds until the next look."""
        found = await run_on_daemon_thread(look, self.path)
        if found == self._taken:
            return LOOK_SECONDS
        if found != self._seen:
            self._seen = found
            return SETTLE_SECONDS
        try:
            texts = await run_on_daemon_thread(read, found)
            if await run_on_daemon_thread(look, self.path) != found:
                return SETTLE_SECONDS
            await self._take(texts)
        except OSError:
            # It went between two looks.
            return SETTLE_SECONDS
        except (FullError, StateError) as error:
            # Not the files' fault: the same content is tried again.
            if str(error) != self.status.error:
                self._refuse(error)
            return LOOK_SECONDS
        except FilesError as error:
            self._refuse(error)
        self._taken = found
        return LOOK_SECONDS

    async def _take(self, texts: dict[str, str]) -> None:
        present = {policy.manifest.canonical for policy in self._store.policies()}
        now = datetime.fromtimestamp(self._clock(), UTC)
        checked = await asyncio.to_thread(check, texts, present, now)
        for place in checked.expired:
            _log.warning("a policy of a file has expired and is left out", policy=place)
        self._warn_of_takeovers(checked.policies)
        applied = await self._store.replace_files(checked.policies)
        changed = {item.name for item in applied.results}
        for item in checked.policies:
            # agentctl asks for --all; whoever changes files has a review for that.
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
                    "a file takes a policy over that was set by hand; 'agentctl get audit' has its content",
                    policy=name,
                    file=owners[name],
                    author=policy.author,
                    generation=policy.generation,
                )

    def _refuse(self, error: PenstockError) -> None:
        owned = sum(policy.owner != IMPERATIVE for policy in self._store.policies())
        _log.error(
            "policy files refused; the last good ones stay in force",
            path=str(self.path),
            error=str(error),
            in_force=owned,
        )
        self.status = replace(self.status, error=str(error), refused=self.status.refused + 1)
