"""What happens in each film: the traffic, the fault and its remedy."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from demo.common.client import complete
from demo.common.steps import until
from tests.support.kv.peers import Spare, signal_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.servers import Server
    from tests.support.kv.bench import Bench

_POLICY: Final = "no-recompute"


class Scene:
    """A fault and its remedy on a pair of engines; without a fault, nothing happens.

    Attributes:
        request: sends the next request of the traffic; from one thread.

    """

    def __init__(self, kv: Bench) -> None:
        self.kv = kv
        self.sent = 0
        self.request: Callable[[], None] = self.well

    def well(self) -> None:
        """Send a request through prefill and decode."""
        self.sent += 1
        self.kv.decode(self.kv.prefilled())

    def open(self) -> None:
        """Start what the scene needs beside the pair."""

    def begin(self) -> None:
        """Cause the fault."""

    def middle(self) -> None:
        """Do what the film does in its midst, a minute after the fault."""

    def remedy(self) -> None:
        """Repair it."""

    def close(self) -> None:
        """Stop what the scene has started."""


class _PolicyOfFail(Scene):
    """One request of three is sent to a pod that has gone, and a policy lets it fail; the policy is deleted, the router stays."""

    def _misled(self) -> None:
        self.sent += 1
        self.kv.decode(self.kv.misled() if self.sent % 3 == 0 else self.kv.prefilled())

    def begin(self) -> None:
        self.request = self._misled
        ran = self.kv.agent.ctl(
            "set-policy",
            _POLICY,
            "-l",
            "role=decode",
            "--kv-load-failure",
            "fail",
            "--reason",
            "INC-1",
            "--yes",
        )
        assert ran.code == 0, ran.output

    def remedy(self) -> None:
        self.request = self.well
        ran = self.kv.agent.ctl("delete", "policy", _POLICY)
        assert ran.code == 0, ran.output


class _Router(Scene):
    """The router computes the prompt on prefill and does not tell decode, in one of *every* requests."""

    every = 1

    def _bare(self) -> None:
        self.sent += 1
        request = self.kv.prefilled()
        if self.sent % self.every:
            self.kv.decode(request)
        else:
            complete(self.kv.stack.decode.url, request.prompt, max_tokens=4)

    def begin(self) -> None:
        self.request = self._bare

    def remedy(self) -> None:
        self.request = self.well


class _RouterOfAThird(_Router):
    every = 3


class _RouterAndAgent(_Router):
    """The same, and the agent restarts in the middle."""

    def middle(self) -> None:
        self.kv.agent.stop()
        self.kv.agent.start()


class _TwoPods(Scene):
    """A second prefill pod, to which every other request goes; the fault ends it, the remedy is a new one."""

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv)
        self._spare = Spare(kv.stack, "prefill-b")
        self._server: Server | None = None
        self._peer: dict[str, object] = {}
        self.request = self._both

    def open(self) -> None:
        self._server = self._spare.server()

    def _both(self) -> None:
        self.sent += 1
        with suppress(OSError):
            if self.sent % 2 or self._server is None:
                self.kv.decode(self.kv.prefilled())
                return
            request = self.kv.prefilled(server=self._server)
            names = ("remote_host", "remote_port", "remote_engine_id")
            self._peer = {name: request.params[name] for name in names}
            self.kv.decode(request)

    def remedy(self) -> None:
        self._server = self._spare.server()

    def close(self) -> None:
        self._spare.stop()


class _Stopped(_TwoPods):
    """The pod is stopped as Kubernetes does, after the router has let go of it."""

    def begin(self) -> None:
        server, self._server = self._server, None
        assert server is not None
        server.child.signal(signal.SIGTERM)
        until(lambda: not server.child.running, "The server has not ended")
        signal_group(server, signal.SIGKILL)
        self._spare.stop()


class _Killed(_TwoPods):
    """The pod is killed, and the router goes on to name it."""

    def _stale(self) -> None:
        self.sent += 1
        request = self.kv.prefilled()
        self.kv.decode(request if self.sent % 2 else request.redirected(**self._peer))

    def begin(self) -> None:
        self.request, self._server = self._stale, None
        self._spare.kill()

    def remedy(self) -> None:
        super().remedy()
        self.request = self._both


SCENES: Final[dict[str, type[Scene]]] = {
    "calm": Scene,
    "policy-of-fail": _PolicyOfFail,
    "router-without-parameters": _Router,
    "router-of-a-third": _RouterOfAThird,
    "router-and-agent": _RouterAndAgent,
    "pod-stopped": _Stopped,
    "pod-killed": _Killed,
}
"""By the name of the film."""
