"""Edges and gauges of deferrals, against a model of who waits for what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.requests.open_deferrals import Deferrals, OpenDeferral

REASONS = [getattr(c, name) for name in dir(c) if name.startswith("DEFERRAL_REASON_")]
REQUESTS = ["a", "b", "c"]

operations = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "leave"]), st.sampled_from(REQUESTS), st.sampled_from(REASONS)
    ),
    max_size=60,
)


@given(operations)
def test_model(steps: list[tuple[str, str, int]]) -> None:
    """A start is emitted once, an end only after a start, and the gauges count open deferrals."""
    deferrals = Deferrals()
    waiting: dict[tuple[str, int], int] = {}
    for now, (what, request_id, reason) in enumerate(steps, start=1):
        key = (request_id, reason)
        if what == "begin":
            assert deferrals.begin(OpenDeferral(request_id, reason, now)) is (key not in waiting)
            waiting.setdefault(key, now)
        elif what == "end":
            ended = deferrals.end(request_id, reason)
            assert (ended.start_ns if ended else None) == waiting.pop(key, None)
        else:
            left = {each.reason: each.start_ns for each in deferrals.end_all(request_id)}
            gone = [each for each in waiting if each[0] == request_id]
            assert left == {each[1]: waiting.pop(each) for each in gone}
        for each in REQUESTS:
            assert (each in deferrals) is any(owner == each for owner, _ in waiting)
        gauges = {reason: (count, oldest) for reason, _, count, oldest in deferrals.gauges()}
        for why in REASONS:
            starts = [start for (_, each), start in waiting.items() if each == why]
            assert gauges.get(why) == ((len(starts), min(starts)) if starts else None)


def test_a_poll_names_the_peer_that_the_first_did_not_know() -> None:
    """It stays one wait with its start; a peer that is known does not change any more."""
    deferrals = Deferrals()
    encoder, other = Peer("encoder:1"), Peer("other:1")
    reason = c.DEFERRAL_REASON_ENCODER_CACHE
    assert deferrals.begin(OpenDeferral("a", reason, 1))
    for now, peer in enumerate([None, encoder, other, None], start=2):
        assert not deferrals.begin(OpenDeferral("a", reason, now, peer))
    assert deferrals.gauges() == [(reason, encoder, 1, 1)]


def test_polls() -> None:
    """Asked again, a wait is a poll unless the peer is news; a request waits for what is open only."""
    deferrals = Deferrals()
    encoder = Peer("encoder:1")
    reason, other = c.DEFERRAL_REASON_ENCODER_CACHE, c.DEFERRAL_REASON_GRAMMAR
    assert not deferrals.is_poll("a", reason, None)
    assert not deferrals.waits_for("a", [reason, other])
    deferrals.begin(OpenDeferral("a", reason, 1))
    assert deferrals.is_poll("a", reason, None)
    assert not deferrals.is_poll("a", reason, encoder)
    assert not deferrals.is_poll("a", other, None)
    deferrals.begin(OpenDeferral("a", reason, 2, encoder))
    assert deferrals.is_poll("a", reason, encoder)
    assert deferrals.waits_for("a", [other, reason])
    assert not deferrals.waits_for("a", [other])
    deferrals.end("a", reason)
    assert not deferrals.is_poll("a", reason, None)
    assert not deferrals.waits_for("a", [other, reason])


def test_gauges_by_peer() -> None:
    """Waits for different peers are counted apart."""
    deferrals = Deferrals()
    near, far = Peer("near:1", "n"), Peer("far:1", "f")
    for index, peer in enumerate([near, far, near]):
        deferrals.begin(OpenDeferral(str(index), c.DEFERRAL_REASON_REMOTE_KV, 10 + index, peer))
    assert sorted(deferrals.gauges(), key=str) == sorted(
        [(c.DEFERRAL_REASON_REMOTE_KV, near, 2, 10), (c.DEFERRAL_REASON_REMOTE_KV, far, 1, 11)], key=str
    )


@pytest.mark.parametrize(("began", "expected"), [([], 0), ([7], 7), ([7, 5, 9], 5)])
def test_transfer_start(began: list[int], expected: int) -> None:
    """Of several ranks' transfers the first that began counts; none leaves 0."""
    deferrals = Deferrals()
    deferrals.begin(OpenDeferral("a", c.DEFERRAL_REASON_REMOTE_KV, 1, Peer("p:1")))
    for each in began:
        deferrals.on_transfer_began("a", each)
    deferrals.on_transfer_began("nobody", 3)
    ended = deferrals.end("a", c.DEFERRAL_REASON_REMOTE_KV)
    assert ended is not None
    fields = ended.end_fields(c.DEFERRAL_ENDING_READY)
    assert fields["transfer_start_time_unix_nano"] == expected
    assert (fields["channel"], fields["peer"]["address"]) == (c.CHANNEL_KV, "p:1")
