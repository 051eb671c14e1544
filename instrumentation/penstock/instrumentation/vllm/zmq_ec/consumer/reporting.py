"""Reports probes, transfers and failures to an ``EcListener`` and to vLLM's statistics; asks which of them fault drills hit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW
from penstock.instrumentation.vllm.ec import EcTransfer
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.ec import EcFailure, EcListener
    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer


SAMPLES_MAX: Final = 4_096
"""Transfers whose seconds and bytes wait for vLLM's next step; those beyond that are not in its statistics."""

_PROBES: Final = {
    c.PROBE_RESULT_HIT: "num_probe_hits",
    c.PROBE_RESULT_MISS: "num_probe_misses",
    c.PROBE_RESULT_ERROR: "num_failed_probes",
}


class StepStatistics:
    """What was moved and asked since vLLM's last step (``statistics.py``). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: list[tuple[float, int]] = []
        self._counts: Counter[str] = Counter()

    def add_transfer(self, seconds: float, size: int) -> None:
        """Add a transfer that brought its item."""
        with self._lock:
            if len(self._moved) < SAMPLES_MAX:
                self._moved.append((seconds, size))

    def count(self, name: str) -> None:
        """Count something else."""
        with self._lock:
            self._counts[name] += 1

    def take(self) -> dict[str, Any] | None:
        """Return what was added since the last call; None for nothing."""
        if not self._moved and not self._counts:
            return None  # most steps: they cost this look
        with self._lock:
            moved, self._moved = self._moved, []
            counts, self._counts = self._counts, Counter()
        seconds, sizes = [each[0] for each in moved], [each[1] for each in moved]
        return {"transfer_duration": seconds, "bytes_transferred": sizes, **counts}


class Reporter:
    """Calls *observer* if it is set, which may happen at any time. On the fetcher's thread, of early copies on the scheduler's.

    Attributes:
        statistics: vLLM's own, of the same events; they need no observer.

    """

    def __init__(self) -> None:
        self.observer: EcListener | None = None
        self.statistics = StepStatistics()

    def probe(self, attempt: Attempt, producer: Producer, result: int, sent_ns: int) -> None:
        """Report the result of a probe."""
        self.statistics.count(_PROBES.get(result, "num_failed_probes"))
        if self.observer is not None:
            wanted = attempt.wanted
            self.observer.probed(
                wanted.item, producer.peer, result, sent_ns, time.time_ns(), wanted.request_id
            )

    def probe_failed(
        self,
        attempt: Attempt,
        producer: Producer,
        sent_ns: int,
        error_type: int,
        text: str,
        *,
        rehearsal: bool = False,
        blameless: bool = False,
    ) -> None:
        """Report a probe without a result, and its failure; *rehearsal* and *blameless* as of :class:`EcFailure`."""
        self.probe(attempt, producer, c.PROBE_RESULT_ERROR, sent_ns)
        self.failed(
            attempt.failed(
                c.FAILURE_MODE_PROBE,
                error_type,
                text,
                producer,
                sent_ns,
                rehearsal=rehearsal,
                blameless=blameless,
            )
        )

    def failed(self, failure: EcFailure) -> None:
        """Report a failed attempt."""
        if self.observer is not None:
            self.observer.failed(failure)

    def transfer(self, attempt: Attempt, *, ok: bool) -> None:
        """Report the end of a transfer."""
        if attempt.source is None or attempt.content is None:
            return
        end_ns = time.time_ns()
        if ok:
            self.statistics.add_transfer((end_ns - attempt.began_ns) / NANOS, attempt.content.size)
        else:
            self.statistics.count("num_failed_transfers")
        if self.observer is None:
            return
        self.observer.received(
            EcTransfer(
                attempt.wanted.item,
                attempt.source.peer,
                attempt.began_ns,
                end_ns,
                attempt.content.size if ok else 0,
                ok,
                attempt.wanted.request_id,
            )
        )


class Rehearsal:
    """Asks *hit*, if it is set, which may happen at any time. Called on the fetcher's thread."""

    def __init__(self) -> None:
        self.hit: Callable[[int, str], Drill | None] | None = None

    def of_probe(self, address: str) -> Drill | None:
        """Return the drill by which a probe of this producer is to fail; None if none is."""
        return None if self.hit is None else self.hit(c.FAILURE_MODE_PROBE, address)

    def of_transfer(self, address: str) -> Drill | None:
        """Return the drill by which a transfer from this producer is to fail, or to be slow; None if none is."""
        if self.hit is None:
            return None
        return self.hit(c.FAILURE_MODE_TRANSFER, address) or self.hit(SLOW, address)
