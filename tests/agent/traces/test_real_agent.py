"""A real agent process exports engines' traces, across its death."""

from __future__ import annotations

import itertools
import json
import socket

import grpc
from penstock.agent.journal.database.schema import FILE
from penstock.agent.journal.query.reader import Reader
from penstock.agent.traces.export.exporter import CURSOR
from penstock.agent.traces.spans import semconv
from penstock.proto.v1.admin_pb2 import ApplyPolicyRequest, DeletePolicyRequest, GetTraceRequest
from penstock.proto.v1.admin_pb2_grpc import AdminStub
from penstock.proto.v1.common_pb2 import ROLE_DECODE, ROLE_PREFILL

from tests.support.agent.agent import HASTY_AGENT, running_agent, wait_until
from tests.support.agent.batches import deferral_end, deferral_start, transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.agent.stories import (
    DECODE,
    PREFILL,
    closed,
    closed_decode,
    failed_load,
    handshake,
    lease,
    outcome,
)
from tests.support.otlp.backend import otlp_backend
from tests.support.policy.policies import document


def test_an_engines_traces_survive_a_killed_agent():
    """Both sides of a request are one trace over a kill of the agent; no span comes twice."""
    with otlp_backend() as backend:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.endpoint, "OTEL_TRACES_EXPORTER": "otlp"}
        with running_agent(env=env, module=HASTY_AGENT) as agent:
            with FakeEngine(agent.listen, engine="0", role=ROLE_PREFILL) as prefill:
                prefill.publish(closed(PREFILL, kv_role=ROLE_PREFILL), lease())
            with FakeEngine(agent.listen, engine="1", role=ROLE_DECODE) as decode:
                decode.publish(deferral_start(DECODE, remote_request_id=PREFILL))
                backend.wait_for(2)
                # Killed before it notes what was delivered, it would send that again, under the same ids.
                with Reader(agent.state_dir / FILE) as reader:
                    wait_until(lambda: reader.cursor(CURSOR)[1], "the delivery is noted")
                agent.kill()
                agent.start()
                decode.address = agent.listen
                decode.connect()
                decode.publish(handshake(DECODE), failed_load(), outcome(DECODE))
                decode.publish(deferral_end(DECODE), closed_decode())
            with grpc.insecure_channel(agent.admin) as channel:
                tree = AdminStub(channel).GetTrace(GetTraceRequest(request_id=DECODE), timeout=10)
            # Request, lease; request, load, recomputation, deferral, handshake.
            spans = backend.wait_for(7)
    assert {span.span_id for span in tree.spans} == {span.span_id for span in spans}
    assert len(spans) == 7
    assert {span.trace_id for span in spans if span.name != semconv.HANDSHAKE} == {tree.trace_id}


def test_a_backend_that_never_answers_holds_up_nothing():
    """The agent acknowledges, counts and stops; the next start delivers the pending spans."""
    with otlp_backend() as backend, socket.create_server(("127.0.0.1", 0), backlog=16) as hole:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hole.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600000",
        }
        with running_agent(["--drain-deadline=1s"], env=env, module=HASTY_AGENT) as agent:
            with FakeEngine(agent.listen, engine="0", role=ROLE_PREFILL) as prefill:
                prefill.publish(closed(PREFILL, kv_role=ROLE_PREFILL), lease())
                connection, _ = hole.accept()
                with connection:
                    for number in range(50):
                        prefill.publish(closed(f"r{number}-aaaaaaaa", kv_role=ROLE_PREFILL))
                    assert (agent.metric("penstock_agent_export_backlog_batches") or 0) > 0
                    assert agent.metric("penstock_agent_oldest_unexported_timestamp_seconds")
                    # The call has ten minutes, the agent has a second.
                    assert agent.stop() == 0
            agent._env["OTEL_EXPORTER_OTLP_ENDPOINT"] = backend.endpoint
            agent.start()
            spans = backend.wait_for(52)
            wait_until(
                lambda: agent.metric("penstock_agent_spans_total", result="exported") == 52, "the count"
            )
    assert len({span.span_id for span in spans}) == len(spans) == 52


def test_a_sampler_drops_nothing_that_is_counted():
    """With the smallest ratio of ``OTEL_TRACES_SAMPLER`` metrics count every request; a failed one is exported and says so."""
    with otlp_backend() as backend:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": backend.endpoint,
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0",
        }
        with running_agent(env=env, module=HASTY_AGENT) as agent, FakeEngine(agent.listen) as engine:
            engine.publish(closed("good-1"), closed("good-2"), transfer_failure("bad"), closed("bad"))
            (request, *others) = backend.wait_for(2)
            for kind, count in (("request_closed", 3), ("transfer_failure", 1)):
                wait_until(
                    lambda kind=kind, count=count: agent.metric("penstock_events_total", kind=kind) == count,
                    f"the count of {kind}",
                )
            wait_until(
                lambda: agent.metric("penstock_agent_spans_total", result="sampled_out") == 2, "the count"
            )
    spans = [request, *others]
    assert {span.attributes[semconv.REQUEST_ID] for span in spans} == {"bad"}
    assert {span.attributes[semconv.SAMPLING] for span in spans} == {"forced"}


def test_the_sample_ratio_follows_the_policy_live():
    """With a ratio of 0 only failed traces are exported, from the change on until the policy is deleted."""
    policy = document("quiet", telemetry={"traceSampleRatio": 0})
    numbers = itertools.count()
    with otlp_backend() as backend:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.endpoint, "OTEL_TRACES_EXPORTER": "otlp"}
        with (
            running_agent(env=env, module=HASTY_AGENT) as agent,
            FakeEngine(agent.listen) as engine,
            grpc.insecure_channel(agent.admin) as channel,
        ):
            admin = AdminStub(channel)

            def requests() -> set[str]:
                return {str(span.attributes.get(semconv.GEN_AI_REQUEST_ID)) for span in backend.spans}

            def good_one_comes() -> bool:
                number = next(numbers)
                good, bad = f"good-{number}", f"bad-{number}"
                engine.publish(closed(good))
                engine.publish(transfer_failure(bad), closed(bad))
                wait_until(lambda: bad in requests(), "what failed is exported")
                return good in requests()

            assert good_one_comes()
            request = ApplyPolicyRequest(manifest_json=json.dumps(policy), author="test", all=True)
            admin.ApplyPolicy(request, timeout=10)
            wait_until(lambda: not good_one_comes(), "good ones are left out")
            admin.DeletePolicy(DeletePolicyRequest(name="quiet", author="test"), timeout=10)
            wait_until(good_one_comes, "good ones come again")
