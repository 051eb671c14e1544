"""agentctl routers, against the real admin service and a stand-in for the router."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.routers.calls import RouterCalls
from penstock.agent.ctl.routers.endpoints import ApiEndpoint, Endpoints
from penstock.agent.ctl.routers.files import RouterFile, as_list
from penstock.agent.ctl.routers.follow import follow, read_feed
from penstock.agent.ctl.routers.rotation import RotationRules
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.stand_in_router import StandInRouter, stand_in_router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result
    from penstock.agent.ctl.routers.follow import Receiver

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

PEER, OTHER = "10.0.3.4:5600", "10.0.3.5:5600"
A, B = "http://10.0.3.4:8000", "http://10.0.3.5:8000"
GIVEN = ("--endpoint", f"10.0.3.4={A}", "--endpoint", f"10.0.3.5={B}")
ENDPOINTS = Endpoints([ApiEndpoint("10.0.3.4", A), ApiEndpoint("10.0.3.5", B)])
AT_ONCE = RotationRules(after=0.0, pause=3600.0, lost=0.0)
WHY = f"peer {PEER} refuses connections: 1 failure"
_COMMAND = (sys.executable, "-c", "from penstock.agent.ctl.main import main; main()")


@pytest.fixture
def failing(harness: AdminHarness) -> AdminHarness:
    """Let the loads of a decode engine from one peer be refused."""
    harness.append(harness.source("0"), transfer_failure("r", peer=PEER, time_ns=time.time_ns()))
    return harness


@pytest.fixture
def router() -> Iterator[StandInRouter]:
    """Run a stand-in with both servers."""
    with stand_in_router(A, B) as running:
        yield running


def test_the_table(failing: AdminHarness, agentctl: Agentctl) -> None:
    """The state over all readers, and the API that the operator gives."""
    assert failing
    headers, row = agentctl("routers", *GIVEN[:2]).stdout.splitlines()
    assert headers.split() == ["ADDRESS", "ENGINE", "STATE", "VOTES", "URL", "WHY"]
    assert row.split(maxsplit=5) == [PEER, "-", "unreachable", "1/1", A, WHY]
    (item,) = json.loads(agentctl("routers", "-o", "json").stdout)["endpoints"]
    assert (item["state"], item["url"]) == ("unreachable", None)
    assert item["source"] == {"engine": None, "address": PEER}


def test_without_peers(harness: AdminHarness, agentctl: Agentctl) -> None:
    """A sentence."""
    assert harness
    assert agentctl("routers").stderr == "no known peers\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--call http://r:1", "nobody can be taken out without API addresses"),
        ("--endpoint x", "is not SOURCE=URL"),
        ("--endpoint a=http://a:1 --endpoint a=http://b:1", "name the engines"),
        ("--endpoints /nowhere", "cannot be read"),
        ("--avoid ok", "'ok' is none of slow, failing, quarantined, incompatible, unreachable"),
        ("--format json", "of --write"),
        ("--router sglang-router", "of --call"),
        ("--write f --format production-stack --endpoint a=http://a:1", "belong together"),
        ("--write f --base /nowhere --endpoint a=http://a:1", "belong together"),
        ("--write f --format production-stack --base /nowhere --endpoint a=http://a:1", "cannot be read"),
        ("--write f --endpoint a=http://a:1 -o json", "of the table"),
        ("--call http://r:1 --endpoint a=http://a:1 -w", "of the table"),
        ("--call r:1 --endpoint a=http://a:1", "is not the address of a server"),
        ("--write f --format production-stack --base ./f --endpoint a=http://a:1", "give two files"),
        ("--write f --endpoint a=http://a:1 --pause 11m", "10m at most"),
        ("--dry-run", "of --write and --call"),
    ],
)
def test_what_is_refused(agentctl: Agentctl, words: str, sentence: str) -> None:
    """Before anything is done, with exit code 2."""
    result = agentctl("routers", *words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr


class _Course:
    """What happens between two looks; then it is interrupted."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = iter(steps)

    def sleep(self, _: float) -> None:
        step = next(self._steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()


def test_it_follows_and_puts_all_back(
    failing: AdminHarness, router: StandInRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A router and a file beside it; both are as before in the end."""
    path = tmp_path / "in"
    seen: list[tuple[list[str], str]] = []
    client = Client(failing.address, ClientTls())
    receivers: list[Receiver] = [
        RouterCalls(router.url, "vllm-router"),
        RouterFile(str(path), as_list(ENDPOINTS.pools)),
    ]
    course = _Course(lambda: seen.append((list(router.workers), path.read_text())))
    follow(client, ENDPOINTS, AT_ONCE, receivers, course.sleep)
    client.close()
    assert seen == [([B], f"{B}\n")]
    assert (set(router.workers), path.read_text()) == ({A, B}, f"{A}\n{B}\n")
    shown = capsys.readouterr()
    assert shown.out == f"out: {A}: unreachable: {WHY}\n"
    assert shown.err == "10.0.3.5 is not among the peers: its state is unknown, and it stays in\n"


def test_a_lost_agent_puts_all_back(
    failing: AdminHarness, router: StandInRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who does not answer says nothing of anybody; a source without an API is named once."""
    failing.append(failing.source("0"), transfer_failure("r", peer="10.0.3.9:5600", time_ns=time.time_ns()))
    seen: list[set[str]] = []
    client = Client(failing.address, ClientTls())

    def look() -> None:
        seen.append(set(router.workers))

    def lose() -> None:
        look()
        client.close()
        client.__init__("unix:///nowhere/admin.sock", ClientTls())  # type: ignore[misc]

    receivers = [RouterCalls(router.url, "vllm-router")]
    follow(client, ENDPOINTS, AT_ONCE, receivers, _Course(look, lose, look).sleep)
    client.close()
    assert seen == [{B}, {B}, {A, B}]
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1:] == [
        "the state of endpoints is not known any more: all are in",
        f"in: {A}",
    ]
    assert shown.err.count("10.0.3.9:5600 has no --endpoint: it is left as it is\n") == 1
    assert shown.err.count("no agent answers") == 1


def test_one_that_cannot_be_put_back_is_an_error(failing: AdminHarness, router: StandInRouter) -> None:
    """Exit code 1; who it is has been said."""
    client = Client(failing.address, ClientTls())

    def break_router() -> None:
        router.refuse = lambda _: (500, b"")

    with pytest.raises(FailedError, match="not all endpoints are in again"):
        follow(
            client, ENDPOINTS, AT_ONCE, [RouterCalls(router.url, "vllm-router")], _Course(break_router).sleep
        )
    client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(failing: AdminHarness, router: StandInRouter, number: int) -> None:
    """Exit code 0, and all are in again."""
    words = ("routers", *GIVEN, "--call", router.url, "--after", "1ms")
    environment = {**os.environ, "AGENTCTL_ADDRESS": failing.address}
    with subprocess.Popen([*_COMMAND, *words], env=environment, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(router.workers) == [B], "it is not taken out")
        process.send_signal(number)
        shown, _ = process.communicate(timeout=60)
    assert (process.returncode, set(router.workers)) == (0, {A, B})
    assert shown == f"out: {A}: unreachable: {WHY}\n"


def test_a_second_signal_does_not_end_the_undo(failing: AdminHarness, router: StandInRouter) -> None:
    """It has an end of its own; the impatient wait for it."""
    adds, go_on = threading.Event(), threading.Event()

    def slow(call: str) -> None:
        if "add_worker" in call:
            adds.set()
            go_on.wait(4)

    router.refuse = slow
    words = ("routers", *GIVEN, "--call", router.url, "--after", "1ms")
    environment = {**os.environ, "AGENTCTL_ADDRESS": failing.address}
    with subprocess.Popen([*_COMMAND, *words], env=environment, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(router.workers) == [B], "it is not taken out")
        process.send_signal(signal.SIGTERM)
        assert adds.wait(30)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process.send_signal(number)
        go_on.set()
        process.communicate(timeout=60)
    assert (process.returncode, set(router.workers)) == (0, {A, B})


class _Broken:
    """A receiver with a bug."""

    name = "broken"

    def apply(self, out: object, now: float) -> list[str]:
        del out, now
        return []

    def restore(self) -> list[str]:
        raise RuntimeError("a bug")


def test_a_receiver_that_breaks_does_not_keep_the_others_from_the_undo(
    failing: AdminHarness, router: StandInRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named; and signals do again what they did."""
    client = Client(failing.address, ClientTls())
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    receivers: list[Receiver] = [_Broken(), RouterCalls(router.url, "vllm-router")]
    seen: list[list[str]] = []
    with pytest.raises(FailedError, match="not all endpoints are in again"):
        follow(
            client, ENDPOINTS, AT_ONCE, receivers, _Course(lambda: seen.append(list(router.workers))).sleep
        )
    client.close()
    assert (seen, set(router.workers)) == ([[B]], {A, B})
    assert "broken may not have all endpoints in again: RuntimeError: a bug\n" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


class _OfRelay(Client):
    """Answers as a relay that lacks agents: of the second call, for one answer that lacks them is enough."""

    counts = (0, 0)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        response = super().call(method, *arguments, **options)
        asked, answered = self.counts
        away = [admin.MissingAgent(name="decode-17", reason="no answer in 2 s")] * (asked > answered)
        if method == "ListEngines" and (asked or answered):
            self.coverage = admin.RelayCoverage(asked=asked, answered=answered, missing=away)
            self.missing = "said at the end"
        return response


@pytest.mark.parametrize(
    ("asked", "answered", "is_whole"),
    [
        (9, 8, True),
        (9, 7, False),
        (30, 27, True),
        (30, 26, False),
        (1, 0, False),
        (2, 1, True),
        (0, 1, False),
    ],
)
def test_agents_that_are_missing(failing: AdminHarness, asked: int, answered: int, is_whole: bool) -> None:
    """One may be, and a tenth of many."""
    client = _OfRelay(failing.address, ClientTls())
    client.counts = (asked, answered)
    assert read_feed(client).is_whole is is_whole
    client.close()


def test_a_relay_without_most_agents_puts_all_back(
    failing: AdminHarness, router: StandInRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the others say is not the whole: it is not gone by. A few that are missing are named."""
    client = _OfRelay(failing.address, ClientTls())
    seen: list[set[str]] = []

    def lack(answered: int) -> Callable[[], None]:
        def step() -> None:
            seen.append(set(router.workers))
            client.counts = (20, answered)

        return step

    steps = [lack(19), lack(4), lack(4), lack(20)]
    follow(client, ENDPOINTS, AT_ONCE, [RouterCalls(router.url, "vllm-router")], _Course(*steps).sleep)
    client.close()
    assert seen == [{B}, {B}, {A, B}, {A, B}]
    assert client.missing == ""
    named = "not: decode-17 (no answer in 2 s)"
    shown = capsys.readouterr().err
    assert shown.count(f"19 of 20 agents answered; {named}\n") == 1
    assert shown.count(f"4 of 20 agents answered; {named} and 15 more; that is too few to go by\n") == 1
