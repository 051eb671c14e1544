"""This version beside the one before it, recorded: engines and agents are never upgraded at the same moment."""

from __future__ import annotations

import queue
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from penstock.proto.v1 import admin_pb2_grpc

from tests.release.record import HERE, described, lasting_metrics
from tests.support.agent.agent import AgentProcess, running_agent, short_directory, wait_until
from tests.support.agent.descriptors import contract
from tests.support.release.recording import PUBLISH, WATCH, Recording
from tests.support.release.story import apply_policies, emit_all, engine_part

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 60
_RECORDED = sorted(path.name for path in HERE.iterdir() if path.is_dir())


@pytest.fixture(params=_RECORDED)
def before(request: pytest.FixtureRequest) -> Recording:
    """Return a recorded version."""
    return Recording(HERE / request.param)


def replay(agent: AgentProcess, before: Recording) -> list[Any]:
    """Send an agent what the recorded engine part published, one batch in flight; return the answers."""
    batch, ack = before.message("Batch"), before.message("Ack")
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    answers = []
    with grpc.insecure_channel(agent.listen) as channel:
        call: Any = channel.stream_stream(PUBLISH)
        stream = call(iter(outgoing.get, None), timeout=_SECONDS)
        for message in before.stream("publish.sent"):
            outgoing.put(message)
            sent = batch.FromString(message)
            if sent.HasField("hello") or sent.seq:
                answers.append(ack.FromString(next(stream)))
                assert answers[-1].durable_watermark == sent.seq
        outgoing.put(None)
        assert list(stream) == []
    return answers


def test_this_agent_takes_an_older_engine_part(before: Recording) -> None:
    """Each batch is acknowledged as it was then, and counts the same."""
    with running_agent() as agent:
        assert replay(agent, before)
        found = lasting_metrics(agent)
    expected = before.expected["metrics"]
    assert {series: found.get(series) for series in expected} == expected


def test_an_older_engine_part_takes_this_agents_policies(before: Recording) -> None:
    """An engine refuses what it does not know: a push to it has no field that was added since."""
    push = before.message("Push")
    subscribe = before.stream("watch.sent")[0]
    with running_agent() as agent, grpc.insecure_channel(agent.admin) as admin:
        list(apply_policies(admin_pb2_grpc.AdminStub(admin)))
        with grpc.insecure_channel(agent.listen) as channel:
            outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            outgoing.put(subscribe)
            call: Any = channel.stream_stream(WATCH)
            stream = call(iter(outgoing.get, None), timeout=_SECONDS)
            received = push.FromString(next(stream))
            outgoing.put(None)
            stream.cancel()
    last = push.FromString(before.stream("watch.answered")[-1])
    assert unknown(received) == []
    assert [step.body for step in received.schedule] == [step.body for step in last.schedule]
    assert [step.observed for step in received.schedule] == [step.observed for step in last.schedule]


def unknown(message: Any) -> list[str]:
    """Return the paths of fields that the message's class does not know, in it and below."""
    fields: Any = UnknownFieldSet(message)
    found = [f"{message.DESCRIPTOR.name}: {each.field_number}" for each in fields]
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else [value]:
                found += unknown(each)
    return found


class OlderAgent(grpc.GenericRpcHandler):
    """An agent of the recorded version: its classes, its acknowledgements, its pushes byte for byte."""

    def __init__(self, before: Recording) -> None:
        self.batches: list[Any] = []
        self.reports: list[Any] = []
        self._before = before

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a stream."""
        handle = {PUBLISH: self._publish, WATCH: self._watch}[handler_call_details.method]
        return grpc.stream_stream_rpc_method_handler(lambda sent, _: handle(sent))

    def _publish(self, sent: Iterator[bytes]) -> Iterator[bytes]:
        ack = self._before.message("Ack")
        for message in sent:
            batch = self._before.message("Batch").FromString(message)
            self.batches.append(batch)
            if batch.HasField("hello") or batch.seq:
                yield ack(epoch=batch.epoch, durable_watermark=batch.seq).SerializeToString()

    def _watch(self, sent: Iterator[bytes]) -> Iterator[bytes]:
        pushes = iter(self._before.stream("watch.answered"))
        for message in sent:
            self.reports.append(self._before.message("Report").FromString(message))
            # One after the other, as it was recorded: a newer push may overtake an answer.
            push = next(pushes, None)
            if push is not None:
                yield push


def test_this_engine_part_talks_to_an_older_agent(before: Recording) -> None:
    """It says who it is by the same schema, all of its entries arrive, and it obeys the same pushes."""
    older = OlderAgent(before)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[older])
    with short_directory() as directory:
        endpoint = f"unix://{directory}/ingest.sock"
        server.add_insecure_port(endpoint)
        server.start()
        try:
            with engine_part(endpoint) as runtime:
                emit_all(runtime)
                pushes = len(before.stream("watch.answered"))
                wait_until(lambda: len(older.reports) > pushes, "an answer to each push")
        finally:
            server.stop(None).wait()
    recorded = [before.message("Batch").FromString(message) for message in before.stream("publish.sent")]
    assert older.batches[0].hello.schema_version == recorded[0].hello.schema_version
    assert kinds(older.batches) >= kinds(recorded)
    assert gauges(older.batches) >= gauges(recorded)
    assert older.batches[-1].HasField("goodbye")
    assert not [batch for batch in older.batches if batch.drops or batch.guard_errors]
    hashes = [step.hash for step in push_schedules(before)]
    answers = [(report.WhichOneof("message"), report.ack.hash) for report in older.reports[1:]]
    assert answers == [("ack", each) for each in hashes]


def kinds(batches: list[Any]) -> set[str]:
    """Return the kinds of entries in *batches*."""
    found = {str(event.WhichOneof("body")) for batch in batches for event in batch.events}
    found |= {"transfer_sample" for batch in batches if batch.transfers.request_id}
    return found | {"probe_sample" for batch in batches if batch.probes.request_id}


def gauges(batches: list[Any]) -> set[str]:
    """Return the names of the fields that a snapshot in *batches* has."""
    return {field.name for batch in batches for field, _ in batch.snapshot.ListFields()}


def push_schedules(before: Recording) -> list[Any]:
    """Return what was in force after each recorded push; an empty step for vLLM's own configuration."""
    pushes = [before.message("Push").FromString(message) for message in before.stream("watch.answered")]
    return [push.schedule[0] if push.schedule else before.message("ScheduledPolicy")() for push in pushes]


def test_this_agent_opens_an_older_state(before: Recording) -> None:
    """Counters, policies, events and audit log are those that the older agent had."""
    with short_directory() as directory:
        agent = AgentProcess(directory)
        before.unpack_state(agent.state_dir)
        agent.start()
        try:
            found = described(agent)
        finally:
            agent.stop()
    expected = before.expected
    metrics = found.pop("metrics")
    assert {series: metrics.get(series) for series in expected["metrics"]} == expected.pop("metrics")
    assert found == expected


def test_the_contract_has_only_grown(before: Recording) -> None:
    """No field, number, type or method of a recorded version is gone."""
    assert before.contract - set(contract()) == set()


def test_a_recording_is_complete() -> None:
    """And there is one."""
    assert _RECORDED
    for version in _RECORDED:
        assert {path.name for path in (Path(HERE) / version).iterdir()} == {
            *("publish.sent", "publish.answered", "watch.sent", "watch.answered"),
            *("contract.binpb", "contract.txt", "state.tar.xz", "expected.json"),
        }
