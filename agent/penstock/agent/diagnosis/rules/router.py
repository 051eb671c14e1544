"""Decode engines that get requests without transfer parameters: the router does not send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.diagnosis.facts import RECOMPUTED_SECONDS, Confidence, Evidence, FoundCause, words
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, Window
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

# Requests from which it is no chance, and the share of them without parameters.
_COUNT, _SHARE = 5, 0.9
# What the agent calls it where the engine counts such requests.
_STALL: Final = "no_transfer_params"


def router_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield decode engines whose requests name no prefill."""
    for engine in facts.engines:
        key = words.key_of(engine.key)
        decodes = engine.role == common.ROLE_DECODE and not engine.role_guessed and engine.facts.kv_connector
        number, bare = _bare(facts.present, key)
        stall = next((each for each in engine.stalls if each.kind == _STALL), None)
        if decodes and number >= _COUNT and bare >= _SHARE * number:
            yield _told_by_requests(facts, key, number, bare)
        elif stall is not None:
            yield _told_by_engine(key, stall)


def _told_by_requests(facts: Facts, key: EngineKey, number: int, bare: int) -> FoundCause:
    earlier, bare_before = _bare(facts.before, key)
    return _cause(
        key,
        f"{bare} of {words.count(number, 'request')} came to decode engine {key} without transfer parameters: it computes "
        f"their prompts itself",
        Evidence(
            f"{bare} of {number} without kv_transfer_params in {words.span(facts.present.seconds)}",
            f"{bare_before} of {earlier} in {words.span(facts.before.seconds)}",
        ),
        bare,
        Confidence.CERTAIN if earlier and bare_before < _SHARE * earlier else Confidence.LIKELY,
    )


def _told_by_engine(key: EngineKey, stall: admin.Stall) -> FoundCause:
    """Return the cause where the requests have not ended yet, or the role is guessed: the engine counts arrivals."""
    said = words.cut(stall.sentence)
    return _cause(key, f"engine {key}: {said}", Evidence(said), stall.count, Confidence.LIKELY)


def _cause(
    key: EngineKey, sentence: str, evidence: Evidence, requests: int, confidence: Confidence
) -> FoundCause:
    return FoundCause(
        "no_transfer_parameters",
        sentence,
        (key,),
        (evidence,),
        requests=requests,
        other_harm=RECOMPUTED_SECONDS * requests,
        confidence=confidence,
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
