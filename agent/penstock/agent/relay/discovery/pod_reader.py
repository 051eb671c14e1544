"""Finds the agents in the pods of a Kubernetes namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.errors import ClusterError
from penstock.agent.policy.sources import SourceSpec
from penstock.agent.relay.discovery.agent_places import AgentPlace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from penstock.agent.relay.discovery.agent_places import PodSelector


def pod_reader(
    selector: PodSelector, api: str, token_file: Path | None, ca: Path | None
) -> Callable[[], Awaitable[list[AgentPlace]]]:
    """Return what lists the agents of *selector*; it raises OSError where it cannot. An agent goes by its pod's name.

    Args:
        selector: of the pods.
        api: address of the API server; empty for that of this pod.
        token_file: for *api*.
        ca: for *api*.

    Raises:
        ConfigError: an option is missing, or this is no pod.

    """
    from penstock.agent.policy.kubernetes import ApiClient  # noqa: PLC0415
    from penstock.agent.policy.sources.followed_objects import cluster_access  # noqa: PLC0415

    spec = SourceSpec("kubernetes", selector.namespace)
    access = cluster_access(spec, api, token_file, ca, option="--agents kubernetes")

    async def read() -> list[AgentPlace]:
        try:
            async with ApiClient(access) as client:
                found = await client.pod_addresses(selector.labels)
        except ClusterError as error:
            raise OSError(str(error)) from error
        return [AgentPlace(name, _place(address, selector.port)) for name, address in sorted(found.items())]

    return read


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
