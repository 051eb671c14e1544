"""Faults of those who send requests: routers, clients and operators."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from demo.common.client import complete
from tests.films.scenes.base import PairScene, TwoPodScene
from tests.support.kv.peers import LEASE_SECONDS

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench, Prefilled

_POLICY: Final = "no-recompute"


class Calm(PairScene):
    """Nothing happens."""


class NoTraffic(PairScene):
    """Nobody sends a request."""

    def begin(self) -> None:
        """Send none."""
        self.request = lambda: None

    def remedy(self) -> None:
        """Send some again."""
        self.request = self.well


class PolicyOfFail(PairScene):
    """One request of three is sent to a pod that has gone, and a policy lets it fail; both end."""

    def _misled(self) -> None:
        self.sent += 1
        self.kv.decode(self.kv.misled() if self.sent % 3 == 0 else self.kv.prefilled())

    def begin(self) -> None:
        """Mislead, and apply the policy."""
        self.request = self._misled
        self.ctl(
            *("set-policy", _POLICY, "-l", "role=decode", "--kv-load-failure", "fail"),
            *("--reason", "INC-1"),
        )

    def remedy(self) -> None:
        """Delete the policy."""
        self.request = self.well
        self.ctl("delete", "policy", _POLICY)


class Router(PairScene):
    """The router computes the prompt on prefill and does not tell decode, in one of *every* requests."""

    every = 1

    def bare(self) -> None:
        """Send a request; it may lack the parameters."""
        self.sent += 1
        request = self.kv.prefilled()
        if self.sent % self.every:
            self.kv.decode(request)
        else:
            complete(self.kv.stack.decode.url, request.prompt, max_tokens=4)

    def begin(self) -> None:
        """Leave them out."""
        self.request = self.bare

    def remedy(self) -> None:
        """Send them again."""
        self.request = self.well


class RouterOfAThird(Router):
    """One request in three lacks them."""

    every = 3


class RouterAndAgent(Router):
    """The same, and the agent restarts in the middle."""

    def middle(self) -> None:
        """Restart it, where Prometheus finds it again."""
        http = self.agent.http
        self.agent.stop()
        self.agent.start(http)


class TwoCauses(RouterOfAThird):
    """One request in three lacks the parameters, and the operator has cut off the peer for all others."""

    def begin(self) -> None:
        """Break the router, and put prefill in quarantine."""
        super().begin()
        self.ctl("quarantine", "add", self.kv.stack.prefill.peer, "--ttl", "1h", "--reason", "INC-2")

    def remedy(self) -> None:
        """Undo both."""
        super().remedy()
        self.ctl("quarantine", "lift", self.kv.stack.prefill.peer)


class ForgottenQuarantine(PairScene):
    """An operator cut off a peer that is well."""

    def begin(self) -> None:
        """Put it in quarantine."""
        self.ctl("quarantine", "add", self.kv.stack.prefill.peer, "--ttl", "1h", "--reason", "INC-9")

    def remedy(self) -> None:
        """Lift it."""
        self.ctl("quarantine", "lift", self.kv.stack.prefill.peer)


class StaleReference(PairScene):
    """One request in two names the blocks of another prompt; digests are sampled."""

    def open(self) -> None:
        """Compare all digests."""
        self.kv.enforce(selector={}, integrity={"sampleRatio": 1.0, "action": "observe"})

    def _stale(self) -> None:
        self.sent += 1
        if self.sent % 2:
            self.kv.decode(self.kv.prefilled(6))
            return
        other, request = self.kv.prefilled(6), self.kv.prefilled(6)
        blocks = [
            theirs[: len(own)]
            for theirs, own in zip(
                other.params["remote_block_ids"], request.params["remote_block_ids"], strict=True
            )
        ]
        self.kv.decode(request.redirected(remote_block_ids=blocks))

    def begin(self) -> None:
        """Name the wrong ones."""
        self.request = self._stale

    def remedy(self) -> None:
        """Name the right ones."""
        self.request = self.well


class WrongEngineAtAddress(PairScene):
    """One request in two is sent to decode's own side channel."""

    def _misled(self) -> None:
        self.sent += 1
        request = self.kv.prefilled()
        if self.sent % 2 == 0:
            request = request.redirected(
                remote_port=self.kv.stack.decode.side_channel_port,
                remote_engine_id=f"{request.engine_id[:-4]}{self.sent:04d}",
            )
        self.kv.decode(request)

    def begin(self) -> None:
        """Send it there."""
        self.request = self._misled

    def remedy(self) -> None:
        """Send it to prefill."""
        self.request = self.well


class LeasesUnread(TwoPodScene):
    """What the second pod computes is read by nobody."""

    def _unread(self) -> None:
        self.sent += 1
        if self.sent % 2:
            self.kv.decode(self.kv.prefilled())
        else:
            self.kv.prefilled(server=self.server)

    def begin(self) -> None:
        """Ask decode for nothing."""
        self.request = self._unread

    def remedy(self) -> None:
        """Ask it again."""
        self.request = self.both


class LateReads(TwoPodScene):
    """What the second pod computes is read after its lease has ended."""

    def __init__(self, kv: Bench) -> None:
        super().__init__(kv)
        self._waiting: deque[tuple[float, Prefilled]] = deque()

    def _late(self) -> None:
        self.sent += 1
        now = time.monotonic()
        if self._waiting and now - self._waiting[0][0] > LEASE_SECONDS + 5:
            self.kv.decode(self._waiting.popleft()[1])
        elif self.sent % 4 == 0:
            self._waiting.append((now, self.kv.prefilled(server=self.server)))
        else:
            self.kv.decode(self.kv.prefilled())

    def begin(self) -> None:
        """Read late."""
        self.request = self._late

    def remedy(self) -> None:
        """Read at once; what waits is forgotten."""
        self.request = self.both
