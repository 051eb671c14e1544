"""The ports that tests and demos give to servers: two processes of a test run never choose the same one."""

from __future__ import annotations

import itertools
import secrets
import socket
import subprocess
import sys

import pytest

from demo.common import processes
from demo.common.processes import PORTS_OF_A_SERVER, free_port

# Where no server of another test is.
_FIRST, _LAST = 10_000, 10_400
# Chooses a port, and keeps it until its input ends.
_OTHER_PROCESS = f"""
import itertools, sys
from demo.common import processes
places = itertools.count()
processes._FIRST_PORT = {_FIRST}
processes.secrets.randbelow = lambda bound: next(places) % bound
print(processes.free_port(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _first_places_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix what chance chooses: the first place, then those after it."""
    places = itertools.count()
    monkeypatch.setattr(processes, "_FIRST_PORT", _FIRST)
    monkeypatch.setattr(processes, "_LAST_PORT", _LAST)
    monkeypatch.setattr(secrets, "randbelow", lambda bound: next(places) % bound)


def test_another_process_keeps_its_port_before_it_listens() -> None:
    """A server binds its port seconds after it was chosen: until then, no other process gets it."""
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        assert free_port() > theirs
        other.stdin.close()


def test_the_ranks_of_a_server_have_the_ports_after_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ranks of vLLM listen on the next ports: one that listens there makes the whole place taken."""
    monkeypatch.setattr(processes, "_FIRST_PORT", _FIRST + 200)
    first = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first + 2 * PORTS_OF_A_SERVER - 1))
        assert free_port() == first + 2 * PORTS_OF_A_SERVER
