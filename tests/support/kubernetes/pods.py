"""What Kubernetes makes of a manifest: its pods, their environment, quality of service and security profile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# https://kubernetes.io/docs/concepts/security/pod-security-standards/: volumes of the profile "restricted".
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def templates(document: Any) -> Iterator[dict[str, Any]]:
    """Return each pod template of an object, the object itself if it is a pod, wherever it is in there."""
    if isinstance(document, dict):
        spec = document.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield document
        else:
            for value in document.values():
                yield from templates(value)
    elif isinstance(document, list):
        for value in document:
            yield from templates(value)


def containers(template: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a pod, in the order in which they start."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a container by its name."""
    (found,) = (each for each in containers(template) if each["name"] == name)
    return found


def quality_of_service(template: Mapping[str, Any]) -> str:
    """Return the class by the rules of Kubernetes: of CPU and memory, over all containers, init containers included."""
    resources = [each.get("resources", {}) for each in containers(template)]
    requests = [{**each.get("limits", {}), **each.get("requests", {})} for each in resources]
    limits = [each.get("limits", {}) for each in resources]
    kinds = ("cpu", "memory")
    if not any(kind in each for each in requests for kind in kinds):
        return "BestEffort"
    guaranteed = all(
        limit.get(kind) is not None and limit[kind] == request[kind]
        for limit, request in zip(limits, requests, strict=True)
        for kind in kinds
    )
    return "Guaranteed" if guaranteed else "Burstable"


def environment(template: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's environment as the kubelet makes it.

    Variables are read in their order: ``$(NAME)`` is expanded if NAME stands before, and stays as it is otherwise. A
    label that the pod does not have is an empty text.
    """
    values: dict[str, str] = {}
    metadata = template.get("metadata", {})
    for variable in container.get("env", []):
        if "valueFrom" in variable:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
            values[variable["name"]] = (
                metadata.get(match[1], {}).get(match[2], "") if match else f"the pod's {path}"
            )
        else:
            values[variable["name"]] = re.sub(
                r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), variable.get("value", "")
            )
    return values


def violations(template: Mapping[str, Any], only: frozenset[str] | None = None) -> list[str]:
    """Return what the profile "restricted" has against a pod; with *only*, against these containers of it."""
    spec = template["spec"]
    pod = spec.get("securityContext", {})
    found = [f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    used = {
        mount["name"]
        for each in containers(template)
        if only is None or each["name"] in only
        for mount in each.get("volumeMounts", [])
    }
    found += [
        f"volume {volume['name']} is a {kind}"
        for volume in spec.get("volumes", [])
        for kind in volume.keys() - {"name"} - _VOLUMES
        if volume["name"] in used
    ]
    for container in containers(template):
        if only is not None and container["name"] not in only:
            continue
        context = container.get("securityContext", {})
        capabilities = context.get("capabilities", {})
        both = {**pod, **context}
        wrong = {
            "privileged": context.get("privileged", False),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation", True),
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": bool(set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}),
            "runAsNonRoot": not both.get("runAsNonRoot"),
            "runAsUser": both.get("runAsUser") == 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "hostPort": any(port.get("hostPort") for port in container.get("ports", [])),
        }
        found += [f"{container['name']}: {field}" for field, is_wrong in wrong.items() if is_wrong]
    return found
