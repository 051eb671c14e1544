"""The component on manifests of users: what it adds, where, and that it changes nothing else."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.kustomize.conftest import CASES
from tests.support.kubernetes.builds import VERSIONS, build, documents
from tests.support.kubernetes.pods import containers, named, quality_of_service, templates, violations
from tests.support.variants import product

if TYPE_CHECKING:
    from tests.support.kubernetes.builds import Checkout

OURS = frozenset({"penstock", "penstock-payload"})
_VOLUME = "/opt/penstock-engine"
_GROUP = 65532


def template_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the one pod of an object."""
    (found,) = templates(document)
    return found


def without_ours(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what the component adds, which has names of its own."""
    document = copy.deepcopy(document)

    def prune(owner: dict[str, Any], key: str, kept: list[Any]) -> None:
        owner[key] = kept
        if not kept:
            del owner[key]

    for template in templates(document):
        spec = template["spec"]
        for key in ("initContainers", "volumes"):
            prune(spec, key, [each for each in spec.get(key, []) if not each["name"].startswith("penstock")])
        context = spec.get("securityContext", {})
        prune(
            context,
            "supplementalGroups",
            [each for each in context.get("supplementalGroups", []) if each != _GROUP],
        )
        if not context:
            spec.pop("securityContext", None)
        for container in spec["containers"]:
            mounts = [
                each for each in container.get("volumeMounts", []) if not each["name"].startswith("penstock-")
            ]
            prune(container, "volumeMounts", mounts)
            variables = []
            for each in container.get("env", []):
                if each["name"] == "PYTHONPATH":
                    each["value"] = each["value"].removeprefix(_VOLUME).removeprefix(":")
                ours = each["name"].startswith(("PENSTOCK_ENDPOINT", "PENSTOCK_POD", "POD_", "NODE_NAME"))
                if not ours and each.get("value") != "":
                    variables.append(each)
            prune(container, "env", variables)
    return document


def test_it_only_adds(checkout: Checkout) -> None:
    """Without our names the output is what was there before, in its order."""
    before = documents(checkout.build(CASES))
    after = documents(checkout.build(CASES, "component"))
    assert yaml.safe_dump_all([without_ours(each) for each in after]) == yaml.safe_dump_all(before)


@pytest.mark.parametrize("version", VERSIONS)
def test_removal_restores_the_original(checkout: Checkout, version: str) -> None:
    """With the component's line the manifests change, without it they are what they were, byte for byte."""
    before = checkout.build(CASES, version=version)
    assert checkout.build(CASES, "component", version=version) != before
    assert checkout.build(CASES, version=version) == before
    assert (checkout.place / "mine" / "all.yaml").read_text() == CASES


@pytest.mark.parametrize("version", VERSIONS)
def test_each_kind_has_the_sidecar_once(checkout: Checkout, version: str) -> None:
    """Deployment, StatefulSet and Pod; not what is labelled, nor what has no pod."""
    found = documents(checkout.build(CASES, "component", version=version))
    have = {
        each["metadata"]["name"]: [container["name"] for container in containers(template)]
        for each in found
        for template in templates(each)
    }
    assert have == {
        "least": ["penstock-payload", "penstock", "server"],
        "rich": ["download", "proxy", "penstock-payload", "penstock", "vllm", "penstock-like"],
        "second": ["penstock-payload", "penstock", "front", "vllm"],
        "restricted": ["penstock-payload", "penstock", "vllm"],
        "router": ["router"],
    }


def test_sidecar_is_native_and_gates_nothing(cases: dict[str, Any]) -> None:
    """It restarts by itself, and has no probe that the containers after it would wait for."""
    sidecar = named(template_of(cases["least"]), "penstock")
    assert sidecar["restartPolicy"] == "Always"
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"} & sidecar.keys()
    assert "restartPolicy" not in named(template_of(cases["least"]), "penstock-payload")


@pytest.mark.parametrize(
    ("case", "container", "path"),
    [
        ("least", "server", _VOLUME),
        ("rich", "vllm", f"{_VOLUME}:/plugins:/more"),
        ("second", "vllm", _VOLUME),
        ("restricted", "vllm", _VOLUME),
    ],
)
def test_engine(cases: dict[str, Any], case: str, container: str, path: str) -> None:
    """The engine's container, and no other, has the variables, the socket read-only and the engine part."""
    template = template_of(cases[case])
    for each in template["spec"]["containers"]:
        env = {variable["name"]: variable for variable in each.get("env", [])}
        mounts = {mount["mountPath"]: mount for mount in each.get("volumeMounts", [])}
        if each["name"] != container:
            assert "PENSTOCK_ENDPOINT" not in env
            assert not {name for name in mounts if "penstock" in name}
            continue
        assert env["PYTHONPATH"]["value"] == path
        assert mounts["/run/penstock"] == {
            "name": "penstock-run",
            "mountPath": "/run/penstock",
            "readOnly": True,
        }
        assert mounts[_VOLUME]["readOnly"]
        assert not {name for name in mounts if "serviceaccount" in name}


def test_users_variables_stay(cases: dict[str, Any]) -> None:
    """Names that contain ours, and values that refer to each other, are not touched."""
    env = {each["name"]: each.get("value") for each in named(template_of(cases["rich"]), "vllm")["env"]}
    assert env["MY_PYTHONPATH"] == "/mine"
    assert env["HF_HOME"] == "$(MY_PYTHONPATH)/hf"
    assert env["PENSTOCK_LABELS"] == "tier=silver"


@pytest.mark.parametrize(
    ("case", "expected"), [("least", "Burstable"), ("rich", "Burstable"), ("restricted", "Guaranteed")]
)
def test_quality_of_service(cases: dict[str, Any], case: str, expected: str) -> None:
    """Guaranteed and Burstable stay; BestEffort needs its part (next test)."""
    assert quality_of_service(template_of(cases[case])) == expected


def test_best_effort_stays(checkout: Checkout) -> None:
    """With ``component/best-effort`` the containers have neither requests nor limits."""
    pods = [each for each in documents(CASES) if each["metadata"]["name"] in ("least", "second")]
    assert {quality_of_service(template_of(each)) for each in pods} == {"BestEffort"}
    for version in VERSIONS:
        built = documents(
            checkout.build(yaml.safe_dump_all(pods), "component", "component/best-effort", version=version)
        )
        assert [quality_of_service(template_of(each)) for each in built] == ["BestEffort"] * 2
        order = [container["name"] for container in containers(template_of(built[0]))]
        assert order.index("penstock-payload") < order.index("penstock")


def test_restricted_profile(cases: dict[str, Any]) -> None:
    """A pod that passes still does; our containers and volumes pass in every pod."""
    assert violations(template_of(cases["restricted"])) == []
    for case in ("least", "rich", "second"):
        assert violations(template_of(cases[case]), OURS) == []
        assert violations(template_of(cases[case])) != []


def test_pod_keeps_its_owner_of_volumes(cases: dict[str, Any]) -> None:
    """A group is added for the socket; fsGroup would change the owner of the model cache."""
    contexts = {case: template_of(cases[case])["spec"]["securityContext"] for case in ("least", "rich")}
    assert contexts["least"] == {"supplementalGroups": [_GROUP]}
    assert contexts["rich"] == {"fsGroup": 1000, "supplementalGroups": [44, 109, _GROUP]}


def test_leaders_and_workers(checkout: Checkout) -> None:
    """With its part both templates of a LeaderWorkerSet have the sidecar; only the leader expects an engine."""
    manifest = (checkout.place / "penstock/overlays/leader-worker-set/leaderworkerset.yaml").read_text()
    for parts, expected in (
        (("component",), [None, "1"]),
        (("component", "component/leader"), ["1", "0"]),
    ):
        (built,) = documents(checkout.build(manifest, *parts))
        found = []
        for template in templates(built):
            names = [each["name"] for each in containers(template)]
            env = named(template, "penstock")["env"] if "penstock" in names else []
            found.append(
                next((each["value"] for each in env if each["name"].endswith("ENGINES_EXPECTED")), None)
            )
        assert found == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_container_that_is_not_there_is_refused(checkout: Checkout, version: str) -> None:
    """A wrong label ends in an object that the API server refuses, not in an engine without Penstock."""
    case = CASES.replace('penstock.dev/container: "2"', 'penstock.dev/container: "3"')
    found = {
        each["metadata"]["name"]: each
        for each in documents(checkout.build(case, "component", version=version))
    }
    with pytest.raises(kubernetes_validate.ValidationError, match="name"):
        kubernetes_validate.validate(found["second"], version, strict=True)


def test_leader_without_the_component_is_an_error(checkout: Checkout) -> None:
    """The parts need the component before them."""
    manifest = (checkout.place / "penstock/overlays/leader-worker-set/leaderworkerset.yaml").read_text()
    with pytest.raises(AssertionError, match="penstock"):
        checkout.build(manifest, "component/leader")


def test_user_chooses_images_and_settings(checkout: Checkout) -> None:
    """One place for a registry, and a patch by name for a variable."""
    more = """
images:
  - {name: ghcr.io/penstock/agent, newName: registry.example.com/penstock/agent, newTag: v2}
patches:
  - target: {kind: Deployment, name: least}
    patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: any}
      spec:
        template:
          spec:
            initContainers:
              - name: penstock
                env: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://jaeger:4317"}]
"""
    built = {
        each["metadata"]["name"]: each for each in documents(checkout.build(CASES, "component", more=more))
    }
    sidecar = named(template_of(built["least"]), "penstock")
    assert sidecar["image"] == "registry.example.com/penstock/agent:v2"
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://jaeger:4317"} in sidecar["env"]
    assert {"name": "PENSTOCK_AGENT_ON_FATAL", "value": "idle"} in sidecar["env"]


def test_in_another_kustomization(checkout: Checkout) -> None:
    """A prefix, a namespace and labels of an overlay above change names, not what was added."""
    checkout.build(CASES, "component")
    above = checkout.place / "above"
    above.mkdir()
    (above / "kustomization.yaml").write_text(
        "resources: [../mine]\nnamePrefix: team-\nnamespace: serving\nlabels: [{pairs: {team: a}, includeTemplates: true}]\n"
    )
    built = {each["metadata"]["name"]: each for each in documents(build(above))}
    assert [each["name"] for each in containers(template_of(built["team-least"]))][:2] == [
        "penstock-payload",
        "penstock",
    ]
    assert "PodTemplate" not in {each["kind"] for each in built.values()}


@product(
    version={each: each for each in VERSIONS},
    part={each: each for each in ("component", "daemonset/component")},
)
def test_kustomizations_with_it_side_by_side(checkout: Checkout, version: str, part: str) -> None:
    """Prefill and decode have the component each, and one kustomization lists both."""
    above = checkout.place / "above"
    for role in ("prefill", "decode"):
        place = above / role
        place.mkdir(parents=True)
        (place / "deployment.yaml").write_text(_engine_with("").replace("name: mine", f"name: {role}", 1))
        (place / "kustomization.yaml").write_text(
            f"resources: [deployment.yaml]\ncomponents: [../../penstock/{part}]\n"
        )
    (above / "kustomization.yaml").write_text("resources: [prefill, decode]\n")
    found = documents(build(above, version=version))
    assert {each["metadata"]["name"] for each in found} == {"prefill", "decode"}
    assert all("PENSTOCK_ENDPOINT" in environment_of(each) for each in found)


@pytest.mark.parametrize("version", VERSIONS)
def test_listed_twice_is_listed_once(checkout: Checkout, version: str) -> None:
    """A second time changes nothing."""
    manifest = _engine_with("")
    once = checkout.build(manifest, "component", version=version)
    assert checkout.build(manifest, "component", "component", version=version) == once


def _engine_with(labels: str, *variables: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: mine, labels: {{{labels}}}}}
spec:
  selector: {{matchLabels: {{app: mine}}}}
  template:
    metadata: {{labels: {{app: mine}}}}
    spec: {{containers: [{{name: vllm, image: vllm, env: [{", ".join(variables)}]}}]}}
