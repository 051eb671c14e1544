"""Each stall is seen when its fault is there, and none in a good run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from penstock.agent.model import EngineKey, Source
from penstock.agent.sources import Registry
from penstock.agent.stalls import KINDS, Stall, StallKind, StallWatch
from penstock.proto.v1.snapshot_pb2 import Progress, Snapshot

START = 1_000_000.0
KEY = EngineKey("", "0")
CORE, WORKER, SIBLING = 1, 2, 3


class Scene:
    """One engine with an EngineCore and two workers, a clock, and the watch over them."""

    def __init__(
        self, connector: str = "NixlConnector", role: str = "decode", *, guessed: bool = False
    ) -> None:
        self.now = START
        self.registry = Registry(lambda: int(self.now * 1e9))
        self.watch = StallWatch(self.registry.sources, lambda: self.now)
        self.progress = {epoch: Progress() for epoch in (CORE, WORKER, SIBLING)}
        self.paused = False
        self.facts: dict[str, Any] = {
            "kv_connector": connector,
            "role": {"decode": 2, "prefill": 1}[role],
            "role_guessed": guessed,
        }
        self.mute: set[int] = set()
        self.eplb: dict[str, Any] = {}
        for epoch, process, rank in ((CORE, "engine-core", 0), (WORKER, "worker", 0), (SIBLING, "worker", 1)):
            self.registry.connect(
                Source(epoch=epoch, key=KEY, process=process, rank=rank, start_time_unix_nano=epoch), 0
            )

    def ago(self, seconds: float) -> int:
        """Return a time of the engines' clock, which is an hour ahead of the agent's."""
        return int((self.now + 3_600 - seconds) * 1e9)

    def tick(self, seconds: int = 1, **counts: int) -> tuple[Stall, ...]:
        """Let time pass, with a snapshot of each process and a look each second; *counts* are added to EngineCore's."""
        for _ in range(seconds):
            self.now += 1
            for name, more in counts.items():
                setattr(self.progress[CORE], name, getattr(self.progress[CORE], name) + more)
            for epoch, progress in self.progress.items():
                if epoch not in self.mute:
                    snapshot = Snapshot(time_unix_nano=self.ago(0), progress=progress, paused=self.paused)
                    if epoch == CORE:
                        snapshot.engine.MergeFrom(type(snapshot.engine)(**self.facts))
                    elif self.eplb:
                        snapshot.eplb.MergeFrom(type(snapshot.eplb)(**self.eplb))
                    self.registry.snapshot(epoch, snapshot)
            self.watch.look()
        return self.watch.now.get(KEY, ())

    def ended(self) -> tuple[Stall, ...]:
        """Return the stalls that are over."""
        return self.watch.ended.found.get(KEY, ())

    def kinds(self) -> list[StallKind]:
        """Return the kinds of the present stalls."""
        return [stall.kind for stall in self.watch.now.get(KEY, ())]


