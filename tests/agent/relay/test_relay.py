"""A real relay before three real agents: every reading command, with agents that die, hang and come back."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
from penstock.agent.ctl.commands.inspect.events import follow
from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.agent.relay.merged_streams import MAX_WATCHES
from penstock.agent.replay import MIN_LOADS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import admin_pb2_grpc
from penstock.proto.v1.common_pb2 import (
    DECIDED_BY_VLLM,
    DIRECTION_SEND,
    ERROR_TYPE_EVICTED,
    FAILURE_MODE_LATE_READ,
    OUTCOME_FAILED,
)

from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.relay import RelayProcess, running_relay
from tests.support.agent.stories import closed_decode, outcome
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("decode-0", "decode-1", "prefill-0")


class Pods(NamedTuple):
    """Three pods, each with an agent and an engine, and their relay."""

    relay: RelayProcess
    agents: dict[str, AgentProcess]
    engines: dict[str, FakeEngine]

    def stop(self, *names: str) -> None:
        """Stop agents where they stand."""
        for name in names:
            process = self.agents[name].process
            assert process is not None
            stop(process.pid)

    def go_on(self) -> None:
        """Let stopped agents go on."""
        for agent in self.agents.values():
            if agent.process is not None and agent.process.poll() is None:
                agent.process.send_signal(signal.SIGCONT)


@contextmanager
def _pods(deadline: str = "60s") -> Iterator[Pods]:
    with ExitStack() as parts:
        directory = parts.enter_context(short_directory())
        agents = {name: parts.enter_context(running_agent()) for name in NAMES}
        engines = {
            name: parts.enter_context(FakeEngine(agent.listen, labels={"pod": name}))
            for name, agent in agents.items()
        }
        for name, engine in engines.items():
            engine.publish(transfer_failure(f"cmpl-{name}"))
        listed = ",".join(f"{name}={agent.admin}" for name, agent in agents.items())
        relay = parts.enter_context(running_relay(directory, f"--agents={listed}", f"--deadline={deadline}"))
        relay.wait_for(**dict.fromkeys(NAMES, "up"))
        pods = Pods(relay, agents, engines)
        parts.callback(pods.go_on)
        yield pods


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """Run three pods for tests that leave them as they are."""
    with _pods() as running:
        yield running


def test_the_agent_of_an_engine_is_asked_for_its_stacks(pods: Pods) -> None:
    """Its refusal is the relay's answer, and the author of the question is in its audit log."""
    said = pods.relay.agentctl("debug", "stacks", "decode-1/0")
    assert said.exit_code == 1
    assert "engine 0 is not connected to the policy feed" in said.stderr
    (entry,) = json.loads(pods.relay.agentctl("get", "audit", "-o", "json").stdout)["entries"]
    assert (entry["action"], entry["name"]) == ("debug-stacks", "engine 0")
    assert entry["author"].endswith(" at decode-1")
    assert "relay: " in entry["author"]
    assert (
        "no agent of this relay has nowhere/0" in pods.relay.agentctl("debug", "stacks", "nowhere/0").stderr
    )


def test_engines_have_their_agents_names(pods: Pods) -> None:
    """All are listed; one is named by agent and engine; a label selects in all."""
    listed = pods.relay.agentctl("get", "engines")
    assert listed.exit_code == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:4]] == [f"{name}/0" for name in NAMES]
    assert listed.stderr == ""
    one = pods.relay.agentctl("describe", "engine", "decode-1/0")
    assert one.exit_code == 0, one.stderr
    assert "decode-1/0" in one.stdout
    labelled = pods.relay.agentctl("get", "engines", "-l", "pod=prefill-0")
    assert [line.split()[0] for line in labelled.stdout.splitlines()[1:2]] == ["prefill-0/0"]
    unknown = pods.relay.agentctl("describe", "engine", "decode-7/0")
    assert unknown.exit_code == 1
    assert "decode-7/0" in unknown.stderr


