"""Peers, reports, outcomes, ids, subclasses and patches: what is pure or nearly so."""

from __future__ import annotations

import pickle
from abc import ABC
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks.patch import Patch
from penstock.instrumentation.hooks.subclass import Swaps, instrumented
from penstock.instrumentation.resilience.decisions import Outcome, Trigger
from penstock.instrumentation.vllm.kv.decider import KvFailureDecider
from penstock.instrumentation.vllm.kv.nixl.handshake_table import ENGINES, WAITERS, HandshakeTable
from penstock.instrumentation.vllm.kv.nixl.nixl_context import PlannedTransfer
from penstock.instrumentation.vllm.kv.nixl.transfer_table import PostedTransfer, TransferTable
from penstock.instrumentation.vllm.messages.worker_report import LoadFailure, WorkerReport, find
from penstock.instrumentation.vllm.naming import peers
from penstock.instrumentation.vllm.naming.engine_identity import (
    engine_index,
    guess_role,
    model_name,
    worker_process,
)
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.requests import outcomes
from penstock.instrumentation.vllm.requests.record import RequestRecord, external_id

from tests.support.engine.recorder import policy

FAILURE = LoadFailure("r", c.FAILURE_MODE_SETUP, c.ERROR_TYPE_OTHER, Peer("p:1", "e"), 1)


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("10.0.0.7", 5600, "10.0.0.7:5600"),
        ("prefill-0.svc", "5600", "prefill-0.svc:5600"),
        ("fd00::7", 5600, "[fd00::7]:5600"),
        ("[fd00::7]", 5600, "[fd00::7]:5600"),
        ("", 5600, "unknown"),
        (None, None, "unknown"),
        ("", 0, "unknown"),
    ],
)
def test_address(host: Any, port: Any, expected: str) -> None:
    """A peer goes by host and port, or is unknown."""
    assert peers.address(host, port) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, None),
        ({}, None),
        ({"do_remote_decode": True, "remote_host": None, "remote_engine_id": None}, None),
        ({"remote_engine_id": "e"}, Peer("unknown", "e")),
        ({"remote_host": "h", "remote_port": 1, "remote_engine_id": "e"}, Peer("h:1", "e")),
        ({"remote_bootstrap_addr": "http://h:8998", "remote_engine_id": "e"}, Peer("h:8998", "e")),
        ({"remote_bootstrap_addr": "http://[fd00::7]:8998/"}, Peer("[fd00::7]:8998")),
        ({"remote_bootstrap_addr": "8998", "remote_engine_id": "e"}, Peer("unknown", "e")),
        ({"remote_bootstrap_addr": {"host": "h"}}, None),
    ],
)
def test_peer_of_a_request(params: dict[str, Any] | None, expected: Peer | None) -> None:
    """A request's peer is in its kv_transfer_params."""
    assert peers.from_params(params) == expected


class Own:
    """A connector's own worker metadata, which combines with its like only."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def aggregate(self, other: Own) -> Own:
        """Combine, as vLLM's do."""
        return Own(*self.values, *other.values)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(None, None, None), (Own(1), None, (1,)), (None, Own(2), (2,)), (Own(1), Own(2), (1, 2))],
)
def test_reports_combine(first: Own | None, second: Own | None, expected: tuple[int, ...] | None) -> None:
    """Two ranks' reports are one, and the connector's own metadata combines by itself."""
    ours = WorkerReport(failures=(FAILURE,), inner=first)
    theirs = WorkerReport(began=(("r", 1),), expired=("x",), inner=second)
    both = ours.aggregate(theirs)
    assert (both.failures, both.began, both.expired) == ((FAILURE,), (("r", 1),), ("x",))
    assert (both.inner.values if both.inner else None) == expected


def test_reports_travel() -> None:
    """A report survives the pickling between worker and scheduler, and is never taken for nothing."""
    report = WorkerReport(failures=(FAILURE,))
    assert pickle.loads(pickle.dumps(report)) == report
    assert WorkerReport()


def test_reports_are_found() -> None:
    """Reports are found in the metadata of a MultiConnector's children, at any depth."""
    report = WorkerReport(expired=("x",))
    nested = SimpleNamespace(metadata=(None, Own(1), SimpleNamespace(metadata=(report,))))
    assert list(find(nested)) == [report]
    assert list(find(report)) == [report]
    assert list(find(None)) == []


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("cmpl-my-id-0-0badcafe", "cmpl-my-id-0"),
        ("chatcmpl-1234-12345678", "chatcmpl-1234"),
        ("without", "without"),
        ("b157cdd323990a3e", "b157cdd323990a3e"),
    ],
)
def test_external_id(request_id: str, expected: str) -> None:
    """The client's id is vLLM's without the random suffix."""
    assert external_id(request_id) == expected


