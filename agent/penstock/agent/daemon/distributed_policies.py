"""The stored policies with what distributes them; those of the policy sources are applied first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import ConfigError, StateError
from penstock.agent.policy.distribution import PolicyFeed
from penstock.agent.policy.sources.options import nats_access
from penstock.agent.policy.store import FILE_PREFIX, IMPERATIVE

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from typing import TypeGuard

    from penstock.agent.daemon.config import Config
    from penstock.agent.daemon.opened_state import StoredPolicies
    from penstock.agent.policy.files.file_source import FileStatus
    from penstock.agent.policy.sources import ManifestSource, SourceSpec
    from penstock.agent.policy.sources.followed_files import FollowedFiles
    from penstock.agent.policy.sources.follower import SourceFollower
    from penstock.agent.policy.store import PolicyStore
    from penstock.agent.sources import EngineOwners
    from penstock.proto.v1.admin_pb2 import AgentStatus

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DistributedPolicies:
    """The policies with what distributes them; *sources* is None without ``--policy-source``.

    Attributes:
        files: the sources that are files.

    """

    stored: StoredPolicies
    feed: PolicyFeed
    sources: SourceFollower | None
    files: tuple[FollowedFiles, ...] = ()

    def file_status(self) -> FileStatus | None:
        """Return the state of the policy files, of several one that is refused; None for none. Any thread."""
        states = [each.status for each in self.files if each.status is not None]
        return next((state for state in states if state.error), states[0] if states else None)

    def describe(self, status: AgentStatus) -> None:
        """Fill the fields of ``GetStatus`` about the sources."""
        if self.sources is not None:
            self.sources.describe(status)
        if self.files:
            shown = next((each for each in self.files if each.status and each.status.error), self.files[0])
            status.policy_file = str(shown.path)
            status.policy_file_error = shown.status.error if shown.status is not None else ""


async def distribute_policies(
    stored: StoredPolicies, owners: EngineOwners, config: Config, parts: AsyncExitStack
) -> DistributedPolicies:
    """Return the policies with their feed; the sources are applied, and followed until *parts* close.

    Raises:
        PenstockError: a source cannot be made.

    """
    store = stored.store
    sources = [_source(spec, config, store) for spec in config.policy_sources]
    files = tuple(each for each in sources if _is_files(each))
    follower = await _follow(sources, store, parts)
    feed = PolicyFeed(store, stored.pauses, stored.orders, owners=owners)
    return DistributedPolicies(stored, feed, follower, files)


def _is_files(source: ManifestSource) -> TypeGuard[FollowedFiles]:
    return source.kind == "file"


def _source(spec: SourceSpec, config: Config, store: PolicyStore) -> ManifestSource:
    """Return the source; its modules are imported late, for an agent without it needs none of them."""
    if spec.kind == "file":
        from penstock.agent.policy.sources.followed_files import FollowedFiles  # noqa: PLC0415

        return FollowedFiles(Path(spec.place), store)
    if spec.kind == "nats":
        return _nats(spec, config)
    if spec.kind == "kubernetes":
        from penstock.agent.policy.sources.followed_objects import follow_objects  # noqa: PLC0415

        return follow_objects(spec, config.kube_api, config.kube_token_file, config.kube_ca)
    raise ConfigError(f"--policy-source {spec.name}: this version has no source of that kind")


def _nats(spec: SourceSpec, config: Config) -> ManifestSource:
    access = nats_access(spec, config.nats, "--policy-source")
    from penstock.agent.policy.sources.nats.source import NatsSource  # noqa: PLC0415

    return NatsSource(spec.name, access, spec.place)


async def _follow(
    sources: list[ManifestSource], store: PolicyStore, parts: AsyncExitStack
) -> SourceFollower | None:
    """Apply the sources before the first engine subscribes."""
    if not sources:
        await _release(store, None)
        return None
    from penstock.agent.policy.sources.follower import SourceFollower  # noqa: PLC0415

    follower = SourceFollower(sources, store)
    await _release(store, follower)
    parts.push_async_callback(follower.stop)
    await follower.start()
    return follower


async def _release(store: PolicyStore, follower: SourceFollower | None) -> None:
    """Let ``agentctl`` change the policies that sources of an earlier start hold."""
    kept = _nothing if follower is None else follower.owns
    gone = [each for each in store.policies() if each.owner != IMPERATIVE and not kept(each.owner)]
    if not gone:
        return
    files = all(each.owner.startswith(FILE_PREFIX) for each in gone)
    what = "--policy-file" if files else "a --policy-source"
    try:
        await store.release_files(kept)
    except StateError as error:
        _log.warning(
            f"{what} is no longer set; its policies could not be released and stay read-only until a restart",
            error=str(error),
        )
        return
    _log.warning(
        f"{what} is no longer set; its policies stay in force and can be changed with agentctl",
        policies=[each.manifest.name for each in gone],
    )


def _nothing(_owner: str) -> bool:
    return False
