"""Faults that users of disaggregated vLLM have reported, caused on engines: ``agentctl diagnose`` names each of them first.

With ``make record-incidents`` they are stored for the tests without engines (``tests/agent/diagnosis/test_recorded_incidents.py``).
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from penstock.proto.v1 import admin_pb2 as admin

from demo.common.client import complete
from demo.common.steps import until
from demo.servers import ROOT
from tests.support.agent.operator import Operator
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.incidents.table import CANNOT_TELL
from tests.support.kv.other_weights import copied_model, other_weights
from tests.support.kv.peers import LEASE_SECONDS, Spare, stopped
from tests.support.stop import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kv.bench import Bench, Prefilled

_FIELD = replace(CPU_DEFAULTS, name="field", model=copied_model)
# Who give up their requests: more than the loss of the pod counts for, which stands still and so reports nothing.
_CLIENTS = 16
_MODEL = ROOT / ".cache" / "models" / "tiny-llama-copied"
# Servers of their own: a load that never starts keeps its blocks for ever. In the order of the file: the last stops a worker.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.parametrize("stack", [_FIELD], indirect=True, ids=["cpu"]),
]


@pytest.fixture
def operator(kv: Bench, tmp_path: Path) -> Operator:
    """Give an operator, after some requests that are well."""
    _traffic(kv)
    return Operator(kv.agent, tmp_path)


def _traffic(kv: Bench, number: int = 6) -> None:
    for _ in range(number):
        request = kv.prefilled()
        assert kv.decode(request).completion == request.text
    kv.closed(request)


@contextmanager
def _pod(kv: Bench, name: str) -> Iterator[Spare]:
    """Run one more prefill pod, and have the agent forget it at the end."""
    pod, losses = Spare(kv.stack, name, "--model", str(_MODEL)), len(kv.events("source_lost"))

    def left() -> bool:
        # The loss of a process is told some seconds after it: not into the next incident.
        engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
        (engine,) = (each for each in engines if each.key.server == name)
        return engine.said_goodbye or len(kv.events("source_lost")) > losses

    try:
        pod.server()
        yield pod
    finally:
        pod.stop()
        until(left, f"{name}/0 is neither lost nor gone")
        until(
            lambda: kv.agent.ctl("forget", "engine", f"{name}/0").code == 0, f"{name}/0 cannot be forgotten"
        )


@contextmanager
def _in_background(kv: Bench, url: str, prompt: str, timeout: float = 100.0, **params: Any) -> Iterator[None]:
    """Send a request that hangs; it is given up after *timeout* seconds."""

    def send() -> None:
        with suppress(OSError):
            complete(url, prompt, max_tokens=4, kv_transfer_params=params or None, timeout=timeout)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_nothing_is_wrong(kv: Bench, operator: Operator) -> None:
    """Requests that are well."""
    _traffic(kv)
    operator.records("nothing-wrong")


def test_without_traffic_it_cannot_be_told(kv: Bench, operator: Operator) -> None:
    """Engines are connected, and no request ended: that is not the same as well."""
    until(
        lambda: kv.agent.ctl("diagnose", "--since", "2s").code == CANNOT_TELL, "The last requests do not pass"
    )
    operator.begins()
    operator.records("no-traffic")


def test_a_prefill_pod_is_killed(kv: Bench, operator: Operator) -> None:
    """Requests that the router sent there before fail; the loss of the pod is told with its peer."""
    with _pod(kv, "prefill-b") as pod:
        requests = [kv.prefilled(server=pod.server()) for _ in range(4)]
        operator.begins()
        pod.kill()
        assert {kv.decode(request).status for request in requests} == {500}
        operator.records("prefill-killed")


def _let_go(kv: Bench, requests: list[Prefilled]) -> None:
    for request in requests:
        unread = request.remote_request_id
        until(
            lambda: kv.events("lease_closed", unread),  # noqa: B023  (called at once)
            f"The lease of {unread} does not end",
            seconds=LEASE_SECONDS + 30,
        )


def test_blocks_are_read_after_their_lease(kv: Bench, operator: Operator) -> None:
    """Decode comes too late: it answers 200 from blocks that were free by then."""
    with _pod(kv, "prefill-b") as pod:
        operator.begins()
        request = kv.prefilled(server=pod.server())
        _let_go(kv, [request])
        assert kv.decode(request).status == 200

        def told() -> bool:
            # An idle engine does not look at what others tell it.
            complete(pod.server().url, "Wake up.", max_tokens=1)
            return kv.agent.metrics().value("penstock_late_reads_total", server="prefill-b") > 0

        until(told, "The late read is not told")
        operator.records("late-read")


def test_nobody_reads_what_was_prefilled(kv: Bench, operator: Operator) -> None:
    """Each lease ends by itself: prefill computed in vain."""
    with _pod(kv, "prefill-b") as pod:
        operator.begins()
        _let_go(kv, [kv.prefilled(server=pod.server()) for _ in range(8)])
        operator.records("leases-unread")


def test_two_engines_have_other_weights(kv: Bench, operator: Operator) -> None:
    """Every handshake works, every request answers 200, and every answer is wrong."""
    with other_weights(_MODEL), _pod(kv, "prefill-b") as pod:
        operator.begins()
        for _ in range(3):
            request = kv.prefilled(server=pod.server())
            assert kv.decode(request).completion != request.text
        operator.records("other-weights")


def test_a_quarantine_was_forgotten(kv: Bench, operator: Operator) -> None:
    """An operator cut off a peer that is well; its requests fail since."""
    peer = kv.stack.prefill.peer
    operator.runs(f"quarantine add {peer} --ttl 1h --reason INC-9")
    try:
        operator.reads("get peers", "decode/0", peer, "quarantined")
        operator.begins()
        for _ in range(2):
            kv.decode(kv.prefilled())
        operator.records("forgotten-quarantine")
    finally:
        operator.runs(f"quarantine lift {peer}")


def test_a_stale_reference_is_read(kv: Bench, operator: Operator) -> None:
    """Blocks of another prompt arrive without an error; sampled digests say so."""
    kv.enforce(selector={}, integrity={"sampleRatio": 1.0, "action": "observe"})
    until(lambda: "penstock_digest" in kv.prefilled().params, "The prefill engine sends no digest")
    operator.begins()
    for _ in range(2):
        other, request = kv.prefilled(6), kv.prefilled(6)
        blocks = [
            theirs[: len(own)]
            for theirs, own in zip(
                other.params["remote_block_ids"], request.params["remote_block_ids"], strict=True
            )
        ]
        stale = request.redirected(remote_block_ids=blocks)
        assert kv.decode(stale).completion != request.text
        kv.closed(stale)
    operator.records("stale-reference")


def test_a_router_sends_no_parameters(kv: Bench, operator: Operator) -> None:
    """Decode computes the prompts itself, and nothing fails."""
    operator.begins()
    for number in range(80):
        assert complete(kv.stack.decode.url, f"{number} short", max_tokens=1).status == 200
    operator.records("router-without-parameters")


def test_loads_of_requests_that_were_aborted_hold_blocks(kv: Bench, operator: Operator) -> None:
    """The peer stands still; the clients have gone, and the blocks stay."""
    with _pod(kv, "prefill-b") as pod:
        met = kv.prefilled(server=pod.server())
        assert kv.decode(met).completion == met.text
        requests = [kv.prefilled(6, server=pod.server()) for _ in range(_CLIENTS)]

        def give_up(request: Prefilled) -> None:
            with suppress(OSError):
                kv.decode(request, timeout=5.0)

        with stopped(pod.server()):
            with ThreadPoolExecutor(_CLIENTS) as senders:
                list(senders.map(give_up, requests))
            until(
                lambda: "(peer_slow, " not in kv.agent.ctl("diagnose", "--since", "3s").output,
                "The requests still wait",
            )
            # What they waited is over; the blocks stay.
            operator.begins()
            operator.diagnoses("aborted_loads_hold_blocks", "held by loads of requests that have ended")
        until(lambda: not kv.value("penstock_held_blocks", holder="aborted"), "The blocks are not released")


def test_a_stray_message_ends_the_listener_of_handshakes(kv: Bench, operator: Operator) -> None:
    """VLLM's thread dies of what it cannot decode, a port scan for instance; the engine goes on and no new peer meets it."""
    with _pod(kv, "prefill-b") as pod:
        request = kv.prefilled(server=pod.server())
        operator.begins()
        with zmq.Context() as context, context.socket(zmq.REQ) as stray:
            stray.linger = 1000
            stray.connect(f"tcp://{pod.server().peer}")
            stray.send(b"\xc1")
            until(lambda: kv.agent.ctl("doctor").output.count("nixl_handshake_listener"), "It lives on")
        assert kv.decode(request).status == 500
        operator.records("listener-dies")


def test_a_load_never_starts(kv: Bench, operator: Operator) -> None:
    """The router leaves out the peer's address: vLLM parks the request, never loads for it, and dies of the next one."""
    request = kv.prefilled()
    params = {name: value for name, value in request.params.items() if name != "remote_host"}
    operator.begins()
    with _in_background(kv, kv.stack.decode.url, request.prompt, 65.0, **params):
        operator.records("load-never-starts")


def test_a_worker_stands_still(kv: Bench, tmp_path: Path) -> None:
    """Its EngineCore reports, and it does not. Decode did not survive the test before."""
    operator = Operator(kv.agent, tmp_path)
    engines = kv.admin.ListEngines(admin.ListEnginesRequest()).engines
    (pid,) = (
        source.hello.pid
        for engine in engines
        if engine.key.server == "prefill"
        for source in engine.sources
        if source.hello.process == "worker"
    )
    operator.begins()
    stop(pid)
    try:
        with _in_background(kv, kv.stack.prefill.url, "a request that hangs", 62.0):
            operator.records("worker-stands-still")
    finally:
        os.kill(pid, signal.SIGCONT)
