"""The manifest: what it accepts, and the error for the rest."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest.manifest import MAX_MANIFEST_BYTES, parse_manifest
from penstock.agent.policy.manifest.sections import KvLoadFailure, flatten, unflatten

from tests.support.policy.policies import NOW, document, manifest

_EVERYTHING: dict[str, Any] = {
    "selector": {
        "matchLabels": {"role": "decode"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
        "models": ["llama-*"],
    },
    "priority": 950,
    "expiresAt": "2026-11-20T13:00Z",
    "mode": "observe",
    "kvLoadFailure": {
        "action": "auto",
        "maxRecomputeTokens": 4096,
        "recomputeBudget": {"tokensPerSecond": 20000},
        "overBudget": "fail",
    },
    "ecLoadFailure": {"action": "recompute", "maxRecomputeItems": 8},
    "deferral": {"maxStartWait": "30s", "maxTransferWait": "5s", "onTimeout": "fail"},
    "peerQuarantine": {"failures": 5, "window": "30s", "duration": "60s", "maxPeersPercent": 50},
    "telemetry": {"traceSampleRatio": 1, "failureLogInterval": "5s"},
    "integrity": {"sampleRatio": 0.01, "action": "enforce"},
}

_KV_FIELDS = ", ".join(str(field.alias) for field in KvLoadFailure.model_fields.values())
_SENTENCES = [
    ({"kvLoadFailure": {"action": "recmpute"}}, "kvLoadFailure.action", "spec.kvLoadFailure.action is 'recmpute'; use one of recompute, fail, auto"),
    ({"kvLoadfailure": {}}, "kvLoadfailure", "spec.kvLoadfailure is not a field; did you mean kvLoadFailure?"),
    ({"kvLoadFailure": {"zzz": 1}}, "kvLoadFailure.zzz", f"spec.kvLoadFailure.zzz is not a field; spec.kvLoadFailure has {_KV_FIELDS}"),
    ({"kvLoadFailure": {"maxRecomputeTokens": -1}}, "kvLoadFailure.maxRecomputeTokens", "spec.kvLoadFailure.maxRecomputeTokens is -1; use a whole number from 0 to 1000000000"),
    ({"kvLoadFailure": {"maxRecomputeTokens": "9"}}, "kvLoadFailure.maxRecomputeTokens", "spec.kvLoadFailure.maxRecomputeTokens is '9'; use a whole number from 0 to 1000000000"),
    ({"kvLoadFailure": {"recomputeBudget": {"tokensPerSecond": True}}}, "kvLoadFailure.recomputeBudget.tokensPerSecond", "spec.kvLoadFailure.recomputeBudget.tokensPerSecond is true; use a whole number from 0 to 1000000000"),
    ({"kvLoadFailure": 3}, "kvLoadFailure", "spec.kvLoadFailure is 3; use {action: recompute}"),
    ({"deferral": {"maxStartWait": "30"}}, "deferral.maxStartWait", "spec.deferral.maxStartWait is '30'; use a duration from 1ms to 1h such as 30s"),
    ({"deferral": {"maxStartWait": "2h"}}, "deferral.maxStartWait", "spec.deferral.maxStartWait is '2h'; use a duration from 1ms to 1h such as 30s"),
    ({"deferral": {"maxStartWait": 5}}, "deferral.maxStartWait", "spec.deferral.maxStartWait is 5; use a duration from 1ms to 1h such as 30s"),
    ({"peerQuarantine": {"failures": 0}}, "peerQuarantine.failures", "spec.peerQuarantine.failures is 0; use a whole number from 1 to 1000"),
    ({"telemetry": {"traceSampleRatio": 1.5}}, "telemetry.traceSampleRatio", "spec.telemetry.traceSampleRatio is 1.5; use a number from 0 to 1"),
    ({"selector": {"matchLabels": {"canary": True}}}, "selector.matchLabels.canary", "spec.selector.matchLabels.canary is true; use labels and their values, as quoted text"),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}}, "selector.matchExpressions[0].operator", "spec.selector.matchExpressions[0].operator is 'in'; use one of In, NotIn, Exists, DoesNotExist"),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "selector.matchExpressions[0]", "spec.selector.matchExpressions[0].values must be given with operator In"),
    ({"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}, "selector.matchExpressions[0]", "spec.selector.matchExpressions[0].values must be omitted with operator Exists"),
    ({"selector": {"matchExpressions": [{"key": "a"}]}}, "selector.matchExpressions[0].operator", "spec.selector.matchExpressions[0].operator is missing; use one of In, NotIn, Exists, DoesNotExist"),
    ({"priority": 1001}, "priority", "spec.priority is 1001; use a whole number from 0 to 1000"),
    ({"mode": "shadow"}, "mode", "spec.mode is 'shadow'; use one of enforce, observe"),
    ({"expiresAt": "30m"}, "expiresAt", "spec.expiresAt is '30m'; use a point in time with its zone such as 2026-11-20T12:00:00Z (agentctl --ttl writes one)"),
    ({"expiresAt": "2026-11-20T12:00"}, "expiresAt", "spec.expiresAt is '2026-11-20T12:00'; use a point in time with its zone such as 2026-11-20T12:00:00Z (agentctl --ttl writes one)"),
    ({"expiresAt": "9999-12-31T23:59:59-23:00"}, "expiresAt", "spec.expiresAt is '9999-12-31T23:59:59-23:00'; use a point in time with its zone such as 2026-11-20T12:00:00Z (agentctl --ttl writes one)"),
    ({"priority": 900}, "", "spec.priority is 900, which is break-glass; set spec.expiresAt (agentctl --ttl) of at most 4h, or a priority below 900"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "field", "sentence"), _SENTENCES)
def test_a_wrong_field_is_named_with_its_value_and_the_way_out(
    spec: dict[str, Any], field: str, sentence: str
) -> None:
    """The error is one sentence with path, value and what is accepted."""
    with pytest.raises(ManifestError) as caught:
        manifest(**spec)
    assert str(caught.value) == sentence
    assert caught.value.field == (f"spec.{field}" if field else "spec")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "the manifest is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); send one object"),
        ("[1]", "the manifest is [1]; write one object"),
        ("{}", "apiVersion is missing; use penstock.dev/v1alpha1"),
        ('{"apiVersion": "v1"}', "apiVersion is 'v1'; use penstock.dev/v1alpha1"),
        (json.dumps({**document(), "kind": "Pod"}), "kind is 'Pod'; use TransferPolicy"),
        (json.dumps({**document(), "status": {}}), "status is not a field; a manifest has apiVersion, kind, metadata, spec"),
        (json.dumps(document("Bad Name")), "metadata.name is 'Bad Name'; use 1 to 63 lower-case letters, digits, '-' and '.', as in decode-default"),
        (json.dumps(document(kvLoadFailure=None)), "spec sets no field; set at least one, such as kvLoadFailure.action"),
        (" " * (MAX_MANIFEST_BYTES + 1), f"the manifest has more than {MAX_MANIFEST_BYTES} bytes; make it shorter"),
        ("[" * 60_000, None),
        ('{"kind": 1, "spec": {"a": 1, "b": 2, "a": 3}}', "the manifest is not JSON ('a' comes twice); send one object"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_refused(text: str, sentence: str | None) -> None:
    """Any invalid document raises ManifestError with a sentence."""
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text)
    assert sentence is None or str(caught.value) == sentence


def test_what_is_accepted_can_be_read_back_from_the_store() -> None:
    """Canonical text is accepted again, also where it is longer than the input."""
    shortest = json.dumps(document(peerQuarantine={"window": "1d"}, reason=""), separators=(",", ":"))
    notes = {f"n{number}": "x" * 4096 for number in range(16)}

    def of_size(size: int) -> str:
        whole = json.loads(shortest)
        whole["metadata"]["annotations"] = dict(notes)
        last = json.dumps(whole, separators=(",", ":"))
        whole["metadata"]["annotations"]["n0"] = "x" * (4096 - (len(last) - size))
        return json.dumps(whole, separators=(",", ":"))

    fits = parse_manifest(of_size(MAX_MANIFEST_BYTES - 1))
    assert len(fits.canonical) == MAX_MANIFEST_BYTES
    assert parse_manifest(fits.canonical).canonical == fits.canonical
    with pytest.raises(ManifestError, match="more than 65536 bytes"):
        parse_manifest(of_size(MAX_MANIFEST_BYTES))


def test_everything_that_can_be_said_survives_a_round_trip() -> None:
    """The canonical text of a manifest with all fields parses to the same content."""
    full = manifest(**_EVERYTHING)
    assert parse_manifest(full.canonical).canonical == full.canonical
    assert full.document()["spec"]["selector"] == _EVERYTHING["selector"]
    assert full.leaves == {
        "kvLoadFailure.action": "auto",
        "kvLoadFailure.maxRecomputeTokens": 4096,
        "kvLoadFailure.recomputeBudget.tokensPerSecond": 20000,
        "kvLoadFailure.overBudget": "fail",
        "ecLoadFailure.action": "recompute",
        "ecLoadFailure.maxRecomputeItems": 8,
        "deferral.maxStartWait": "30s",
        "deferral.maxTransferWait": "5s",
        "deferral.onTimeout": "fail",
        "peerQuarantine.failures": 5,
        "peerQuarantine.window": "30s",
        "peerQuarantine.duration": "1m",
        "peerQuarantine.maxPeersPercent": 50,
        "telemetry.traceSampleRatio": 1.0,
        "telemetry.failureLogInterval": "5s",
        "integrity.sampleRatio": 0.01,
        "integrity.action": "enforce",
    }


def test_two_spellings_of_one_content_are_the_same() -> None:
    """Field order and the spelling of durations do not change the content."""
    one = manifest(deferral={"maxStartWait": "90s", "onTimeout": "fail"})
    other = manifest(deferral={"onTimeout": "fail", "maxStartWait": "1m30s"})
    assert one.canonical == other.canonical


@pytest.mark.parametrize(
    ("priority", "lasts", "accepted"),
    [
        (100, timedelta(days=300), True),
        (900, timedelta(hours=4), True),
        (900, timedelta(hours=4, seconds=1), False),
        (899, timedelta(hours=5), True),
        (100, timedelta(0), False),
        (100, timedelta(seconds=-1), False),
    ],
)
def test_an_expiry_must_fit_the_present(priority: int, lasts: timedelta, accepted: bool) -> None:
    """An expiry in the past, or a break-glass expiry beyond four hours, is refused."""
    policy = manifest(priority=priority, expiresAt=(NOW + lasts).isoformat())
    if accepted:
        policy.check_times(NOW)
        return
    with pytest.raises(ManifestError) as caught:
        policy.check_times(NOW)
    assert caught.value.field == "spec.expiresAt"


_NAMES = st.text("abcxyz", min_size=1, max_size=3)
_TREES = st.recursive(
    st.dictionaries(_NAMES, st.integers(), min_size=1, max_size=3),
    lambda inner: st.dictionaries(_NAMES, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(_TREES)
def test_flatten_and_unflatten_are_inverse(tree: dict[str, Any]) -> None:
    """unflatten(flatten(x)) is x."""
    assert unflatten(flatten(tree)) == tree


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)))  # fmt: skip
def test_any_spec_is_accepted_or_refused_in_one_line(spec: Any) -> None:
    """Any input is accepted or raises ManifestError with one line."""
    with pytest.raises(ManifestError) as caught:
        parse_manifest(json.dumps({**document(), "spec": spec}))
    assert "\n" not in str(caught.value)


def test_a_storm_cannot_be_enforced() -> None:
    """It would fail requests that are recomputed today; the two others can be."""
    leaves = manifest(reflexes={"startWait": {"action": "enforce"}, "slowPeer": {"action": "enforce"}}).leaves
    assert leaves["reflexes.startWait.action"] == leaves["reflexes.slowPeer.action"] == "enforce"
    with pytest.raises(ManifestError, match="action is 'enforce'; use observe; it cannot act"):
        manifest(reflexes={"recomputeStorm": {"action": "enforce"}})


@pytest.mark.parametrize("factor", [1.0, 100.5, float("nan"), float("inf"), "2", True])
def test_a_factor_of_a_reflex_is_a_number_in_bounds(factor: object) -> None:
    """The error says which."""
    with pytest.raises(
        ManifestError, match=r"spec\.reflexes\.slowPeer\.factor is .*; use a number from 1\.1 to 100"
    ):
        manifest(reflexes={"slowPeer": {"factor": factor}})
