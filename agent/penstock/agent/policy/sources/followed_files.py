"""Policy files as a policy source. A content is in force as a whole, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from penstock.agent.errors import StateError
from penstock.agent.policy.files.file_source import FileSource
from penstock.agent.policy.sources.source_sets import CheckedSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.agent.policy.files.file_source import FileStatus
    from penstock.agent.policy.sources.follower import FollowedSource
    from penstock.agent.policy.sources.interface import SourceSink
    from penstock.agent.policy.store import AppliedAll, OwnedManifest, Store, StoredPolicy


class FollowedFiles:
    """The files of one path as a source: checks of files are their own, for they name the line."""

    kind = "file"

    def __init__(self, path: Path, store: Store) -> None:
        """Follow the file or the directory *path*; *store* has the policies in force."""
        self.path = path
        self._store = store
        self._files: FileSource | None = None
        self._sink: FollowedSource | None = None

    @property
    def name(self) -> str:
        """``file:`` and the path."""
        return f"file:{self.path}"

    @property
    def status(self) -> FileStatus | None:
        """The state of the files; None before their start. Any thread."""
        return None if self._files is None else self._files.status

    async def run(self, sink: SourceSink) -> None:
        """Follow the files until cancelled."""
        self._sink = followed = cast("FollowedSource", sink)
        self._files = files = FileSource(self.path, self, on_refused=followed.report)
        followed.connected()
        try:
            await files.start()
            followed.settled.set()
            await asyncio.Event().wait()
        finally:
            await files.stop()

    def policies(self) -> Sequence[StoredPolicy]:
        """Return the policies in force."""
        return self._store.policies()

    async def replace_files(self, policies: Sequence[OwnedManifest]) -> AppliedAll:
        """Hand over the policies of the files.

        Raises:
            FullError: there would be too many policies.
            StateError: the database cannot be written.

        """
        if self._sink is None:
            raise StateError("the policy files are not followed yet")
        return await self._sink.put(CheckedSet({item.manifest.name: item for item in policies}))
