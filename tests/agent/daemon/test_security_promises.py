"""Each row of each table of the security guide, tried on real processes, sockets and files.

A row without a test, and a test whose row is gone, fail.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.agent.daemon.config import resolve
from penstock.agent.errors import ConfigError
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.agent.agent import HASTY_AGENT, AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.certificates import Authority
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import running_relay
from tests.support.agent.router_feed import feed_of, fetch
from tests.support.agent.secret_outputs import outputs, relay_outputs, spellings
from tests.support.agent.stories import closed
from tests.support.fleet.hostile_agent import METHODS, running_hostile_agent
from tests.support.page.addresses import AUTHOR, bearer, page_of, token_of
from tests.support.page.tab import ask, write
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "security.md"
_ENGINE_SECRET = b"k3y0fTheEngine.."
_OTLP, _NATS_PASSWORD, _NATS_SEED, _TOKEN = "0tlpS3cret", "n4tsPassw0rd", "SUAN4TSSEED", "kub3T0ken"
_TOLD = "t0ldToAll"
_TLS_HANDSHAKE = 0x16
_PAUSE = {"engine": "", "seconds": 60, "reason": "a test", "undo": False}


def _rows() -> list[str]:
    """Return the first cells of the guide's tables, without their headings."""
    lines = _GUIDE.read_text(encoding="utf-8").splitlines()
    return [
        line.split("|")[1].strip()
        for before, line in pairwise(lines)
        if line.startswith("|") and before.startswith("|") and not line.startswith("|---")
    ]


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent as its defaults are, but for the ports."""
    with running_agent(["--page=127.0.0.1:0"]) as running:
        yield running


def _apply(channel: grpc.Channel, name: str = "mine") -> str:
    """Apply a policy; return the code of the answer."""
    manifest = json.dumps(document(name, selector={"matchLabels": {"role": "decode"}}))
    try:
        AdminStub(channel).ApplyPolicy(
            admin.ApplyPolicyRequest(manifest_json=manifest, author="me@host"), timeout=60
        )
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def _refusal(engine: FakeEngine) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        engine.connect()
    engine.disconnect()
    return str(caught.value.code().name)


def _ingest(agent: AgentProcess) -> None:
    """No method of the admin service is served there, and a connected engine keeps its place and its epoch."""
    service = admin.DESCRIPTOR.services_by_name["Admin"].full_name
    with grpc.insecure_channel(agent.listen) as channel:
        for name, method in METHODS.items():
            unary = not method.server_streaming
            call: Any = (channel.unary_unary if unary else channel.unary_stream)(f"/{service}/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=60) if unary else list(call(b"", timeout=60))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, name
    with FakeEngine(agent.listen, engine="mine", secret=_ENGINE_SECRET) as engine:
        engine.publish(transfer_failure("r"))
        for secret in (b"another secret..", b""):
            for epoch in (None, engine.epoch):
                stranger = FakeEngine(agent.listen, engine="mine", epoch=epoch, secret=secret)
                assert _refusal(stranger) == "PERMISSION_DENIED"
        assert engine.publish(transfer_failure("r2")) == 2


def _same_uid(agent: AgentProcess) -> None:
    """Who has read the engine's secret is taken for the engine."""
    with FakeEngine(agent.listen, engine="read", secret=_ENGINE_SECRET) as engine:
        engine.publish(transfer_failure("r"))
        with FakeEngine(agent.listen, engine="read", secret=_ENGINE_SECRET) as other:
            assert other.publish(transfer_failure("r2")) == 1


def _admin_socket(agent: AgentProcess) -> None:
    with grpc.insecure_channel(agent.admin) as channel:
        assert _apply(channel) == "OK"
        AdminStub(channel).DeletePolicy(admin.DeletePolicyRequest(name="mine", author="me@host"), timeout=60)


