"""``agentctl diagnose`` against the admin service: the verdict, its exit code, and what it prints."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1.snapshot_pb2 import EngineFacts, Snapshot

from tests.support.agent.batches import PEER, event, transfer_failure

if TYPE_CHECKING:
    from penstock.agent.model import Source

    from tests.agent.ctl.conftest import Agentctl
    from tests.support.agent.admin_server import AdminHarness


@pytest.fixture
def source(harness: AdminHarness) -> Source:
    """Connect an engine that has sent its snapshot."""
    connected = harness.source()
    facts = EngineFacts(kv_connector="NixlConnector", role="ROLE_DECODE")
    harness.snapshot(connected, Snapshot(time_unix_nano=time.time_ns(), engine=facts))
    return connected


def test_nothing_wrong_and_a_cause(harness: AdminHarness, agentctl: Agentctl, source: Source) -> None:
    """0 and 1; the cause has its evidence, what else it could be, and the next command with this agent's address."""
    now = time.time_ns()
    harness.append(source, event("request_closed", "good", time_ns=now, kv_role=2, finish_reason="stop"))
    well = agentctl("diagnose")
    assert (well.exit_code, well.stdout.splitlines()[0][:17]) == (0, "nothing is wrong ")
    assert "transfers: nothing is wrong" in agentctl("doctor").stdout

    harness.append(source, *(transfer_failure(f"bad-{n}", time_ns=time.time_ns()) for n in range(3)))
    ill = agentctl("diagnose")
    assert ill.exit_code == 1
    assert f"1. peer {PEER} refuses connections: 3 failures (peer_refuses, certain)" in ill.stdout
    assert "- 3 failures handshake/refused in" in ill.stdout
    assert f"describe peer {PEER}" in ill.stdout
    document = json.loads(agentctl("diagnose", "0", "--since", "1m", "-o", "json").stdout)
    assert (document["verdict"], document["causes"][0]["kind"]) == ("causes", "peer_refuses")
    assert "agentctl diagnose has the evidence" in agentctl("doctor").stdout


def test_what_cannot_be_told(agentctl: Agentctl, source: Source) -> None:
    """3; without traffic nothing is known."""
    assert source
    result = agentctl("diagnose")
    assert result.exit_code == 3
    assert result.stdout.startswith("I cannot tell: ")


def test_wrong_questions(agentctl: Agentctl, source: Source) -> None:
    """2 for a wrong command line, 4 for no answer."""
    assert source
    assert agentctl("diagnose", "--since", "8d").exit_code == 2
    assert agentctl("diagnose", "nobody/7").exit_code == 4
    assert agentctl("diagnose", "-l", "role=encoder").exit_code == 3


def test_a_moment_of_the_past(harness: AdminHarness, agentctl: Agentctl, source: Source) -> None:
    """What came later says nothing; the first line says as of when, and documents have the moment."""
    harness.append(
        source, event("request_closed", "good", time_ns=time.time_ns(), kv_role=2, finish_reason="stop")
    )
    moment = datetime.now(UTC)
    harness.append(source, *(transfer_failure(f"bad-{n}", time_ns=time.time_ns()) for n in range(3)))
    then = agentctl("diagnose", "--at", moment.isoformat())
    as_of = f"as of {moment.astimezone():%Y-%m-%d %H:%M:%S %Z}: the log shows nothing wrong in the last "
    assert (then.exit_code, then.stdout.splitlines()[0][: len(as_of)]) == (0, as_of)
    assert "not known: what engines held" in then.stdout
    document = json.loads(agentctl("diagnose", "--at", moment.isoformat(), "-o", "json").stdout)
    assert document["at"] == f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z"
    assert agentctl("diagnose", "--at", "0s").exit_code == 1


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("yesterday", "is not a time such as 21:43"),
        ("999999d", "it is before all times"),
        ("8d", "more than 7 days ago; give a later time"),
        ("1h", "and the log begins at"),
        ("2999-01-01T00:00:00Z", "is to come; give a time up to now"),
    ],
)
def test_moments_that_are_none(
    harness: AdminHarness, agentctl: Agentctl, source: Source, moment: str, words: str
) -> None:
    """2 for what is no time, and for one that the log does not have; both say what to give."""
    harness.append(source, event("request_closed", "good", time_ns=time.time_ns()))
    refused = agentctl("diagnose", "--at", moment)
    assert (refused.exit_code, words in refused.stderr) == (2, True)