"""


@product(
    version={each: each for each in VERSIONS},
    variable_and_path={
        "without a value": ("{name: PYTHONPATH}", _VOLUME),
        "empty": ("{name: PYTHONPATH, value: ''}", _VOLUME),
        "set": ("{name: PYTHONPATH, value: /mine}", f"{_VOLUME}:/mine"),
        "another": ("{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}", _VOLUME),
    },
)
def test_python_path(checkout: Checkout, version: str, variable_and_path: tuple[str, str]) -> None:
    """One that is empty stays without a colon, after which Python would look in the working directory."""
    variable, path = variable_and_path
    (built,) = documents(checkout.build(_engine_with("", variable), "component", version=version))
    assert environment_of(built)["PYTHONPATH"]["value"] == path


@pytest.mark.parametrize("position", ["4", "9"])
def test_a_container_beyond_the_third(checkout: Checkout, position: str) -> None:
    """The first container stays as it is: the label says that it is not the engine."""
    (built,) = documents(checkout.build(_engine_with(f"penstock.dev/container: '{position}'"), "component"))
    assert environment_of(built) == {}


def environment_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of the container ``vllm`` by name."""
    return {each["name"]: each for each in named(template_of(document), "vllm").get("env", [])}


@pytest.mark.parametrize("version", VERSIONS)
def test_drain(checkout: Checkout, version: str) -> None:
    """The engine's container waits in its preStop; the pod's grace period is longer, and nothing else differs."""
    plain = documents(checkout.build(CASES, "component", version=version))
    drained = documents(checkout.build(CASES, "component", "component/drain", version=version))
    engines = {"least": "server", "rich": "vllm", "second": "vllm", "restricted": "vllm"}
    seen = set()
    for document in drained:
        for template in templates(document):
            name, spec = document["metadata"]["name"], template["spec"]
            if name not in engines:
                continue
            seen.add(name)
            command = named(template, engines[name])["lifecycle"]["preStop"]["exec"]["command"]
            assert command[:3] == ["python3", "-m", "penstock.instrumentation.drain"]
            assert (
                float(command[command.index("--timeout") + 1].removesuffix("s"))
                < spec["terminationGracePeriodSeconds"]
            )
    assert seen == engines.keys()
    assert without_lifecycles(drained) == without_lifecycles(plain)