def _page_port(agent: AgentProcess) -> None:
    """Show requests to all unless it was started not to; take writes only when it was started to, and with a token."""
    with FakeEngine(agent.listen, engine="shown", secret=_ENGINE_SECRET) as engine:
        engine.publish(transfer_failure("cmpl-of-another"))
        events = ask(page_of(agent), "/api/events", limit=1000)
        assert "cmpl-of-another" in json.dumps(events.body)
    refused = write(page_of(agent), "pause", {**_PAUSE, "dryRun": False})
    assert (refused.status, "--page-write yes" in refused.body["error"]) == (403, True)
    with running_agent(["--page=127.0.0.1:0", "--page-write=yes"]) as writable:
        body = {**_PAUSE, "peer": "10.0.0.9:1", "dryRun": False}
        assert write(page_of(writable), "quarantine", body).status == 401
        reads = token_of(writable.admin, admin.PAGE_ROLE_READ)
        assert write(page_of(writable), "quarantine", body, bearer(reads)).status == 403
        assert write(page_of(writable), "quarantine", body, bearer(token_of(writable.admin))).status == 200
        with grpc.insecure_channel(writable.admin) as channel:
            entries = AdminStub(channel).ListAudit(admin.ListAuditRequest(), timeout=60).entries
        assert [each.author for each in entries] == [f"{AUTHOR} (page)"]
    with running_agent(["--page=127.0.0.1:0", "--page-read=token"]) as closed:
        assert ask(page_of(closed), "/api/events").status == 401
        assert ask(page_of(closed), "/api/events", bearer(token_of(closed.admin))).status == 200
    with running_agent() as off:
        assert not json.loads((off.state_dir / "addresses.json").read_text()).get("page")