def test_outcome_of_each_attempt() -> None:
    """An outcome names the attempt, the first failure of it and the peer; the next attempt starts without them."""
    record = RequestRecord("r", peer=Peer("p:1"))
    judge, affected = KvFailureDecider(own=Outcome.FAILED), outcomes.Affected("r", 16, 32)
    record.begin_load(32)
    first = judge.judge(record, affected)
    fields = outcomes.outcome_fields(
        record, affected, first.decision, outcomes.cause_of(record, affected), "h"
    )
    assert (fields["attempt"], fields["mode"], fields["peer"]["address"]) == (1, c.FAILURE_MODE_LOAD, "p:1")
    assert (fields["tokens_kept"], fields["tokens_recomputed"], fields["policy_hash"]) == (16, 32, "h")
    assert first.first
    assert not judge.judge(record, affected).first
    record.failure = FAILURE
    assert outcomes.abandoned_fields(record) is None
    record.begin_load(32)
    assert record.failure is None
    record.failure = FAILURE
    second = outcomes.abandoned_fields(record)
    assert second is not None
    assert (second["attempt"], second["outcome"], second["mode"]) == (
        2,
        c.OUTCOME_ABORTED,
        c.FAILURE_MODE_SETUP,
    )


@pytest.mark.parametrize(
    ("affected", "failure", "expected"),
    [
        (outcomes.Affected("r", 0, 1), FAILURE, (FAILURE.mode, FAILURE.error_type)),
        (outcomes.Affected("r", 0, 1), None, (c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)),
        (
            outcomes.Affected("r", 0, 1, trigger=Trigger.DEADLINE),
            None,
            (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT),
        ),
        (
            outcomes.Affected("r", 0, 1, collateral=True),
            FAILURE,
            (c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER),
        ),
    ],
)
def test_cause(affected: outcomes.Affected, failure: LoadFailure | None, expected: tuple[int, int]) -> None:
    """What the workers said comes first, except for a request whose own load did not fail."""
    record = RequestRecord("r", failure=failure)
    cause = outcomes.cause_of(record, affected)
    assert (cause.mode, cause.error_type) == expected


def test_who_cannot_be_rewound_fails() -> None:
    """A request that waits with blocks of its own fails, whatever the policy says, and the reason says why."""
    judge = KvFailureDecider(own=Outcome.FAILED)
    judge.follow(policy("recompute"))
    settled = judge.judge(RequestRecord("r"), outcomes.Affected("r", 0, 1, held=True))
    assert settled.decision.outcome is Outcome.FAILED
    assert "cannot be rewound" in settled.decision.reason


def config(kv_role: str | None = None, ec_role: str | None = None, backend: str = "mp") -> Any:
    """Return as much of a VllmConfig as identity reads."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_index=3, distributed_executor_backend=backend),
        model_config=SimpleNamespace(served_model_name=["tiny", "alias"], model="/models/tiny"),
        kv_transfer_config=SimpleNamespace(kv_role=kv_role) if kv_role else None,
        ec_transfer_config=SimpleNamespace(ec_role=ec_role) if ec_role else None,
    )


@pytest.mark.parametrize(
    ("kv_role", "ec_role", "seen", "expected"),
    [
        (None, None, set(), ""),
        ("kv_producer", None, set(), "prefill"),
        ("kv_consumer", None, {c.ROLE_PREFILL}, "decode"),
        ("kv_both", None, set(), ""),
        ("kv_both", None, {c.ROLE_PREFILL}, "prefill"),
        ("kv_both", None, {c.ROLE_DECODE}, "decode"),
        ("kv_both", None, {c.ROLE_DECODE, c.ROLE_PREFILL}, "both"),
        ("kv_consumer", "ec_producer", set(), "encoder"),
        ("kv_consumer", "ec_consumer", set(), "decode"),
    ],
)
def test_guessed_role(kv_role: str | None, ec_role: str | None, seen: set[int], expected: str) -> None:
    """A role is guessed from the configuration, or from the requests where that does not tell."""
    assert guess_role(config(kv_role, ec_role), seen) == expected


def test_identity() -> None:
    """Engine index, model and process go by vLLM's own words."""
    assert engine_index(config()) == "3"
    assert model_name(config()) == "tiny"
    assert worker_process(config()) == "worker"
    assert worker_process(config(backend="uni")) == "engine-core"


def test_handshakes_are_bounded() -> None:
    """Of many engines the last are remembered; of many waiters the first are named and all are counted."""
    handshakes = HandshakeTable()
    for index in range(ENGINES + 10):
        handshakes.join(Peer(engine_id=str(index)), "r", object(), 1)
    assert len(handshakes.recent(ENGINES + 10)) == ENGINES
    assert handshakes.last("0") is None
    future = object()
    shared = handshakes.join(Peer("p:1", "shared"), "first", future, 1)
    assert shared is not None
    for index in range(WAITERS + 5):
        assert handshakes.join(Peer("p:1", "shared"), str(index), future, 2) is None
    assert (len(shared.waiters), shared.waiters_total) == (WAITERS, WAITERS + 6)


