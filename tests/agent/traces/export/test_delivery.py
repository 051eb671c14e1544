"""What the delivery retries, halves and drops, with a scripted client and a fake clock."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey, Source
from penstock.agent.traces.export.delivery import AMBIGUOUS_TRIES, Delivery
from penstock.agent.traces.export.otlp_client import OtlpClient
from penstock.agent.traces.export.otlp_status import Accepted, ExportError, ExportStatusCode
from penstock.agent.traces.spans.model import Span

SOURCE = Source(1, EngineKey("", "0"), "worker")
AMBIGUOUS = ExportError("UNKNOWN: boom", ExportStatusCode.AMBIGUOUS)
PERMANENT = ExportError("INVALID_ARGUMENT: boom", ExportStatusCode.PERMANENT)
RETRY = ExportError("UNAVAILABLE: away", ExportStatusCode.RETRY)


class Pauses(threading.Event):
    """An event whose waits take no time; it sums them."""

    seconds = 0.0

    def wait(self, timeout=None):
        """Record the pause."""
        self.seconds += timeout or 0.0
        return self.is_set()


class ScriptedClient(OtlpClient):
    """Accepts spans as *decide* says: an error, or None, for the names of a call's spans."""

    def __init__(self, decide) -> None:
        self._decide = decide
        self.accepted: list[str] = []
        self.calls = 0

    def send(self, spans):
        """Answer one call."""
        self.calls += 1
        names = [span.name for span in spans]
        error = self._decide(names)
        if error is not None:
            return error
        self.accepted += names
        return Accepted()


def spans_of(number: int) -> list[Span]:
    """Return spans whose names are their numbers."""
    return [Span(f"{i:032x}", f"{i:016x}", "", str(i), 1, 2, SOURCE, {}) for i in range(1, number + 1)]


def deliver(decide, *batches: int):
    """Deliver batches of the given sizes; return the client and the delivery."""
    client = ScriptedClient(decide)
    delivery = Delivery(client, Pauses())
    for batch in batches:
        assert delivery.deliver(spans_of(batch), lambda: None)
    return client, delivery


@given(
    st.lists(st.tuples(st.integers(0, AMBIGUOUS_TRIES - 1), st.integers(0, 3)), max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_fewer_refusals_in_a_row_lose_nothing(rows, batches):
    """A backend that accepts one call in eight, and may be away in between, gets every span once."""
    answers = iter(
        [answer for ambiguous, away in rows for answer in (*[AMBIGUOUS] * ambiguous, *[RETRY] * away, None)]
    )
    client, delivery = deliver(lambda _names: next(answers, None), *batches)
    assert client.accepted == [span.name for batch in batches for span in spans_of(batch)]
    assert (delivery.delivered, delivery.refused, delivery.error) == (sum(batches), 0, "")


@pytest.mark.parametrize("refusal", [AMBIGUOUS, PERMANENT])
@given(st.integers(1, 40), st.data())
def test_spans_that_are_always_refused_are_dropped_alone(refusal, size, data):
    """Only the refused spans are dropped; the others of their call arrive once each."""
    bad = data.draw(st.sets(st.integers(1, size), max_size=4).map(lambda numbers: {*map(str, numbers)}))
    client, delivery = deliver(lambda names: refusal if bad & {*names} else None, size)
    assert sorted(client.accepted) == sorted({span.name for span in spans_of(size)} - bad)
    assert (delivery.delivered, delivery.refused, delivery.error) == (size - len(bad), len(bad), "")


@pytest.mark.parametrize("size", [1, 512])
def test_an_outage_that_answers_500_costs_a_span_in_minutes(size):
    """An outage that answers 500 drops at most one span per several minutes; jitter at most halves a pause."""
    pauses = Pauses()
    outage = 12 * 3600
    client = ScriptedClient(lambda _names: AMBIGUOUS if pauses.seconds < outage else None)
    delivery = Delivery(client, pauses)
    for _ in count():
        delivery.deliver(spans_of(size), lambda: None)
        if client.accepted:
            break
    assert 0 < delivery.refused <= 1 + outage / (AMBIGUOUS_TRIES * 15)


def test_an_outage_loses_nothing():
    """Answers that ask for a retry, however many, drop no span."""
    answers = iter([RETRY] * 500)
    client, delivery = deliver(lambda _names: next(answers, None), 3)
    assert (len(client.accepted), delivery.refused) == (3, 0)


def test_a_backend_that_asks_for_time_gets_it():
    """The pause is at least as long as the backend asks for."""
    answers = iter([ExportError("busy", ExportStatusCode.RETRY, 120.0)])
    pauses = Pauses()
    assert Delivery(ScriptedClient(lambda _names: next(answers, None)), pauses).deliver(
        spans_of(1), lambda: None
    )
    assert pauses.seconds == 120.0


@pytest.mark.parametrize("refusal", [AMBIGUOUS, RETRY])
def test_the_end_drops_nothing(refusal):
    """At the end of the export there is one more attempt; refused spans stay in the log."""
    stopping = Pauses()

    def stop_and_refuse(_names: list[str]) -> ExportError:
        stopping.set()
        return refusal

    client = ScriptedClient(stop_and_refuse)
    delivery = Delivery(client, stopping)
    reports = []
    assert not delivery.deliver(spans_of(1), lambda: reports.append(delivery.error))
    assert (client.calls, delivery.refused, reports) == (2, 0, [refusal.text] * 2)
