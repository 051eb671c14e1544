"""The parts of a wait add up to its whole, with any overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.traces.query.wait_parts import split_words, wait_parts
from penstock.agent.traces.spans import EventEntry, RequestFacts
from penstock.agent.traces.spans.model import SampleEntry

from tests.support.agent.batches import TIME, deferral_end
from tests.support.agent.stories import DECODE, DECODE_CORE, DECODE_WORKER, MS, closed, handshake, sample

_SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted), max_size=4)


def _facts(waits: list[list[int]], handshakes: list[list[int]], transfers: list[list[int]]) -> RequestFacts:
    entries = [
        EventEntry(DECODE_CORE, deferral_end(DECODE, start_ns=TIME + a * MS, time_ns=TIME + b * MS))
        for a, b in waits
    ]
    entries += [
        EventEntry(
            DECODE_WORKER,
            handshake(
                DECODE,
                failed=False,
                number=number + 1,
                queued_time_unix_nano=TIME,
                start_time_unix_nano=TIME + a * MS,
                end_time_unix_nano=TIME + b * MS,
            ),
        )
        for number, (a, b) in enumerate(handshakes)
    ]
    samples = [
        SampleEntry(
            DECODE_WORKER, sample(DECODE, end_time_unix_nano=TIME + b * MS, duration_nano=(b - a) * MS)
        )
        for a, b in transfers
    ]
    return RequestFacts.of(DECODE, [EventEntry(DECODE_CORE, closed(DECODE)), *entries, *samples])


@given(_SPANS, _SPANS, _SPANS)
def test_the_parts_are_the_whole_wait(
    waits: list[list[int]], handshakes: list[list[int]], transfers: list[list[int]]
) -> None:
    """No part is negative, and no time counts twice."""
    facts = _facts(waits, handshakes, transfers)
    parts = wait_parts(facts)
    assert sum(part.nano for part in parts) == facts.deferred_nano
    assert all(part.nano > 0 for part in parts)


def test_a_transfer_without_a_sample() -> None:
    """Without a sample the transfer's part comes from the deferral."""
    end = deferral_end(
        DECODE, start_ns=TIME, time_ns=TIME + 100 * MS, transfer_start_time_unix_nano=TIME + 60 * MS
    )
    facts = RequestFacts.of(DECODE, [EventEntry(DECODE_CORE, closed(DECODE)), EventEntry(DECODE_CORE, end)])
    assert split_words(facts) == "transfer 40 ms, other 60 ms (60%)"


def test_a_wait_of_which_nothing_is_known_is_not_split() -> None:
    """A wait without known parts, or of zero length, has none."""
    assert split_words(_facts([[0, 100]], [], [])) == ""
    assert split_words(_facts([], [], [])) == ""
