"""Open deferrals: the requests that the scheduler passes over, the reason, and since when. Pure.

vLLM asks about a waiting request again at every step; only the first "not yet" and the end are events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.proto.deferral_channels import DEFERRAL_CHANNELS
from penstock.rules import DeadlineLimits, exceeded_deadline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.naming import Peer
    from penstock.rules import Policy

_REASONS = tuple(DEFERRAL_CHANNELS)


@dataclass(frozen=True, slots=True)
class OpenDeferral:
    """One wait of one request.

    Attributes:
        reason: ``DEFERRAL_REASON_*``.
        start_ns: wall clock.
        peer: the peer that it waits for, where it is known.
        transfer_start_ns: when the transfer that it waits for began; 0 while it has not.

    """

    request_id: str
    reason: int
    start_ns: int
    peer: Peer | None = None
    remote_request_id: str = ""
    transfer_start_ns: int = 0

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"reason": self.reason, "channel": DEFERRAL_CHANNELS.get(self.reason, 0)}
        if self.peer is not None:
            fields["peer"] = self.peer.fields()
        return fields

    def start_fields(self) -> dict[str, Any]:
        """Return the fields of ``DeferralStart``."""
        return {**self._fields(), "remote_request_id": self.remote_request_id}

    def observed_reason(self, policy: Policy, now_ns: int) -> str:
        """Return why a policy in mode observe would have ended this wait, which ends now, earlier; empty if none would have."""
        observed = policy.observed
        if observed is None or observed.deferral == policy.deferral:
            return ""
        over = exceeded_deadline(
            DeadlineLimits.from_policy(observed.deferral), self.start_ns, self.transfer_start_ns, now_ns
        )
        if over is None:
            return ""
        wait, waited, limit = over
        return f"deferral.{wait}: it took {waited / 1e9:.3g} s, {limit / 1e9:.3g} s are allowed"

    def end_fields(self, ending: int) -> dict[str, Any]:
        """Return the fields of ``DeferralEnd``; *ending* is a ``DEFERRAL_ENDING_*``."""
        return {
            **self._fields(),
            "ending": ending,
            "start_time_unix_nano": self.start_ns,
            "transfer_start_time_unix_nano": self.transfer_start_ns,
        }


class Deferrals:
    """The open deferrals of one scheduler; its thread changes them, any thread may read the gauges.

    A request can wait for several things one after the other, and in principle at once: the key is
    (request, reason). What is open is bounded by the scheduler's own requests: each one's end closes its deferrals.

    Attributes:
        requests: how many deferrals of each request are open.

    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], OpenDeferral] = {}
        self.requests: dict[str, int] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.requests

    def waits_for(self, request_id: str, reasons: Iterable[int]) -> bool:
        """Return whether a request waits for any of *reasons*."""
        if request_id in self.requests:
            for reason in reasons:
                if (request_id, reason) in self._open:
                    return True
        return False

    def is_poll(self, request_id: str, reason: int, peer: Peer | None) -> bool:
        """Return whether that request already waits for that reason, and *peer* says nothing new about it."""
        found = self._open.get((request_id, reason))
        return found is not None and (peer is None or found.peer is not None)

    def begin(self, deferral: OpenDeferral) -> bool:
        """Open a deferral; False if that request already waits for that reason (a poll).

        A poll may name the peer of a wait that has none yet.
        """
        key = (deferral.request_id, deferral.reason)
        found = self._open.get(key)
        if found is not None:
            if found.peer is None and deferral.peer is not None:
                self._open[key] = replace(found, peer=deferral.peer)
            return False
        self._open[key] = deferral
        self.requests[deferral.request_id] = self.requests.get(deferral.request_id, 0) + 1
        return True

    def on_transfer_began(
        self,
        request_id: str,
        began_ns: int,
        reason: int = c.DEFERRAL_REASON_REMOTE_KV,
        peer: Peer | None = None,
    ) -> None:
        """Record when the transfer began that a request waits for, and from whom; of several the first counts."""
        key = (request_id, reason)
        found = self._open.get(key)
        if found is not None and (not found.transfer_start_ns or began_ns < found.transfer_start_ns):
            # Not replace(), which costs as much as the rest of a report; each load has one.
            self._open[key] = OpenDeferral(
                request_id, reason, found.start_ns, peer or found.peer, found.remote_request_id, began_ns
            )

    def end(self, request_id: str, reason: int) -> OpenDeferral | None:
        """Close and return a deferral, or None if it was not open."""
        found = self._open.pop((request_id, reason), None)
        if found is not None:
            remaining = self.requests.pop(request_id) - 1
            if remaining:
                self.requests[request_id] = remaining
        return found

    def end_all(self, request_id: str) -> list[OpenDeferral]:
        """Close and return all deferrals of a request that ends."""
        if request_id not in self.requests:
            return []
        # Not a look at each that is open: thousands of requests may be aborted at once.
        return [ended for reason in _REASONS if (ended := self.end(request_id, reason)) is not None]

    def unstarted(self) -> list[tuple[Peer | None, int, int]]:
        """Return (peer, how many, oldest start) of the waits for remote KV whose transfer has not begun, from any thread."""
        groups: dict[Peer | None, tuple[int, int]] = {}
        for deferral in self._open.copy().values():
            if deferral.reason == c.DEFERRAL_REASON_REMOTE_KV and not deferral.transfer_start_ns:
                count, oldest = groups.get(deferral.peer, (0, deferral.start_ns))
                groups[deferral.peer] = (count + 1, min(oldest, deferral.start_ns))
        return [(peer, *group) for peer, group in groups.items()]

    def by_request(self) -> dict[str, OpenDeferral]:
        """Return the deferral of each request, of several the last to be opened, from any thread."""
        return {deferral.request_id: deferral for deferral in self._open.copy().values()}

    def gauges(self) -> list[tuple[int, Peer | None, int, int]]:
        """Return (reason, peer, how many, oldest start) of what is open now, from any thread."""
        groups: dict[tuple[int, Peer | None], tuple[int, int]] = {}
        for deferral in self._open.copy().values():
            key = (deferral.reason, deferral.peer)
            count, oldest = groups.get(key, (0, deferral.start_ns))
            groups[key] = (count + 1, min(oldest, deferral.start_ns))
        return [(reason, peer, count, oldest) for (reason, peer), (count, oldest) in groups.items()]
