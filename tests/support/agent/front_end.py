"""The engine side's real runtime in the place of an API server, which answers for its readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants, settings
from penstock.instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from penstock.proto.v1.snapshot_pb2 import Snapshot

    from tests.support.agent.agent import AgentProcess


class FrontEnd:
    """The API process of a server."""

    def __init__(self, agent: AgentProcess) -> None:
        """Begin it; it connects as one that serves."""
        self.runtime = Runtime()
        self.runtime.configure(settings.load({"PENSTOCK_ENDPOINT": agent.listen}))
        self.runtime.snapshots.add("hooks", _hooks)
        self.runtime.identify(process="api", model="tiny", vllm_version="0.32.0")
        self.runtime.start()

    @property
    def out(self) -> bool:
        """Whether its readiness answers 503."""
        return self.runtime.session.seconds_out_of_rotation > 0


def _hooks(snapshot: Snapshot) -> None:
    snapshot.hooks.add(name="readiness", component=constants.COMPONENT_FRONTEND, installed=True)
