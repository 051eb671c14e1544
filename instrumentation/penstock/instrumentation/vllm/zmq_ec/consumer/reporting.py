"""Reports probes, transfers and failures to an ``EcListener``; asks which of them fault drills hit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.orders import SLOW
from penstock.instrumentation.vllm.ec import EcTransfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.instrumentation.orders import Drill
    from penstock.instrumentation.vllm.ec import EcFailure, EcListener
    from penstock.instrumentation.vllm.zmq_ec.consumer.attempt import Attempt
    from penstock.instrumentation.vllm.zmq_ec.consumer.producers import Producer


class Reporter:
    """Calls *observer* if it is set, which may happen at any time. On the fetcher's thread, of early copies on the scheduler's."""

    def __init__(self) -> None:
        self.observer: EcListener | None = None

    def probe(self, attempt: Attempt, producer: Producer, result: int, sent_ns: int) -> None:
        """Report the result of a probe."""
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
        if self.observer is None or attempt.source is None or attempt.content is None:
            return
        self.observer.received(
            EcTransfer(
                attempt.wanted.item,
                attempt.source.peer,
                attempt.began_ns,
                time.time_ns(),
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
