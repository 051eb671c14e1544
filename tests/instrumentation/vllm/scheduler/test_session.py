"""The session of a scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import guard
from penstock.instrumentation.vllm.scheduler import session

from tests.support.engine.schedulers import LOCAL, REMOTE, request
from tests.support.engine.versions import TELLS_FAILED_RECEIVES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    MakeScheduler = Callable[..., Any]


def test_the_policys_fields() -> None:
    """An engine acts upon ``ecLoadFailure``; a policy with an unknown field is refused."""
    assert "ec_load_failure" in session.POLICY_FIELDS


def test_what_this_vllm_cannot_carry_out_is_refused(
    make_ec_scheduler: MakeScheduler, make_scheduler: MakeScheduler
) -> None:
    """A policy on encoder outputs needs the connector's hook, one on KV loads a vLLM that can tell a failed load."""
    found = make_ec_scheduler()._penstock
    assert list(found.policy_fields()) == list(session.POLICY_FIELDS)
    found.ec = None
    assert "ec_load_failure" not in found.policy_fields()
    assert "kv_load_failure" in make_scheduler()._penstock.policy_fields()
    several = make_scheduler(hybrid=True)._penstock.policy_fields()
    assert ("kv_load_failure" in several) is TELLS_FAILED_RECEIVES


def test_an_error_in_one_part_does_not_keep_the_other_from_acting(
    make_ec_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV's part of a hook point fails; the part of encoder outputs acts all the same, and the error is counted."""
    monkeypatch.setattr(guard, "raising", False)
    found = make_ec_scheduler()._penstock
    acted: list[str] = []

    def broken(_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(found, "_unconfirmed", ("a step whose result is awaited",))
    monkeypatch.setattr(found.loads, "before_free", broken)
    monkeypatch.setattr(found.ec, "before_free", acted.append)
    guard.reset()
    found.before_free("request")
    assert acted == ["request"]
    assert guard.counts
    guard.reset()


def test_without_a_connector_nothing_is_kept_of_a_request(make_ec_scheduler: MakeScheduler) -> None:
    """A client may name transfers all the same; the end of a request there asks no verifier."""
    scheduler = make_ec_scheduler()
    assert scheduler.connector is None
    verifier = scheduler._penstock.loads.verifier
    verifier._rule = SimpleNamespace(enforce=True, samples=lambda _: True)
    kept = (verifier._to_digest, verifier._to_verify)
    for name, params in (("kept", LOCAL), ("loaded", REMOTE)):
        scheduler.add_request(request(name, params=params, max_tokens=1))
    assert kept == (set(), {})


def test_connectors_have_the_session(make_ec_scheduler: MakeScheduler, make_scheduler: MakeScheduler) -> None:
    """The KV and the EC connector call the session of their scheduler."""
    for scheduler, connector in ((make_scheduler(), "connector"), (make_ec_scheduler(), "ec_connector")):
        assert getattr(scheduler, connector)._penstock is scheduler._penstock


def test_the_factory_is_public() -> None:
    """``--scheduler-cls`` takes it by the package's name."""
    from penstock.instrumentation.vllm import scheduler
    from penstock.instrumentation.vllm.scheduler.hook import create_scheduler

    assert scheduler.create_scheduler is create_scheduler
