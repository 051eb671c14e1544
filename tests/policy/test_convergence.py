"""Store, feed and engines under loss, duplication, reordering, restarts and partitions: all end where the store wants them."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.agent.errors import ConflictError, ManifestError, NotFoundError
from penstock.agent.model import EngineKey
from penstock.rules.policy import NO_POLICY, Policy

from tests.support.examples import examples
from tests.support.policy.orders import quarantine_order
from tests.support.policy.policies import action, manifest
from tests.support.policy.world import Link, SimulatedEngine, World

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = ("kv_load_failure", "deferral", "peer_quarantine", "telemetry")
OLD = ("kv_load_failure",)
"""What an engine of an older version acts upon."""

ENGINES = [("0", {"role": "decode"}, ALL), ("1", {"role": "prefill"}, OLD)]
SETTLING = 25
"""Turns of one second after which everything must have come together: the longest back-off is five, patience ten."""

names = st.sampled_from(["a", "b"])
bodies = st.sampled_from(
    [
        {"kvLoadFailure": action("recompute")},
        {"kvLoadFailure": action("fail")},
        {"kvLoadFailure": {"action": "auto", "maxRecomputeTokens": 64}},
        {"kvLoadFailure": action("fail"), "deferral": {"maxStartWait": "5s"}},
    ]
)
selectors = st.sampled_from([{}, {"matchLabels": {"role": "decode"}}])
lifetimes = st.sampled_from([None, 5.0, 15.0, 600.0])
picks = st.integers(0, 5)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log nothing: thousands of pushes are answered."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("vllm.penstock").setLevel(logging.CRITICAL)
    yield
    structlog.reset_defaults()
    logging.getLogger("vllm.penstock").setLevel(logging.NOTSET)


class ConvergenceMachine(RuleBasedStateMachine):
    """Runs operators' changes, time and faults in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.generation = 0
        self.seen: dict[str, Policy] = {}
        self.orders = 0

    def teardown(self) -> None:
        """End the faults, check that all engines converge, and clean up."""
        try:
            self.settle()
        finally:
            self.world.close()

    @initialize()
    def begin(self) -> None:
        """Start the engines."""
        for engine in ENGINES:
            self.world.add(*engine)

    # Operators

    @precondition(lambda self: self.world.up)
    @rule(
        name=names,
        body=bodies,
        selector=selectors,
        priority=st.sampled_from([10, 20]),
        mode=st.sampled_from(["enforce", "enforce", "observe"]),
        lifetime=lifetimes,
        at_once=st.booleans(),
    )
    def apply(
        self,
        name: str,
        body: Any,
        selector: Any,
        priority: int,
        mode: str,
        lifetime: float | None,
        at_once: bool,
    ) -> None:
        """Set a policy, with or without an end."""
        spec = {**body, "selector": selector, "priority": priority, "mode": mode}
        if "kvLoadFailure" not in body:
            spec["kvLoadFailure"] = None
        if lifetime is not None:
            spec["expiresAt"] = (
                datetime.fromtimestamp(self.world.now, UTC) + timedelta(seconds=lifetime)
            ).isoformat()
        done = self.world.run(self.world.store.apply(manifest(name, **spec), author="test"))
        self.generation += done.result != "unchanged"
        if at_once:
            self._push()

    @precondition(lambda self: self.world.up)
    @rule(name=names, back=st.booleans())
    def undo(self, name: str, back: bool) -> None:
        """Delete a policy, or roll it back."""
        store = self.world.store
        work = store.rollback(name, author="test") if back else store.delete(name, author="test")
        try:
            done = self.world.run(work)
        except (NotFoundError, ManifestError, ConflictError):
            return
        self.generation += done.result != "unchanged"

    @precondition(lambda self: self.world.up)
    @rule(which=st.sampled_from([None, "0"]), paused=st.booleans())
    def pause(self, which: str | None, paused: bool) -> None:
        """Pause or resume."""
        keys = None if which is None else [EngineKey("", which)]
        self.world.run(self.world.pauses.set(keys, paused, author="test", which="some"))
        self._push()

    @precondition(lambda self: self.world.up)
    @rule(seconds=st.integers(1, 60), lift=st.booleans())
    def order(self, seconds: int, lift: bool) -> None:
        """Order a quarantine, or its lift."""
        self.orders += 1
        order = quarantine_order(
            f"q{self.orders}", began=int(self.world.now * 1e9), seconds=seconds, quarantined=not lift
        )
        self.world.run(self.world.orders.set_quarantine(order))
        self._push()

    # Time and messages

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def wait(self, seconds: float) -> None:
        """Advance the clock; the longer step exceeds the agent's patience."""
        self.world.pass_time(seconds)
        self._push()

    @rule()
    def carry_everything(self) -> None:
        """Deliver all messages in transit."""
        self.world.turn()

    def _push(self) -> None:
        """Run the agent's tasks until they have pushed all changes."""
        if self.world.up:
            self.world.pump_all()

    def _queues(self) -> list[tuple[Link, list[Any]]]:
        """Return the queues that are not empty."""
        links = self.world.links
        found = [(link, link.down) for link in links if link.down]
        return found + [(link, link.up) for link in links if link.up and link.at_agent and self.world.up]

    @rule(pick=picks, overtaking=st.booleans())
    def carry(self, pick: int, overtaking: bool) -> None:
        """Deliver one message, the oldest or the newest of its stream; a push also behind the end of its stream."""
        if queues := self._queues():
            link, queue = queues[pick % len(queues)]
            if queue is link.down:
                self.world.take_down(link, -overtaking)
            else:
                self.world.take_up(link, -overtaking)
                self._push()

    # Accidents

    @rule(pick=picks, lose=st.booleans())
    def spoil(self, pick: int, lose: bool) -> None:
        """Lose a message, or repeat it."""
        if not (queues := self._queues()):
            return
        _, queue = queues[pick % len(queues)]
        if lose:
            del queue[0]
        else:
            queue.append(queue[0])

    @rule(pick=picks, engine_first=st.booleans())
    def break_stream(self, pick: int, engine_first: bool) -> None:
        """End a stream; one side learns of it later."""
        if not self.world.links:
            return
        link = self.world.links[pick % len(self.world.links)]
        if engine_first and link.at_engine:
            self.world.end_at_engine(link)
        elif link.at_agent and self.world.up:
            self.world.end_at_agent(link)

    def _engine(self, pick: int) -> SimulatedEngine:
        return self.world.engines[pick % len(self.world.engines)]

    @rule(pick=picks, cut=st.booleans())
    def partition(self, pick: int, cut: bool) -> None:
        """Begin or end a partition of an engine; open streams stay."""
        self._engine(pick).partitioned = cut

    @rule(pick=picks)
    def run_ahead(self, pick: int) -> None:
        """Advance an engine's clock: its schedule moves on before the agent's."""
        self.world.turn()
        self.world.turn()
        self._engine(pick).ahead += 1_000.0
        self._engine(pick).tick()

    @rule(pick=picks)
    def restart_engine(self, pick: int) -> None:
        """Kill an engine: it loses its state, and the agent has not noticed yet."""
        engine = self._engine(pick)
        for link in self.world.links:
            if link.engine is engine:
                link.at_engine = False
                link.down.clear()
        engine.start()
        engine.tick()

    @precondition(lambda self: self.world.up)
    @rule()
    def kill_agent(self) -> None:
        """Kill the agent."""
        self.world.kill_agent()

    @precondition(lambda self: not self.world.up)
    @rule()
    def start_agent(self) -> None:
        """Start it again."""
        self.world.start_agent()

    # What holds always

    @invariant()
    def only_what_was_admitted_is_in_force(self) -> None:
        """Never a policy that no state of the store gave, one that is paused, two contents of one hash, or one that is over."""
        for engine in self.world.engines:
            current = engine.runtime.policy.current
            assert current.hash in self.world.admitted[engine.key]
            # Which policies it was merged from is no part of the hash: another of the same fields may follow.
            content = replace(current, sources=())
            assert content == self.seen.setdefault(current.hash, content)
            if engine.client._applier.paused:
                assert current == NO_POLICY
                assert engine.runtime.paused
            assert engine.client._applier.due_in() > 0

    @invariant()
    def nothing_counts_as_in_force_before_the_engine_has_it(self) -> None:
        """Believe an engine only about the last push that went out."""
        for link in self.world.links:
            if link.subscriber is not None and link.subscriber.in_force:
                assert link.subscriber._nonce == link.taken

    @invariant()
    def generations_count_changes(self) -> None:
        """Raise the store's generation by one with each change, and keep it over restarts."""
        if self.world.up:
            assert self.world.store.generation == self.generation

    # What holds in the end

    def settle(self) -> None:
        """End the faults; then every engine has what the store wants, and the agent knows it."""
        world = self.world
        if not world.up:
            world.start_agent()
        for engine in world.engines:
            engine.partitioned = False
        for _ in range(SETTLING):
            world.turn()
            world.pass_time(1.0)
            self.only_what_was_admitted_is_in_force()
        # A push and its answer, if something has just ended.
        world.turn()
        world.turn()
        for engine in world.engines:
            self._has_settled(engine)

    def _has_settled(self, engine: SimulatedEngine) -> None:
        feed, applier = self.world.feed, engine.client._applier
        subscriber = feed.subscriber(engine.key)
        assert subscriber is not None
        assert subscriber.connected
        assert subscriber.settled
        assert subscriber.answer is not None
        paused = self.world.pauses.is_paused(engine.key)
        assert engine.runtime.paused == applier.paused == paused
        orders = engine.runtime.policy.orders
        assert [order.id for order in orders.quarantines] == (
            [] if paused else list(subscriber.wanted.quarantines)
        )
        if subscriber.answer.error:
            assert engine.fields == OLD
            assert subscriber.answer.field == "deferral.maxStartWait"
            return
        assert subscriber.in_force is not (paused and subscriber.wanted.anything)
        assert subscriber.hash_in_force == engine.runtime.policy.current.hash
        wanted = feed.wanted(engine.key)
        assert applier.hash == wanted
        assert engine.runtime.policy.current.hash == ("" if paused else wanted)


ConvergenceMachine.TestCase.settings = settings(
    max_examples=examples(80),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestConvergence = ConvergenceMachine.TestCase
