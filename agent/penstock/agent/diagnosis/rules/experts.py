"""Rebalances of experts that stall the forward pass, fail, or have stopped."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, ended_at, first_sign, words
from penstock.proto.names import NANOS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Facts, Rebalance, Window
    from penstock.agent.model import EngineKey

# What a failed rebalance and rebalances that stopped count for, seconds.
_FAILED_SECONDS, _STOPPED_SECONDS = 10.0, 10.0


class _Joined(NamedTuple):
    """A rebalance of an engine, as its ranks report it.

    The forward pass goes on when the last rank does: the pause is that of the slowest, not the sum.
    """

    ranks: Sequence[Rebalance]

    @property
    def slowest(self) -> Rebalance:
        return max(self.ranks, key=lambda each: (each.pause, -each.rank))

    @property
    def pause(self) -> float:
        return self.slowest.pause

    @property
    def failed(self) -> Rebalance | None:
        return next((each for each in self.ranks if not each.ok), None)


def expert_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield what is wrong with the rebalances of each engine."""
    for key in words.keys_of(each.key for each in (*facts.present.rebalances, *facts.before.rebalances)):
        rows, before = _of(facts.present, key), _of(facts.before, key)
        pauses = [each.pause for each in rows]
        if (
            sum(pauses) > limits.EPLB_SHARE * facts.present.seconds
            or max(pauses, default=0.0) >= limits.EPLB_SECONDS
        ):
            yield _stalls(facts, key, rows, before)
        failed = [each.failed for each in rows if each.failed is not None]
        if failed:
            yield _failed(facts, key, failed, before)
        if (
            not rows
            and _expected(facts, before) >= limits.EPLB_EXPECTED
            and _serves(facts, key)
            and not _stalled(facts, key)
        ):
            yield _stopped(facts, key, before)


def _of(window: Window, key: EngineKey) -> list[_Joined]:
    return _joined(each for each in window.rebalances if each.key == key)


def _joined(rows: Iterable[Rebalance]) -> list[_Joined]:
    """Return the rebalances of one engine, each once, whatever number of its ranks report it; the oldest first."""
    found: list[list[Rebalance]] = []
    newest: dict[str, list[Rebalance]] = {}
    for each in sorted(rows, key=lambda each: (each.start, each.rank)):
        group = newest.get(each.model)
        if group is None or not _are_one(group, each):
            group = newest[each.model] = []
            found.append(group)
        group.append(each)
    return [_Joined(group) for group in found]


def _are_one(group: list[Rebalance], one: Rebalance) -> bool:
    """Return whether *one* is the same rebalance on another rank.

    Ranks of elastic expert parallelism count their steps from different beginnings; clocks of hosts differ.
    """
    if any(each.rank == one.rank for each in group):
        return False
    end = max(each.start + int(each.seconds * NANOS) for each in group)
    return one.start <= end or (one.step > 0 and any(each.step == one.step for each in group))


def _expected(facts: Facts, before: list[_Joined]) -> float:
    """Return how many rebalances the window would have had at the pace of the time before."""
    read = facts.before.read
    return len(before) * facts.present.seconds / read if read else 0.0


def _pauses(rows: list[_Joined]) -> str:
    if not rows:
        return "no rebalance"
    pauses = [each.pause for each in rows]
    return f"{words.count(len(rows), 'rebalance')}, paused {words.span(sum(pauses))} in all, up to {words.span(max(pauses))}"


def _slowest(rows: list[_Joined]) -> Iterator[Evidence]:
    """Yield which rank paused longest most often, where several report."""
    several = [each for each in rows if len(each.ranks) > 1]
    if several:
        longest = Counter(each.slowest.rank for each in several)
        most = max(longest.values())
        ranks = [rank for rank, times in longest.items() if times == most]
        each_of = " each" if len(ranks) > 1 else ""
        yield Evidence(f"{words.named(ranks, 'rank')} paused longest in {most} of {len(several)}{each_of}")


