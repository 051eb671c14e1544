"""Recomputation that takes a large part of what an engine computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.diagnosis.facts import Evidence, FoundCause, ended_at, first_sign, words
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Window
    from penstock.agent.model import EngineKey

# Tokens that a second of an engine's prefill computes, about: what recomputation counts for.
_TOKENS_A_SECOND = 10_000


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
