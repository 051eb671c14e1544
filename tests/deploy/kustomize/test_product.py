"""Manifests and product agree: every flag and variable exists, and gives what the manifest means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml
from penstock.agent.daemon.config import OPTIONS, resolve
from penstock.instrumentation.core import settings

from tests.deploy.kustomize.conftest import CASES
from tests.deploy.kustomize.test_golden import OVERLAYS, golden
from tests.support.kubernetes.builds import KUSTOMIZE, ROOT, VERSIONS, documents
from tests.support.kubernetes.pods import containers, environment, named, templates, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kubernetes.builds import Checkout

# Native sidecars: on by default since 1.29, stable since 1.33.
_SCHEMAS = (VERSIONS[0], "1.33", VERSIONS[-1])
_REFERENCE = (ROOT / "docs" / "reference" / "configuration.md").read_text()
_OF_THE_AGENT = {option.variable for option in OPTIONS} | {"POD_UID", "AGENTCTL_ADDRESS"}
_OF_THE_ENGINE = set(re.findall(r"`([A-Z][A-Z_]+)`", _REFERENCE.partition("## The agent")[0])) | {
    "PYTHONPATH"
}


def built() -> Iterator[dict[str, Any]]:
    """Return the objects that the overlays build."""
    for overlay in OVERLAYS:
        yield from documents(golden(overlay).read_text())


def all_templates() -> Iterator[dict[str, Any]]:
    """Return their pods."""
    for each in built():
        yield from templates(each)


@pytest.mark.parametrize("version", _SCHEMAS)
def test_schemas(version: str, checkout: Checkout) -> None:
    """Every object, and every pod of those that the API does not know, fits the schemas of Kubernetes, strictly."""
    objects = [*built(), *documents(checkout.build(CASES, "component"))]
    known = [each for each in objects if each["apiVersion"] in ("v1", "apps/v1")]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-template"}, "spec": template["spec"]}
        for each in objects
        for template in templates(each)
    ]
    assert len(known) > len(pods) / 2
    for each in [*known, *pods]:
        assert kubernetes_validate.validate(each, version, strict=True) == version


def test_schemas_find_what_is_wrong() -> None:
    """A field that does not exist is refused."""
    (pod,) = templates(documents(golden("overlays/plain").read_text())[0])
    named(pod, "penstock")["restartsPolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **pod}, VERSIONS[0], strict=True)


def agents() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each pod with an agent, and the agent's container."""
    return [(pod, each) for pod in all_templates() for each in containers(pod) if each["name"] == "penstock"]


def test_flags_and_variables_of_the_agent() -> None:
    """All are options of penstock-agent, and it accepts their values."""
    assert len(agents()) >= 5
    for pod, container in agents():
        env = environment(pod, container)
        assert {name for name in env if name not in _OF_THE_AGENT and not name.startswith("OTEL_")} == set()
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in container.get("args", []))
        config = resolve(flags, env)
        assert config.memory_limit * 8 <= _bytes(container["resources"]["limits"]["memory"]) * 7
        assert str(config.http) == "0.0.0.0:9464"
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/run/penstock", "/run/penstock-admin", str(config.state_dir)} == mounts


def _bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Mi")) << 20


def test_state_fits_its_volume() -> None:
    """A volume that fills up evicts the pod: the agent's own limit is half of it."""
    for pod, container in agents():
        volumes = {each["name"]: each.get("emptyDir") for each in pod["spec"]["volumes"]}
        if state := volumes["penstock-state"]:
            config = resolve({}, environment(pod, container))
            assert config.state_limit * 2 <= int(state["sizeLimit"].removesuffix("Gi")) << 30