def _stalls(facts: Facts, key: EngineKey, rows: list[_Joined], before: list[_Joined]) -> FoundCause:
    total = sum(each.pause for each in rows)
    until = ended_at((each.slowest.time for each in rows), facts.now)
    running = len({each.request_id for each in facts.present.closed_of(key)})
    return FoundCause(
        "eplb_stalls",
        f"rebalances of experts {'stalled' if until else 'stall'} the forward pass of engine {key}: {_pauses(rows)}",
        (key,),
        (
            Evidence(
                f"{_pauses(rows)} in {words.span(facts.present.seconds)}",
                f"{_pauses(before)} in {words.span(facts.before.seconds)}",
            ),
            *_slowest(rows),
        ),
        requests=running,
        # Each pause holds up every request that decodes then; at least one does.
        seconds=total,
        other_harm=total * min(running, 8),
        confidence=Confidence.CERTAIN,
        until=until,
        since=first_sign(
            facts,
            (each.slowest.time for each in rows),
            (each.slowest.time for each in before if each.pause >= limits.EPLB_SECONDS),
        ),
        alternatives=(
            "one rank is late and the others wait for it: agentctl get events --channel eplb has the ranks",
            "the interval is too short for this model: step_interval of eplb_config",
        ),
        commands=(
            f"agentctl get events --channel eplb --since {words.window(facts.present.seconds)}",
            f"agentctl describe engine {key}",
        ),
    )


def _failed(facts: Facts, key: EngineKey, failed: list[Rebalance], before: list[_Joined]) -> FoundCause:
    text = f": {words.cut(failed[0].text)}" if failed[0].text else ""
    return FoundCause(
        "eplb_fails",
        f"{words.count(len(failed), 'rebalance')} of experts failed on engine {key}{text}",
        (key,),
        (
            Evidence(
                f"{len(failed)} failed in {words.span(facts.present.seconds)}",
                f"{sum(each.failed is not None for each in before)} in {words.span(facts.before.seconds)}",
            ),
        ),
        other_harm=_FAILED_SECONDS * len(failed),
        confidence=Confidence.CERTAIN,
        until=ended_at((each.time for each in failed), facts.now),
        since=first_sign(
            facts,
            (each.time for each in failed),
            (each.failed.time for each in before if each.failed is not None),
        ),
        alternatives=("a rank that died: see the losses",),
        commands=(f"agentctl get events --channel eplb --since {words.window(facts.present.seconds)}",),
    )


def _serves(facts: Facts, key: EngineKey) -> bool:
    connected = any(engine.connected and words.key_of(engine.key) == key for engine in facts.engines)
    return connected and bool(facts.present.closed_of(key))


def _stalled(facts: Facts, key: EngineKey) -> bool:
    """Return whether its ranks report themselves that no rebalance begins or ends."""
    return any(
        stall.kind.startswith("rebalance_")
        for engine in facts.engines
        if words.key_of(engine.key) == key
        for stall in engine.stalls
    )


def _stopped(facts: Facts, key: EngineKey, before: list[_Joined]) -> FoundCause:
    return FoundCause(
        "eplb_stopped",
        f"engine {key} serves and has not rebalanced its experts for {words.span(facts.present.seconds)}",
        (key,),
        (
            Evidence(
                f"no rebalance in {words.span(facts.present.seconds)}",
                f"{len(before)} in {words.span(facts.before.seconds)}",
            ),
        ),
        other_harm=_STOPPED_SECONDS,
        since=max(each.slowest.time for each in before),
        confidence=Confidence.POSSIBLE,
        alternatives=(
            "fewer steps: rebalances come every step_interval steps, and a calm engine makes few",
            "an asynchronous rebalance that hangs on one rank",
        ),
        commands=(
            f"agentctl describe engine {key}",
            f"agentctl get events --channel eplb --since {words.window(facts.present.seconds + facts.before.seconds)}",
        ),
    )
