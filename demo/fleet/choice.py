"""Chooses where the policies of the fleet demo are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demo.common.kube_api_server import kubectl, missing_server
from demo.common.steps import StepError
from demo.fleet.kubernetes_place import KubernetesPlace
from demo.fleet.nats_place import NatsPlace

if TYPE_CHECKING:
    from demo.fleet.place import Place

SOURCES = ("kubernetes", "nats")


def choose(source: str) -> Place:
    """Return the place that *source* names; for an empty one Kubernetes where it is there, else NATS.

    Raises:
        StepError: *source* is Kubernetes, and something is missing.

    """
    missing = missing_server() or (
        "" if kubectl() else "no kubectl: `make kubectl` gets it, or put one on PATH"
    )
    if source == "kubernetes" and missing:
        raise StepError(f"There is {missing}. `make demo-fleet SOURCE=nats` needs neither.")
    if source == "nats":
        return NatsPlace(
            "The policies are in NATS, as SOURCE=nats asks; SOURCE=kubernetes has objects instead."
        )
    if missing:
        return NatsPlace(
            f"The policies are in NATS, for there is {missing}; then this demo has objects instead."
        )
    return KubernetesPlace(
        "The policies are objects of a real Kubernetes API server; `make demo-fleet SOURCE=nats` takes NATS. The server is "
        "of Kubernetes 1.20, which has no CEL, so the definition comes without its CEL rules."
    )
