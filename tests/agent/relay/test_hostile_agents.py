"""A real relay before a real agent and one that answers with whatever it likes: that costs the other's rows nothing."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc
import pytest
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess, running_relay
from tests.support.fleet.hostile_agent import METHODS, HostileAgent, healthy_status, running_hostile_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GARBAGE = b"\xff" * 200
MIB = 1 << 20


def million(method: str) -> bytes:
    """Return an answer with a million empty entries of its first list, in 2 MiB."""
    first = next(field for field in METHODS[method].output_type.fields if field.is_repeated)
    return bytes([first.number << 3 | 2, 0]) * 1_000_000


class Pair(NamedTuple):
    """A relay before the agents ``good``, which has an engine, and ``bad``."""

    relay: RelayProcess
    bad: HostileAgent


@contextmanager
def _pair(bad: HostileAgent, address: str) -> Iterator[Pair]:
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        good = parts.enter_context(running_agent())
        parts.enter_context(FakeEngine(good.listen)).publish(transfer_failure("cmpl-good"))
        flags = (f"--agents=good={good.admin},bad={address}", "--deadline=60s")
        relay = parts.enter_context(running_relay(directory, *flags))
        relay.wait_for(good="up")
        yield Pair(relay, bad)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Run them; ``bad`` answers as a healthy agent without engines would until a test changes that."""
    with (
        short_directory() as directory,
        running_hostile_agent(address := f"unix://{directory}/bad.sock") as bad,
        _pair(bad, address) as running,
    ):
        running.relay.wait_for(good="up", bad="up")
        yield running


def _memory(relay: RelayProcess) -> int:
    """Return the most memory that the relay has had, bytes."""
    assert relay.process is not None
    status = Path(f"/proc/{relay.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def _health(relay: RelayProcess) -> bytes:
    found = re.search(r'"http":\s*"([^"]+)"', relay.log())
    assert found is not None
    with urllib.request.urlopen(f"http://{found[1]}/healthz", timeout=60) as answer:
        body: bytes = answer.read()
    return body


LISTS = {
    "ListEngines": ("get", "engines"),
    "ListPeers": ("get", "peers"),
    "ListRequests": ("get", "requests"),
    "ListEvents": ("get", "events"),
    "ListHolders": ("get", "holders"),
    "ListSuspects": ("get", "suspects"),
    "ListPolicies": ("get", "policy"),
    "ListAudit": ("get", "audit"),
    "ListQuarantines": ("quarantine", "list"),
    "ListDrills": ("drill", "list"),
    "ListPairs": ("get", "pairs"),
    "Diagnose": ("diagnose",),
    "GetBill": ("bill",),
    "Explain": ("explain", "cmpl-good"),
    "GetTrace": ("trace", "cmpl-good"),
}


@pytest.mark.parametrize(
    "body_of", [lambda _: GARBAGE, million], ids=["no message", "a million empty entries"]
)
def test_an_answer_that_cannot_be_used_costs_its_agents_row(
    pair: Pair, body_of: Callable[[str], bytes]
) -> None:
    """Each list has the other agent's rows and names the one that is left out; the relay's memory stays."""
    before = _memory(pair.relay)
    pair.bad.answers.update({method: body_of(method) for method in LISTS})
    for method, command in LISTS.items():
        said = pair.relay.agentctl(*command)
        assert f"1 of 2 agents answered; not: bad (its answer to {method} cannot be used: " in said.stderr, (
            command,
            said.output,
        )
    engines = pair.relay.agentctl("get", "engines")
    assert "good/0" in engines.stdout
    assert _memory(pair.relay) - before < 64 * MIB
    assert "Traceback" not in pair.relay.log()


def test_an_answer_that_makes_all_too_large(pair: Pair) -> None:
    """It is as large as an agent may send: it is left out, and the other agent's rows are there."""
    event = admin.LoggedEvent(event={"time_unix_nano": 1 << 62, "request_id": "x" * 167_745})
    pair.bad.answers["ListEvents"] = admin.ListEventsResponse(events=[event] * 100).SerializeToString()
    assert 16 * MIB - 1_000 < len(pair.bad.answers["ListEvents"]) < 16 * MIB
    said = pair.relay.agentctl("get", "events")
    assert said.exit_code == 0
    assert "cmpl-good" in said.stdout
    assert (
        "1 of 2 agents answered; not: bad (its answer has 15 MiB, too much beside the others'" in said.stderr
    )


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(2**62, id="outside the calendar"),
        pytest.param(-62_135_596_800, id="year 1", marks=pytest.mark.long),
    ],
)
def test_a_connection_heals(seconds: int) -> None:
    """An agent whose clock cannot be is away, with the reason; as soon as it answers well it is there."""
    wrong = healthy_status()
    wrong.now.seconds = seconds
    with (
        short_directory() as directory,
        running_hostile_agent(address := f"unix://{directory}/bad.sock") as bad,
    ):
        bad.answers["GetStatus"] = wrong.SerializeToString()
        with _pair(bad, address) as running:
            running.relay.wait_for(bad="away")
            (row,) = [each for each in running.relay.status().agents if each.name == "bad"]
            assert row.error.startswith(f"its answer to GetStatus cannot be used: its now of {seconds} s")
            assert "its answer to GetStatus" in running.relay.agentctl("doctor").output
            bad.answers["GetStatus"] = GARBAGE
            wait_until(lambda: "it is no" in running.relay.agentctl("doctor").output, "the reason is another")
            del bad.answers["GetStatus"]
            running.relay.wait_for(bad="up")
            assert running.relay.agentctl("get", "engines").stderr == ""


