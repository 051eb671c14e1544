"""Where the API server is, what proves who asks, and what its refusals mean."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.errors import ClusterError, ConfigError, ConflictError, ManifestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp
    from penstock.agent.errors import PenstockError

# Where the kubelet mounts a pod's token: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
POD_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Access to one namespace of a cluster. The files are read anew, for each connection, because they rotate.

    Attributes:
        url: of the API server, without a slash at its end.
        namespace: whose objects are read.
        token_file: a bearer token; None for none.
        ca_file: CA bundle of the API server's certificate; None for the system's.

    """

    url: str
    namespace: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; reads the token.

        Raises:
            OSError: the file cannot be read.

        """
        if self.token_file is None:
            return {}
        with self.token_file.open("rb") as stream:
            token = stream.read(_MAX_TOKEN_BYTES).decode("latin-1").strip()
        # A line break would begin another header.
        return {"Authorization": f"Bearer {''.join(token.split())}"}

    def tls(self) -> ssl.SSLContext:
        """Return what a connection verifies the server with.

        Raises:
            OSError: the file cannot be read, or has no certificate.

        """
        return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))


def read_pod_access(
    environment: Mapping[str, str],
    namespace: str = "",
    directory: Path = POD_DIRECTORY,
    option: str = "--policy-source kubernetes",
) -> ClusterAccess:
    """Return the access of the pod that this process runs in, to *namespace* or, if empty, to the pod's own.

    Errors name *option*.

    Raises:
        ConfigError: this is no pod, or it has no token.

    """
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise ConfigError(
            f"{option}: KUBERNETES_SERVICE_HOST is not set, so this is no pod; "
            "give --kube-api, --kube-token-file and --kube-ca"
        )
    token, ca = directory / "token", directory / "ca.crt"
    if not token.exists():
        raise ConfigError(
            f"{option}: {token} does not exist; mount a service account token into this "
            "container (docs/guides/fleet.md)"
        )
    if not namespace:
        try:
            namespace = (directory / "namespace").read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(
                f"{option}: {directory / 'namespace'} cannot be read; write kubernetes:NAMESPACE"
            ) from None
    shown = f"[{host}]" if ":" in host else host
    return ClusterAccess(f"https://{shown}:{port}", namespace, token, ca)


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
