"""Children that are forks of a process that has imported vLLM, for :class:`demo.servers.Server`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demo.common.processes import Child
from demo.servers import ROOT, ServerSpec
from demo.servers import _environment as environment
from tests.support.forks.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class ForkedChild(Child):
    """A child that is a fork of the fork server, which starts with the first one; a Popen where a fork does not fit."""

    server: ForkServer | None = None

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        cls = type(self)
        if cls.server is None:
            common = environment(ServerSpec("any"), side_channel_port=0)
            cls.server = ForkServer("tests.support.engine.preloaded", env=common, cwd=ROOT)
        if not cls.server.fits(command, env):
            super().__init__(name, command, env=env, cwd=cwd, log=log)
            return
        self.name = name
        self.log = log
        self._exit_code = None
        log.touch()
        self._process: Any = cls.server.fork(command, env=env, cwd=cwd, output=log, errors=log, session=True)

    @classmethod
    def end_server(cls) -> None:
        """End the fork server, if there is one; its forks go on."""
        if cls.server is not None:
            cls.server.close()
            cls.server = None
