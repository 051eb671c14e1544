"""vLLM's own counters of a NIXL worker beside what the hooks have seen: the rule, and real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.kv.nixl.upstream_counts import (
    EXPIRED,
    HANDSHAKES,
    LATE,
    NOTIFICATIONS,
    TRANSFERS,
    UpstreamCount,
    UpstreamCounts,
)

from tests.support.engine.recorder import recording
from tests.support.engine.versions import from_version
from tests.support.kv.nixl_faults import break_agent, refuse
from tests.support.kv.nixl_pair import Engine, connect, instrumented_engines, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.engine.recorder import Recorder

KNOWN: dict[str, list[int]] = {LATE: [], EXPIRED: []}


def take(
    counts: UpstreamCounts,
    handed: dict[str, list[int]],
    interruptions: int | None = 0,
    *,
    settled: bool = True,
    known: Any = KNOWN,
) -> None:
    """End a step, in which vLLM has counted *handed*."""
    counts.take(handed, known, interruptions, settled=settled)


def test_both_numbers_grow_together() -> None:
    """Of each counter that has counted something; several in one step add up."""
    counts = UpstreamCounts(0)
    take(counts, {})
    assert not counts.totals
    counts.saw(LATE)
    counts.saw(LATE)
    take(counts, {LATE: [1, 1]})
    counts.saw(EXPIRED)
    take(counts, {EXPIRED: [1]})
    assert counts.totals == (UpstreamCount(LATE, 2, 2), UpstreamCount(EXPIRED, 1, 1))


@pytest.mark.parametrize(("handed", "seen", "row"), [([1], 0, (1, 0)), ([], 1, (0, 1)), ([1, 1], 1, (2, 1))])
def test_a_difference_stays(handed: list[int], seen: int, row: tuple[int, int]) -> None:
    """What a hook misses, or sees too much, is not forgotten at the next step."""
    counts = UpstreamCounts(0)
    for _ in range(seen):
        counts.saw(LATE)
    take(counts, {LATE: handed})
    take(counts, {})
    assert counts.totals == (UpstreamCount(LATE, *row),)


def test_a_counter_that_this_vllm_lacks() -> None:
    """It is not compared: 0.31 has no counter of late reads."""
    counts = UpstreamCounts(0)
    counts.saw(LATE)
    take(counts, {}, known={EXPIRED: []})
    assert counts.totals == ()


def test_a_pause_counts_on_neither_side() -> None:
    """Neither a pause over several steps nor one between two; counting begins when nothing unseen is under way."""
    counts = UpstreamCounts(0)
    counts.saw(LATE)
    take(counts, {LATE: [1]}, None)  # seen before the pause, handed over in it
    take(counts, {LATE: [1]}, None)
    take(counts, {LATE: [1]}, 1, settled=False)
    take(counts, {LATE: [1]}, 1)
    assert not counts.totals
    counts.saw(LATE)
    take(counts, {LATE: [1]}, 1)
    take(counts, {LATE: [1]}, 2)  # paused and resumed since
    assert counts.totals == (UpstreamCount(LATE, 1, 1),)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans())))
def test_who_sees_all_while_not_paused_agrees(steps: list[tuple[bool, int, bool]]) -> None:
    """Any steps: those in which the hooks are passive have no effect on the comparison."""
    counts, interruptions, active = UpstreamCounts(0), 0, True
    for paused, late, settled in steps:
        for _ in range(late if active else 0):
            counts.saw(LATE)
        if paused and active:
            interruptions += 1
        active = not paused
        take(counts, {LATE: [1] * late}, interruptions if active else None, settled=settled)
    assert all(row.upstream == row.seen for row in counts.totals)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """Build a prefill and a decode engine that have shaken hands."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            prefill, decode = make("kv_producer"), make("kv_consumer")
            connect(prefill, decode)
            yield prefill, decode


@pytest.fixture
def pair(built: tuple[Engine, Engine], recorder: Recorder) -> tuple[Engine, Engine]:
    """Return both, after a step under the recorder of this test."""
    assert not recorder.events
    for engine in built:
        engine.step()
    return built


