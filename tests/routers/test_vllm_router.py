"""vllm-router in front of servers that are ordered out of rotation, and that answer 503."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.ctl.routers.calls import NotTakenBackError, RouterCalls
from penstock.agent.ctl.routers.endpoints import EndpointState

from demo.common.client import post, post_json
from tests.support.routers.routers import (
    Router,
    asking_and_taking_turns,
    client_error,
    needs_routers,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.routers.backends import Backends

pytestmark = [pytest.mark.long, needs_routers]

_PROGRAM = "vllm-router"


@pytest.fixture
def router(backends: Backends, tmp_path: Path) -> Iterator[Router]:
    """Run one over all servers."""
    arguments = ("--worker-urls", *backends.urls.values(), *asking_and_taking_turns())
    with running(_PROGRAM, arguments, logs=tmp_path) as found:
        yield found


@pytest.fixture
def disaggregated(backends: Backends, tmp_path: Path) -> Iterator[Router]:
    """Run one that prefills on two servers, and decodes on the third."""
    one, two, three = backends.urls.values()
    arguments = ("--vllm-pd-disaggregation", "--prefill", one, "--prefill", two, "--decode", three)
    with running(_PROGRAM, (*arguments, *asking_and_taking_turns()), logs=tmp_path) as found:
        yield found


def test_out_of_rotation_and_back(backends: Backends, router: Router) -> None:
    """Requests go to the others while the order lasts; with all servers out there is nobody left."""
    router.uses("one", "two", "three")
    backends.out("one")
    router.uses("two", "three")
    backends.back()
    router.uses("one", "two", "three")
    for name in backends.urls:
        backends.out(name)
    router.uses("503")
    backends.back()
    router.uses("one", "two", "three")


def test_a_503_of_ours(backends: Backends, router: Router) -> None:
    """Another server is asked, and with none left the client has our body and header."""
    failure = client_error(retry_after=1)
    backends.fail("one", failure)
    assert router.answers().keys() == {"two", "three"}
    assert backends.requests("one")
    for name in backends.urls:
        backends.fail(name, failure)
    answer = router.ask()
    assert (answer.status, answer.body, answer.retry_after) == (503, failure["body"], "1")


def test_prefill_and_decode_out_of_rotation(backends: Backends, disaggregated: Router) -> None:
    """The path does it for either kind of server."""
    disaggregated.prefills(backends, "one", "two")
    backends.out("one")
    disaggregated.prefills(backends, "two")
    backends.back()
    disaggregated.prefills(backends, "one", "two")
    backends.out("three")
    disaggregated.uses("503")
    backends.back()
    disaggregated.prefills(backends, "one", "two")


def test_prefill_and_decode_retry_nothing(backends: Backends, disaggregated: Router) -> None:
    """A 503 of decode reaches the client as it is, one of prefill as a 500 without our object."""
    disaggregated.prefills(backends, "one", "two")
    failure = client_error(retry_after=1)
    backends.fail("three", failure)
    before = backends.counts()
    answer = disaggregated.ask()
    assert (answer.status, answer.body, answer.retry_after) == (503, failure["body"], "1")
    assert backends.counts()["three"] == before["three"] + 1
    backends.fail("three", None)

    backends.fail("one", failure)
    before = backends.counts()
    answers = [disaggregated.ask() for _ in range(4)]
    after = backends.counts()
    failed = [each for each in answers if each.status != 200]
    assert {each.status for each in failed} == {500}
    assert len(failed) == after["one"] - before["one"] > 0
    assert "error" not in failed[0].body or "penstock" not in failed[0].body["error"]


def test_prefill_and_decode_take_no_removed_server_back(backends: Backends, disaggregated: Router) -> None:
    """Without prefill and decode it does."""
    place = f"url={backends.urls['one']}"
    disaggregated.prefills(backends, "one", "two")
    assert post(f"{disaggregated.url}/remove_worker?{place}").status == 200
    disaggregated.prefills(backends, "two")
    refused = post(f"{disaggregated.url}/add_worker?{place}")
    assert refused.status == 400
    assert "PD router requires" in refused.text
    body = {"url": backends.urls["one"], "worker_type": "prefill"}
    assert post_json(f"{disaggregated.url}/workers", body).status == 400
    disaggregated.prefills(backends, "two")


def test_agentctl_takes_none_of_prefill_and_decode_out(backends: Backends, disaggregated: Router) -> None:
    """It says so before the first is removed."""
    out = {backends.urls["one"]: EndpointState("failing", None, "")}
    with pytest.raises(NotTakenBackError, match="prefill"):
        RouterCalls(disaggregated.url, _PROGRAM).apply(out, 0.0)
    disaggregated.prefills(backends, "one", "two")


def test_agentctl_takes_a_server_out_and_back(backends: Backends, router: Router) -> None:
    """Through the calls of 'agentctl routers'."""
    calls = RouterCalls(router.url, _PROGRAM)
    assert calls.apply({backends.urls["one"]: EndpointState("failing", None, "")}, 0.0) == []
    router.uses("two", "three")
    assert calls.restore() == []
    router.uses("one", "two", "three")


def test_a_removed_server_is_taken_back(backends: Backends, router: Router) -> None:
    """Where each server does both."""
    place = f"url={backends.urls['one']}"
    assert post(f"{router.url}/remove_worker?{place}").status == 200
    router.uses("two", "three")
    assert post(f"{router.url}/add_worker?{place}").status == 200
    router.uses("one", "two", "three")
