"""The feed for routers of a real agent: what becomes of a peer, as an engine sees it."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from penstock.agent.views.router_feed.json_schema import schema
from penstock.proto.v1.common_pb2 import ERROR_TYPE_INCOMPATIBLE, ROLE_PREFILL
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.certificates import Authority
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.router_feed import feed_of, fetch, read_from

if TYPE_CHECKING:
    from collections.abc import Iterator

_WELL, _FAILING, _QUARANTINED, _INCOMPATIBLE, _GONE, _UNREAD = (
    f"10.0.0.{number}:5600" for number in range(1, 7)
)


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent with a feed, for which an engine that is away is lost at once."""
    with running_agent(["--feed=127.0.0.1:0", "--source-grace=0.1s"]) as agent:
        yield agent


def _rows(agent: AgentProcess) -> dict[str, dict[str, Any]]:
    feed = fetch(feed_of(agent))
    Draft202012Validator(schema()).validate(feed)
    assert feed["kind"] == "agent"
    return {row["source"]["address"]: row for row in feed["peers"]}


def test_what_becomes_of_peers(agent: AgentProcess) -> None:
    """Read, failing, quarantined, incompatible, not read, gone; and nothing is known once the reader has gone."""
    now = time.time_ns()
    statuses = [
        {"peer": {"address": _WELL}, "connected": True},
        {
            "peer": {"address": _QUARANTINED},
            "quarantine": QUARANTINE_STATE_OPEN,
            "quarantine_until_unix_nano": now + 60_000_000_000,
        },
        {
            "peer": {"address": _INCOMPATIBLE},
            "handshake_error": ERROR_TYPE_INCOMPATIBLE,
            "handshake_error_text": "dtype",
        },
        {"peer": {"address": _UNREAD}, "connected": True},
    ]
    with FakeEngine(agent.listen, server="decode") as engine:
        engine.snapshot(Snapshot(engine={"side_channel": "10.0.0.9:5600"}, peers=statuses))
        read_from(engine, _WELL)
        read_from(engine, _GONE)
        engine.publish(
            transfer_failure("bad", peer=_FAILING, time_ns=now - 20_000_000_000),
            *(
                transfer_failure(
                    f"other-{each}", peer=_INCOMPATIBLE, time_ns=now, error_type=ERROR_TYPE_INCOMPATIBLE
                )
                for each in range(3)
            ),
        )

        # One that refuses and then answers is not unreachable.
        read_from(engine, _FAILING)

        def states() -> dict[str, str]:
            return {address: row["state"] for address, row in _rows(agent).items()}

        expected = {
            _WELL: "ok",
            _FAILING: "failing",
            _QUARANTINED: "quarantined",
            _INCOMPATIBLE: "incompatible",
            _UNREAD: "unknown",
            _GONE: "ok",
        }
        wait_until(lambda: states() == expected, "each peer has its state")
        rows = _rows(agent)
        assert rows[_WELL]["reader"] == {"engine": "decode/0", "address": "10.0.0.9:5600"}
        assert (rows[_WELL]["why"], rows[_WELL]["share"]) == ("", 0.0)
        assert rows[_FAILING]["share"] == 0.25
        assert rows[_QUARANTINED]["until"] is not None
        for judged in (_FAILING, _INCOMPATIBLE):
            wait_until(lambda judged=judged: _rows(agent)[judged]["confidence"], "the diagnosis' confidence")

        with FakeEngine(agent.listen, server="prefill", role=ROLE_PREFILL) as source:
            source.snapshot(Snapshot(engine={"side_channel": _GONE}))
            wait_until(lambda: _rows(agent)[_GONE]["source"]["engine"] == "prefill/0", "its engine is known")
        wait_until(lambda: states()[_GONE] == "unreachable", "a source that has gone is unreachable")
    wait_until(lambda: set(states().values()) == {"unknown"}, "nothing is known without the reader")
    assert "decode/0 is not connected" in _rows(agent)[_FAILING]["why"]


def test_it_is_off_by_default_and_refused_to_strangers() -> None:
    """A sentence, and exit code 2."""
    with running_agent() as agent:
        assert "feed" not in json.loads((agent.state_dir / "addresses.json").read_text())
    with short_directory() as directory:
        refused = AgentProcess(directory, ["--feed=0.0.0.0:9469"])
        refused.launch()
        assert refused.process is not None
        wait_until(lambda: refused.process is not None and refused.process.poll() is not None, "it ends")
        assert refused.process.returncode == 2
        assert "--feed 0.0.0.0:9469 can be reached from other machines" in refused.log()


def test_beyond_loopback_a_router_shows_a_certificate() -> None:
    """With a name of --admin-allow; reading is enough."""
    with short_directory() as directory:
        authority = Authority(directory / "pki")
        served = authority.issue("127.0.0.1", "localhost", file="server")
        agent = AgentProcess(
            directory,
            [
                "--admin-listen=localhost:0",
                f"--admin-tls-cert={served.cert}",
                f"--admin-tls-key={served.key}",
                f"--admin-tls-client-ca={authority.cert}",
                "--admin-allow=router=read",
                "--feed=0.0.0.0:0",
            ],
        )
        try:
            agent.start()
            url = feed_of(agent).replace("0.0.0.0", "127.0.0.1")
            context = ssl.create_default_context(cafile=authority.cert)
            with pytest.raises(OSError, match=r"(?i)certificate|closed|reset"):
                urllib.request.urlopen(url, timeout=60, context=context)
            router = authority.issue("router.example", common_name="router")
            context.load_cert_chain(router.cert, router.key)
            with urllib.request.urlopen(url, timeout=60, context=context) as response:
                assert json.loads(response.read())["peers"] == []
        finally:
            agent.stop()