def test_variables_of_the_engine(checkout: Checkout) -> None:
    """All are in the reference, or stand before one that refers to them; all that is referred to is there."""
    pods = [
        template
        for text in (
            *(golden(overlay).read_text() for overlay in OVERLAYS),
            checkout.build(CASES, "component"),
            checkout.build(CASES, "daemonset/component"),
        )
        for document in documents(text)
        for template in templates(document)
    ]
    engines = [
        (pod, each)
        for pod in pods
        for each in pod["spec"]["containers"]
        if any(variable["name"] == "PENSTOCK_ENDPOINT" for variable in each.get("env", []))
    ]
    assert len(engines) >= 8
    for pod, container in engines:
        referred = set(re.findall(r"\$\((\w+)\)", str([each.get("value") for each in container["env"]])))
        names = [
            each["name"] for each in container["env"] if each["name"].startswith(("PENSTOCK", "POD", "NODE"))
        ]
        assert {name for name in names if name not in _OF_THE_ENGINE} <= referred
        env = environment(pod, container)
        assert "$(" not in env["PENSTOCK_POD_LABELS"]
        assert settings.parse({**env, "PENSTOCK_SERVER": ""}) is not None


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, {}),
        ({"llm-d.ai/role": "encode"}, {"role": "encoder"}),
        (
            {"llm-d.ai/role": "prefill", "disaggregatedset.x-k8s.io/revision": "5c5fcdfb44"},
            {"role": "prefill", "revision": "5c5fcdfb44"},
        ),
        (
            {
                "leaderworkerset.sigs.k8s.io/name": "vllm",
                "leaderworkerset.sigs.k8s.io/group-index": "0",
                "leaderworkerset.sigs.k8s.io/worker-index": "1",
            },
            {"lws": "vllm", "lws-group": "0", "lws-worker": "1"},
        ),
    ],
)
def test_labels_of_a_pod_become_policy_labels(labels: dict[str, str], expected: dict[str, str]) -> None:
    """What a controller labels its pods with is what policies select by."""
    (pod,) = templates(documents(golden("overlays/plain").read_text())[0])
    pod["metadata"] = {"labels": labels, "annotations": {"penstock.dev/labels": "tier=gold"}}
    found = settings.parse(environment(pod, named(pod, "vllm")))
    assert found is not None
    own = {key: value for key, value in found.labels.items() if key not in settings.DOWNWARD_API}
    assert own == {**expected, "tier": "gold"}
    assert found.labels["POD_NAME"] == "the pod's metadata.name"


def test_socket_is_the_agents() -> None:
    """Engine and agent of each pod name one socket."""
    for pod, container in agents():
        listen = resolve({}, environment(pod, container)).listen
        for each in pod["spec"]["containers"]:
            env = environment(pod, each)
            if "PENSTOCK_ENDPOINT" in env:
                assert env["PENSTOCK_ENDPOINT"] == str(listen)


def test_component_for_a_daemonset(checkout: Checkout) -> None:
    """The engine's part and no agent; each pod is a server of its own; not for the profile "restricted"."""
    found = {
        each["metadata"]["name"]: each for each in documents(checkout.build(CASES, "daemonset/component"))
    }
    (pod,) = templates(found["restricted"])
    assert [each["name"] for each in containers(pod)] == ["penstock-payload", "vllm"]
    assert environment(pod, named(pod, "vllm"))["PENSTOCK_SERVER"] == "the pod's metadata.name"
    assert violations(pod) == ["volume penstock-run is a hostPath"]


def test_values_of_the_production_stack(checkout: Checkout) -> None:
    """Helm of both generations renders the chart's engines with Penstock, and its router without."""
    stack = KUSTOMIZE / "overlays" / "production-stack"
    chart, values = ROOT / "tests/deploy/kustomize/chart", stack / "values.yaml"
    copied = checkout.place / "penstock" / "overlays" / "production-stack"
    oldest, newest = VERSIONS
    checkout.helm(newest, "plugin", "install", str(copied))
    for version, renderer in ((oldest, str(copied / "post-render.sh")), (newest, "penstock")):
        text = checkout.helm(
            version, "template", "x", str(chart), "-f", str(values), "--post-renderer", renderer
        )
        found = {each["metadata"]["name"]: each for each in documents(text)}
        (router,) = templates(found["x-deployment-router"])
        assert [each["name"] for each in containers(router)] == ["router"]
        (engine,) = templates(found["x-qwen3-deployment-vllm"])
        parsed = settings.parse(environment(engine, named(engine, "vllm")))
        assert parsed is not None
        assert parsed.labels["model-family"] == "qwen3"
        assert parsed.labels["role"] == "decode"


def test_plain_yaml_of_the_documents() -> None:
    """YAML in the guide of the component is YAML."""
    text = (KUSTOMIZE / "README.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        assert list(yaml.safe_load_all(block))
