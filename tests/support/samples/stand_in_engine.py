"""An engine's process without vLLM: the real runtime of the instrumentation, and what a test has it report.

``python -m tests.support.samples.stand_in_engine`` stands in for ``vllm serve``: it takes its environment, reports as an
engine that serves, and ends with SIGTERM.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants, settings
from penstock.instrumentation.runtime import Runtime
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_CLOSED, QUARANTINE_STATE_OPEN

from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1.snapshot_pb2 import Snapshot

_FIELDS = ("kv_load_failure", "ec_load_failure", "deferral", "peer_quarantine", "telemetry")
_HOOKS = ("scheduler", "kv_connector", "nixl", "client_error")
_SECOND = 1_000_000_000
_LOOK_SECONDS = 0.5


class StandInEngine:
    """One EngineCore, its scheduler and its worker.

    Attributes:
        runtime: of the process; emits.
        facts: fields of the snapshot that are always the same.

    """

    def __init__(self, environment: Mapping[str, str], engine: str = "0", **facts: Any) -> None:
        self.runtime = Runtime()
        self.facts: dict[str, Any] = {"engine": facts}
        self._name, self._environment = engine, environment
        self._model = str(facts.get("model", "tiny"))
        self._filled = 0
        self._made = time.time_ns()

    def start(self) -> StandInEngine:
        """Report as an engine that has started, and wait until the agent has its first snapshot and it its policy."""
        runtime = self.runtime
        runtime.configure(settings.load(self._environment))
        assert runtime.settings is not None
        runtime.snapshots.add("stand-in", self._fill)
        runtime.identify(process="engine-core", key=self._name, model=self._model, vllm_version="0.32.0")
        runtime.start_policy(_FIELDS)
        return self

    def settle(self) -> None:
        """Wait until the agent has all that was emitted, and a snapshot that was made after this call."""
        wait_until(lambda: acknowledged(self.runtime), "the agent has acknowledged all entries")
        client = self.runtime._policy_client
        wait_until(lambda: client is not None and client._heard, "the first push")
        before = self._filled
        # The second one is made when the first has been sent.
        wait_until(lambda: self._filled >= before + 2, "two more snapshots")

    def stop(self) -> None:
        """Say goodbye."""
        self.runtime.stop(5.0)

    def rebase(self) -> None:
        """Count *ago* from now on."""
        self._made = time.time_ns()

    def moment(self, ago: float) -> int:
        """Return the wall clock *ago* seconds before this engine was made or :meth:`rebase` was called, in nanoseconds."""
        return self._made - int(ago * _SECOND)

    def emit(
        self, kind: str, request_id: str = "", *, ago: float = 0.0, worker: bool = False, **fields: Any
    ) -> None:
        """Emit an event that happened *ago* seconds before."""
        self.runtime.emit_event(
            kind,
            fields,
            component=constants.COMPONENT_WORKER if worker else constants.COMPONENT_SCHEDULER,
            request_id=request_id,
            time_ns=self.moment(ago),
        )

    def defer(self, request_id: str, *, ago: float, reason: int, channel: int, peer: str) -> None:
        """Have a request wait for *peer* from *ago* seconds before on, to the end."""
        self.emit(
            "deferral_start", request_id, ago=ago, reason=reason, channel=channel, peer={"address": peer}
        )
        waiting = {"reason": reason, "peer": {"address": peer}, "count": 1}
        self.facts["deferred"] = [{**waiting, "oldest_start_time_unix_nano": self.moment(ago)}]

    def _fill(self, snapshot: Snapshot) -> None:
        self._filled += 1
        snapshot.MergeFrom(type(snapshot)(**self.facts))
        runtime = self.runtime
        assert runtime.settings is not None
        snapshot.engine.labels.update(runtime.settings.labels)
        role = runtime.settings.labels.get("role", "")
        snapshot.engine.role = constants.ROLES.get(role, 0)  # type: ignore[assignment]
        snapshot.engine.faults_allowed = runtime.settings.allow_faults
        for name in _HOOKS:
            snapshot.hooks.add(name=name, component=constants.COMPONENT_SCHEDULER, installed=True)
        policy = runtime.policy.current
        rule = policy.kv_load_failure
        snapshot.policy.kv_action = rule.action.value if rule is not None and rule.action else "fail"
        for order in runtime.policy.orders.quarantines:
            until = time.time_ns() + (order.ttl_ns or 0)
            snapshot.peers.add(
                peer={"address": order.peer},
                quarantine=QUARANTINE_STATE_OPEN if order.quarantined else QUARANTINE_STATE_CLOSED,
                quarantine_until_unix_nano=until if order.quarantined else 0,
                last_active_unix_nano=time.time_ns(),
            )


def main() -> None:
    """Serve until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    engine = StandInEngine(os.environ, model="tiny").start()
    # A signal that comes just before a wait begins does not end that wait.
    while not ended.wait(_LOOK_SECONDS):
        pass
    engine.stop()


if __name__ == "__main__":
    main()
