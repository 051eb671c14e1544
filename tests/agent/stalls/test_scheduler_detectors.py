"""A scheduler that runs nothing of what it has is told by why; a loaded one is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources import Registry
from penstock.agent.stalls import Stall, StallKind, StallWatch
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import snapshot_pb2 as snapshots
from penstock.proto.v1.snapshot_pb2 import Snapshot

START = 1_000_000.0
KEY = EngineKey("", "0")
CORE, WORKER = 1, 2
CAPACITY = snapshots.QUEUE_REASON_CAPACITY
NEXT = snapshots.QUEUE_REASON_NEXT_STEP
REMOTE = snapshots.QUEUE_REASON_REMOTE_KV


class Scene:
    """One engine, a clock, and the watch over it; :attr:`core` is its EngineCore's next snapshot."""

    def __init__(self) -> None:
        self.now = START
        self.registry = Registry(lambda: int(self.now * 1e9))
        self.watch = StallWatch(self.registry.sources, lambda: self.now)
        self.core, self.worker = Snapshot(), Snapshot()
        for each in (self.core, self.worker):
            each.progress.SetInParent()
        self.queue = self.core.queue
        self.queue.total_blocks = self.queue.free_blocks = 100
        for epoch, process in ((CORE, "engine-core"), (WORKER, "worker")):
            source = Source(epoch=epoch, key=KEY, process=process, start_time_unix_nano=epoch)
            self.registry.connect(source, 0)

    def ago(self, seconds: float) -> int:
        """Return a time of the engine's clock, which is an hour ahead of the agent's."""
        return int((self.now + 3_600 - seconds) * 1e9)

    def waits(self, *rows: tuple[int, int], ago: float = 0) -> None:
        """Let so many requests wait for each reason."""
        del self.queue.waiting[:]
        for reason, count in rows:
            self.queue.waiting.add(reason=reason, count=count, oldest_start_time_unix_nano=self.ago(ago))

    def token(self) -> None:
        """Schedule a token now."""
        self.core.progress.steps += 1
        self.queue.last_step_time_unix_nano = self.ago(0)
        self.queue.empty_steps = 0

    def tick(self, seconds: float = 1, *, empty: int = 0, told: bool = True) -> tuple[Stall, ...]:
        """Let time pass, with a snapshot and a look each second, and *empty* steps between two snapshots."""
        for _ in range(max(1, int(seconds))):
            self.now += min(1, seconds)
            self.queue.empty_steps += empty
            if told:
                for epoch, snapshot in ((CORE, self.core), (WORKER, self.worker)):
                    snapshot.time_unix_nano = self.ago(0)
                    copy = Snapshot()
                    copy.CopyFrom(snapshot)
                    self.registry.snapshot(epoch, copy)
            self.watch.look()
        return self.watch.now.get(KEY, ())

    def kinds(self) -> list[StallKind]:
        """Return the kinds of the present stalls."""
        return [stall.kind for stall in self.watch.now.get(KEY, ())]


def _full(scene: Scene, *, free: int = 3, waiting: int = 2, **held: int) -> None:
    """Fill the cache: with leases, and with blocks of other holders by name."""
    scene.token()
    scene.tick()
    scene.queue.free_blocks = free
    leases = held.pop("leases", 0)
    if leases:
        scene.core.leases.count = 4
        scene.core.leases.blocks = leases
        scene.core.leases.oldest_start_time_unix_nano = scene.ago(5)
    for name, blocks in held.items():
        holder = snapshots.BlockHolder.Value(f"BLOCK_HOLDER_{name.upper()}")
        for snapshot in (scene.core, scene.worker):
            snapshot.held.add(holder=holder, blocks=blocks, requests=1, peer={"address": "p:1"})
    scene.waits((CAPACITY, waiting))


def test_a_cache_full_of_leases() -> None:
    """It is told at the second look at it, with who holds it; it begins when the last token was scheduled, and ends with a token."""
    scene = Scene()
    _full(scene, leases=96)
    begun = scene.now
    scene.tick()
    (stall,) = scene.tick()
    assert (stall.kind, stall.count) == (StallKind.NO_CAPACITY, 2)
    assert stall.since == pytest.approx(begun, abs=1.1)
    assert stall.sentence == (
        "nothing runs: 2 requests wait for KV blocks, 3 of 100 are free; leases hold 96 % of the cache, "
        "who holds 1 % of it is not known"
    )
    (later,) = scene.tick(58, empty=50)
    assert later.since == stall.since
    scene.token()
    scene.queue.running = 1
    assert not scene.tick()
    (over,) = scene.watch.ended.found[KEY]
    assert over.sentence.startswith("nothing ran: 2 requests waited for KV blocks; leases held 96 %")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"pinned": 90}, "loads that were given up hold 90 %"),
        ({"aborted": 90}, "loads of requests that have ended hold 90 %"),
        ({"save": 90}, "saves of requests that have ended hold 90 %"),
        (
            {"leases": 60, "save": 30},
            "leases hold 60 % of the cache, saves of requests that have ended hold 30 %",
        ),
        ({}, "who holds 97 % of it is not known"),
        ({"free": 100}, "100 of 100 are free; no other request has any"),
        # Leases that share blocks hold no more than there are.
        ({"leases": 400}, "leases hold 97 % of the cache"),
    ],
)
def test_who_holds_the_blocks(held: dict[str, int], words: str) -> None:
    """By holder, the most first; what both processes report counts once."""
    scene = Scene()
    _full(scene, **held)
    (stall,) = scene.tick(3)
    assert words in stall.sentence


