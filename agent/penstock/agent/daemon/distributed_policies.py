"""The stored policies with what distributes them; those of ``--policy-file`` are applied first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import StateError
from penstock.agent.policy.distribution import PolicyFeed

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from penstock.agent.daemon.opened_state import StoredPolicies
    from penstock.agent.policy.files.file_source import FileSource
    from penstock.agent.policy.store import PolicyStore
    from penstock.agent.sources import EngineOwners

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DistributedPolicies:
    """The policies with what distributes them; *files* is None without ``--policy-file``."""

    stored: StoredPolicies
    feed: PolicyFeed
    files: FileSource | None


async def distribute_policies(
    stored: StoredPolicies, owners: EngineOwners, policy_file: Path | None, parts: AsyncExitStack
) -> DistributedPolicies:
    """Return the policies with their feed; those of the files are applied, and followed until *parts* close.

    Raises:
        PenstockError: the files cannot be applied.

    """
    files = None
    if policy_file is None:
        await _release_files(stored.store)
    else:
        files = await _follow_files(policy_file, stored.store, parts)
    return DistributedPolicies(
        stored, PolicyFeed(stored.store, stored.pauses, stored.orders, owners=owners), files
    )


async def _follow_files(policy_file: Path, store: PolicyStore, parts: AsyncExitStack) -> FileSource:
    """Apply the policy files before the first engine subscribes."""
    # Imported late: an agent without a file needs no YAML.
    from penstock.agent.policy.files.file_source import FileSource  # noqa: PLC0415

    files = FileSource(policy_file, store)
    parts.push_async_callback(files.stop)
    await files.start()
    return files


async def _release_files(store: PolicyStore) -> None:
    """Let ``agentctl`` change the policies that files of an earlier start hold."""
    try:
        released = await store.release_files()
    except StateError as error:
        _log.warning(
            "--policy-file is no longer set; its policies could not be released and stay read-only until a restart",
            error=str(error),
        )
        return
    if released.results:
        _log.warning(
            "--policy-file is no longer set; its policies stay in force and can be changed with agentctl",
            policies=[item.name for item in released.results],
        )
