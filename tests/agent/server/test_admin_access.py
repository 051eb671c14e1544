"""The admin service of a real agent: its sockets, its certificates, its log of who did what."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.agent.ctl.errors import UnreachableError
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.agent.certificates import Authority
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.certificates import Files

_COMMAND = (sys.executable, "-c", "from penstock.agent.ctl.main import main; main()")


class _Secured:
    """An agent at both kinds of address."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "pki")
        server = self.authority.issue("agent.example", file="server")
        self.agent = AgentProcess(
            directory,
            [
                "--admin-listen=localhost:0",
                f"--admin-tls-cert={server.cert}",
                f"--admin-tls-key={server.key}",
                f"--admin-tls-client-ca={self.authority.cert}",
                "--admin-allow=ops=write",
                "--admin-allow=grafana=read",
            ],
        )

    @property
    def tcp(self) -> str:
        """Its TCP address."""
        addresses = json.loads(self.agent.state_dir.joinpath("addresses.json").read_text())
        return str(addresses["admin_tcp"])

    def agentctl(self, address: str, client: Files | None, *arguments: str) -> tuple[int, str]:
        """Run the command: its exit code, and what it wrote."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTCTL_")}
        env |= {"AGENTCTL_ADDRESS": address}
        if client is not None:
            env |= {
                "AGENTCTL_TLS_CA": str(self.authority.cert),
                "AGENTCTL_TLS_CERT": str(client.cert),
                "AGENTCTL_TLS_KEY": str(client.key),
                "AGENTCTL_TLS_SERVER_NAME": "agent.example",
            }
        done = subprocess.run(
            [*_COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def secured() -> Iterator[_Secured]:
    """Run one agent for the module."""
    with short_directory() as directory:
        secured = _Secured(directory)
        secured.agent.start()
        try:
            yield secured
        finally:
            secured.agent.stop()


def test_the_unix_socket_is_for_its_owner(secured: _Secured) -> None:
    """From the first moment on; and it serves beside TCP."""
    mode = Path(secured.agent.admin.removeprefix("unix://")).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    code, _ = secured.agentctl(secured.agent.admin, None, "get", "policy")
    assert code == 0


def test_agentctl_over_tcp(secured: _Secured) -> None:
    """Who may write writes, and is in the log by the certificate's name; who may read reads."""
    ops, grafana = (secured.authority.issue(common_name=name) for name in ("ops", "grafana"))
    change = ("set-policy", "p", "--all", "--kv-load-failure", "recompute", "--reason", "INC-1")
    code, said = secured.agentctl(secured.tcp, ops, *change)
    assert code == 0, said
    with grpc.insecure_channel(secured.agent.admin) as channel:
        (entry,) = AdminStub(channel).ListAudit(admin.ListAuditRequest(name="p"), timeout=60).entries
    assert entry.author.startswith("tls:ops (")
    assert (entry.action, entry.reason) == ("apply", "INC-1")
    code, said = secured.agentctl(secured.tcp, grafana, "get", "audit", "p")
    assert (code, "tls:ops" in said) == (0, True)
    code, said = secured.agentctl(secured.tcp, grafana, "delete", "policy", "p")
    assert code == 1
    assert "'grafana' has read access, DeletePolicy needs write access" in said


def test_agentctl_says_what_is_wrong_with_its_certificates(secured: _Secured) -> None:
    """Without any, with one that the agent does not know, with files that are not there."""
    code, said = secured.agentctl(secured.tcp, None, "get", "policy")
    assert code == 2
    assert "is TCP, which requires certificates; give --tls-ca and --tls-cert and" in said
    with short_directory() as directory:
        stranger = Authority(directory).issue(common_name="ops")
        code, said = secured.agentctl(secured.tcp, stranger, "get", "policy")
        assert code == 1
        assert "a certificate was refused" in said
        stranger.cert.unlink()
        code, said = secured.agentctl(secured.tcp, stranger, "get", "policy")
        assert code == 2
        assert "--tls-cert" in said
        assert "cannot be read (No such file or directory); name a PEM file" in said


def test_no_answer_over_tcp_may_be_a_refused_certificate(secured: _Secured) -> None:
    """TLS 1.3 reports a refusal by closing the connection, so the sentence about the deadline names the certificate too."""
    ops = secured.authority.issue(common_name="ops")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tls = ClientTls(str(secured.authority.cert), str(ops.cert), str(ops.key))
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}", tls)
        try:
            with pytest.raises(
                UnreachableError, match="did not answer in time, or a certificate was refused"
            ):
                client.call("ListPolicies", admin.ListPoliciesRequest(), timeout=0.5)
        finally:
            client.close()


@pytest.mark.parametrize(
    "method", [method.name for method in admin.DESCRIPTOR.services_by_name["Admin"].methods]
)
def test_engines_can_call_nothing_of_it(secured: _Secured, method: str) -> None:
    """The ingest socket serves no admin call."""
    description = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name[method]
    request = getattr(admin, description.input_type.name)()
    with grpc.insecure_channel(secured.agent.listen) as channel:
        call = getattr(AdminStub(channel), method)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(request, timeout=60))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_of_two_writers_one_wins_and_the_other_is_refused(secured: _Secured) -> None:
    """Two clients on two connections, both from what they read: compare-and-set."""
    start = threading.Barrier(2)
    outcomes: list[str] = []

    def write(value: str) -> None:
        with grpc.insecure_channel(secured.agent.admin) as channel:
            stub = AdminStub(channel)
            manifest = json.dumps(document("contended", kvLoadFailure=action(value), priority=7))
            request = admin.ApplyPolicyRequest(
                manifest_json=manifest, author=value, if_generation=0, all=True
            )
            start.wait(60)
            try:
                outcomes.append(stub.ApplyPolicy(request, timeout=60).result)
            except grpc.RpcError as error:
                outcomes.append(f"{error.code().name}: {error.details()}")

    writers = [threading.Thread(target=write, args=(value,)) for value in ("recompute", "auto")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert sorted(outcomes) == [
        "ABORTED: policy 'contended' is at generation 1, not at 0; read it again and retry",
        "created",
    ]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--admin-listen=localhost:0"], "is TCP, which is offered only to clients with a certificate; give --admin-tls-cert"),
        (["--admin-allow=ops=write"], "--admin-allow is given, but no --admin-listen is host:port"),
        (
            ["--admin-listen=localhost:0", "--admin-tls-cert=/absent", "--admin-tls-key=/absent", "--admin-tls-client-ca=/absent", "--admin-allow=ops=write"],
            "--admin-tls-cert '/absent' is no file; name a PEM file",
        ),
    ],
)  # fmt: skip
def test_tcp_without_certificates_is_refused_at_the_start(args: list[str], sentence: str) -> None:
    """One sentence, exit code 2."""
    with short_directory() as directory:
        agent = AgentProcess(directory, args)
        done = subprocess.run(
            agent.command(), env=agent._env, capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr
