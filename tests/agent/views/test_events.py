"""Lines of ``agentctl get events``: decisions, quarantine, drills and collateral."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.views.events import event_peer, event_words, logged_words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.agent.batches import PEER, deferral_end, event
from tests.support.agent.stories import DECODE, failed_load, outcome

_KV: dict[str, Any] = {"channel": common.CHANNEL_KV, "peer": {"address": PEER}}
_NO_TRY = {"mode": common.FAILURE_MODE_UNSPECIFIED, "error_type": common.ERROR_TYPE_UNSPECIFIED}


def _rehearsed(item: events.Event) -> events.Event:
    item.rehearsal = True
    return item


_NAMED = (
    common.PolicySource(name="limits", generation=1, fields=["kvLoadFailure.maxRecomputeTokens"]),
    common.PolicySource(name="calm", generation=3, author="ann", fields=["kvLoadFailure.action"]),
)


@pytest.mark.parametrize(
    ("item", "policies", "previous", "words"),
    [
        (outcome(DECODE, reason=""), _NAMED, (), "kv recomputed by policy calm/3 after handshake, "),
        (
            outcome(DECODE, decided_by=common.DECIDED_BY_BUDGET),
            _NAMED,
            (),
            "kv recomputed by budget under calm/3 after handshake, ",
        ),
        (outcome(DECODE, decided_by=common.DECIDED_BY_VLLM), _NAMED, (), "kv recomputed by vllm after "),
        (
            event("policy_applied", hash="b" * 64, previous_hash="a" * 64, accepted=True, cause="push"),
            _NAMED[1:],
            (),
            "aaaaaaaaaaaa → calm/3 (push)",
        ),
        (
            event("policy_applied", previous_hash="a" * 64, accepted=True, cause="expiry"),
            (),
            _NAMED,
            "limits/1,calm/3 → vllm's own (expiry)",
        ),
        (
            event("policy_applied", hash="b" * 64, error="no", cause="push"),
            _NAMED[1:],
            (),
            "refused calm/3: no",
        ),
    ],
)
def test_policies_are_named(item: Any, policies: Any, previous: Any, words: str) -> None:
    """Policies have name and generation; unknown ones the start of their hash."""
    logged = admin.LoggedEvent(event=item, policies=policies, previous_policies=previous)
    assert logged_words(logged).startswith(words)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            outcome(DECODE),
            "kv recomputed by policy after handshake, 12 tokens kept, 400 recomputed: recompute is the policy",
        ),
        (
            outcome(
                DECODE,
                common.OUTCOME_FAILED,
                decided_by=common.DECIDED_BY_BUDGET,
                reason="400 tokens lost, the budget of 100 tokens/s has room for 7; overBudget: fail",
            ),
            (
                "kv failed by budget after handshake, 400 tokens lost: "
                "400 tokens lost, the budget of 100 tokens/s has room for 7; overBudget: fail"
            ),
        ),
        (
            outcome(
                DECODE, decided_by=common.DECIDED_BY_QUARANTINE, reason="the peer is quarantined", **_NO_TRY
            ),
            "kv recomputed by quarantine, 12 tokens kept, 400 recomputed: the peer is quarantined",
        ),
        (
            outcome(
                DECODE,
                decided_by=common.DECIDED_BY_VLLM,
                reason="",
                observed_outcome=common.OUTCOME_FAILED,
                observed_reason="at most 16 are recomputed",
            ),
            (
                "kv recomputed by vllm after handshake, 12 tokens kept, 400 recomputed "
                "(observed: failed: at most 16 are recomputed)"
            ),
        ),
        (
            outcome(DECODE, reason="", observed_outcome=common.OUTCOME_RECOMPUTED),
            "kv recomputed by policy after handshake, 12 tokens kept, 400 recomputed (observed: recomputed)",
        ),
        (
            deferral_end(DECODE, observed_reason="deferral.maxStartWait: it took 3 s, 1 s are allowed"),
            (
                "waited for remote_kv: ready "
                "(observed: given up, deferral.maxStartWait: it took 3 s, 1 s are allowed)"
            ),
        ),
        (
            deferral_end(DECODE, observed_reason="reflexes.slowPeer: its loads take 3 s"),
            "waited for remote_kv: ready (observed: not loaded, reflexes.slowPeer: its loads take 3 s)",
        ),
        (
            deferral_end(DECODE, observed_reason="reflexes.startWait: 3 s waited for the load to begin"),
            (
                "waited for remote_kv: ready "
                "(observed: given up, reflexes.startWait: 3 s waited for the load to begin)"
            ),
        ),
        (_rehearsed(failed_load()), "kv handshake/refused: connection refused [drill]"),
        (
            _rehearsed(
                event(
                    "quarantine_changed",
                    peer={"address": PEER},
                    state=events.QUARANTINE_STATE_OPEN,
                    previous=events.QUARANTINE_STATE_CLOSED,
                    reason="failures",
                )
            ),
            "ok → quarantined (failures) [drill]",
        ),
        (
            event(
                "transfer_delayed",
                DECODE,
                delay_nano=5 * 10**9,
                caused_by_peer={"address": "10.0.0.9:5600"},
                **_KV,
            ),
            "held up 5.0s by 10.0.0.9:5600",
        ),
        (
            failed_load(
                mode=common.FAILURE_MODE_COLLATERAL,
                caused_by_request_id="theirs",
                caused_by_peer={"address": "10.0.0.9:5600"},
            ),
            "kv collateral/refused, caused by theirs at 10.0.0.9:5600: connection refused",
        ),
        (event("blocks_pinned", DECODE, blocks=26, **_KV), "26 blocks stay pinned: the peer may still write"),
        (event("blocks_pinned", DECODE, blocks=1, **_KV), "1 block stays pinned: the peer may still write"),
        (event("blocks_pinned", DECODE, blocks=26, released=True, **_KV), "26 blocks released"),
    ],
)
def test_one_line_says_it(item: Any, words: str) -> None:
    """A line has action, cause, policy and peer."""
    assert event_words(item) == words
    assert event_peer(item) == PEER


@pytest.mark.parametrize(
    ("fields", "words", "peer"),
    [
        ({}, "engine forgotten, disconnected for --retire-after", "-"),
        ({"author": "me@here"}, "engine forgotten, by me@here", "-"),
        ({"author": "me@here", "peer": {"address": PEER}}, "peer forgotten, by me@here", PEER),
    ],
)
def test_what_was_forgotten(fields: dict[str, Any], words: str, peer: str) -> None:
    """The line has the engine or peer, and its author or ``--retire-after``."""
    item = event("forgotten", **fields)
    assert (event_words(item), event_peer(item)) == (words, peer)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (
            "source_lost",
            {"process": "worker", "open_deferrals": 2},
            "worker vanished with 2 open deferrals",
        ),
        ("source_stopped", {"process": "engine-core"}, "engine-core stopped with its server"),
        (
            "kv_caches_released",
            {"connector": "NixlConnector", "peers": 2},
            "vLLM sleeps and takes its KV caches from NixlConnector: no peer can read, 2 peers shake hands again afterwards",
        ),
        (
            "kv_caches_released",
            {"connector": "NixlConnector", "restored": True},
            "NixlConnector has its KV caches back: peers can read again",
        ),
        ("rotation_changed", {"out": True}, "out of rotation by order: the readiness answers 503"),
        (
            "rotation_changed",
            {"since_time_unix_nano": 1},
            "back in rotation: the readiness answers as vLLM's health check",
        ),
        ("server_stopping", {}, "server stops, requests in flight are aborted"),
        ("server_stopping", {"timeout_nano": 30 * 10**9}, "server stops, requests in flight have 30s to end"),
    ],
)
def test_how_a_process_ended(kind: str, fields: dict[str, Any], words: str) -> None:
    """A loss and a stop differ."""
    assert event_words(event(kind, **fields)) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"hash": "abc", "previous_hash": "", "accepted": True, "cause": "expiry"},
            "vllm's own → abc (expiry)",
        ),
        ({"hash": "abc", "cause": "push", "error": "no"}, "refused abc: no"),
        ({"cause": "order", "error": "order d: no such mode"}, "refused order d: no such mode"),
    ],
)
def test_what_became_of_a_push(fields: dict[str, Any], words: str) -> None:
    """The line has the policy's hash or the order's name; the peer is empty."""
    item = event("policy_applied", **fields)
    assert (event_words(item), event_peer(item)) == (words, "-")


def test_what_differs_stands_before_the_text_and_wide_shows_all_of_it() -> None:
    """The cause precedes vLLM's text, which begins with two hashes of 64 characters; wide prints all."""
    text = (
        f"NIXL compatibility hash mismatch. Local: {'a' * 64}, Remote: {'b' * 64}. Check the versions. " * 2
    )
    item = event(
        "transfer_failure",
        **_KV,
        mode=common.FAILURE_MODE_HANDSHAKE,
        error_type=common.ERROR_TYPE_INCOMPATIBLE,
        error_text=text,
        incompatibility={"local_hash": "a" * 64, "remote_hash": "b" * 64, "factors": ["dtype"]},
    )
    assert event_words(item).startswith("kv handshake/incompatible, engines differ in dtype: NIXL")
    assert len(event_words(item)) == 200
    assert event_words(item, 4096).endswith("Check the versions.")


def test_vllm_s_advice_to_switch_its_check_off_is_not_repeated() -> None:
    """Of a failure and of a handshake; what differs stays."""
    text = "hash mismatch. Both must be identical.Disable this check using --kv-transfer-config '{\n}'"
    failure = event("transfer_failure", **_KV, error_text=text)
    handshake = event("handshake", error_text=text)
    assert event_words(failure).endswith(": hash mismatch. Both must be identical.")
    assert event_words(handshake).endswith(": hash mismatch. Both must be identical.")