def test_loads_under_way_have_longer() -> None:
    """A long prompt takes seconds to come, and its blocks are not lost meanwhile."""
    scene = Scene()
    _full(scene, load=95)
    scene.waits((CAPACITY, 2), (REMOTE, 3))
    assert not scene.tick(4, empty=50)
    (stall,) = scene.tick(3, empty=50)
    assert (stall.kind, stall.count) == (StallKind.NO_CAPACITY, 2)
    assert "loads under way hold 95 %" in stall.sentence


def test_a_long_step_is_no_standstill_when_it_ends() -> None:
    """The time since its token is that of the step."""
    scene = Scene()
    scene.token()
    scene.core.progress.step_start_time_unix_nano = scene.queue.last_step_time_unix_nano
    scene.queue.running = 1
    scene.waits((CAPACITY, 2))
    scene.tick(40)
    scene.core.progress.step_start_time_unix_nano = 0
    scene.queue.running, scene.queue.free_blocks = 0, 4
    scene.core.leases.count, scene.core.leases.blocks = 1, 96
    assert not scene.tick()
    (stall,) = scene.tick(2)
    assert stall.since == pytest.approx(scene.now - 3, abs=1.1)


def test_a_late_snapshot_is_no_standstill() -> None:
    """An engine that says nothing for a while is not known to stand still."""
    scene = Scene()
    _full(scene, leases=96)
    scene.tick()
    assert not scene.tick(60, told=False)


@pytest.mark.parametrize("reason", [CAPACITY, NEXT, snapshots.QUEUE_REASON_RUNNING_LIMIT])
def test_a_loaded_engine_is_none(reason: int) -> None:
    """It has a queue for ten minutes, no free block, and a token in each second."""
    scene = Scene()
    scene.queue.running, scene.queue.free_blocks = 8, 0
    scene.core.leases.count, scene.core.leases.blocks = 3, 70
    scene.waits((reason, 500), ago=60)
    for _ in range(600):
        scene.token()
        assert not scene.tick(empty=3)


def test_a_prefill_engine_whose_readers_keep_up_is_none() -> None:
    """Between two steps it waits for the next reader, for less than a second."""
    scene = Scene()
    scene.queue.free_blocks = 2
    scene.core.leases.count, scene.core.leases.blocks = 3, 98
    scene.waits((CAPACITY, 50))
    for _ in range(300):
        scene.token()
        assert not scene.tick(empty=20)


@pytest.mark.parametrize(
    "reason",
    [
        REMOTE,
        snapshots.QUEUE_REASON_KV_LOOKUP,
        snapshots.QUEUE_REASON_ENCODER_CACHE,
        snapshots.QUEUE_REASON_GRAMMAR,
        snapshots.QUEUE_REASON_STREAMING_INPUT,
    ],
)
def test_what_waits_elsewhere_is_none(reason: int) -> None:
    """Steps go on without a token while all wait for a peer, an encoder, a grammar or a client: those have their own words."""
    scene = Scene()
    scene.token()
    scene.waits((reason, 5))
    assert not scene.tick(600, empty=100)


def test_a_client_that_sends_nothing_is_none() -> None:
    """VLLM takes no step for it."""
    scene = Scene()
    scene.token()
    scene.waits((snapshots.QUEUE_REASON_STREAMING_INPUT, 5))
    assert not scene.tick(600)


def test_requests_that_run_and_wait_for_an_encoder_are_none() -> None:
    """Their scheduler passes over them, and says so."""
    scene = Scene()
    scene.token()
    scene.queue.running = 2
    row = scene.core.deferred.add(reason=common.DEFERRAL_REASON_ENCODER_CACHE, count=2)
    assert not scene.tick(60, empty=100)
    row.count = 1
    (stall,) = scene.tick()
    assert (stall.kind, stall.count) == (StallKind.STEPS_WITHOUT_TOKENS, 1)