def without_lifecycles(found: list[dict[str, Any]]) -> str:
    """Return objects as text, without grace periods and hooks that may have been replaced."""
    found = copy.deepcopy(found)
    for document in found:
        for template in templates(document):
            template["spec"].pop("terminationGracePeriodSeconds", None)
            for container in template["spec"]["containers"]:
                container.pop("lifecycle", None)
    return yaml.safe_dump_all(found)


_PROBED = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: decode, labels: {{{label}}}}}
spec:
  selector: {{matchLabels: {{app: decode}}}}
  template:
    metadata: {{labels: {{app: decode}}}}
    spec:
      containers:
        - {{name: proxy, image: proxy, readinessProbe: {{httpGet: {{path: /ready, port: 1}}}}}}
        - name: vllm
          image: vllm
          livenessProbe: {{httpGet: {{path: /health, port: 8000}}}}
          readinessProbe: {{httpGet: {{path: /health, port: 8000}}, periodSeconds: 7}}
"""


@product(
    version={each: each for each in VERSIONS},
    component={each: each for each in ("component", "daemonset/component")},
    asked={"asked": True, "not asked": False},
)
def test_the_readiness_probe(checkout: Checkout, version: str, component: str, *, asked: bool) -> None:
    """Only its path changes, of the engine's container, and only where the label asks for it."""
    labels = f"""penstock.dev/container: "2"{', penstock.dev/readiness: "true"' if asked else ""}"""
    (built,) = (
        each
        for each in documents(checkout.build(_PROBED.format(label=labels), component, version=version))
        if each["metadata"]["name"] == "decode"
    )
    template = template_of(built)
    path = "/health?penstock=ready" if asked else "/health"
    assert named(template, "vllm")["readinessProbe"] == {
        "httpGet": {"path": path, "port": 8000},
        "periodSeconds": 7,
    }
    assert named(template, "vllm")["livenessProbe"] == {"httpGet": {"path": "/health", "port": 8000}}
    assert named(template, "proxy")["readinessProbe"] == {"httpGet": {"path": "/ready", "port": 1}}


def test_a_readiness_probe_that_is_not_there(checkout: Checkout) -> None:
    """The error names it: nobody is left to believe that the pod can be taken out of rotation."""
    with pytest.raises(AssertionError, match=r"readinessProbe\.httpGet\.path"):
        checkout.build(_engine_with('penstock.dev/readiness: "true"', "{name: A, value: b}"), "component")
