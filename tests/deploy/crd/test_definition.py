"""deploy/crd: current, structural, valid for Kubernetes, and as strict as the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celpy
import kubernetes_validate
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from penstock.agent.errors import ManifestError
from penstock.agent.policy.manifest import check_manifest

from tests.support.kubernetes.builds import VERSIONS, build, documents
from tests.support.kubernetes.custom_resources import refusals, rules
from tests.support.policy.policies import document
from tests.support.script import load_script

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[3]
_PLACE = _ROOT / "deploy" / "crd"


script: Any = load_script("crd")
_SCHEMA: dict[str, Any] = script.object_schema()
# https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
_FORBIDDEN = {
    "$ref", "$defs", "definitions", "patternProperties", "propertyNames", "const", "if", "then", "else", "deprecated", "oneOf",
    "additionalItems", "dependencies", "id", "readOnly", "writeOnly", "uniqueItems", "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for part in schema.get("properties", {}).values():
        yield from _nodes(part)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from _nodes(schema[key])


def test_the_file_is_current() -> None:
    """`make crd` would change nothing."""
    assert (_ROOT / script.FILE).read_text() == script.text()
    assert script.main(["--check"]) == 0


def test_the_schema_is_structural() -> None:
    """Each node has a type, no keyword is one that Kubernetes refuses, and nothing unknown is kept."""
    for node in _nodes(_SCHEMA):
        assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert not node.keys() & _FORBIDDEN
        assert not {"properties", "additionalProperties"} <= node.keys()
        assert node["type"] != "array" or "items" in node
    # Of metadata, a definition may limit the name only.
    assert set(_SCHEMA["properties"]["metadata"]["properties"]) == {"name"}


def test_kubectl_explains_each_field() -> None:
    """What it is for and what to write; nothing is explained that is no field."""
    for node in _nodes(_SCHEMA):
        for name, part in node.get("properties", {}).items():
            assert "description" in part or name in {"apiVersion", "kind", "metadata", "name"}
    spec = _SCHEMA["properties"]["spec"]
    # The candidate of a roll-out has the policy's own sections.
    assert set(script.MEANINGS) == {path.removeprefix("rollout.candidate.") for path in _paths(spec)}
    assert (
        spec["properties"]["rollout"]["properties"]["percent"]["description"]
        == "The share, by a hash of engine and policy: a larger one only adds engines; use a whole number from 0 to 100"
    )


def _paths(node: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, part in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below
        yield from _paths(part.get("items", part), below)


def test_names_columns_and_conditions() -> None:
    """What `kubectl get tpol` shows and `kubectl wait` waits for."""
    definition = script.definition()["spec"]
    (version,) = definition["versions"]
    assert definition["names"]["shortNames"] == ["tpol"]
    assert version["subresources"] == {"status": {}}
    columns = {each["name"].upper(): each["jsonPath"] for each in version["additionalPrinterColumns"]}
    assert list(columns) == ["MATCHED", "IN-FORCE", "REFUSED", "AGE"]
    status = _SCHEMA["properties"]["status"]["properties"]
    assert {path.removeprefix(".status.") for path in columns.values() if "status" in path} < set(status)
    condition = status["conditions"]["items"]
    assert set(condition["properties"]) == {*condition["required"], "observedGeneration"}
    assert all(name in status["conditions"]["description"] for name in ("Accepted", "Programmed", "Degraded"))


def _examples() -> Iterator[Any]:
    """Yield each manifest of a policy in the documents and the deployment files, with its place."""
    for path in sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md"), *_ROOT.glob("deploy/**/*.md")]):
        for number, block in enumerate(
            re.findall(r"^```ya?ml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        ):
            yield from _policies(block, f"{path.name}-{number}")
    for path in sorted(_ROOT.glob("deploy/**/*.yaml")):
        yield from _policies(path.read_text(), path.name)


def _policies(text: str, place: str) -> Iterator[Any]:
    if "kind: TransferPolicy" not in text:
        return
    for each in yaml.safe_load_all(text):
        if each["kind"] == "ConfigMap":
            for name, value in each["data"].items():
                yield from _policies(value, f"{place}-{name}")
        elif each["kind"] == "TransferPolicy":
            yield pytest.param(each, id=f"{place}-{each['metadata']['name']}")


_EXAMPLES = list(_examples())


def test_there_are_examples() -> None:
    """In the guides and in deploy/policies.yaml."""
    found = {str(each.id).partition("-")[0] for each in _EXAMPLES}
    assert {"policies.md", "fleet.md", "policies.yaml"} <= found


@pytest.mark.parametrize("manifest", _EXAMPLES)
def test_model_and_cluster_take_each_example(manifest: dict[str, Any]) -> None:
    """What a document shows can be applied to a file and to a cluster."""
    check_manifest(manifest)
    assert refusals(_SCHEMA, manifest) == []
    # And both refuse it with a share out of bounds.
    spoilt = {**manifest, "spec": {**manifest["spec"], "rollout": {"percent": 101}}}
    assert not _accepts(spoilt)
    assert refusals(_SCHEMA, spoilt)


def test_rules_have_bounded_input() -> None:
    """The API server estimates what a rule costs from the sizes that the schema allows."""
    found = list(rules(_SCHEMA))
    assert len(found) >= 8
    for node, rule in found:
        celpy.Environment().compile(rule["rule"])
        assert rule["message"]
        assert node["type"] != "string" or "maxLength" in node
    for node in _nodes(_SCHEMA["properties"]["spec"]):
        assert node["type"] != "array" or "maxItems" in node
        assert "additionalProperties" not in node or "maxProperties" in node
        assert node["type"] != "string" or node.keys() & {"maxLength", "enum", "pattern"}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_manifests(version: str) -> None:
    """Each object is valid for the API of the oldest and the newest supported version."""
    objects = documents(build(_PLACE, version))
    assert sorted(each["kind"] for each in objects) == ["ClusterRole"] * 5 + ["CustomResourceDefinition"]
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


def test_only_who_writes_may_write() -> None:
    """Agents and viewers read; the relay patches status only."""
    roles = {
        each["metadata"]["name"]: each["rules"]
        for each in yaml.safe_load_all((_PLACE / "roles.yaml").read_text())
    }
    reads = {"get", "list", "watch"}
    for name in ("penstock-agent", "penstock-policy-viewer"):
        assert all(set(rule["verbs"]) <= reads for rule in roles[name])
    assert [rule["resources"] for rule in roles["penstock-relay"] if not set(rule["verbs"]) <= reads] == [
        ["transferpolicies/status"],
        ["leases"],
        ["leases"],
    ]
    assert [rule["verbs"] for rule in roles["penstock-relay-pods"]] == [["list"]]


def _accepts(manifest: dict[str, Any]) -> bool:
    try:
        check_manifest(manifest)
    except ManifestError:
        return False
    return True


_LOAD = {"kvLoadFailure": {"action": "recompute"}}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"mode": "observe"},
        {"rollout": {"percent": 5}},
        {"rollout": {"percent": 5}, "selector": {"models": ["a"]}},
        {**_LOAD, "rollout": {}},
        {**_LOAD, "rollout": {"percent": 101}},
        {**_LOAD, "rollout": {"percent": -1}},
        {**_LOAD, "rollout": {"percent": 5.5}},
        {**_LOAD, "rollout": {"percent": "5"}},
        {"kvLoadFailure": {}},
        {"kvLoadFailure": {"recomputeBudget": {}}},
        {"kvLoadFailure": {"action": "recmpute"}},
        {"kvLoadFailure": {"maxRecomputeTokens": -1}},
        {"kvLoadFailure": {"maxRecomputeTokens": "9"}},
        {"deferral": {"maxStartWait": "30"}},
        {"deferral": {"maxStartWait": "0s"}},
        {"deferral": {"maxStartWait": "1h1ms"}},
        {"deferral": {"maxStartWait": "999999999999h"}},
        {"peerQuarantine": {"window": "24h1s"}},
        {"peerQuarantine": {"duration": "999ms"}},
        {"telemetry": {"traceSampleRatio": 1.5}},
        {**_LOAD, "priority": 900},
        {**_LOAD, "priority": 1001},
        {**_LOAD, "expiresAt": "30m"},
        {**_LOAD, "expiresAt": "2999-02-30T00:00:00Z"},
        {**_LOAD, "selector": {"matchLabels": {"/a": "b"}}},
        {**_LOAD, "selector": {"matchLabels": {"a": "b c"}}},
        {**_LOAD, "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        {**_LOAD, "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}},
        {**_LOAD, "selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        {**_LOAD, "selector": {"models": [""]}},
    ],
)
def test_what_the_model_refuses_the_cluster_refuses(spec: dict[str, Any]) -> None:
    """One case a rule."""
    manifest = document()
    manifest["spec"] = spec
    assert not _accepts(manifest)
    assert refusals(_SCHEMA, manifest)


@pytest.mark.parametrize(
    ("spec", "by_model"),
    [
        # Days and times without seconds are the agent's own notation.
        ({"peerQuarantine": {"window": "1d"}}, True),
        ({**_LOAD, "expiresAt": "2999-01-01T00:00Z"}, True),
        # An API server has no null where it has no default.
        ({**_LOAD, "deferral": None}, True),
        # It removes what it does not know; kubectl refuses it.
        ({**_LOAD, "kvLoadfailure": {}}, False),
    ],
)
def test_the_differences_are_these(spec: dict[str, Any], *, by_model: bool) -> None:
    """Those that docs/guides/fleet.md lists."""
    manifest = document()
    manifest["spec"] = spec
    assert _accepts(manifest) is by_model
    assert (not refusals(_SCHEMA, manifest)) is not by_model


_NUMBER = st.integers(-1, 1001)
_TEXT = st.sampled_from(["a", "role", "", "/x", "b c", "x" * 64, "a.b/c"])
_DURATION = st.one_of(
    st.builds("{}{}".format, st.integers(0, 100), st.sampled_from(["ms", "s", "m", "h", ""])),
    st.builds("{}h{}.5s{}ms".format, st.integers(0, 24), st.integers(0, 60), st.integers(0, 60)),
)
_WORD = st.sampled_from(["recompute", "fail", "auto", "never"])


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_SPECS = _some(
    selector=_some(
        matchLabels=st.dictionaries(_TEXT, _TEXT, max_size=2),
        models=st.lists(_TEXT, max_size=2),
        matchExpressions=st.lists(
            st.fixed_dictionaries(
                {"key": _TEXT, "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Is"])},
                optional={"values": st.lists(_TEXT, max_size=2)},
            ),
            max_size=2,
        ),
    ),
    rollout=_some(percent=_NUMBER),
    priority=_NUMBER,
    mode=st.sampled_from(["enforce", "observe", "watch"]),
    expiresAt=st.sampled_from(
        [
            "2999-01-01T00:00:00Z",
            "2999-01-01T10:00:00.5+02:00",
            "2999-13-01T00:00:00Z",
            "2999-01-01T00:00:00",
            "30m",
        ]
    ),
    kvLoadFailure=_some(
        action=_WORD,
        maxRecomputeTokens=_NUMBER,
        overBudget=_WORD,
        recomputeBudget=_some(tokensPerSecond=_NUMBER),
    ),
    ecLoadFailure=_some(action=_WORD, maxRecomputeItems=_NUMBER),
    deferral=_some(maxStartWait=_DURATION, maxTransferWait=_DURATION, onTimeout=_WORD),
    peerQuarantine=_some(failures=_NUMBER, window=_DURATION, duration=_DURATION, maxPeersPercent=_NUMBER),
    telemetry=_some(traceSampleRatio=st.floats(-1, 2), failureLogInterval=_DURATION),
    integrity=_some(sampleRatio=st.floats(-1, 2), action=_WORD),
)


@given(_SPECS)
@example({"priority": 900, "expiresAt": "2999-01-01T00:00:00Z", "kvLoadFailure": {"action": "fail"}})
def test_model_and_cluster_agree(spec: dict[str, Any]) -> None:
    """Apart from the differences, what one accepts the other accepts."""
    manifest = document()
    manifest["spec"] = spec
    found = refusals(_SCHEMA, manifest)
    assert _accepts(manifest) is (not found), found
