"""Open deferrals of a transaction: the columns give the result of reading event by event."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.journal.commit.transaction import OpenDeferrals
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import deferral_end, deferral_start, event, transfer_failure

_IDS = st.sampled_from(["", "a", "b"])
_REASONS = st.sampled_from([1, 2, 99])
_EVENTS = st.one_of(
    st.builds(lambda name, reason: deferral_start(name, reason=reason), _IDS, _REASONS),
    st.builds(lambda name, reason: deferral_end(name, reason=reason), _IDS, _REASONS),
    st.builds(lambda name: event("request_closed", name), _IDS),
    st.builds(transfer_failure, _IDS),
    st.just(Event()),
)
_LOGS = st.lists(st.tuples(st.sampled_from([7, -8]), st.lists(_EVENTS, max_size=8)), max_size=6)


@settings(deadline=None)
@given(_LOGS, st.none() | st.integers(0, 5))
def test_columns_say_what_the_events_one_by_one_say(log, lost):
    """Starts, ends and closings of few requests, in any order, over the batches of a transaction; a source may vanish."""
    waits = OpenDeferrals()
    begun: dict[tuple[int, str, int], tuple[bytes, int]] = {}
    ended, closed = [], []
    for number, (epoch, events) in enumerate(log):
        if number == lost:
            waits.drop_source(epoch)
            begun = {key: start for key, start in begun.items() if key[0] != epoch}
        batch = Batch(events=events)
        waits.add_batch(epoch, number, BatchColumns(batch, batch.SerializeToString()))
        for each in events:
            name = each.request_id
            if each.HasField("deferral_start"):
                begun[epoch, name, each.deferral_start.reason] = (each.SerializeToString(), number)
            elif each.HasField("deferral_end"):
                begun.pop((epoch, name, each.deferral_end.reason), None)
                ended.append((epoch, name, each.deferral_end.reason))
            elif each.HasField("request_closed"):
                begun = {key: start for key, start in begun.items() if key[:2] != (epoch, name)}
                closed.append((epoch, name))
    assert sorted(waits.begun()) == sorted((*key, *start) for key, start in begun.items())
    assert sorted(waits.ended) == sorted(ended)
    assert sorted(waits.closed) == sorted(closed)
