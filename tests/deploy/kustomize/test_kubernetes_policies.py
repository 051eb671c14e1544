"""The component for policies of the Kubernetes API: a token for the agent, and for no other container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kubernetes_validate
import pytest

from tests.deploy.kustomize.conftest import CASES
from tests.support.kubernetes.builds import VERSIONS, documents
from tests.support.kubernetes.pods import containers, named, templates

if TYPE_CHECKING:
    from tests.support.kubernetes.builds import Checkout

_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_agent_has_the_token(checkout: Checkout, version: str) -> None:
    """The oldest and the newest kubectl build valid pods; a container that is not the agent is as without it."""
    before = documents(checkout.build(CASES, "component", version=version))
    after = documents(checkout.build(CASES, "component", "component/kubernetes-policies", version=version))
    seen = 0
    for old, new in zip(before, after, strict=True):
        for plain, template in zip(templates(old), templates(new), strict=True):
            names = [each["name"] for each in containers(template)]
            if "penstock" not in names:
                assert template == plain
                continue
            seen += 1
            kubernetes_validate.validate(new, version, strict=True)
            agent = named(template, "penstock")
            assert {"name": "PENSTOCK_AGENT_POLICY_SOURCE", "value": "kubernetes"} in agent["env"]
            (mount,) = (each for each in agent["volumeMounts"] if each["mountPath"] == _MOUNT)
            assert mount == {"name": "penstock-token", "mountPath": _MOUNT, "readOnly": True}
            (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == mount["name"])
            paths = {
                item["path"]
                for source in volume["projected"]["sources"]
                for part in source.values()
                for item in part.get("items", [part])
            }
            assert paths == {"token", "ca.crt", "namespace"}
            for name in names:
                if name != "penstock":
                    assert named(template, name) == named(plain, name)
    assert seen == 4
