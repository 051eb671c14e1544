"""The page beyond loopback: HTTPS with the admin service's certificates and roles, and files that are renewed."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.agent.certificates import Authority
from tests.support.page.addresses import page_of
from tests.support.page.sample_fleet import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.certificates import Files


class Secured:
    """An agent whose page is served on all addresses."""

    def __init__(self, parts: ExitStack) -> None:
        directory = parts.enter_context(short_directory())
        self.authority = Authority(directory / "pki")
        self.served = self.authority.issue("agent.example", file="server")
        self.agent = AgentProcess(
            directory,
            [
                "--admin-listen=localhost:0",
                f"--admin-tls-cert={self.served.cert}",
                f"--admin-tls-key={self.served.key}",
                f"--admin-tls-client-ca={self.authority.cert}",
                "--admin-allow=ops=write,grafana=read",
                "--page=0.0.0.0:0",
                "--page-write=yes",
            ],
        )
        parts.callback(self.agent.stop)
        self.agent.start()
        self.port = urlsplit(page_of(self.agent)).port or 0

    def connect(self, client: Files | None) -> http.client.HTTPSConnection:
        """Return a connection with the certificate of *client*."""
        context = ssl.create_default_context(cafile=self.authority.cert)
        context.check_hostname = False
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)

    def write(self, client: Files) -> tuple[int, str]:
        """Apply a policy; return the status and the sentence."""
        with closing(self.connect(client)) as connection:
            origin = f"https://127.0.0.1:{self.port}"
            headers = {"Origin": origin, "X-Penstock": "page", "Content-Type": "application/json"}
            body = json.dumps({"manifest": manifest("late"), "dryRun": False, "reason": ""})
            connection.request("POST", "/api/write/policy", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            return response.status, answer.get("sentence") or answer["error"]

    def status(self, client: Files | None) -> int:
        """Return the status of the document."""
        with closing(self.connect(client)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    """Run it."""
    with ExitStack() as parts:
        yield Secured(parts)


def test_the_roles_are_those_of_the_admin_service(secured: Secured) -> None:
    """By the names in the certificate; the audit log has the name."""
    ops, grafana, other = (
        secured.authority.issue(f"{name}.example", common_name=name) for name in ("ops", "grafana", "other")
    )

    assert (secured.status(ops), secured.status(grafana), secured.status(other)) == (200, 200, 403)
    assert secured.write(grafana)[0] == 403
    assert secured.write(ops)[0] == 200
    with closing(secured.connect(ops)) as connection:
        connection.request("GET", "/api/policy?name=late")
        history = json.loads(connection.getresponse().read())["sections"][0]
    assert history["title"] == "Changes"
    assert [row["cells"][1] for row in history["rows"]] == ["tls:ops (page)"]


def test_nobody_is_served_without_a_certificate(secured: Secured) -> None:
    """Nor with one of another authority."""
    stranger = Authority(secured.agent.directory / "other").issue(
        "x.example", common_name="ops", file="stranger"
    )
    for client in (None, stranger):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            secured.status(client)


def test_connections_count_from_their_first_byte_on(secured: Secured) -> None:
    """Clients that never begin their handshake make room for new ones, and a request is served beside them."""
    ops = secured.authority.issue("ops.example", common_name="ops")
    assert secured.agent.process is not None
    descriptors = Path(f"/proc/{secured.agent.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    with ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(socket.create_connection(("127.0.0.1", secured.port), timeout=60))
        # They were accepted before it.
        assert secured.status(ops) == 200
        assert len(list(descriptors.iterdir())) - before < 150


def test_a_request_in_the_last_packet_of_the_handshake_is_answered(secured: Secured) -> None:
    """A client may send it with its own last message, before the server has noticed the end of the handshake."""
    ops = secured.authority.issue("ops.example", common_name="ops")
    context = ssl.create_default_context(cafile=secured.authority.cert)
    context.check_hostname = False
    context.load_cert_chain(ops.cert, ops.key)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with socket.create_connection(("127.0.0.1", secured.port), timeout=60) as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        tls.write(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{secured.port}\r\n\r\n".encode())
        connection.sendall(outgoing.read())
        while True:
            try:
                assert tls.read(12) == b"HTTP/1.1 200"
                break
            except ssl.SSLWantReadError:
                incoming.write(connection.recv(65536))


def test_renewed_files_are_used_at_the_next_connection(secured: Secured) -> None:
    """Files that do not fit are not used."""
    ops = secured.authority.issue("ops.example", common_name="ops")
    renewed = secured.authority.issue("agent.example", file="renewed")

    def serial() -> str:
        with closing(secured.connect(ops)) as connection:
            connection.connect()
            found = connection.sock.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    before = serial()
    secured.served.key.write_bytes(b"no key")
    assert serial() == before
    secured.served.cert.write_bytes(renewed.cert.read_bytes())
    secured.served.key.write_bytes(renewed.key.read_bytes())
    assert serial() != before