class Callers:
    """Callers that ask a relay for events again and again, and what they were told."""

    def __init__(self, address: str, count: int, limit: int = 10_000) -> None:
        self._address = address
        self._request = admin.ListEventsRequest(limit=limit).SerializeToString()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        self.told: list[tuple[str, str]] = []
        """The status of each call, and its sentence."""

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _ask(self) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options) as channel:
            call: Any = channel.unary_unary("/penstock.v1.Admin/ListEvents")
            while not self._ended.is_set():
                try:
                    call(self._request, timeout=60)
                except grpc.RpcError as raised:
                    error: Any = raised
                    self.told.append((error.code().name, error.details()))
                    if error.code() is grpc.StatusCode.UNAVAILABLE:
                        return
                else:
                    self.told.append(("OK", ""))


def test_many_callers_of_large_answers() -> None:
    """Four agents send 15 MiB to each of 24 callers: memory is bounded, and a small list is there meanwhile."""
    row = admin.LoggedEvent(event={"time_unix_nano": 1 << 62, "request_id": "x" * 250, "rank": 3})
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        good = parts.enter_context(running_agent())
        parts.enter_context(FakeEngine(good.listen)).publish(transfer_failure("cmpl-good"))
        agents = {f"bad{index}": f"unix://{directory}/{index}.sock" for index in range(4)}
        for address in agents.values():
            bad = parts.enter_context(running_hostile_agent(address))
            bad.answers["ListEvents"] = admin.ListEventsResponse(events=[row] * 55_000).SerializeToString()
        agents["good"] = good.admin
        listed = ",".join(f"{name}={address}" for name, address in agents.items())
        relay = parts.enter_context(running_relay(directory, f"--agents={listed}", "--deadline=60s"))
        relay.wait_for(**dict.fromkeys(agents, "up"))
        before = _memory(relay)
        with Callers(relay.address, 24) as callers:
            while len(callers.told) < 30 or ("OK", "") not in callers.told:
                # What is there meanwhile comes late where other work has the cores.
                engines = relay.call("ListEngines", admin.ListEnginesRequest(), timeout=60).engines
                assert {each.key.server for each in engines} == {"good"}
                assert _health(relay) == b"ok\n"
            grown, told = _memory(relay) - before, {*callers.told}
            assert relay.stop() == 0
        # As much as without bounds: 1.5 GiB.
        assert grown < 1_000 * MIB
        busy = ("RESOURCE_EXHAUSTED", "the relay has more answers to read than it may keep; try again")
        # Where other work has the cores, a caller's own time may be over first.
        assert told <= {("OK", ""), busy, ("DEADLINE_EXCEEDED", "Deadline Exceeded")}
        assert "Traceback" not in relay.log()


