"""Rebalances of experts that stall the forward pass, fail, or have stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import Confidence, Evidence, FoundCause, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Rebalance, Window
    from penstock.agent.model import EngineKey

# A stall is a cause from this share of the window, or from this length.
_SHARE, _LONG = 0.01, 0.5
# What a failed rebalance and rebalances that stopped count for, seconds.
_FAILED_SECONDS, _STOPPED_SECONDS = 10.0, 10.0
# Rebalances that were to be expected, by those of the time before, from which it is odd that there is none.
_EXPECTED = 3.0


def expert_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield what is wrong with the rebalances of each engine."""
    for key in words.keys_of(each.key for each in (*facts.present.rebalances, *facts.before.rebalances)):
        rows, before = _of(facts.present, key), _of(facts.before, key)
        pauses = [each.pause for each in rows]
        if sum(pauses) > _SHARE * facts.present.seconds or max(pauses, default=0.0) >= _LONG:
            yield _stalls(facts, key, rows, before)
        failed = [each for each in rows if not each.ok]
        if failed:
            yield _failed(facts, key, failed, before)
        if (
            not rows
            and _expected(facts, before) >= _EXPECTED
            and _serves(facts, key)
            and not _stalled(facts, key)
        ):
            yield _stopped(facts, key, before)


def _of(window: Window, key: EngineKey) -> list[Rebalance]:
    return [each for each in window.rebalances if each.key == key]


def _expected(facts: Facts, before: list[Rebalance]) -> float:
    """Return how many rebalances the window would have had at the pace of the time before."""
    read = facts.before.read
    return len(before) * facts.present.seconds / read if read else 0.0


def _pauses(rows: list[Rebalance]) -> str:
    if not rows:
        return "no rebalance"
    pauses = [each.pause for each in rows]
    return f"{words.count(len(rows), 'rebalance')}, paused {words.span(sum(pauses))} in all, up to {words.span(max(pauses))}"


def _stalls(facts: Facts, key: EngineKey, rows: list[Rebalance], before: list[Rebalance]) -> FoundCause:
    total = sum(each.pause for each in rows)
    running = len({each.request_id for each in facts.present.closed if each.key == key})
    return FoundCause(
        "eplb_stalls",
        f"rebalances of experts stall the forward pass of engine {key}: {_pauses(rows)}",
        (key,),
        (
            Evidence(
                f"{_pauses(rows)} in {words.span(facts.present.seconds)}",
                f"{_pauses(before)} in {words.span(facts.before.seconds)}",
            ),
        ),
        requests=running,
        # Each pause holds up every request that decodes then; at least one does.
        seconds=total,
        other_harm=total * min(running, 8),
        confidence=Confidence.CERTAIN,
        alternatives=(
            "one rank is late and the others wait for it: agentctl get events --channel eplb has the ranks",
            "the interval is too short for this model: step_interval of eplb_config",
        ),
        commands=("agentctl get events --channel eplb --since 10m", f"agentctl describe engine {key}"),
    )


def _failed(facts: Facts, key: EngineKey, failed: list[Rebalance], before: list[Rebalance]) -> FoundCause:
    text = f": {words.cut(failed[0].text)}" if failed[0].text else ""
    return FoundCause(
        "eplb_fails",
        f"{words.count(len(failed), 'rebalance')} of experts failed on engine {key}{text}",
        (key,),
        (
            Evidence(
                f"{len(failed)} failed in {words.span(facts.present.seconds)}",
                f"{sum(not each.ok for each in before)} in {words.span(facts.before.seconds)}",
            ),
        ),
        other_harm=_FAILED_SECONDS * len(failed),
        confidence=Confidence.CERTAIN,
        alternatives=("a rank that died: see the losses",),
        commands=("agentctl get events --channel eplb --since 10m",),
    )


def _serves(facts: Facts, key: EngineKey) -> bool:
    connected = any(engine.connected and words.key_of(engine.key) == key for engine in facts.engines)
    return connected and any(each.key == key for each in facts.present.closed)


def _stalled(facts: Facts, key: EngineKey) -> bool:
    """Return whether its ranks report themselves that no rebalance begins or ends."""
    return any(
        stall.kind.startswith("rebalance_")
        for engine in facts.engines
        if words.key_of(engine.key) == key
        for stall in engine.stalls
    )


def _stopped(facts: Facts, key: EngineKey, before: list[Rebalance]) -> FoundCause:
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
        confidence=Confidence.POSSIBLE,
        alternatives=(
            "fewer steps: rebalances come every step_interval steps, and a calm engine makes few",
            "an asynchronous rebalance that hangs on one rank",
        ),
        commands=(f"agentctl describe engine {key}", "agentctl get events --channel eplb --since 2h"),
    )
