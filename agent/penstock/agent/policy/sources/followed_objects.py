"""TransferPolicy objects of a Kubernetes namespace as a policy source."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from penstock.agent.errors import ConfigError
from penstock.agent.policy.kubernetes import ClusterAccess, ObjectFollower, ObjectSet, read_pod_access
from penstock.agent.policy.sources.interface import SourceItem, SourceSet

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent.policy.sources.interface import SourceSink
    from penstock.agent.policy.sources.source_spec import SourceSpec

# Without TLS only to a proxy on this machine, such as `kubectl proxy`.
_URL = re.compile(r"https://[^/?#@\s]+/?|http://(127\.0\.0\.1|localhost)(:\d+)?/?")


class FollowedObjects:
    """The objects of one namespace as a source.

    Attributes:
        name: ``kubernetes`` or ``kubernetes:NAMESPACE``, as it was given.

    """

    kind = "kubernetes"

    def __init__(self, name: str, access: ClusterAccess) -> None:
        """Follow the objects that *access* reaches."""
        self.name = name
        self._access = access

    async def run(self, sink: SourceSink) -> None:
        """Follow the objects until cancelled."""
        await ObjectFollower(self._access).run(_SetSink(sink))


class _SetSink:
    """Hands objects over as manifests."""

    def __init__(self, sink: SourceSink) -> None:
        self._sink = sink
        self.connected = sink.connected
        self.away = sink.away

    async def hand_over(self, found: ObjectSet) -> float:
        items = {
            name: SourceItem(None if each.refusal else each.manifest, each.revision, each.refusal)
            for name, each in found.objects.items()
        }
        return await self._sink.hand_over(SourceSet(items, found.revision))


def follow_objects(
    spec: SourceSpec, api: str = "", token_file: Path | None = None, ca_file: Path | None = None
) -> FollowedObjects:
    """Return the source of *spec*; without *api* by what is mounted into this pod.

    Raises:
        ConfigError: a flag or a mounted file is missing or wrong.

    """
    return FollowedObjects(spec.name, cluster_access(spec, api, token_file, ca_file))


def cluster_access(
    spec: SourceSpec,
    api: str = "",
    token_file: Path | None = None,
    ca_file: Path | None = None,
    *,
    option: str = "--policy-source kubernetes",
) -> ClusterAccess:
    """Return the access to the namespace of *spec*; without *api* by what is mounted into this pod.

    Errors name *option*, which gave the namespace.

    Raises:
        ConfigError: a flag or a mounted file is missing or wrong.

    """
    if not api:
        if token_file or ca_file:
            flag = "--kube-token-file" if token_file else "--kube-ca"
            raise ConfigError(f"{flag} is given without --kube-api; add https://HOST:PORT, or leave it out")
        return read_pod_access(os.environ, spec.place, option=option)
    if not _URL.fullmatch(api):
        raise ConfigError(
            f"--kube-api {api!r} is wrong: expected https://HOST:PORT, or http://127.0.0.1:PORT of kubectl proxy"
        )
    if not spec.place:
        raise ConfigError(f"{option} with --kube-api has no namespace; write kubernetes:NAMESPACE")
    return ClusterAccess(api.rstrip("/"), spec.place, token_file, ca_file)
