"""The guide's commands, typed by someone with a Deployment and a checkout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.kubernetes.builds import KUSTOMIZE, VERSIONS, documents, program
from tests.support.kubernetes.pods import containers, templates

if TYPE_CHECKING:
    from tests.support.kubernetes.builds import Checkout


def test_two_commands(checkout: Checkout) -> None:
    """The first block of the guide: a kustomization, and its application (built here, there is no cluster)."""
    block = re.search(r"```shell\n(.*?)```", (KUSTOMIZE / "README.md").read_text(), re.DOTALL)
    assert block is not None
    first, second = block[1].strip().splitlines()
    assert second == "kubectl apply -k ."
    place = checkout.place / "mine"
    (checkout.place / "penstock-checkout" / "deploy").mkdir(parents=True)
    (checkout.place / "penstock").rename(checkout.place / "penstock-checkout" / "deploy" / "kustomize")
    (checkout.place / "penstock-checkout").rename(checkout.place / "penstock")
    (place / "deployment.yaml").write_text((KUSTOMIZE / "overlays/plain/deployment.yaml").read_text())
    subprocess.run(["bash", "-c", first], cwd=place, check=True)
    for version in VERSIONS:
        kubectl = program("kubectl", version)
        text = subprocess.run(
            [kubectl, "kustomize", "."], cwd=place, capture_output=True, text=True, check=True
        ).stdout
        (pod,) = templates(documents(text)[0])
        assert [each["name"] for each in containers(pod)] == ["penstock-payload", "penstock", "vllm"]
    assert sorted(path.name for path in Path(place).iterdir()) == ["deployment.yaml", "kustomization.yaml"]
