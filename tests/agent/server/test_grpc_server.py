"""Locks and sockets."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from penstock.agent.errors import StateError
from penstock.agent.server.addresses import TcpAddress, UnixAddress
from penstock.agent.server.grpc_server import GrpcServer
from penstock.agent.state.file_lock import Lock

from tests.support.agent.agent import short_directory


def test_a_lock_has_one_owner_at_a_time(tmp_path):
    """The second is refused with a sentence, until the first lets go."""
    path = tmp_path / "new" / "lock"
    first = Lock(path, "the state")
    with pytest.raises(
        StateError, match="another penstock-agent owns the state; stop it or choose another one"
    ):
        Lock(path, "the state")
    first.release()
    Lock(path, "the state").release()


def test_a_lock_that_cannot_be_made(tmp_path):
    """Its place is a file."""
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be made"):
        Lock(tmp_path / "file" / "lock", "it")


async def test_a_server_on_a_port_that_is_taken():
    """Two servers never share a port."""
    first = GrpcServer(TcpAddress("127.0.0.1", 0), "--listen", 0o660)
    await first.start()
    second = GrpcServer(first.address, "--listen", 0o660)
    with pytest.raises(StateError, match=f"--listen {first.address} cannot be bound; it is taken"):
        await second.start()
    await second.stop(0)
    await first.stop(0)


async def test_health_follows_what_the_server_says_of_itself():
    """SERVING, then NOT_SERVING; the socket goes with the server."""
    with short_directory() as directory:
        server = GrpcServer(UnixAddress(directory / "a.sock"), "--listen", 0o600)
        await server.start()
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            statuses = []
            for serving in (True, False):
                await server.set_serving(serving)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
                statuses.append(answer.status)
        assert statuses == [
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        ]
        await server.stop(0)
        assert [path.name for path in directory.iterdir()] == ["a.sock.lock"]


async def test_a_server_that_is_refused_leaves_the_others_socket_alone():
    """Its end must not unlink what it does not own."""
    with short_directory() as directory:
        address = UnixAddress(directory / "a.sock")
        first = GrpcServer(address, "--listen", 0o600)
        await first.start()
        second = GrpcServer(address, "--listen", 0o600)
        with pytest.raises(StateError, match="another penstock-agent owns --listen unix://"):
            await second.start()
        await second.stop(0)
        assert address.path.exists()
        await first.stop(0)
        assert not address.path.exists()


def test_files_for_all_connections():
    """A process that may have more open files than it has asks for them."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 3000));"
        "from penstock.agent.server.grpc_server import raise_file_limit; raise_file_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout == "(3000, 3000)\n"