def test_what_each_log_has_is_one_list(pods: Pods) -> None:
    """Events, requests and peers of all agents; the metrics' totals are theirs."""
    events = json.loads(pods.relay.agentctl("get", "events", "-o", "json").stdout)["events"]
    failures = [each for each in events if "transferFailure" in each["event"]]
    assert sorted(each["agent"] for each in failures) == list(NAMES)
    times = [each["event"]["time"] for each in events]
    assert times == sorted(times)
    requests = json.loads(pods.relay.agentctl("get", "requests", "-o", "json").stdout)["requests"]
    assert {each["requestId"] for each in requests} == {f"cmpl-{name}" for name in NAMES}
    peers = pods.relay.call("ListPeers", admin.ListPeersRequest(state="all")).peers
    assert sorted(each.key.server for each in peers) == list(NAMES)
    explained = pods.relay.agentctl("explain", "cmpl-decode-1")
    assert explained.exit_code == 0, explained.stderr
    missing = pods.relay.agentctl("explain", "cmpl-unknown")
    assert missing.exit_code == 1
    assert "cmpl-unknown" in missing.stderr


def test_both_sides_of_a_request(pods: Pods) -> None:
    """Two agents know one request: each side says its sentences, and how far the clocks are apart."""
    for name in ("decode-0", "prefill-0"):
        pods.engines[name].publish(transfer_failure("cmpl-both"))
    said = pods.relay.agentctl("explain", "cmpl-both")
    assert said.exit_code == 0, said.stderr
    assert "decode-0: " in said.stdout
    assert "prefill-0: " in said.stdout
    assert "clock" in said.stdout


def test_the_bill_is_of_all_agents(pods: Pods) -> None:
    """Lines keep their engine; by peer they are one, and the total is the same."""
    for name in ("decode-0", "decode-1"):
        pods.engines[name].publish(outcome(f"cmpl-billed-{name}", time_ns=time.time_ns()))
    said = json.loads(pods.relay.agentctl("bill", "-o", "json").stdout)
    lost = [line for line in said["lines"] if line["costs"]["recomputed"]]
    assert sorted(line["key"]["server"] for line in lost) == ["decode-0", "decode-1"]
    assert said["total"]["tokensRecomputed"] == 800
    by_peer = json.loads(pods.relay.agentctl("bill", "--by", "peer", "-o", "json").stdout)
    assert [line["costs"]["tokensRecomputed"] for line in by_peer["lines"]] == [800]
    assert by_peer["total"] == said["total"]
    table = pods.relay.agentctl("bill")
    assert (table.exit_code, table.stderr) == (0, "")


