"""A real Kubernetes API server with its etcd, on loopback; ``make kube-apiserver`` builds it, ``make kubectl`` gets kubectl."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from demo.common.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAMS = _ROOT / ".cache" / "kubernetes"
_SERVER = _PROGRAMS / "api-server" / "kube-apiserver"
DEFINITION = _ROOT / "deploy" / "crd" / "transferpolicies.yaml"
ROLES = _ROOT / "deploy" / "crd" / "roles.yaml"
_RULES = "x-kubernetes-validations"
_PKCS1 = serialization.PrivateFormat.TraditionalOpenSSL


def missing_server() -> str:
    """Return how to get an API server; empty where there is one."""
    if _SERVER.exists() and shutil.which("etcd") is not None:
        return ""
    return "no API server: `make kube-apiserver` builds it (Debian 12, about ten minutes)"


def kubectl() -> str:
    """Return the path of the newest kubectl; empty for none."""
    own = sorted(_PROGRAMS.glob("1.*/kubectl"), key=lambda path: int(path.parent.name.partition(".")[2]))
    return str(own[-1]) if own else shutil.which("kubectl") or ""


def without_rules(schema: Any) -> Any:
    """Return *schema* for an API server before Kubernetes 1.25, which has no CEL."""
    if isinstance(schema, list):
        return [without_rules(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_rules(value) for key, value in schema.items() if key != _RULES}


class ServerFiles:
    """Keys, addresses and commands of one API server and its etcd; it starts none.

    Attributes:
        ca: certificate of the API server's authority.
        port: of the API server.
        etcd_url: address of etcd.
        admin: certificate of an administrator.

    """

    def __init__(self, place: Path) -> None:
        """Write the keys to *place*."""
        self._place = place
        self._etcd_port, self._peer_port, self.port = free_port(), free_port(), free_port()
        authority = trustme.CA()
        self.ca = place / "ca.crt"
        authority.cert_pem.write_to_path(str(self.ca))
        server = authority.issue_cert("127.0.0.1", "localhost")
        self.admin = authority.issue_cert(
            "admin.invalid", common_name="admin", organization_name="system:masters"
        )
        server.private_key_pem.write_to_path(str(place / "server.key"))
        server.cert_chain_pems[0].write_to_path(str(place / "server.crt"))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (place / "sa.key").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, _PKCS1, serialization.NoEncryption())
        )

    @property
    def url(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def etcd_url(self) -> str:
        """The address of etcd."""
        return f"http://127.0.0.1:{self._etcd_port}"

    def etcd_command(self) -> list[str]:
        """Return what starts etcd over its data."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        return [
            "etcd", "--data-dir", str(self._place / "etcd"), "--name=one", "--unsafe-no-fsync",
            f"--listen-client-urls={self.etcd_url}", f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=one={peer}",
        ]  # fmt: skip

    def server_command(self) -> list[str]:
        """Return what starts the API server."""
        place = self._place
        return [
            str(_SERVER), f"--etcd-servers={self.etcd_url}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--tls-cert-file={place}/server.crt", f"--tls-private-key-file={place}/server.key",
            f"--client-ca-file={self.ca}", f"--service-account-key-file={place}/sa.key",
            f"--service-account-signing-key-file={place}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount",
        ]  # fmt: skip

    def write_kubeconfig(self, namespace: str) -> Path:
        """Write the configuration of kubectl for an administrator in *namespace*; return its path."""
        certificate, key = self._place / "admin.crt", self._place / "admin.key"
        certificate.write_bytes(b"".join(each.bytes() for each in self.admin.cert_chain_pems))
        key.write_bytes(self.admin.private_key_pem.bytes())
        written = self._place / "kubeconfig"
        # JSON is YAML.
        written.write_text(json.dumps(dict(self._kubeconfig(namespace, certificate, key)), indent=1))
        return written

    def _kubeconfig(self, namespace: str, certificate: Path, key: Path) -> Iterator[tuple[str, Any]]:
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        yield from {"apiVersion": "v1", "kind": "Config", "current-context": "one"}.items()
        yield "clusters", [{"name": "one", "cluster": cluster}]
        yield "users", [{"name": "admin", "user": user}]
        context = {"cluster": "one", "user": "admin", "namespace": namespace}
        yield "contexts", [{"name": "one", "context": context}]
