"""The loads of a consumer that reads from other engines: it can be kept from them, and its reads can be rehearsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.ec.cpu.announcements import announced_peer, withdraw
from penstock.instrumentation.vllm.ec.cpu.loads import CpuLoads
from penstock.instrumentation.vllm.naming import UNKNOWN, address

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.resilience import Drill


class RemoteCpuLoads(CpuLoads):
    """With NIXL: an ``EcPeerSource`` and an ``EcRehearsal`` besides. A request names one producer for each item."""

    def candidates(self, request: Any, feature: Any) -> tuple[str, ...]:
        """Return the producer that the request names for the item, if it would be asked now or has not answered yet.

        vLLM asks again in the call in which it notices that no answer has come, so a silent producer is always being asked.
        """
        part, item = self._part, feature.identifier
        peer = announced_peer(request, item)
        if peer is None or peer.address == UNKNOWN or item in part._tombstones:
            return ()
        read = self._reads.get(item)
        asks = read is not None and not read.began_ns and read.peer == peer and item in part._in_flight
        return (peer.address,) if asks or part._cache.get(item) is None else ()

    def keep_to(self, request: Any, feature: Any, peers: tuple[str, ...]) -> None:
        """Have the request encode the item here, where it is kept from the only producer that it names."""
        if not peers:
            withdraw(request, feature.identifier)
            self.end_wait(request, feature.identifier)

    def connected(self) -> frozenset[str]:
        """Return the producers whose memory NIXL knows; from any thread."""
        sessions = self._part._sessions.copy().items()
        return frozenset(address(*peer) for peer, session in sessions if session._nixl_agent_name is not None)

    def rehearse(self, hit: Callable[[int, str], Drill | None]) -> None:
        """Ask *hit* once for each attempt."""
        self._rehearsal.hit = hit

    def rehearsed(self, item: str) -> bool:
        """Return whether a drill makes *item* late."""
        return self._rehearsal.made_late(item)