def test_a_policy_is_recommended_from_the_logs_of_all() -> None:
    """No log alone has loads enough, and the manifest is for all their engines."""
    with _pods() as pods:
        for name in NAMES:
            lost = [
                outcome(
                    f"cmpl-{name}-{number}",
                    OUTCOME_FAILED,
                    time_ns=time.time_ns(),
                    decided_by=DECIDED_BY_VLLM,
                )
                for number in range(MIN_LOADS // 2)
            ]
            pods.engines[name].publish(*lost)
        said = json.loads(pods.relay.agentctl("recommend", "-o", "json").stdout)
        assert (said["today"]["failed"], said["requests"]) == (45, 45)
        assert said["manifest"]["spec"]["kvLoadFailure"] == {"action": "recompute"}
        assert said["candidates"][0]["replayed"]["failed"] == 0
        one = json.loads(pods.relay.agentctl("recommend", "-l", "pod=decode-1", "-o", "json").stdout)
        assert "manifest" not in one
        assert one["loads"] == MIN_LOADS // 2


def test_a_suspect_answer_is_joined_over_both_sides(pods: Pods) -> None:
    """One agent knows that blocks were read late, another who read them: the relay names both, whatever is selected."""
    now = time.time_ns()
    late: dict[str, Any] = {
        "mode": FAILURE_MODE_LATE_READ,
        "direction": DIRECTION_SEND,
        "error_type": ERROR_TYPE_EVICTED,
    }
    pods.engines["prefill-0"].publish(transfer_failure("cmpl-kept", time_ns=now, **late))
    pods.engines["decode-1"].publish(closed_decode("cmpl-answer", "cmpl-kept", time_ns=now))
    for selection in ((), ("-l", "pod=decode-1")):
        listed = pods.relay.agentctl("get", "suspects", *selection, "-o", "json")
        assert listed.exit_code == 0, listed.stderr
        (suspect,) = json.loads(listed.stdout)["suspects"]
        assert (suspect["key"]["server"], suspect["requestId"]) == ("decode-1", "cmpl-answer")
        assert (suspect["peerKey"]["server"], suspect["peerRequestId"]) == ("prefill-0", "cmpl-kept")
        assert suspect["reasons"] == ["late_read"]
        assert suspect["missing"] == ""
    assert (
        json.loads(pods.relay.agentctl("get", "suspects", "-l", "pod=decode-0", "-o", "json").stdout)[
            "suspects"
        ]
        == []
    )
    held = pods.relay.agentctl("get", "holders")
    assert held.exit_code == 0, held.stderr
    assert "prefill-0/0" in held.stderr


def test_doctor_and_top(pods: Pods) -> None:
    """Doctor checks each agent under its name; top draws all engines."""
    doctor = pods.relay.agentctl("doctor")
    for name in NAMES:
        assert f"agent {name}" in doctor.stdout
    assert "3 of 3 agents answer" in doctor.stdout
    top = pods.relay.agentctl("top", "--count", "1")
    assert top.exit_code == 0, top.stderr
    assert all(f"{name}/0" in top.stdout for name in NAMES)


def test_a_bundle_is_of_one_agent(pods: Pods, tmp_path: Path) -> None:
    """The relay passes on the bundle of the agent that is named, and lists their names if none is."""
    file = tmp_path / "d.penstock"
    made = pods.relay.agentctl("bundle", "--agent", "decode-1", "-f", str(file))
    assert made.exit_code == 0, made.stderr
    found = pods.relay.agentctl("--bundle", str(file), "get", "engines", "-o", "json")
    assert (found.exit_code, found.stderr.partition(",")[0][:6]) == (0, "as of "), found.stderr
    (engine,) = json.loads(found.stdout)["engines"]
    assert engine["labels"]["pod"] == "decode-1"
    for more, words in (((), ", ".join(NAMES)), (("--agent", "x"), "no agent 'x'")):
        refused = pods.relay.agentctl("bundle", *more, "-f", str(tmp_path / "no"))
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["d.penstock"]


def test_policies_are_not_written(pods: Pods) -> None:
    """A write says where to write instead."""
    refused = pods.relay.agentctl("set-policy", "p", "--kv-load-failure", "recompute")
    assert refused.exit_code == 1
    assert "--policy-source" in refused.stderr


def test_a_pause_reaches_all(pods: Pods) -> None:
    """A pause of one pod's engine is that agent's; the audit log names relay and author."""
    paused = pods.relay.agentctl("pause", "decode-1/0", "--reason", "test", "--timeout", "1s")
    audit = json.loads(pods.relay.agentctl("get", "audit", "-o", "json").stdout)["entries"]
    assert "decode-1/0" in paused.stdout + paused.stderr
    assert audit[0]["author"].startswith("relay: ")
    assert audit[0]["author"].endswith(" at decode-1")
    resumed = pods.relay.agentctl("resume", "--timeout", "1s")
    assert all(name in resumed.stdout + resumed.stderr for name in NAMES)


@pytest.mark.parametrize("engine", ["decode-1/9", "nowhere/0"])
def test_a_pause_that_reaches_no_engine_fails(pods: Pods, engine: str) -> None:
    """A misspelt name of an engine or of an agent is no success."""
    paused = pods.relay.agentctl("pause", engine, "--reason", "test", "--timeout", "1s")
    assert paused.exit_code == 1
    assert f"no agent of this relay has {engine}" in paused.stderr


def test_watches_are_limited(pods: Pods) -> None:
    """One too many gets a sentence; when one ends, the next is served."""
    with ExitStack() as parts:
        channel = parts.enter_context(grpc.insecure_channel(pods.relay.address))
        stub = admin_pb2_grpc.AdminStub(channel)
        request = admin.ListEventsRequest(kinds=["transfer_failure"])
        calls = [stub.WatchEvents(request) for _ in range(MAX_WATCHES + 1)]
        for call in calls:
            parts.callback(call.cancel)
        wait_until(lambda: any(call.done() for call in calls), "one is refused")
        (refused,) = [call for call in calls if call.done()]
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = pods.relay.agentctl("watch")
        assert answer.exit_code == 1
        assert "64 callers watch at this relay" in answer.stderr
        calls.remove(refused)
        calls.pop().cancel()
        seen: list[str] = []

        def served() -> bool:
            call = stub.WatchEvents(request)
            parts.callback(call.cancel)
            threading.Thread(target=_note_first, args=(call, seen), daemon=True).start()
            wait_until(lambda: call.done() or publish(), "it is refused, or has an event")
            return bool(seen)

        def publish() -> bool:
            pods.engines["decode-0"].publish(transfer_failure("limited"))
            return bool(seen)

        wait_until(served, "the next is served")


def _note_first(call: Iterator[admin.LoggedEvent], seen: list[str]) -> None:
    with suppress(grpc.RpcError):
        seen.append(next(call).event.request_id)


def test_agents_that_die_hang_and_come_back() -> None:
    """Who is missing is one line on stderr, why too; the others answer; a restarted relay goes on."""
    with _pods("1s") as pods:
        pods.stop("decode-1")
        pods.agents["prefill-0"].kill()
        pods.relay.wait_for(**{"decode-1": "away", "prefill-0": "away"})
        listed = pods.relay.agentctl("get", "engines")
        assert listed.exit_code == 0, listed.stderr
        assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["decode-0/0"]
        # Of one that hangs gRPC may say in other words that it does not answer.
        assert re.search(r"1 of 3 agents answered; not: decode-1 \(.+\), prefill-0 \(", listed.stderr)
        doctor = pods.relay.agentctl("doctor")
        assert doctor.exit_code == 1
        assert "agent prefill-0: does not answer at unix://" in doctor.stdout
        pods.go_on()
        pods.agents["prefill-0"].start()
        pods.relay.wait_for(**dict.fromkeys(NAMES, "up"))
        wait_until(lambda: pods.relay.agentctl("get", "engines").stderr == "", "all answer again")
        pods.stop(*NAMES)
        pods.relay.wait_for(**dict.fromkeys(NAMES, "away"))
        nobody = pods.relay.agentctl("get", "engines")
        pods.go_on()
        assert nobody.exit_code == 1
        assert "none of 3 agents answered" in nobody.stderr


def test_a_watch_over_restarts_of_relay_and_agent() -> None:
    """Each event comes once: of the agent that is restarted, and while the relay is."""
    with _pods() as pods, ExitStack() as parts:
        client = Client(pods.relay.address, ClientTls())
        seen: list[str] = []

        def read() -> None:
            request = admin.ListEventsRequest(kinds=["transfer_failure"])
            for item in follow(client, request, sleep=lambda _: time.sleep(0.1)):
                seen.append(item.event.request_id)
                if item.event.request_id == "end":
                    return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        parts.callback(client.close)
        published: list[str] = []

        def publish(name: str, request: str) -> None:
            pods.engines[name].publish(transfer_failure(request))
            published.append(request)

        def begun() -> bool:
            publish("decode-0", f"begin-{len(published)}")
            return bool(seen)

        # It follows from when it asks: what comes before is not its own.
        wait_until(begun, "the watch has begun")
        first = seen[0]
        publish("decode-1", "one")
        wait_until(lambda: "one" in seen, "an event of another agent")
        pods.relay.stop(signal.SIGKILL)
        publish("prefill-0", "two")
        pods.relay.start()
        publish("decode-0", "three")
        wait_until(lambda: {"two", "three"} <= set(seen), "the events while the relay was away")
        pods.agents["decode-1"].kill()
        pods.agents["decode-1"].start()
        pods.engines["decode-1"].connect()
        publish("decode-1", "four")
        wait_until(lambda: "four" in seen, "an event of the agent that was restarted")
        publish("prefill-0", "end")
        thread.join(60)
        assert not thread.is_alive()
        expected = published[published.index(first) :]
        assert sorted(seen) == sorted(expected)
