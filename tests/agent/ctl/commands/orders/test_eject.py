"""agentctl eject, against the real admin service."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1.snapshot_pb2 import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result
    from penstock.agent.model import Source

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

QUICK = ("--timeout", "300ms")


def _report(harness: AdminHarness, front_end: Source, seconds: float) -> None:
    until = time.time_ns() + int(seconds * 1e9) if seconds else 0
    hooks = [{"name": "readiness", "installed": True}]
    harness.snapshot(front_end, Snapshot(hooks=hooks, out_of_rotation_until_unix_nano=until))


@pytest.fixture
def front_end(harness: AdminHarness) -> Source:
    """Connect a server with one engine, and its front end."""
    harness.source("0", server="prefill")
    source = harness.source("", server="prefill", process="api")
    _report(harness, source, 0)
    return source


def test_out_and_back(harness: AdminHarness, agentctl: Agentctl, front_end: Source) -> None:
    """Each command returns once the front end says so; describe and list say since when, by whom, why and until when."""
    timer = threading.Timer(0.3, lambda: _report(harness, front_end, 60))
    timer.start()
    out = agentctl("eject", "prefill/0", "--for", "10m", "--reason", "INC-42")
    timer.join()
    assert (out.exit_code, out.stdout) == (0, "engine prefill/0 is out of rotation for 10m\n"), out.stderr
    assert "connected, out of rotation" in agentctl("get", "engines").stdout
    described = agentctl("describe", "engine", "prefill/0").stdout
    (line,) = [each for each in described.splitlines() if each.startswith("Out of rotation:")]
    assert ", ends in " in line
    assert line.endswith(": INC-42")
    still = agentctl("eject", "off", *QUICK)
    assert still.exit_code == 1
    assert (
        "the front end of engine prefill/0 did not say within 300ms that it is back in rotation"
        in still.stderr
    )
    described = agentctl("describe", "engine", "prefill/0").stdout
    assert "Out of rotation: the order has ended, and its front end has not followed yet" in described
    _report(harness, front_end, 0)
    assert "Out of rotation" not in agentctl("describe", "engine", "prefill/0").stdout
    none = agentctl("eject", "off", *QUICK)
    assert (none.exit_code, none.stdout) == (0, "no order is in force there: nothing to end\n")
    assert agentctl("eject", "prefill/0", *QUICK).exit_code == 1
    back = agentctl("eject", "off", *QUICK)
    assert (back.exit_code, back.stdout) == (0, "engine prefill/0 is back in rotation\n")


def test_a_front_end_that_does_not_follow(agentctl: Agentctl, front_end: Source) -> None:
    """The order stands, and is told as one that is not in force."""
    assert front_end
    late = agentctl("eject", "prefill/0", *QUICK)
    assert late.exit_code == 1
    assert "that it is out of rotation; the order stands" in late.stderr
    assert "connected, to go out of rotation" in agentctl("get", "engines").stdout
    described = agentctl("describe", "engine", "prefill/0").stdout
    assert "its front end has not said that it answers so" in described


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name the engines, or select them"),
        (("off", "--for", "1m"), "--for is of a new order"),
        (("off", "--even-last"), "--even-last is of a new order"),
        (("prefill/",), "cannot be read; write its index"),
    ],
)
def test_a_wrong_command_line(agentctl: Agentctl, arguments: tuple[str, ...], text: str) -> None:
    """Nothing is ordered."""
    refused = agentctl("eject", *arguments)
    assert refused.exit_code == 2
    assert text in refused.stderr


def test_the_last_of_its_role(harness: AdminHarness, agentctl: Agentctl, front_end: Source) -> None:
    """It stays in rotation, unless that is said; an engine that is not there is told as such."""
    assert front_end
    for server, role in (("prefill", "prefill"), ("decode", "decode")):
        harness.source("0", server=server, epoch=77 if server == "prefill" else 78, role=role)
    refused = agentctl("eject", "prefill/0", *QUICK)
    assert refused.exit_code == 1
    assert (
        "would be left in rotation; nothing is ordered. --even-last orders it all the same" in refused.stderr
    )
    assert "no prefill servers" in refused.stderr
    assert "Out of rotation" not in agentctl("describe", "engine", "prefill/0").stdout
    ordered = agentctl("eject", "prefill/0", "--even-last", *QUICK)
    assert "the order stands" in ordered.stderr
    absent = agentctl("eject", "other/0", *QUICK)
    assert "there is no engine 'other/0'" in absent.stderr
