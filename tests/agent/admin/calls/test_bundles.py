"""Export and import, over real gRPC."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.agent.policy.manifest.manifest import check_manifest
from penstock.agent.policy.store.interface import OwnedManifest
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.admin_server import running_admin
from tests.support.agent.agent import short_directory
from tests.support.policy.policies import action, document, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.admin_server import AdminHarness


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[AdminHarness, AdminHarness]]:
    """Serve two."""
    with (
        short_directory() as one,
        short_directory() as two,
        running_admin(one) as first,
        running_admin(two) as second,
    ):
        yield first, second


def _bundle(*items: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _import(
    harness: AdminHarness, text: str, *, everywhere: bool = True, **fields: Any
) -> admin.ApplyPolicyResponse:
    return harness.stub.ImportPolicies(
        admin.ImportPoliciesRequest(manifests_json=text, author="me", all=everywhere, **fields)
    )


def _export(harness: AdminHarness) -> str:
    return harness.stub.ExportPolicies(admin.ExportPoliciesRequest()).manifests_json


def _items(text: str) -> dict[str, Any]:
    return {item["metadata"]["name"]: item for item in json.loads(text)["items"]}


_SPECS = st.fixed_dictionaries(
    {"kvLoadFailure": st.fixed_dictionaries({"action": st.sampled_from(["recompute", "fail", "auto"])})},
    optional={
        "selector": st.just({"matchLabels": {"role": "decode"}}) | st.just({"models": ["llama-ü-*"]}),
        "priority": st.integers(0, 899),
        "mode": st.sampled_from(["enforce", "observe"]),
        "expiresAt": st.just("2999-01-01T00:00:00Z"),
        "deferral": st.fixed_dictionaries({}, optional={"maxStartWait": st.sampled_from(["90s", "1m30s"])}),
        "telemetry": st.fixed_dictionaries({"traceSampleRatio": st.floats(0, 1)}),
    },
)


@settings(max_examples=15, deadline=None)
@given(specs=st.dictionaries(st.sampled_from("abcd"), _SPECS))
def test_an_import_of_an_export_is_the_identity(
    pair: tuple[AdminHarness, AdminHarness], specs: dict[str, Any]
) -> None:
    """The exporting agent stays as it is; another agent has the same policies afterwards."""
    for harness in pair:
        for policy in harness.store.policies():
            harness.run(harness.store.delete(policy.manifest.name, author="test"))
    source, copy = pair
    manifests = [check_manifest(document(name, **spec)) for name, spec in specs.items()]
    source.run(source.store.apply_all(manifests, author="test"))
    exported = _export(source)
    generation = source.store.generation
    again = _import(source, exported, everywhere=False)
    assert (again.result, again.store_generation) == ("unchanged", generation)
    _import(copy, exported)
    assert _items(_export(copy)) == _items(exported)
    assert [policy.manifest.canonical for policy in copy.store.policies()] == sorted(
        (item.canonical for item in manifests), key=lambda text: json.loads(text)["metadata"]["name"]
    )


def test_an_import_says_what_becomes_of_each_policy_and_engine(harness: AdminHarness) -> None:
    """Dry run and import report both; the audit log has author and reason."""
    harness.engine("0")
    harness.run(harness.store.apply(manifest("same"), author="you"))
    text = _bundle(document("new", priority=200, kvLoadFailure=action("auto")), document("same"))
    planned = _import(harness, text, dry_run=True)
    assert [policy.manifest.name for policy in harness.store.policies()] == ["same"]
    done = _import(harness, text, reason="moved")
    for response in (planned, done):
        assert [(item.name, item.result, item.generation) for item in response.policies] == [
            ("new", "created", 1),
            ("same", "unchanged", 1),
        ]
        assert [(f.field, f.old_value, f.new_value) for f in response.engines[0].fields] == [
            ("kvLoadFailure.action", "recompute", "auto")
        ]
        assert list(response.warnings) == [
            "engine 0: spec.kvLoadFailure.action is set by policy new, which ranks higher"
        ]
    (entry,) = harness.stub.ListAudit(admin.ListAuditRequest(name="new")).entries
    assert (entry.action, entry.author, entry.reason) == ("import", "me", "moved")


def test_what_files_own_and_what_has_expired_is_not_exported(harness: AdminHarness) -> None:
    """An old bundle is imported without the policies that have expired since."""
    harness.run(harness.store.replace_files([OwnedManifest(manifest("of-a-file"), "file:a.yaml")]))
    assert json.loads(_export(harness)) == {"apiVersion": "v1", "kind": "List", "items": []}
    done = _import(harness, _bundle(document("late", expiresAt="2020-01-01T00:00:00Z"), document("fresh")))
    assert [item.name for item in done.policies] == ["fresh"]
    assert done.warnings[0] == "policy late has expired and is skipped"
    assert [policy.manifest.name for policy in harness.store.policies()] == ["fresh", "of-a-file"]


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("{", grpc.StatusCode.INVALID_ARGUMENT, "the bundle is not JSON"),
        ("[]", grpc.StatusCode.INVALID_ARGUMENT, "the bundle is not an object of kind List with items; see 'agentctl export'"),
        ('{"kind": "List", "items": 3}', grpc.StatusCode.INVALID_ARGUMENT, "the bundle is not an object of kind List"),
        (_bundle(*[{}] * 257), grpc.StatusCode.INVALID_ARGUMENT, "the bundle has 257 policies, the limit is 256; split it"),
        (_bundle(document("a"), 3), grpc.StatusCode.INVALID_ARGUMENT, "policy 'items[1]': the manifest is 3; write one object"),
        (_bundle(document("a"), document("b", priority=-1)), grpc.StatusCode.INVALID_ARGUMENT, "policy 'b': spec.priority is -1; use a whole number from 0 to 1000"),
        (_bundle(document("a"), document("b", priority=900, expiresAt="2999-01-01T00:00:00Z")), grpc.StatusCode.INVALID_ARGUMENT, "policy 'b': spec.expiresAt is 2999-01-01T00:00:00Z, but a policy of priority 900 may last at most 4h"),
        (_bundle(document("a"), document("a")), grpc.StatusCode.INVALID_ARGUMENT, "policy 'a' comes 2 times; keep one"),
        (_bundle(document("a"), document("of-a-file")), grpc.StatusCode.PERMISSION_DENIED, "policy 'of-a-file' belongs to the file a.yaml"),
    ],
)  # fmt: skip
def test_a_bundle_is_refused_as_a_whole(
    harness: AdminHarness, text: str, code: grpc.StatusCode, sentence: str
) -> None:
    """The error names the policy; no policy of the bundle is applied."""
    harness.run(harness.store.replace_files([OwnedManifest(manifest("of-a-file"), "file:a.yaml")]))
    with pytest.raises(grpc.RpcError) as caught:
        _import(harness, text)
    assert caught.value.code() is code
    assert sentence in (caught.value.details() or "")
    assert [policy.manifest.name for policy in harness.store.policies()] == ["of-a-file"]
