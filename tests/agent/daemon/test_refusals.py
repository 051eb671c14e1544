"""What keeps the agent from starting: one sentence, exit code 2."""

from __future__ import annotations

import socket

import pytest
from penstock.proto import __version__

from tests.support.agent.agent import AgentProcess, short_directory
from tests.support.agent.ingest_client import FakeEngine


def assert_refused(agent: AgentProcess, sentence: str) -> None:
    """Check that it ends with code 2 and one line that says *sentence*."""
    result = agent.run()
    assert result.returncode == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("penstock-agent: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "env", "sentence"),
    [
        (["--htp=x"], {}, "No such option '--htp'"),
        (["--http"], {}, "Option '--http' requires an argument"),
        (["--http=nowhere"], {}, "--http 'nowhere' is wrong: expected host:port"),
        (["extra"], {}, "No such command 'extra'"),
        ([], {"PENSTOCK_AGENT_LOG_LEVEL": "loud"}, "PENSTOCK_AGENT_LOG_LEVEL 'loud' is wrong: expected one of debug"),
        ([], {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "OTEL_EXPORTER_OTLP_PROTOCOL 'smoke' is wrong"),
        (["--state-dir=/proc/nowhere"], {}, "the state directory '/proc/nowhere' cannot be created"),
        (["--listen=unix:///proc/nowhere/a.sock"], {}, "'/proc/nowhere/a.sock.lock' cannot be made"),
        (["--listen=203.0.113.1:1"], {}, "--listen 203.0.113.1:1 cannot be bound"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(args, env, sentence):
    """Flags, variables, directories, addresses."""
    with short_directory() as directory:
        assert_refused(AgentProcess(directory, args, env), sentence)


def test_an_http_port_that_is_taken():
    """The sentence names the flag and the address."""
    with short_directory() as directory, socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = AgentProcess(directory, [f"--http={address}"])
        assert_refused(agent, f"--http {address} cannot be bound: it is in use")


def test_a_second_agent_is_refused(agent):
    """On the same state, and on the same socket; the first one is not disturbed."""
    with short_directory() as directory:
        same_state = AgentProcess(directory, [f"--state-dir={agent.state_dir}"])
        assert_refused(same_state, f"another penstock-agent owns --state-dir {agent.state_dir}; stop it")
        same_socket = AgentProcess(directory, [f"--listen={agent.listen}"])
        assert_refused(same_socket, f"another penstock-agent owns --listen {agent.listen}; stop it")
    assert agent.get("/readyz")[0] == 200
    assert (agent.state_dir / "addresses.json").exists()
    with FakeEngine(agent.listen) as engine:
        assert engine.publish() == 1


def test_the_version():
    """One line on standard output."""
    with short_directory() as directory:
        result = AgentProcess(directory, ["--version"]).run()
    assert (result.returncode, result.stdout) == (0, f"penstock-agent {__version__} (penstock-vllm)\n")