def test_transfers_are_known_by_address() -> None:
    """A handle is not kept alive; one whose address is used again is the new one."""
    transfers = TransferTable()
    first = PostedTransfer(PlannedTransfer("a", Peer("p:1")), 1, 5)
    second = PostedTransfer(PlannedTransfer("b", Peer("p:1")), 1, 7)
    transfers.begin(4711, first)
    assert transfers.end(4711) is first
    assert transfers.end(4711) is None
    transfers.begin(4711, first)
    transfers.begin(4711, second)
    assert transfers.in_flight() == [(Peer("p:1"), 1, 7)]
    assert transfers.end(4711) is second


class Base:
    """Something of vLLM's."""

    def word(self) -> str:
        """Say something."""
        return "base"


class Mixin:
    """Something of ours."""

    def word(self) -> str:
        """Say something more."""
        host: Any = super()
        return f"mixin {host.word()}"


def test_subclass() -> None:
    """An instrumented class looks like its base, is made once, and is not instrumented twice."""
    made = instrumented(Mixin, Base)
    assert made is instrumented(Mixin, Base)
    assert instrumented(Mixin, made) is made
    assert (made.__name__, made.__module__, made.__qualname__) == (
        Base.__name__,
        Base.__module__,
        Base.__qualname__,
    )
    assert made().word() == "mixin base"


def test_swap() -> None:
    """An object gains a mixin and loses it again; one that is gone meanwhile does not matter."""
    swaps, kept, gone = Swaps(), Base(), Base()
    for each in (kept, gone, kept):
        swaps.swap(each, Mixin)
    assert isinstance(kept, Base)
    assert kept.word() == "mixin base"
    del gone, each
    swaps.restore()
    assert type(kept) is Base


def test_swap_of_a_foreign_layout() -> None:
    """A class that does not allow it says so, and stays."""

    class Abstract(ABC):  # noqa: B024
        pass

    target = Abstract()
    with pytest.raises(TypeError, match="layout"):
        Swaps().swap(target, Mixin)
    assert type(target) is Abstract


class Patched:
    """Something of vLLM's with all kinds of methods."""

    @staticmethod
    def static(value: int) -> int:
        """Return what it is given."""
        return value

    @classmethod
    def of_class(cls) -> str:
        """Name the class."""
        return cls.__name__

    def plain(self) -> str:
        """Say something."""
        return "plain"


class Heir(Patched):
    """Inherits all."""


def test_patch() -> None:
    """Every kind of method is replaced as what it is, and put back as it was."""
    before = dict(vars(Patched))
    patch = Patch()
    patch.set(Patched, "static", lambda value: value + 1)
    patch.set(Patched, "of_class", classmethod(lambda _: "ours"))
    patch.set(Patched, "plain", lambda _: "ours")
    patch.set(Heir, "plain", lambda _: "heir's")
    assert (Patched().static(1), Patched.static(1), Patched.of_class(), Patched().plain()) == (
        2,
        2,
        "ours",
        "ours",
    )
    assert Heir().plain() == "heir's"
    patch.undo()
    assert {name: vars(Patched)[name] for name in ("static", "of_class", "plain")} == {
        name: before[name] for name in ("static", "of_class", "plain")
    }
    assert "plain" not in vars(Heir)


def test_patch_of_somebody_else_over_ours() -> None:
    """What somebody else has put over ours stays."""
    patch, theirs, original = Patch(), lambda _: "theirs", vars(Patched)["plain"]
    patch.set(Patched, "plain", lambda _: "ours")
    Patched.plain = theirs  # type: ignore[method-assign, assignment]
    patch.undo()
    assert Patched().plain() == "theirs"
    Patched.plain = original  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.0.0.7", "5600", "10.0.0.7:5600"),
        ("prefill_1.ns.svc", 5600, "prefill_1.ns.svc:5600"),
        ("h" * 254, 5600, "unknown"),
        ("two words", 5600, "unknown"),
        ("line\nbreak", 5600, "unknown"),
        (["10.0.0.7"], 5600, "unknown"),
        ("10.0.0.7", {"a": 1}, "unknown"),
        ("10.0.0.7", "9" * 5_000, "unknown"),
        ("10.0.0.7", 65_536, "unknown"),
        ("10.0.0.7", -1, "unknown"),
    ],
)
def test_a_clients_words_are_an_address_or_nothing(host: Any, port: Any, address: str) -> None:
    """What cannot be an address is no label; ids that are none are empty, long ones are cut."""
    assert peers.named(host, port, ["e"]) == Peer(address)
    assert peers.named(host, port, "e" * 5_000_000).engine_id == "e" * peers.TEXT_MAX
