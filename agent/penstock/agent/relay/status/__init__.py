"""The Lease that one relay of a fleet holds, and the status of TransferPolicy objects that its holder writes."""

from __future__ import annotations

from penstock.agent.relay.status.lease import KubernetesLease, Lease, NatsLease

__all__ = ["KubernetesLease", "Lease", "NatsLease"]