def test_steps_without_tokens() -> None:
    """After ten seconds of steps that schedule none."""
    scene = Scene()
    scene.token()
    scene.queue.running = 2
    scene.waits((NEXT, 3), (REMOTE, 4))
    assert not scene.tick(9, empty=10)
    (stall,) = scene.tick(2, empty=10)
    assert (stall.kind, stall.count) == (StallKind.STEPS_WITHOUT_TOKENS, 5)
    assert stall.sentence.endswith("2 requests run, 3 requests wait (for: next step)")
    scene.token()
    assert not scene.tick()


def test_no_steps() -> None:
    """After thirty seconds in which none begins and none is under way; a step that hangs has its own word."""
    scene = Scene()
    scene.token()
    scene.queue.running = 1
    scene.waits((NEXT, 3), (REMOTE, 1))
    assert not scene.tick(29)
    (stall,) = scene.tick(2)
    assert (stall.kind, stall.count) == (StallKind.NO_STEPS, 5)
    scene.core.progress.step_start_time_unix_nano = scene.ago(0)
    assert not scene.tick(5)
    (stuck,) = scene.tick(60)
    assert stuck.kind == StallKind.STEP_STUCK
    scene.core.progress.step_start_time_unix_nano = 0
    assert not scene.tick(5)


def test_an_idle_engine_whose_first_request_comes_late() -> None:
    """Its last step is an hour ago, and the request waits for a second."""
    scene = Scene()
    scene.token()
    scene.tick(3_600)
    scene.waits((NEXT, 1))
    assert not scene.tick(5)


@pytest.mark.parametrize(
    ("pause", "running", "count"),
    [(snapshots.SCHEDULER_PAUSE_ALL, 2, 5), (snapshots.SCHEDULER_PAUSE_NEW, 2, 3)],
)
def test_a_paused_scheduler(pause: int, running: int, count: int) -> None:
    """Once a request has waited for half a minute of the pause; before, an update of weights is under way."""
    scene = Scene()
    scene.token()
    scene.queue.running = running
    scene.queue.pause = pause  # type: ignore[assignment]
    scene.queue.pause_start_time_unix_nano = scene.ago(0)
    begun = scene.now
    scene.waits((snapshots.QUEUE_REASON_PAUSED, 3))
    assert not scene.tick(29)
    (stall,) = scene.tick(2)
    assert (stall.kind, stall.count) == (StallKind.SCHEDULER_PAUSED, count)
    assert stall.since == pytest.approx(begun, abs=1.1)
    scene.queue.pause = snapshots.SCHEDULER_PAUSE_UNSPECIFIED
    scene.token()
    assert not scene.tick()


def test_a_pause_that_nobody_waits_in_is_none() -> None:
    """A sleeping engine without requests."""
    scene = Scene()
    scene.queue.pause = snapshots.SCHEDULER_PAUSE_ALL
    scene.queue.pause_start_time_unix_nano = scene.ago(0)
    assert not scene.tick(600)
    # It comes late in the pause.
    scene.waits((snapshots.QUEUE_REASON_PAUSED, 1))
    assert not scene.tick(20)
    assert scene.tick(15)


def test_an_engine_that_reports_no_queue() -> None:
    """Nothing is known of it, and nothing is said."""
    scene = Scene()
    scene.token()
    scene.waits((CAPACITY, 2))
    scene.core.ClearField("queue")
    assert not scene.tick(60)


def test_an_agent_that_was_started_again() -> None:
    """It sees a standstill of old at the third snapshot, with its begin."""
    scene = Scene()
    scene.queue.last_step_time_unix_nano = scene.ago(300)
    scene.queue.free_blocks = 0
    scene.core.leases.count, scene.core.leases.blocks = 3, 100
    scene.waits((CAPACITY, 1), ago=200)
    assert not scene.tick(2)
    (stall,) = scene.tick()
    assert stall.since == pytest.approx(START - 200, abs=1.1)


_SECONDS = st.fixed_dictionaries(
    {
        "running": st.integers(0, 4),
        "capacity": st.integers(0, 9),
        "next": st.integers(0, 9),
        "remote": st.integers(0, 9),
        "free": st.integers(0, 100),
        "leases": st.integers(0, 100),
        "empty": st.integers(0, 50),
        "token": st.booleans(),
    }
)


@settings(max_examples=40)
@given(st.lists(_SECONDS, max_size=25))
def test_a_token_in_each_two_seconds_is_never_a_standstill(seconds: list[dict[str, Any]]) -> None:
    """Whatever else the snapshots say; and whatever they say, at most one reason is told."""
    scene, silent = Scene(), 0
    for each in seconds:
        silent = 0 if each["token"] else silent + 1
        if each["token"]:
            scene.token()
        scene.queue.running, scene.queue.free_blocks = each["running"], each["free"]
        scene.core.leases.count, scene.core.leases.blocks = 1, each["leases"]
        scene.waits((CAPACITY, each["capacity"]), (NEXT, each["next"]), (REMOTE, each["remote"]))
        found = scene.tick(empty=each["empty"])
        assert len(found) <= 1
        assert not found or silent >= 2
