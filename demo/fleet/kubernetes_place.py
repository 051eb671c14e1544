"""Policies as objects of a Kubernetes API server, seen and changed with kubectl."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import yaml

from demo.common.agent import CommandResult
from demo.common.kube_api_server import DEFINITION, ServerFiles, kubectl, without_rules
from demo.common.progress import run_command
from demo.common.steps import StepError, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from demo.common.processes import Child
    from demo.fleet.place import Commands, Run

NAMESPACE = "vllm"
# The bound of what kubectl waits for itself.
_KUBECTL_WAIT = "--timeout=10m"
# Of the service account of each program; the guide's.
_ROLES = {"agent": ("penstock-agent",), "relay": ("penstock-relay", "penstock-policy-editor")}
_POLICY = """\
apiVersion: penstock.dev/v1alpha1
kind: TransferPolicy
metadata:
  name: decode-default
spec:
  selector:
    matchLabels: {role: decode}
  kvLoadFailure: {action: recompute}
"""
_STATUS = (
    r'jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}'
    r'{.metadata.annotations.penstock\.dev/rollout}{"\n"}'
)


class KubernetesPlace:
    """An API server and its etcd; a service account for the agents, and one for the relays."""

    def __init__(self, choice: str) -> None:
        """Start nothing yet; *choice* says why it was taken."""
        self.choice = choice
        self.change = "All agents watch the object. The relay that holds the Lease asks them, and writes the object's status."
        self._files: ServerFiles | None = None
        self._place: Path | None = None

    @property
    def _server(self) -> tuple[ServerFiles, Path]:
        assert self._files is not None
        assert self._place is not None
        return self._files, self._place

    def start(self, directory: Path, run: Run) -> None:
        """Start etcd and the API server.

        Raises:
            StepError: it does not answer.

        """
        place = self._place = directory / "kubernetes"
        place.mkdir()
        self._files = ServerFiles(place)
        self._files.write_kubeconfig(NAMESPACE)
        children = [run("etcd", self._files.etcd_command(), {})]
        children.append(run("kube-apiserver", self._files.server_command(), {}))
        until(lambda: self._ready(children), "The API server is not ready")

    def prepared(self) -> Iterator[CommandResult]:
        """Create the definition, the roles, the namespace, and the accounts."""
        _, place = self._server
        shutil.copytree(DEFINITION.parent, place / "deploy" / "crd")
        written = place / "deploy" / "crd" / DEFINITION.name
        written.write_text(yaml.safe_dump(without_rules(yaml.safe_load(DEFINITION.read_text()))))
        yield self._kubectl("apply", "-k", "deploy/crd")
        yield self._kubectl("create", "namespace", NAMESPACE)
        for program, roles in _ROLES.items():
            account = f"penstock-{program}"
            yield self._kubectl("create", "serviceaccount", account)
            for role in roles:
                yield self._kubectl(
                    *("create", "rolebinding", role, f"--clusterrole={role}"),
                    f"--serviceaccount={NAMESPACE}:{account}",
                )
            token = self._kubectl("create", "token", account, "--duration=24h")
            if token.code:
                yield token
            self._token(program).write_text(token.output)
        until(lambda: self._kubectl("get", "tpol").code == 0, "The definition is not in force")

    def options(self, program: str) -> tuple[str, ...]:
        """Return the namespace, and the access of the program's account."""
        files, _ = self._server
        return (
            *("--policy-source", f"kubernetes:{NAMESPACE}", "--kube-api", files.url),
            *("--kube-token-file", str(self._token(program)), "--kube-ca", str(files.ca)),
        )

    def changed(self, ctl: Commands) -> Iterator[CommandResult]:
        """Apply the object, and wait for the condition that the relay writes."""
        del ctl
        _, place = self._server
        (place / "decode-default.yaml").write_text(_POLICY)
        yield CommandResult("cat decode-default.yaml", 0, _POLICY.rstrip())
        yield self._kubectl("apply", "-f", "decode-default.yaml")
        yield self._kubectl("wait", "--for=condition=Programmed", "tpol/decode-default", _KUBECTL_WAIT)
        yield self._kubectl("get", "tpol")

    def led(self) -> Iterator[CommandResult]:
        """Show the Lease."""
        yield self._kubectl("get", "lease", "penstock-relay")

    def aborted(self, name: str) -> Iterator[CommandResult]:
        """Show the conditions of the object, and who leads now."""
        yield from self.led()
        yield self._kubectl("wait", "--for=jsonpath={.status.inForce}=0", f"tpol/{name}", _KUBECTL_WAIT)
        # Of each object the relay writes the status once in 5 s.
        until(self._settled, "The status is not written")
        yield self._kubectl("get", "tpol")
        yield self._kubectl("get", "tpol", name, "-o", _STATUS)

    def hint(self) -> str:
        """Return a command for the objects."""
        _, place = self._server
        return f"{kubectl()} --kubeconfig {place / 'kubeconfig'} get tpol"

    def _ready(self, children: list[Child]) -> bool:
        for child in children:
            if not child.running:
                raise StepError(child.ended())
        return self._kubectl("get", "--raw", "/readyz").code == 0

    def _settled(self) -> bool:
        ran = self._kubectl(
            "get", "tpol", "-o", r'jsonpath={range .items[*]}{.status.matched}={.status.inForce}{"\n"}{end}'
        )
        pairs = [line.split("=") for line in ran.output.splitlines()]
        return ran.code == 0 and all(matched == in_force for matched, in_force in pairs)

    def _token(self, program: str) -> Path:
        return self._server[1] / f"{program}.token"

    def _kubectl(self, *arguments: str) -> CommandResult:
        _, place = self._server
        done = run_command(
            [kubectl(), *arguments],
            env={**os.environ, "KUBECONFIG": str(place / "kubeconfig"), "KUBECACHEDIR": str(place / "cache")},
            cwd=place,
            stderr=subprocess.STDOUT,
        )
        return CommandResult(f"kubectl {shlex.join(arguments)}", done.returncode, done.stdout.rstrip())
