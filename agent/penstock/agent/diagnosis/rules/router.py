"""Decode engines that get requests without transfer parameters: the router does not send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import RECOMPUTED_SECONDS, Confidence, Evidence, FoundCause, words
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Window
    from penstock.agent.model import EngineKey

# Requests from which it is no chance, and the share of them without parameters.
_COUNT, _SHARE = 5, 0.9


def router_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield decode engines whose requests name no prefill."""
    for engine in facts.engines:
        key = words.key_of(engine.key)
        decodes = engine.role == common.ROLE_DECODE and not engine.role_guessed and engine.facts.kv_connector
        number, bare = _bare(facts.present, key)
        if not decodes or number < _COUNT or bare < _SHARE * number:
            continue
        earlier, bare_before = _bare(facts.before, key)
        yield FoundCause(
            "no_transfer_parameters",
            f"{bare} of {words.count(number, 'request')} came to decode engine {key} without transfer parameters: it computes "
            f"their prompts itself",
            (key,),
            (
                Evidence(
                    f"{bare} of {number} without kv_transfer_params in {words.span(facts.present.seconds)}",
                    f"{bare_before} of {earlier} in {words.span(facts.before.seconds)}",
                ),
            ),
            requests=bare,
            other_harm=RECOMPUTED_SECONDS * bare,
            confidence=Confidence.CERTAIN
            if earlier and bare_before < _SHARE * earlier
            else Confidence.LIKELY,
            alternatives=(
                "clients that go to the engine without the router",
                "the router has no prefill engine to send to: all are gone or taken out",
            ),
            commands=("agentctl get requests --slow --since 10m", f"agentctl describe engine {key}"),
        )


def _bare(window: Window, key: EngineKey) -> tuple[int, int]:
    """Return how many requests of an engine were closed, and how many of them had no transfer parameters."""
    rows = [each for each in window.closed if each.key == key and each.finish_reason != "abort"]
    return len(rows), sum(each.kv_role == common.ROLE_UNSPECIFIED for each in rows)
