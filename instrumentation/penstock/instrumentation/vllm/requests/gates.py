"""The time of a request at each gate before its first token. Pure.

A request is at one gate at a time, from its arrival to its first token. Each edge counts the time since the one before at the gate
that the request was at, so the times always add up to the whole. Moments are wall clock in nanoseconds; those of another process, and those of
a clock that was set back, are moved to between the edge before and now.
"""

from __future__ import annotations

from typing import Final


class Gate:
    """What a request waits for, by number: an enum's members are slow keys."""

    QUEUE: Final = 0
    HANDSHAKE_QUEUE: Final = 1
    PEER: Final = 2
    TRANSFER: Final = 3
    RECOMPUTE: Final = 4
    OWN_PREFILL: Final = 5
    ENCODER: Final = 6


_FIELDS: Final = (
    "queue_nano",
    "handshake_queue_nano",
    "peer_nano",
    "transfer_nano",
    "recompute_nano",
    "own_prefill_nano",
    "encoder_nano",
)
# The stages of a load, in their order; a load that need not queue for a handshake is at the peer from the first.
_STAGES: Final = {Gate.HANDSHAKE_QUEUE: 1, Gate.PEER: 2, Gate.TRANSFER: 3}


class RequestGates:
    """The gates of one request, from edge to edge; on the scheduler's thread.

    Attributes:
        ended: it has its first token, or has finished: nothing counts any more.
        lost_until: the token up to which it computes again what was lost; 0 where nothing is.

    """

    __slots__ = (
        "_computing",
        "_encoder_waits",
        "_kv_waits",
        "_nano",
        "_since_ns",
        "_stage",
        "_stages",
        "_watched",
        "ended",
        "lost_until",
    )

    def __init__(self, arrival_ns: int, interruptions: int = 0) -> None:
        """Begin at the gate ``queue``; *interruptions*: how often the observation was interrupted so far."""
        self._nano = [0] * len(_FIELDS)
        self._since_ns = arrival_ns
        self._watched: int | None = interruptions
        self._computing = False
        self._kv_waits = 0
        self._encoder_waits = 0
        self._stage: int = Gate.PEER
        self._stages = 0
        self.lost_until = 0
        self.ended = False

    def on_wait(self, now_ns: int, *, encoder: bool) -> None:
        """Begin a wait for encoder outputs, or for KV."""
        self._count(now_ns)
        if encoder:
            self._encoder_waits += 1
            return
        if not self._kv_waits:
            self._stage, self._stages = Gate.PEER, 0
        self._kv_waits += 1

    def on_ready(self, now_ns: int, *, encoder: bool) -> None:
        """End such a wait."""
        self._count(now_ns)
        if encoder:
            self._encoder_waits = max(0, self._encoder_waits - 1)
        else:
            self._kv_waits = max(0, self._kv_waits - 1)

    def on_stage(self, stage: int, at_ns: int, now_ns: int) -> None:
        """Change the stage of the KV that it waits for; of several ranks' the first counts, and there is no way back."""
        rank = _STAGES[stage]
        if not self._kv_waits or rank <= self._stages:
            return
        self._count(min(at_ns, now_ns))
        self._stage, self._stages = stage, rank

    def on_loaded(self, start_ns: int, end_ns: int, now_ns: int) -> None:
        """Count a load during a step as ``transfer``: it moved from *start_ns* to *end_ns* while the request was computed."""
        if self._kv_waits or self._encoder_waits or not self._computing:
            return
        self._count(min(start_ns, now_ns))
        self._count(min(end_ns, now_ns), Gate.TRANSFER)

    def on_scheduled(self, now_ns: int) -> None:
        """Begin its prefill."""
        self._count(now_ns)
        self._computing = True

    def on_lost(self, until: int, now_ns: int) -> None:
        """Begin to compute again what was lost, up to the token *until*."""
        self._count(now_ns)
        self.lost_until = max(self.lost_until, until, 1)

    def on_computed(self, tokens: int, now_ns: int) -> None:
        """Record, after a step, that *tokens* are computed; ends ``recompute`` if that is all that was lost."""
        if self.lost_until and tokens >= self.lost_until and not (self._kv_waits or self._encoder_waits):
            self._count(now_ns)
            self.lost_until = 0
            self._computing = True

    def end(self, now_ns: int, interruptions: int = 0) -> int:
        """End at the first token, or with the request; return that moment, which is not before the last edge.

        Nothing is known if the observation was interrupted meanwhile: *interruptions* differ from those at the beginning.
        """
        if not self.ended:
            self._count(now_ns)
            self.ended = True
            if interruptions != self._watched:
                self._watched = None
        return self._since_ns

    def fields(self) -> dict[str, int] | None:
        """Return the fields of the wire's ``Gates`` that are not 0; None if they are not known."""
        if self._watched is None:
            return None
        return {name: nano for name, nano in zip(_FIELDS, self._nano, strict=True) if nano}

    def _count(self, at_ns: int, gate: int | None = None) -> None:
        """Count the time since the last edge at *gate*, or at the present one."""
        if self.ended or at_ns <= self._since_ns:
            return
        self._nano[self._present() if gate is None else gate] += at_ns - self._since_ns
        self._since_ns = at_ns

    def _present(self) -> int:
        if self._kv_waits:
            return self._stage
        if self._encoder_waits:
            return Gate.ENCODER
        if self.lost_until:
            return Gate.RECOMPUTE
        return Gate.OWN_PREFILL if self._computing else Gate.QUEUE