async def test_the_loop_rests_between_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has to do meanwhile does not wait for the look at all engines; what is found is there at the end."""
    loop, turns = asyncio.get_running_loop(), []
    registry = Registry(lambda: 0)
    for number in range(1, 21):
        registry.connect(Source(epoch=number, key=EngineKey("", str(number)), process="engine-core"), 0)
    watch = StallWatch(registry.sources, lambda: START)
    found, done = Stall(StallKind.STEP_STUCK, 1, START, "found"), asyncio.Event()

    def look(key: EngineKey, _: object) -> tuple[Stall, ...]:
        turns.append("engine")
        loop.call_soon(turns.append, "other")
        return (found,)

    monkeypatch.setattr(watch, "_stalls", look)
    monkeypatch.setattr(watch, "_report", lambda _: done.set())
    looking = asyncio.ensure_future(watch.keep_looking())
    await done.wait()
    looking.cancel()
    assert turns[:32] == 2 * (8 * ["engine"] + 8 * ["other"])
    assert len(watch.now) == 20


def test_a_good_run_has_no_stall() -> None:
    """Traffic with loads, short waits, handshakes, steps and rebalances; then the engine is idle for ten minutes."""
    scene = Scene()
    scene.eplb = {"enabled": True, "step_interval": 100}
    for second in range(600):
        core = scene.progress[CORE]
        core.step_start_time_unix_nano = scene.ago(0.2)
        del core.unstarted[:]
        core.unstarted.add(peer={"address": "p:1"}, count=2, oldest_start_time_unix_nano=scene.ago(2))
        for epoch in (WORKER, SIBLING):
            worker = scene.progress[epoch]
            worker.steps += 20
            del worker.eplb[:], worker.threads[:]
            worker.threads.add(name="vllm-nixl-handshake-initiator", alive=1)
            steps = second * 20
            worker.eplb.add(rank=epoch, steps=steps, last_begun_step=steps - steps % 100)
        assert not scene.tick(requests=3, requests_to_load=3, steps=20)
    scene.progress[CORE].step_start_time_unix_nano = 0
    del scene.progress[CORE].unstarted[:]
    for _ in range(600):
        assert not scene.tick()


def test_a_wait_that_never_started() -> None:
    """After 30 s, and not for those that wait for a handshake; it is over when the request is."""
    scene = Scene()
    begun = scene.ago(0)
    scene.progress[CORE].unstarted.add(peer={"address": "p:1"}, count=3, oldest_start_time_unix_nano=begun)
    for epoch in (WORKER, SIBLING):
        scene.progress[epoch].handshaking.add(peer={"address": "p:1"}, count=1)
    assert not scene.tick(29)
    (stall,) = scene.tick(2)
    assert (stall.kind, stall.peer, stall.count) == (StallKind.LOAD_NOT_STARTED, "p:1", 2)
    assert stall.since == pytest.approx(START, abs=1.5)
    assert "2 requests wait for KV from p:1" in stall.sentence
    for epoch in (WORKER, SIBLING):
        scene.progress[epoch].handshaking[0].count = 3
    assert not scene.tick()
    del scene.progress[WORKER].handshaking[:], scene.progress[SIBLING].handshaking[:]
    assert scene.tick()
    del scene.progress[CORE].unstarted[:]
    assert not scene.tick()


def test_a_pushing_peer_has_two_minutes() -> None:
    """Its prefill is part of the wait."""
    scene = Scene("NixlPushConnector")
    scene.progress[CORE].unstarted.add(
        peer={"address": "p:1"}, count=1, oldest_start_time_unix_nano=scene.ago(0)
    )
    assert not scene.tick(110)
    assert scene.tick(15)


def test_loads_that_were_expected_and_not_made() -> None:
    """Three requests in five minutes, and no more once they are older."""
    scene = Scene()
    scene.tick(5, requests=1, requests_to_load=1)
    assert not scene.tick(2, unloaded_requests=1)
    (stall,) = scene.tick(1, unloaded_requests=1)
    assert (stall.kind, stall.count) == (StallKind.LOAD_MISSING, 3)
    assert not scene.tick(310)


@pytest.mark.parametrize(
    ("connector", "guessed", "earlier", "found"),
    [
        ("NixlConnector", False, 0, True),
        ("NixlConnector", True, 0, False),
        ("NixlConnector", True, 5, True),
        ("OffloadingConnector", False, 0, False),
        ("MultiConnector", True, 5, True),
        ("", False, 0, False),
    ],
)
def test_a_router_that_sends_no_parameters(connector: str, guessed: bool, earlier: int, found: bool) -> None:
    """Where a person has said that it decodes, or earlier requests had some; and not in an idle engine."""
    scene = Scene(connector, guessed=guessed)
    if earlier:
        scene.tick(earlier, requests=1, requests_to_load=1)
        scene.tick(310)
    assert not scene.tick(19, requests=1)
    scene.tick(5, requests=1)
    assert scene.kinds() == ([StallKind.NO_TRANSFER_PARAMS] if found else [])
    scene.tick(310)
    assert scene.kinds() == []


def test_a_share_of_requests_without_parameters_is_no_stall_but_keeps_one() -> None:
    """Above 90 percent it begins, below 75 it ends."""
    scene = Scene()
    scene.tick(40, requests=5, requests_to_load=1)
    assert not scene.kinds()
    scene.tick(200, requests=5)
    assert scene.kinds() == [StallKind.NO_TRANSFER_PARAMS]
    scene.tick(200, requests=5, requests_to_load=3)
    assert not scene.kinds()


def test_a_call_that_does_not_return() -> None:
    """It names the process, the connector and the method."""
    scene = Scene()
    scene.progress[SIBLING].calls.add(
        name="save_kv_layer", connector="LMCacheConnectorV1", rank=1, start_time_unix_nano=scene.ago(0)
    )
    assert not scene.tick(28)
    (stall,) = scene.tick(3)
    assert stall.kind is StallKind.CALL_STUCK
    assert "worker 1 has been in LMCacheConnectorV1.save_kv_layer for" in stall.sentence


def test_a_step_that_does_not_end() -> None:
    """After a minute."""
    scene = Scene()
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    assert not scene.tick(58)
    (stall,) = scene.tick(3)
    assert stall.kind is StallKind.STEP_STUCK


def test_a_thread_that_has_ended() -> None:
    """Not at once: an engine that ends goes meanwhile."""
    scene = Scene()
    scene.progress[WORKER].threads.add(name="nixl-push-writer", ended_time_unix_nano=scene.ago(0))
    assert not scene.tick(8)
    (stall,) = scene.tick(3)
    assert stall.kind is StallKind.THREAD_DEAD
    assert "nixl-push-writer of worker 0" in stall.sentence


def _rebalancing(scene: Scene, seconds: int, **row: int) -> None:
    """Let both ranks take ten steps a second; the first has what *row* says of its rebalances."""
    scene.eplb = {"enabled": True, "step_interval": 100}
    for _ in range(seconds):
        for epoch in (WORKER, SIBLING):
            progress = scene.progress[epoch]
            steps = (progress.eplb[0].steps if progress.eplb else 1_000) + 10
            del progress.eplb[:]
            progress.eplb.add(rank=epoch, steps=steps, last_begun_step=steps - steps % 100)
        first = scene.progress[WORKER].eplb[0]
        for name, value in row.items():
            setattr(first, name, value)
        scene.tick()


def test_rebalances_that_do_not_come_any_more() -> None:
    """Two intervals of steps, by the rank that has none; not while it is idle."""
    scene = Scene()
    _rebalancing(scene, 20, last_begun_step=1_000)
    assert not scene.kinds()
    _rebalancing(scene, 5, last_begun_step=1_000)
    assert scene.kinds() == [StallKind.REBALANCE_OVERDUE]
    scene.tick(70)
    assert not scene.kinds()


def test_a_rebalance_that_does_not_end() -> None:
    """It is under way for five minutes while steps go on."""
    scene = Scene()
    began = scene.ago(0)
    _rebalancing(scene, 295, last_begun_step=1_000, open_start_time_unix_nano=began)
    assert not scene.kinds()
    _rebalancing(scene, 10, last_begun_step=1_000, open_start_time_unix_nano=began)
    assert scene.kinds() == [StallKind.REBALANCE_UNFINISHED]


def test_a_worker_that_says_nothing() -> None:
    """While its EngineCore reports; not if all are silent, and not if it said goodbye."""
    scene = Scene()
    scene.tick(5)
    scene.mute = {SIBLING}
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    assert not scene.tick(9)
    (stall,) = scene.tick(3)
    assert stall.kind is StallKind.WORKER_SILENT
    assert "worker 1 has reported nothing" in stall.sentence
    scene.mute = {CORE, WORKER, SIBLING}
    assert not scene.tick(20)
    scene.mute = {SIBLING}
    scene.registry.disconnect(SIBLING, said_goodbye=True)
    assert not scene.tick(20)


def test_a_worker_that_nobody_waits_for() -> None:
    """Without a step under way a starved process may be late for a minute and more; with one it is told at once."""
    scene = Scene()
    scene.mute = {SIBLING}
    assert not scene.tick(100)
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    assert [each.kind for each in scene.tick(1)] == [StallKind.WORKER_SILENT]
    scene.progress[CORE].step_start_time_unix_nano = 0
    assert not scene.tick(1)
    assert [each.kind for each in scene.tick(30)] == [StallKind.WORKER_SILENT]


def test_a_late_snapshot_is_no_silent_worker() -> None:
    """Steps of the engine that go on need all workers; once they stand still, it is told."""
    scene = Scene()
    scene.mute = {SIBLING}
    for _ in range(20):
        scene.progress[CORE].steps += 10
        assert not scene.tick(1)
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    assert [each.kind for each in scene.tick(9)] == [StallKind.WORKER_SILENT]


def test_a_worker_of_an_earlier_life_is_no_sibling() -> None:
    """An engine that came back with fewer ranks has lost none."""
    scene = Scene()
    scene.mute = {SIBLING}
    scene.registry.disconnect(SIBLING)
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    assert scene.tick(20)
    scene.registry.disconnect(CORE)
    scene.registry.connect(Source(epoch=9, key=KEY, process="engine-core", start_time_unix_nano=100), 0)
    scene.progress = {9: Progress(), WORKER: Progress()}
    assert not scene.tick(20)


def test_what_was_before_the_agent_s_start_is_no_silence() -> None:
    """A worker of the state that takes ten seconds to come back."""
    scene = Scene()
    scene.registry.restore(
        Source(epoch=7, key=KEY, process="worker", rank=2, start_time_unix_nano=7),
        1,
        int((START - 500) * 1e9),
    )
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    assert not scene.tick(9)
    assert scene.tick(3)


def test_a_worker_that_stands_still() -> None:
    """Its sibling takes steps; a difference of one step is none."""
    scene = Scene()
    for epoch in (WORKER, SIBLING):
        scene.progress[epoch].steps = 10
    scene.tick(5)
    scene.progress[WORKER].steps += 1
    assert not scene.tick(40)
    for _ in range(40):
        scene.progress[WORKER].steps += 1
        scene.tick()
    (stall,) = scene.watch.now[KEY]
    assert stall.kind is StallKind.WORKER_SILENT
    assert "worker 1 has begun no step" in stall.sentence


def test_a_paused_engine_and_an_older_one_have_none() -> None:
    """What is not known is no stall."""
    scene = Scene()
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(100)
    assert scene.tick()
    scene.paused = True
    assert not scene.tick()
    scene.paused = False
    for epoch in scene.progress:
        scene.registry.snapshot(epoch, Snapshot(time_unix_nano=scene.ago(0)))
    scene.watch.look()
    assert not scene.kinds()


def _stuck(scene: Scene) -> None:
    scene.progress[SIBLING].calls.add(
        name="start_load_kv", connector="Some", rank=1, start_time_unix_nano=scene.ago(0)
    )


def test_what_is_over_is_kept_in_the_past_tense() -> None:
    """For ten minutes; not while it lasts, nor where it comes back."""
    scene = Scene()
    _stuck(scene)
    scene.tick(50)
    assert not scene.ended()
    del scene.progress[SIBLING].calls[:]
    scene.tick()
    (stall,) = scene.ended()
    assert stall.sentence == "worker 1 was in Some.start_load_kv for 50 s"
    assert (round(stall.since - START), stall.until) == (0, scene.now)
    _stuck(scene)
    scene.tick(31)
    assert scene.kinds() == [StallKind.CALL_STUCK]
    assert not scene.ended()
    del scene.progress[SIBLING].calls[:]
    scene.tick(599)
    assert len(scene.ended()) == 1
    scene.tick(10)
    assert not scene.ended()


@pytest.mark.parametrize(("goodbye", "told"), [(True, 1), (False, 0)])
def test_an_engine_that_ended_while_it_stood_still(goodbye: bool, told: int) -> None:
    """VLLM ends an engine whose step does not return in five minutes; of one that vanished nothing is known."""
    scene = Scene()
    _stuck(scene)
    scene.tick(40)
    for epoch in (CORE, WORKER, SIBLING):
        scene.registry.disconnect(epoch, said_goodbye=goodbye and epoch == CORE)
    scene.now += 5
    scene.watch.look()
    assert len(scene.ended()) == told
    assert all(each.until <= scene.now - 5 for each in scene.ended())


def test_what_an_engine_does_that_is_paused_is_not_known() -> None:
    """Nothing has ended."""
    scene = Scene()
    _stuck(scene)
    scene.tick(40)
    scene.paused = True
    scene.tick(5)
    assert not scene.kinds()
    assert not scene.ended()


def test_what_nobody_tells_of_any_more_has_not_ended() -> None:
    """A worker is silent, then its EngineCore, too: of neither is known what it does."""
    scene = Scene()
    scene.progress[CORE].step_start_time_unix_nano = scene.ago(0)
    scene.mute = {WORKER}
    scene.tick(60)
    assert StallKind.WORKER_SILENT in scene.kinds()
    scene.mute = {CORE, WORKER, SIBLING}
    scene.tick(120)
    assert not scene.ended()


def test_kinds_are_a_closed_set() -> None:
    """The documents name each."""
    assert len(KINDS) == 13
