"""Where the API server is, and what proves who asks."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