def test_it_ends_amid_empty_entries_and_beside_a_watcher_that_does_not_read(pair: Pair) -> None:
    """SIGTERM ends the relay while an agent sends 15 MiB of nothing to each caller, and events that nobody reads."""
    first = METHODS["ListEvents"].output_type.fields_by_name["events"].number
    pair.bad.answers["ListEvents"] = bytes([first << 3 | 2, 0]) * (15 * MIB // 2)
    pair.bad.streams["WatchEvents"] = _Events(MIB // 2)
    with grpc.insecure_channel(pair.relay.address) as channel:
        call: Any = channel.unary_stream("/penstock.v1.Admin/WatchEvents")
        watching = call(admin.ListEventsRequest().SerializeToString())
        with Callers(pair.relay.address, 4, 100) as callers:
            wait_until(lambda: len(callers.told) > 4, "it answers")
            wait_until(lambda: "WatchEvents" in pair.bad.asked, "it follows the events")
            assert _health(pair.relay) == b"ok\n"
            assert pair.relay.stop() == 0
        watching.cancel()
    assert ("OK", "") in callers.told


def test_a_refusal_in_any_words(pair: Pair) -> None:
    """What an agent says to a wrong request moves no cursor, has one line and an end, and keeps what to do."""
    words = "\x1b[2J\u202e" + "no\n" * 600 + "; try --limit"
    pair.bad.refusals["Explain"] = (grpc.StatusCode.INVALID_ARGUMENT, words)
    with grpc.insecure_channel(pair.relay.address) as channel:
        call: Any = channel.unary_unary("/penstock.v1.Admin/Explain")
        with pytest.raises(grpc.RpcError) as refused:
            call(admin.GetTraceRequest(request_id="cmpl-none").SerializeToString(), timeout=60)
    error: Any = refused.value
    details: str = error.details()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details.isprintable()
    assert details.startswith("\\x1b[2J\\u202eno no ")
    assert details.endswith("; try --limit")
    assert len(details) == 500


def test_it_ends_and_answers_while_a_large_answer_is_read(pair: Pair) -> None:
    """As many empty rows as are taken, asked for again and again: health answers between, and SIGTERM ends the relay."""
    pair.bad.answers["ListEvents"] = admin.ListEventsResponse(
        events=[admin.LoggedEvent(policies=[{}, {}])] * 60_000
    ).SerializeToString()
    ended, answered = threading.Event(), 0

    def ask() -> None:
        while not ended.is_set():
            with grpc.insecure_channel(pair.relay.address) as channel:
                call: Any = channel.unary_unary("/penstock.v1.Admin/ListEvents")
                try:
                    call(admin.ListEventsRequest().SerializeToString(), timeout=60)
                except grpc.RpcError:
                    return

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for each in asking:
        each.start()
    try:
        wait_until(lambda: pair.bad.asked.count("ListEvents") > 2, "it is asked")
        while pair.bad.asked.count("ListEvents") < 8:
            assert _health(pair.relay) == b"ok\n"
            answered += 1
        assert answered > 8
        assert pair.relay.stop() == 0
    finally:
        ended.set()
        for each in asking:
            each.join()


class _Events:
    """A log without an end, of events of so many bytes; it begins anew for each reader."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        for batch in count(1):
            self.sent += 1
            event = admin.LoggedEvent(batch=batch, event={"request_id": "x" * self._size})
            yield event.SerializeToString()


@pytest.mark.parametrize("size", [3 * MIB, MIB, 1_000])
def test_a_watcher_that_does_not_read(pair: Pair, size: int) -> None:
    """What waits for it is bounded in bytes; other readers get events meanwhile."""
    events = pair.bad.streams["WatchEvents"] = _Events(size)
    before = _memory(pair.relay)
    with grpc.insecure_channel(pair.relay.address) as channel:
        call: Any = channel.unary_stream("/penstock.v1.Admin/WatchEvents")
        watching = call(admin.ListEventsRequest().SerializeToString())
        if size > MIB:
            reason = "its answer to WatchEvents cannot be used: it has "
            wait_until(lambda: reason in pair.relay.log(), "the event is refused")
        else:
            sent = 0

            def stands_still() -> bool:
                nonlocal sent
                before, sent = sent, events.sent
                return sent > 0 and sent == before

            wait_until(stands_still, "the agent's stream waits for the reader")
        assert json.loads(pair.relay.agentctl("get", "events", "-o", "json").stdout)["events"]
        assert _memory(pair.relay) - before < 64 * MIB
        watching.cancel()


def test_a_bundle_that_is_none(pair: Pair) -> None:
    """The command says which agent's answer cannot be used."""
    pair.bad.answers["GetBundle"] = GARBAGE
    with short_directory() as directory:
        said = pair.relay.agentctl("bundle", "--agent", "bad", "--filename", str(directory / "x.bundle"))
    assert said.exit_code == 1
    assert "bad: its answer to GetBundle cannot be used: it is no penstock.v1.BundlePart" in said.output


def test_progress_that_is_none(pair: Pair) -> None:
    """An order's progress has a row for the agent that cannot be read, with the reason."""
    pair.bad.answers["SetPaused"] = GARBAGE
    said = pair.relay.agentctl("pause", "--reason", "a test", "--timeout", "2s")
    assert "bad" in said.output
    assert "its answer to SetPaused cannot be used" in said.output