def _feed_client(_: AgentProcess) -> None:
    """Tell it of peers, and of no request; take nothing."""
    with running_agent(["--feed=127.0.0.1:0"]) as told, FakeEngine(told.listen) as engine:
        engine.publish(transfer_failure("cmpl-of-another", time_ns=time.time_ns()))
        wait_until(lambda: fetch(feed_of(told)).get("peers"), "the feed has the peer")
        assert "cmpl-of-another" not in json.dumps(fetch(feed_of(told)))
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            request = urllib.request.Request(feed_of(told), data=b"{}", method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            refused.value.close()
            assert refused.value.code == 405


def _feed_address(agent: AgentProcess) -> None:
    """Serve it only if that is asked for, and never beyond loopback without certificates."""
    assert "feed" not in json.loads((agent.state_dir / "addresses.json").read_text())
    assert resolve({}, {}).feed is None
    with pytest.raises(ConfigError, match="--feed"):
        resolve({"feed": "0.0.0.0:9469"}, {})


def _admin_port(_: AgentProcess) -> None:
    """Decide by a name's role; without a certificate there is no answer."""
    with short_directory() as directory:
        authority = Authority(directory / "pki")
        flags = _tls("admin-tls", authority, authority.issue("localhost", file="server"))
        ops, grafana, nobody = (
            authority.issue(name, common_name=name) for name in ("ops", "grafana", "nobody")
        )
        allow = ["--admin-listen=localhost:0", *flags, "--admin-allow=ops=write,grafana=read"]
        with running_agent(allow) as running:
            address = _admin_tcp(running)
            for client, code in ((ops, "OK"), (grafana, "PERMISSION_DENIED"), (nobody, "PERMISSION_DENIED")):
                with grpc.secure_channel(address, authority.credentials(client)) as channel:
                    assert _apply(channel) == code
            with grpc.secure_channel(address, authority.credentials(None)) as channel:
                assert _apply(channel) == "UNAVAILABLE"
            with grpc.insecure_channel(address) as channel:
                assert _apply(channel) == "UNAVAILABLE"


def _metrics_port(agent: AgentProcess) -> None:
    """Nothing but GET, and nothing of the page's or the admin service's."""
    assert agent.get("/metrics")[0] == 200
    assert agent.get("/healthz")[0] == 200
    host, _, port = agent.http.rpartition(":")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/metrics", "/healthz", "/api/write/pause"):
            with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
                connection.request(method, path, json.dumps({**_PAUSE, "dryRun": False}))
                assert connection.getresponse().status in (404, 405)


def _agents_key(agent: AgentProcess) -> None:
    """Garbage costs its own row; the other agent's are there, and the relay goes on."""
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        bad = parts.enter_context(running_hostile_agent(address := f"unix://{directory}/bad.sock"))
        parts.enter_context(FakeEngine(agent.listen, engine="good", secret=_ENGINE_SECRET))
        relay = parts.enter_context(running_relay(directory, f"--agents=good={agent.admin},bad={address}"))
        relay.wait_for(good="up", bad="up")
        wrong = admin.ListEnginesResponse(engines=[{"key": {"engine": "invented"}}])
        bad.answers["ListEngines"] = wrong.SerializeToString()
        assert "bad/invented" in relay.agentctl("get", "engines").stdout
        for answer in (b"\xff" * 200, bytes([10, 0]) * 1_000_000):
            bad.answers.update(dict.fromkeys(METHODS, answer))
            assert "good/good" in relay.agentctl("get", "engines").stdout
        assert relay.process is not None
        assert relay.process.poll() is None
        assert "Traceback" not in relay.log()


def _mode(address: str) -> str:
    found = Path(address.removeprefix("unix://")).stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert found.st_uid == os.geteuid()
    return f"{stat.S_IMODE(found.st_mode):04o}"


def _default(name: str) -> str:
    return str(getattr(resolve({}, {}), name))


def _ingest_socket(agent: AgentProcess) -> None:
    assert _mode(agent.listen) == "0660"
    assert _default("listen") == "unix:///run/penstock/ingest.sock"


def _admin_mode(agent: AgentProcess) -> None:
    """And TCP never without certificates."""
    assert _mode(agent.admin) == "0600"
    with pytest.raises(ConfigError, match="offered only to clients with a certificate"):
        resolve({"admin-listen": "127.0.0.1:0"}, {})


def _page_address(agent: AgentProcess) -> None:
    """No page of another site asks or writes, and nothing but loopback is served without roles."""
    assert page_of(agent).startswith("http://127.0.0.1:")
    assert ask(page_of(agent), "/api/policies").status == 200
    for headers in ({"Origin": "http://evil.example.com"}, {"Host": "evil.example.com"}):
        assert ask(page_of(agent), "/api/policies", headers).status == 403
        assert write(page_of(agent), "pause", {**_PAUSE, "dryRun": True}, headers).status == 403
    with pytest.raises(ConfigError, match="--page"):
        resolve({"page": "0.0.0.0:9465"}, {})


def _metrics_address(agent: AgentProcess) -> None:
    assert agent.http.startswith("127.0.0.1:")
    assert _default("http") == "127.0.0.1:9464"


def _traces(_: AgentProcess) -> None:
    """With https:// the first byte is that of a TLS handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={_OTLP}",
        }
        with running_agent(env=env, module=HASTY_AGENT) as running, FakeEngine(running.listen) as engine:
            engine.publish(closed("r"))
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                first = connection.recv(4096)
    assert first[0] == _TLS_HANDSHAKE
    assert _OTLP.encode() not in first


def _engine_secret(_: AgentProcess) -> None:
    with running_agent() as running, FakeEngine(running.listen, secret=_ENGINE_SECRET) as engine:
        engine.publish(transfer_failure("r", error_text=_TOLD))
        assert _refusal(FakeEngine(running.listen, secret=b"another")) == "PERMISSION_DENIED"
        found = outputs(running)
        # What is no secret is found in the same way.
        assert any(_TOLD.encode() in content for content in found.values())
        _assert_absent(found, _ENGINE_SECRET)


def _tls_key(_: AgentProcess) -> None:
    with short_directory() as directory:
        authority = Authority(directory / "pki")
        files = authority.issue("localhost", file="server")
        flags = [
            "--admin-listen=localhost:0",
            *_tls("admin-tls", authority, files),
            "--admin-allow=ops=write",
        ]
        with running_agent(flags) as running, FakeEngine(running.listen) as engine:
            engine.publish(transfer_failure("r"))
            _assert_absent(outputs(running), *_key_lines(files.key))


def _curve_keys(_: AgentProcess) -> None:
    """Show the path alone, in the refusal and of the settings."""
    pytest.importorskip("zmq", reason="pyzmq comes with vLLM")
    from penstock.instrumentation.vllm.zmq_ec.wire import CurveFiles
    from penstock.instrumentation.vllm.zmq_ec.wire.curve import CurveError, load_client_keys

    from tests.support.ec.keys import make_keys

    with short_directory() as directory:
        own, other = make_keys(directory, "own"), make_keys(directory, "other")
        files = CurveFiles(key_file=str(own.secret), server_key_file=str(other.public))
        loaded = load_client_keys(files)
        assert own.secret_text() not in repr(files) + repr(loaded)
        assert str(own.secret) in repr(files)
        own.secret.chmod(0o644)
        with pytest.raises(CurveError, match="chmod 600") as caught:
            load_client_keys(files)
        assert own.secret_text() not in str(caught.value)


def _page_tokens(_: AgentProcess) -> None:
    """Of those that were taken and of those that were refused; a restart ends them."""
    flags = ["--page=127.0.0.1:0", "--page-write=yes", "--page-read=token"]
    body = {**_PAUSE, "peer": "10.0.0.9:1", "dryRun": False}
    with running_agent(flags) as running, FakeEngine(running.listen) as engine:
        engine.publish(transfer_failure("r"))
        good = token_of(running.admin)
        changed = good[:-9] + ("B" if good[-9] == "A" else "A") + good[-8:]
        for token, status, of_stream in ((good, 200, 400), (changed, 401, 401)):
            assert write(page_of(running), "quarantine", body, bearer(token)).status == status
            assert ask(page_of(running), "/api/policies", bearer(token)).status == status
            assert ask(page_of(running), "/api/absent", token=token).status == 401
            assert ask(page_of(running), "/api/stream", token=token, seconds="x").status == of_stream
        # What stands behind the author's name.
        _assert_absent(outputs(running), *(token[60:].encode() for token in (good, changed)))
        running.kill()
        running.start()
        assert write(page_of(running), "quarantine", body, bearer(good)).status == 401


def _trace_headers(_: AgentProcess) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={_OTLP}",
    }
    with running_agent(env=env) as running, FakeEngine(running.listen) as engine:
        engine.publish(transfer_failure("r"))
        _assert_absent(outputs(running), _OTLP.encode())


def _nats(_: AgentProcess) -> None:
    """Try a file whose content is none, a password, and a key; the server is away."""
    with short_directory() as directory:
        authority = Authority(directory / "pki")
        files = authority.issue("agent", file="nats")
        credentials = directory / "agent.creds"
        credentials.write_text(
            f"-----BEGIN NATS USER JWT-----\nj{_NATS_SEED}\n------END NATS USER JWT------\n"
            f"-----BEGIN USER NKEY SEED-----\n{_NATS_SEED}\n------END USER NKEY SEED------\n"
        )
        with_file = [
            "--policy-source=nats://127.0.0.1:1/policies", f"--nats-credentials={credentials}",
            f"--nats-ca={authority.cert}", f"--nats-cert={files.cert}", f"--nats-key={files.key}",
        ]  # fmt: skip
        with_password = [f"--policy-source=nats://agent:{_NATS_PASSWORD}@127.0.0.1:1/policies"]
        for flags in (with_file, with_password):
            with running_agent(flags) as running, FakeEngine(running.listen) as engine:
                engine.publish(transfer_failure("r"))
                wait_until(lambda running=running: "127.0.0.1:1" in running.log(), "it has tried")
                secrets = (_NATS_SEED.encode(), _NATS_PASSWORD.encode(), *_key_lines(files.key))
                _assert_absent(outputs(running), *secrets)


def _kubernetes(_: AgentProcess) -> None:
    """Give it to the API server, which refuses it, and to no one else."""
    with short_directory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        token = directory / "token"
        token.write_text(_TOKEN)
        flags = [
            "--policy-source=kubernetes:default",
            f"--kube-api=http://127.0.0.1:{listener.getsockname()[1]}",
            f"--kube-token-file={token}",
        ]
        with running_agent(flags) as running, FakeEngine(running.listen) as engine:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                asked = b""
                while b"\r\n\r\n" not in asked:
                    part = connection.recv(65536)
                    assert part
                    asked += part
                connection.sendall(
                    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            assert f"Bearer {_TOKEN}".encode() in asked
            engine.publish(transfer_failure("r"))
            wait_until(lambda: "401" in running.log(), "it was refused")
            _assert_absent(outputs(running), _TOKEN.encode())


def _relay_keys(_: AgentProcess) -> None:
    """Of a relay that asks an agent over TLS, and is asked over TLS."""
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        authority = Authority(directory / "pki")
        server = authority.issue("localhost", file="server")
        own = authority.issue("relay", common_name="relay")
        served = _tls("admin-tls", authority, server)
        listen = ["--admin-listen=localhost:0", *served, "--admin-allow=relay=write"]
        running = parts.enter_context(running_agent(listen))
        relay = parts.enter_context(
            running_relay(
                directory,
                f"--agents=a={_admin_tcp(running)}",
                *_tls("agent-tls", authority, own),
                f"--admin-listen=unix://{directory}/relay.sock,localhost:0",
                *served,
                "--admin-allow=ops=write",
            )
        )
        relay.wait_for(a="up")
        _assert_absent(relay_outputs(relay), *_key_lines(own.key), *_key_lines(server.key))


def _assert_absent(found: dict[str, bytes], *secrets: bytes) -> None:
    assert all(found.values()), [name for name, content in found.items() if not content]
    for secret in secrets:
        for spelling in spellings(secret):
            assert not [name for name, content in found.items() if spelling in content]


def _key_lines(key: Path) -> tuple[bytes, ...]:
    """Return the lines of a PEM file's content."""
    lines = tuple(line for line in key.read_bytes().splitlines() if line and not line.startswith(b"-"))
    assert lines
    return lines


def _tls(flag: str, authority: Authority, files: Any) -> list[str]:
    ca = f"--{flag}-client-ca" if flag == "admin-tls" else f"--{flag}-ca"
    return [f"--{flag}-cert={files.cert}", f"--{flag}-key={files.key}", f"{ca}={authority.cert}"]


def _admin_tcp(agent: AgentProcess) -> str:
    return str(json.loads((agent.state_dir / "addresses.json").read_text())["admin_tcp"])


_PROMISES: dict[str, Callable[[AgentProcess], None]] = {
    "a process that can open the ingest socket": _ingest,
    "a process with the engine's uid in the engine's container": _same_uid,
    "a process that can open the admin socket": _admin_socket,
    "a process that reaches the page's port on loopback": _page_port,
    "a client of the feed for routers": _feed_client,
    "a client on the admin port": _admin_port,
    "a client on the metrics port": _metrics_port,
    "a holder of an agent's key, at a relay": _agents_key,
    "ingest (`--listen`)": _ingest_socket,
    "admin (`--admin-listen`)": _admin_mode,
    "the page (`--page`)": _page_address,
    "the feed for routers (`--feed`)": _feed_address,
    "metrics and health (`--http`)": _metrics_address,
    "traces": _traces,
    "an engine process's 16 bytes": _engine_secret,
    "the agent's TLS key": _tls_key,
    "CURVE keys of `ZmqECConnector`": _curve_keys,
    "headers for the trace backend (`OTEL_EXPORTER_OTLP_HEADERS`)": _trace_headers,
    "tokens of the page": _page_tokens,
    "NATS credentials": _nats,
    "the Kubernetes token": _kubernetes,
    "a relay's keys": _relay_keys,
}


def test_each_row_has_a_test() -> None:
    """And each test has its row."""
    assert sorted(_rows()) == sorted(_PROMISES)


@pytest.mark.parametrize("row", _PROMISES)
def test_the_row_is_true(agent: AgentProcess, row: str) -> None:
    """As the guide says it."""
    _PROMISES[row](agent)


@pytest.mark.parametrize("exists", [False, True])
def test_the_state_is_its_owners_alone(exists: bool) -> None:
    """The directory, also one that was there and open; its files; and a backup."""
    with short_directory() as directory, ExitStack() as parts:
        agent = AgentProcess(directory)
        parts.callback(agent.stop)
        if exists:
            agent.state_dir.mkdir()
            agent.state_dir.chmod(0o755)
        agent.start()
        parts.enter_context(FakeEngine(agent.listen)).publish(transfer_failure("r"))
        assert agent.run("backup", str(directory / "backup")).returncode == 0
        for kept in (agent.state_dir, directory / "backup"):
            assert f"{stat.S_IMODE(kept.stat().st_mode):04o}" == "0700"
            files = [path for path in kept.rglob("*") if path.is_file()]
            assert files
            assert {f"{stat.S_IMODE(path.stat().st_mode):04o}" for path in files} == {"0600"}
