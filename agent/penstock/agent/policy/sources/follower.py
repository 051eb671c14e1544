"""Follows the policy sources: stores the merge of what they bring, knows their states, and looks again at an empty set."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import FullError, ImpossibleError, StateError
from penstock.agent.policy.sources.interface import (
    AWAY,
    CONNECTED,
    CONNECTING,
    MAX_ITEMS,
    MAX_REFUSALS,
    MAX_SENTENCE,
    SourceState,
)
from penstock.agent.policy.sources.source_sets import SourceKey, check_set, merge_sets, read_items
from penstock.agent.policy.store import IMPERATIVE, Clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.agent.policy.sources.interface import ManifestSource, SourceSet
    from penstock.agent.policy.sources.source_sets import CheckedSet, ReadItem
    from penstock.agent.policy.store import AppliedAll, Store
    from penstock.proto.v1.admin_pb2 import AgentStatus

_log = structlog.get_logger(__name__)

# Maximum wait at the start for the first sets.
START_SECONDS = 5.0
# Until a set is handed over again that the store could not take.
RETRY_SECONDS = 10.0
# Until a source starts again that ended with an exception.
_RESTART_SECONDS = 5.0


SECOND_LOOK_SECONDS = 10.0


class SourceFollower:
    """Runs *sources* and stores the merge of their sets. Its methods are the loop's; states may be read by any thread."""

    def __init__(self, sources: Sequence[ManifestSource], store: Store, *, clock: Clock = time.time) -> None:
        """Follow *sources*, in the order of their precedence; *clock* gives seconds since the epoch."""
        self._store = store
        self._clock = clock
        self._followed = [FollowedSource(self, source, clock) for source in sources]
        self._order = [each.key for each in self._followed]
        # A source that is not reached has what the store has of it.
        accepted = merge_sets(self._order, {}, store.policies()).accepted
        for each in self._followed:
            each.state = replace(each.state, accepted=accepted[each.key.name])
        self._sets: dict[str, CheckedSet] = {}
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def owns(self, owner: str) -> bool:
        """Return whether one of the sources brings policies of *owner*."""
        return any(key.owns(owner) for key in self._order)

    async def start(self) -> None:
        """Run the sources. Waits until each has handed over its set or is away, at most 5 s."""
        self._tasks = [asyncio.ensure_future(each.keep_running()) for each in self._followed]
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                for each in self._followed:
                    await each.settled.wait()
        for each in self._followed:
            if not each.settled.is_set():
                _log.warning(
                    "policy source not read in time; its last policies stay in force", source=each.key.name
                )

    async def stop(self) -> None:
        """Stop the sources. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def states(self) -> list[SourceState]:
        """Return the states, in the order of the sources. Any thread."""
        return [each.state for each in self._followed]

    def brings(self, kind: str, place: str, name: str, content: str, revision: int = 0) -> bool:
        """Return whether the policy *name* of a source is in the store as it was written there.

        Args:
            kind: of the source.
            place: the bucket or the namespace.
            content: digest of the manifest; empty where it was deleted.
            revision: of the manifest there; what was refused before it does not count.

        Raises:
            ImpossibleError: no source follows that place, or the policy is refused.

        """
        # The namespace of the agent's own pod has no name here.
        states = [
            each
            for each in self.states()
            if each.kind == kind and (each.name == kind or re.split("[:/]", each.name)[-1] == place)
        ]
        if not states:
            raise ImpossibleError(
                f"the agent follows no {kind} source {place!r}; see --policy-source of penstock-agent"
            )
        owners = {each.name for each in states}
        present = [
            each.manifest.digest
            for each in self._store.policies()
            if each.manifest.name == name and each.owner in owners
        ]
        if content in present or (not content and not present):
            return True
        refusal = next(
            (
                each.refused[name]
                for each in states
                if name in each.refused and _number(each.revision) >= revision
            ),
            "",
        )
        if refusal and content:
            raise ImpossibleError(f"the agent refuses policy {name!r}: {refusal}")
        return False

    def problem(self) -> str:
        """Return which sources are away, or bring what is refused as a whole; empty for none. Any thread."""
        return "; ".join(filter(None, map(_problem, self.states())))

    def describe(self, status: AgentStatus) -> None:
        """Fill the field of ``GetStatus`` about the sources."""
        for each in self.states():
            item = status.policy_sources.add(
                name=each.name,
                kind=each.kind,
                state=each.state,
                revision=each.revision,
                error=each.error[:MAX_SENTENCE],
                accepted=each.accepted,
                refused=len(each.refused),
            )
            item.since.FromNanoseconds(int(each.since * 1e9))
            for name, sentence in sorted(each.refused.items())[:MAX_REFUSALS]:
                item.refusals.add(name=name, sentence=sentence[:MAX_SENTENCE])

    def holds(self, key: SourceKey) -> bool:
        """Return whether the source has policies: in the store, or those that an earlier source has as well."""
        last = self._sets.get(key.name)
        brought = last is not None and bool(last.names)
        return brought or any(key.owns(each.owner) for each in self._store.policies())

    def check(self, found: Mapping[str, ReadItem], owner: str) -> CheckedSet:
        """Check the times of the manifests of *found* now."""
        known = {each.manifest.canonical for each in self._store.policies()}
        return check_set(found, owner, known, datetime.fromtimestamp(self._clock(), UTC))

    async def put(self, source: str, checked: CheckedSet) -> AppliedAll:
        """Store the merge with *checked* as the set of *source*.

        Raises:
            FullError: there would be too many policies; the last set stays.
            StateError: the database cannot be written.

        """
        async with self._turn:
            sets = {**self._sets, source: checked}
            merged = merge_sets(self._order, sets, self._store.policies())
            by_hand = {each.manifest.name for each in self._store.policies() if each.owner == IMPERATIVE}
            for policy in merged.policies:
                if policy.manifest.name in by_hand:
                    _log.warning(
                        "a policy source takes over a policy that was set by hand; 'agentctl get audit' has its content",
                        policy=policy.manifest.name,
                        source=policy.owner,
                    )
            applied = await self._store.replace_files(merged.policies)
            self._sets = sets
            for each in self._followed:
                name = each.key.name
                _log_refused(name, each.state.refused, merged.refused[name])
                each.state = replace(
                    each.state, accepted=merged.accepted[name], refused=dict(merged.refused[name])
                )
            return applied


class FollowedSource:
    """One source with its state: its sink.

    Attributes:
        settled: set when the source has handed over a set or is away.
        state: replaced as a whole, so that any thread may read it.

    """

    def __init__(self, follower: SourceFollower, source: ManifestSource, clock: Clock) -> None:
        self.key = SourceKey(source.name, source.kind)
        self.settled = asyncio.Event()
        self.state = SourceState(source.name, source.kind, CONNECTING, clock())
        self._follower = follower
        self._source = source
        self._clock = clock
        self._look = SecondLook()
        # Of the last set, so that each manifest is validated once.
        self._read: dict[str, ReadItem] = {}

    async def keep_running(self) -> None:
        """Run the source until cancelled."""
        while True:
            try:
                await self._source.run(self)
            except Exception as error:  # noqa: BLE001  (a bug must not end a source for ever)
                _log.exception("policy source failed; it starts again", source=self.key.name)
                self.away(f"{type(error).__name__}, see the agent's log")
            await asyncio.sleep(_RESTART_SECONDS)

    def connected(self) -> None:
        """Note that the source has reached its place."""
        if self.state.state != CONNECTED:
            _log.info("policy source connected", source=self.key.name)
            self.state = replace(self.state, state=CONNECTED, since=self._clock(), error="")

    def away(self, error: str) -> None:
        """Note that the source cannot reach its place."""
        self._look.reset()
        if self.state.state != AWAY:
            _log.warning(
                "policy source away; its last policies stay in force", source=self.key.name, error=error
            )
            self.state = replace(self.state, state=AWAY, since=self._clock())
        self.state = replace(self.state, error=error[:MAX_SENTENCE])
        self.settled.set()

    def report(self, error: str, *, settled: bool = False) -> None:
        """Note why the last set is not in force; empty if it is."""
        self.state = replace(self.state, error=error[:MAX_SENTENCE])
        if settled:
            self.settled.set()

    async def hand_over(self, found: SourceSet) -> float:
        """Put *found* in force; see :class:`~penstock.agent.policy.sources.interface.SourceSink`."""
        try:
            return await self._hand_over(found)
        finally:
            self.settled.set()

    async def put(self, checked: CheckedSet, revision: str = "") -> AppliedAll:
        """Store a checked set.

        Raises:
            FullError: there would be too many policies.
            StateError: the database cannot be written.

        """
        applied = await self._follower.put(self.key.name, checked)
        changes = self.state.changes + bool(applied.results)
        self.state = replace(self.state, error="", revision=revision, changes=changes)
        return applied

    async def _hand_over(self, found: SourceSet) -> float:
        if found.items:
            self._look.reset()
        if len(found.items) > MAX_ITEMS:
            self.report(
                f"it has {len(found.items)} policies, the limit is {MAX_ITEMS}; the last ones stay in force"
            )
            return 0.0
        if not found.items and self._follower.holds(self.key):
            wait = self._look.wait(asyncio.get_running_loop().time())
            if wait:
                self.report("it is empty after it was not; the policies are withdrawn if it stays empty")
                return wait
        self._read = await asyncio.to_thread(read_items, found, self._read)
        try:
            applied = await self.put(self._follower.check(self._read, self.key.name), found.revision)
        except (FullError, StateError) as error:
            self.report(str(error))
            return RETRY_SECONDS
        if applied.results:
            _log.info(
                "policies of a source in force",
                source=self.key.name,
                revision=found.revision,
                changes=[f"{item.name} {item.result}" for item in applied.results],
            )
        return 0.0


def _problem(state: SourceState) -> str:
    if state.state == AWAY:
        return f"the policy source {state.name} is away, its last policies stay in force: {state.error}"
    # The content of files has a state of its own.
    if state.error and state.kind != "file":
        return f"the policy source {state.name} brings what is not in force: {state.error}"
    return ""


def _number(revision: str) -> int:
    return int(revision) if revision.isdecimal() else 0


def _log_refused(source: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Log each refusal once, also where another source's change causes it."""
    for name, sentence in now.items():
        if before.get(name) != sentence:
            _log.warning("a policy of a source is refused", source=source, policy=name, error=sentence)


class SecondLook:
    """An empty set after a full one counts when a set at least 10 s later, of the same connection, is empty too."""

    def __init__(self) -> None:
        self._first: float | None = None

    def reset(self) -> None:
        """Forget the first look: a set was not empty, or the connection broke."""
        self._first = None

    def wait(self, now: float) -> float:
        """Return the seconds until the second look at an empty set; 0 if this is it. *now*: monotonic seconds."""
        if self._first is None:
            self._first = now
        left = self._first + SECOND_LOOK_SECONDS - now
        if left > 0:
            return left
        self._first = None
        return 0.0
