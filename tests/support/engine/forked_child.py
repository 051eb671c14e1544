"""Children that are forks of a process that has imported vLLM, for :class:`demo.servers.Server` and the ranks of ``demo.eplb``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from demo.common.processes import Child
from demo.servers import ROOT, ServerSpec
from demo.servers import _environment as environment
from tests.support.forks.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_RANK = "demo.eplb.rank"
_OF_SERVERS = "tests.support.engine.preloaded"


class ForkedChild(Child):
    """A child that is a fork of a fork server, which starts with the first one; a Popen where a fork does not fit."""

    _fork_servers: ClassVar[dict[str, ForkServer]] = {}

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        # A rank has not loaded the kernels that a server has: vLLM's CPU group looks whether they are there.
        server = self._server(_RANK if _RANK in command else _OF_SERVERS)
        if not server.fits(command, env):
            super().__init__(name, command, env=env, cwd=cwd, log=log)
            return
        self.name = name
        self.log = log
        self._exit_code = None
        log.touch()
        self._process: Any = server.fork(command, env=env, cwd=cwd, output=log, errors=log, session=True)

    @classmethod
    def _server(cls, imported: str) -> ForkServer:
        if imported not in cls._fork_servers:
            common = environment(ServerSpec("any"), side_channel_port=0)
            cls._fork_servers[imported] = ForkServer(imported, env=common, cwd=ROOT, read=["OMP_NUM_THREADS"])
        return cls._fork_servers[imported]

    @classmethod
    def end_servers(cls) -> None:
        """End the fork servers, and what still runs of their forks."""
        while cls._fork_servers:
            cls._fork_servers.popitem()[1].close()
