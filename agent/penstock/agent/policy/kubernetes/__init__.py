"""TransferPolicy objects of a Kubernetes API server: list, watch, and go on after any trouble."""

from __future__ import annotations

from penstock.agent.policy.kubernetes.access import ClusterAccess, read_pod_access
from penstock.agent.policy.kubernetes.api_client import ApiClient
from penstock.agent.policy.kubernetes.follower import ObjectFollower, ObjectSink
from penstock.agent.policy.kubernetes.objects import OWN_ANNOTATIONS, ClusterObject, ObjectSet, read_object

__all__ = [
    "OWN_ANNOTATIONS",
    "ApiClient",
    "ClusterAccess",
    "ClusterObject",
    "ObjectFollower",
    "ObjectSet",
    "ObjectSink",
    "read_object",
    "read_pod_access",
]
