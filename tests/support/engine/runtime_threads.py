"""The threads that a runtime has started."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.instrumentation.policy.client import PolicyClient
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.telemetry.exporter import Exporter


def exporter_of(runtime: Runtime) -> Exporter:
    """Return the exporter of a runtime that has been started."""
    assert runtime._exporter is not None
    return runtime._exporter


def policy_client_of(runtime: Runtime) -> PolicyClient:
    """Return the policy client of a runtime whose policy has been started."""
    assert runtime._policy_client is not None
    return runtime._policy_client
