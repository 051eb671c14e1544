"""What the refusals of the API server mean, and what to do. Pure."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.agent.errors import ClusterError, ConflictError, ManifestError

if TYPE_CHECKING:
    import aiohttp
    from penstock.agent.errors import PenstockError
    from penstock.agent.policy.kubernetes.access import ClusterAccess

_MAX_RETRY_AFTER_SECONDS = 300.0
_WRITING = frozenset({"create", "update", "delete"})
# What only a relay does.
LEASE, STATUS = "hold the Lease of a relay for", "write the status of"
PODS = "list the pods of the agents of"
_OF_AN_OBJECT = frozenset({"get", "update", "delete", LEASE, STATUS})


class MissingError(ClusterError):
    """There is no such object."""


def refusal(access: ClusterAccess, response: aiohttp.ClientResponse, text: bytes, verb: str) -> PenstockError:
    """Return the error of an answer that is no success; *verb* is what was asked, *text* the answer's body."""
    status, namespace = response.status, access.namespace
    if status == HTTPStatus.CONFLICT:
        return ConflictError("the object was changed meanwhile; read it again and retry")
    if status == HTTPStatus.NOT_FOUND and verb in _OF_AN_OBJECT and _message(text).endswith(" not found"):
        return MissingError("there is no such object")
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and verb in _WRITING:
        return ManifestError(f"the API server refuses the object: {_message(text)}")
    role = "penstock-policy-editor" if verb in _WRITING else "penstock-agent"
    if verb in (LEASE, STATUS):
        role = "penstock-relay"
    elif verb == PODS:
        role = "penstock-relay-pods"
    if status == HTTPStatus.GONE:
        return ClusterError("the API server no longer has that revision", outdated=True)
    token = access.token_file
    sentences = {
        401: f"the API server does not accept the token of {token} (401); "
        "it may have expired: mount a projected service account token, which is renewed"
        if token
        else "the API server wants a token (401); give --kube-token-file",
        403: f"the service account may not {verb} TransferPolicy objects in namespace {namespace} (403); "
        f"bind the ClusterRole {role} to it by a RoleBinding in that namespace",
        404: "the cluster has no TransferPolicy objects (404); apply deploy/crd",
    }
    said = _message(text)
    sentence = sentences.get(status, f"the API server answered {status}{f': {said}' if said else ''}")
    return ClusterError(sentence, retry_after=_retry_after(response.headers.get("Retry-After", "")))


def _message(text: bytes) -> str:
    try:
        return " ".join(str(json.loads(text)["message"]).split())[:200]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""


def _retry_after(text: str) -> float:
    # The API server gives seconds, never a date.
    return min(float(text), _MAX_RETRY_AFTER_SECONDS) if text.isascii() and text.isdigit() else 0.0
