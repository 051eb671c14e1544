"""What an engine computes before a first token: first tokens that come later where no peer is to blame, and much recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.batch import GATES
from penstock.agent.diagnosis.facts import Evidence, FirstTokens, FoundCause, ended_at, first_sign, words
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Window
    from penstock.agent.model import EngineKey

# Gates of the engine itself; the others are a peer's or a policy's, which have causes of their own.
_OWN: Final = {
    "queue": (
        "more requests than it can run: agentctl describe engine shows what its queue waits for",
        "blocks that others hold: agentctl describe engine shows what is held",
    ),
    "own_prefill": (
        "longer prompts, or prompts whose remote prefix no longer comes",
        "other requests in the same steps: chunked prefill shares them",
    ),
}
_OTHERS = ("another peer, policy or queue in front of it: see the causes beside this one",)
# Tokens that a second of an engine's prefill computes, about: what recomputation counts for.
_TOKENS_A_SECOND = 10_000


def first_token_causes(facts: Facts, shares: Attribution) -> Iterator[FoundCause]:
    """Yield engines whose first tokens come later; at a peer's gate only if no peer of the engine has a cause."""
    troubled = {
        key
        for trouble in shares.peers.values()
        for key in (
            *(each.key for each in trouble.failures),
            *(each.wait.key for each in (*trouble.slow, *trouble.delayed)),
            *(each.key for each in trouble.present),
        )
    }
    for key in words.keys_of(each.key for each in facts.present.closed):
        now, before = (FirstTokens.of(each.closed_of(key)) for each in (facts.present, facts.before))
        slower = _is_late(now.median, before.median)
        if min(now.number, before.number) < limits.MEDIAN_COUNT or not slower:
            continue
        risen = [after - usual for after, usual in zip(now.gates, before.gates, strict=True)]
        gate = GATES[risen.index(max(risen))]
        if gate in _OWN or key not in troubled:
            present, earlier = (_late(each, key, before.median) for each in (facts.present, facts.before))
            yield replace(_later(facts, key, gate, now, before), since=first_sign(facts, present, earlier, 0))


def _is_late(seconds: float, usual: float) -> bool:
    return seconds > limits.FIRST_TOKENS_TIMES * usual and seconds - usual > limits.FIRST_TOKENS_SECONDS


def _late(window: Window, key: EngineKey, usual: float) -> Iterator[int]:
    """Yield when requests ended whose first token was late, nanoseconds."""
    for each in window.closed_of(key):
        if each.gates is None or not each.gates.first_token:
            continue
        if _is_late(each.gates.total_nano / NANOS, usual):
            yield each.time


def _later(facts: Facts, key: EngineKey, gate: str, now: FirstTokens, before: FirstTokens) -> FoundCause:
    return FoundCause(
        "first_tokens_late",
        f"first tokens of engine {key} take {words.span(now.median)}, {words.span(before.median)} before: the time is spent at "
        f"{gate.replace('_', ' ')}",
        (key,),
        (
            Evidence(
                f"{now.words()}, of {words.count(now.number, 'request')}",
                f"{before.words()}, of {before.number}",
            ),
        ),
        requests=now.number,
        seconds=now.number * (now.median - before.median),
        alternatives=_OWN.get(gate, _OTHERS),
        commands=(
            f"agentctl get requests --slow --since {words.window(facts.present.seconds)}",
            f"agentctl describe engine {key}",
        ),
    )


def recompute_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield engines that recompute much of what they should have received; none where their prompts are not known."""
    if facts.present.read_requests < facts.present.seconds - 1:
        return
    for key in words.keys_of(each.key for each in facts.present.load_ends):
        rows = [
            each
            for each in facts.present.load_ends
            if each.key == key and each.outcome == common.OUTCOME_RECOMPUTED and not each.rehearsal
        ]
        tokens, prompt = sum(each.tokens for each in rows), _prompt(facts.present, key)
        if len(rows) < limits.RECOMPUTED_COUNT or not prompt or tokens < limits.RECOMPUTED_SHARE * prompt:
            continue
        before = [
            each
            for each in facts.before.load_ends
            if each.key == key and each.outcome == common.OUTCOME_RECOMPUTED
        ]
        share = f", {100 * tokens / prompt:.0f} % of the prompts"
        peers = {each.peer for each in rows}
        yield FoundCause(
            "recompute_storm",
            f"engine {key} recomputed {tokens} tokens of {words.count(len(rows), 'request')}{share}",
            (key,),
            (
                Evidence(
                    f"{tokens} tokens in {words.span(facts.present.seconds)}",
                    f"{sum(each.tokens for each in before)} in {words.span(facts.before.seconds)}",
                ),
                Evidence(f"of loads from {words.named(peers, 'peer')}"),
            ),
            requests=len(rows),
            other_harm=tokens / _TOKENS_A_SECOND,
            until=ended_at((each.time for each in rows), facts.now),
            since=first_sign(facts, (each.time for each in rows), (each.time for each in before), 0),
            alternatives=("it is what the policy asks for, and the peers are the cause",),
            commands=(
                "agentctl set-policy NAME --kv-load-failure auto --kv-recompute-budget TOKENS --kv-over-budget fail",
            ),
        )


def _prompt(window: Window, key: EngineKey) -> int:
    return sum(each.prompt_tokens for each in window.closed_of(key))
