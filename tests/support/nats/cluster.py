"""Three real nats-servers as one cluster, and what a guide says an agent's user may do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from demo.common.processes import free_port
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext

_GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "fleet.md"


class NatsCluster:
    """Three servers named n0, n1 and n2; each may be killed and started again."""

    def __init__(self, directory: Path, config: str = "") -> None:
        """Keep the data below *directory*; *config* is added to each configuration."""
        ports, routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.servers = {
            f"n{number}": NatsServer(
                directory / f"n{number}",
                port=port,
                config=f"server_name: n{number}\n"
                f'cluster: {{name: c, listen: "127.0.0.1:{route}", routes: [{urls}]}}\n{config}',
            )
            for number, (port, route) in enumerate(zip(ports, routes, strict=True))
        }

    @property
    def urls(self) -> list[str]:
        """The addresses for clients."""
        return [server.url for server in self.servers.values()]

    def start(self) -> NatsCluster:
        """Start all."""
        for server in self.servers.values():
            server.start()
        return self

    def kill(self) -> None:
        """Kill all. Idempotent."""
        for server in self.servers.values():
            server.kill()


async def leader_of(stream: JetStreamContext, bucket: str) -> str:
    """Return the name of the server that leads the bucket's stream; empty while a replica is behind, or there is no leader."""
    cluster = (await stream.stream_info(f"KV_{bucket}")).cluster
    replicas = (cluster.replicas or []) if cluster is not None else []
    whole = len(replicas) == 2 and all(
        each.current and not each.offline and not each.lag for each in replicas
    )
    return cluster.leader or "" if cluster is not None and whole else ""


def users_of_guide() -> str:
    """Return a configuration with the user ``ops``, who may do all, and ``agent`` and ``relay`` with the guide's permissions.

    The password is the first letter of the name.
    """
    lists = re.findall(r"^(?:publish|subscribe): (\[.*?\])", _GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    users = ['{user: ops, password: "o"}']
    for name, publish, subscribe in zip(("agent", "relay"), lists[::2], lists[1::2], strict=True):
        permissions = f"permissions: {{publish: {publish}, subscribe: {subscribe}}}"
        users.append(f'{{user: {name}, password: "{name[0]}", {permissions}}}')
    return f"authorization: {{users: [{', '.join(users)}]}}"