def grown(engine: Engine, before: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return by how much an engine's counters have grown."""
    found = {}
    for name, (upstream, seen) in engine.counts.items():
        was = before.get(name, (0, 0))
        if (upstream, seen) != was:
            found[name] = (upstream - was[0], seen - was[1])
    return found


def late_read(prefill: Engine, decode: Engine, name: str) -> None:
    """Let a lease expire, then read; returns when vLLM has counted both."""
    before = prefill.counts.get(LATE, (0, 0))[0]
    prefill.lease(f"prefill-of-{name}", seconds=-1.0)
    decode.read(name, prefill)
    decode.received(name)
    prefill.step_until(lambda _: prefill.counts.get(LATE, (0, 0))[0] > before, "the late read")


@from_version(0, 32, "counts no late reads")
def test_late_reads_are_as_many_as_vllm_counts(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """Late reads and expired leases, on the wire as well."""
    prefill, decode = pair
    before = prefill.counts
    late_read(prefill, decode, "late-1")
    late_read(prefill, decode, "late-2")
    assert grown(prefill, before) == {LATE: (2, 2), EXPIRED: (2, 2)}
    rows = {
        (row.name, row.upstream, row.seen)
        for row in recorder.snapshot().upstream_counts
        if (row.connector, row.rank) == ("NixlConnector", 0)
    }
    assert {(name, *numbers) for name, numbers in prefill.counts.items()} <= rows


@from_version(0, 32, "counts no late reads")
def test_one_reader_too_many(pair: tuple[Engine, Engine], recorder: Recorder) -> None:
    """The first notification of two ends the lease, the second is late, although both come in one poll."""
    prefill, decode = pair
    before = prefill.counts
    for _ in range(2):
        decode.read("twice", prefill)
        decode.received("twice")
    prefill.lease("prefill-of-twice")
    prefill.step_until(lambda _: grown(prefill, before), "the late read")
    assert grown(prefill, before) == {LATE: (1, 1)}
    (failure,) = recorder.take("transfer_failure", "prefill-of-twice")
    assert failure.mode == c.FAILURE_MODE_LATE_READ


@from_version(0, 32, "counts no late reads")
def test_a_hook_that_misses_one(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM's number is higher from then on."""
    prefill, decode = pair
    before = prefill.counts
    totals = prefill.worker._penstock.counts.totals
    with monkeypatch.context() as blind:
        blind.setattr(prefill.worker.nixl_wrapper, "_penstock_on_notification", None)
        late_read(prefill, decode, "missed")
    assert grown(prefill, before) == {LATE: (1, 0), EXPIRED: (1, 1)}
    assert not [
        each for each in recorder.take("transfer_failure") if each.upstream_type == "read_after_expiry"
    ]
    prefill.worker._penstock.counts.totals = totals


@from_version(0, 31, "counts failed handshakes among failed transfers")
def test_a_transfer_that_fails_at_every_poll(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM counts each poll while the release is refused; the hooks see each, and emit one failure."""
    prefill, decode = pair
    before = decode.counts
    with monkeypatch.context() as broken:
        break_agent(broken, decode, "check_xfer_state", lambda *_: "ERR")
        with monkeypatch.context() as refused:
            break_agent(refused, decode, "release_xfer_handle", refuse)
            decode.read("broken", prefill)
            for _ in range(3):
                decode.step()
        decode.received("broken")
    (name,) = found = grown(decode, before)
    upstream, seen = found[name]
    assert (name, upstream) == (TRANSFERS, seen)
    assert upstream > 1
    modes = [failure.mode for failure in recorder.take("transfer_failure", "broken")]
    assert modes == [c.FAILURE_MODE_TRANSFER, c.FAILURE_MODE_RELEASE]


@from_version(0, 31, "counts no failed handshakes")
def test_handshakes_and_notifications(
    pair: tuple[Engine, Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One handshake for two requests is one; a notification that cannot be sent is one."""
    prefill, decode = pair
    before = decode.counts
    worker_class = next(
        each
        for each in type(decode.worker).__mro__
        if "_nixl_handshake" in vars(each) and not each.__module__.startswith("penstock")
    )
    with monkeypatch.context() as closed:
        closed.setattr(worker_class, "_nixl_handshake", refuse)
        with decode.handshakes_held():
            for name in ("first", "second"):
                decode.read(name, prefill, engine_id="unknown")
        for name in ("first", "second"):
            decode.received(name)
    with monkeypatch.context() as dumb:
        break_agent(dumb, decode, "send_notif", refuse)
        decode.read("silent", prefill, local=())
    decode.step_until(
        lambda _: len(grown(decode, before)) == len((HANDSHAKES, NOTIFICATIONS)), "both counters"
    )
    assert grown(decode, before) == {HANDSHAKES: (1, 1), NOTIFICATIONS: (1, 1)}
    assert len(recorder.take("handshake")) == 1


@from_version(0, 32, "counts no late reads")
def test_what_happens_in_a_pause(pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted on neither side; what comes after it is."""
    prefill, decode = pair
    before = prefill.counts
    late: list[bool] = []
    record = prefill.worker.xfer_stats.record_notification_after_expiry

    def recorded() -> None:
        late.append(True)
        record()

    monkeypatch.setattr(prefill.worker.xfer_stats, "record_notification_after_expiry", recorded)
    runtime.pause("test", paused=True)
    try:
        prefill.lease("prefill-of-paused", seconds=-1.0)
        decode.read("paused", prefill)
        decode.received("paused")
        prefill.step_until(lambda _: late, "the late read")
    finally:
        runtime.pause("test", paused=False)
    for engine in pair:
        engine.step()
    assert grown(prefill, before) == {}
    late_read(prefill, decode, "resumed")
    assert grown(prefill, before) == {LATE: (1, 1), EXPIRED: (1, 1)}
