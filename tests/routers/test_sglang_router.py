"""sglang-router in front of servers that are ordered out of rotation, and that answer 503."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.routers.calls import RouterCalls
from penstock.agent.ctl.routers.endpoints import EndpointState

from demo.common.client import fetch, post_json
from demo.common.steps import until
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

_PROGRAM = "sglang-router"


@pytest.fixture
def router(backends: Backends, tmp_path: Path) -> Iterator[Router]:
    """Run one over all servers."""
    with running(
        _PROGRAM,
        ("launch", *asking_and_taking_turns(), "--worker-urls", *backends.urls.values()),
        logs=tmp_path,
    ) as found:
        yield found


@pytest.fixture
def disaggregated(backends: Backends, tmp_path: Path) -> Iterator[Router]:
    """Run one that prefills on two servers, and decodes on the third."""
    one, two, three = backends.urls.values()
    arguments = ("--pd-disaggregation", "--prefill", one, "--prefill", two, "--decode", three)
    with running(_PROGRAM, ("launch", *asking_and_taking_turns(), *arguments), logs=tmp_path) as found:
        yield found


def _workers(router: Router) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fetch(f"{router.url}/workers").body["workers"]
    return found


def _remove(router: Router, url: str) -> str:
    """Remove a server; return the id that it had."""
    (worker,) = [each for each in _workers(router) if each["url"] == url]
    removal = urllib.request.Request(f"{router.url}/workers/{worker['id']}", method="DELETE")
    with urllib.request.urlopen(removal, timeout=60) as answer:
        assert answer.status == 202
    return str(worker["id"])


def test_out_of_rotation_and_back(backends: Backends, router: Router) -> None:
    """Requests go to the others while the order lasts; with all servers out there is nobody left."""
    router.uses("one", "two", "three")
    backends.out("one")
    router.uses("two", "three")
    unhealthy = [each["url"] for each in _workers(router) if not each["is_healthy"]]
    assert unhealthy == [backends.urls["one"]]
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


def test_workers_are_removed_and_added(backends: Backends, router: Router) -> None:
    """By its id, which is a new one when it is back."""
    url = backends.urls["one"]
    router.uses("one", "two", "three")
    before = _remove(router, url)
    router.uses("two", "three")
    assert post_json(f"{router.url}/workers", {"url": url}).status == 202
    router.uses("one", "two", "three")
    (again,) = [each for each in _workers(router) if each["url"] == url]
    assert again["id"] != before


def test_agentctl_takes_a_server_out_and_back(backends: Backends, router: Router) -> None:
    """Through the calls of 'agentctl routers'."""
    router.uses("one", "two", "three")
    calls = RouterCalls(router.url, "sglang-router")
    assert calls.apply({backends.urls["one"]: EndpointState("failing", None, "")}, 0.0) == []
    router.uses("two", "three")
    assert calls.restore() == []
    router.uses("one", "two", "three")


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


def test_prefill_and_decode_ask_both_at_once(backends: Backends, disaggregated: Router) -> None:
    """Either kind has the same request, with fields of SGLang's engines and none of vLLM's."""
    disaggregated.prefills(backends, "one", "two")
    decoded = backends.requests("three")[-1]
    assert "bootstrap_room" in decoded
    assert "kv_transfer_params" not in decoded
    assert decoded in backends.requests("one") + backends.requests("two")


def test_a_503_of_ours_of_prefill_and_decode(backends: Backends, disaggregated: Router) -> None:
    """Another server is asked; with none left the client has our words in its message, and neither our object nor the header."""
    disaggregated.prefills(backends, "one", "two")
    failure = client_error(retry_after=1)
    before = backends.counts()
    backends.fail("one", failure)
    assert disaggregated.answers().keys() == {"three"}
    assert backends.counts()["one"] > before["one"]
    backends.fail("two", failure)
    _is_without_our_object(disaggregated)
    backends.fail("one", None)
    backends.fail("two", None)
    backends.fail("three", failure)
    before = backends.counts()
    _is_without_our_object(disaggregated)
    assert backends.counts()["three"] > before["three"] + 1


def _is_without_our_object(router: Router) -> None:
    answer, ours = router.ask(), client_error(retry_after=1)["body"]["error"]
    assert (answer.status, answer.retry_after) == (503, "")
    assert ours["message"] in answer.body["error"]["message"]
    assert "penstock" not in answer.body["error"]


def test_a_removed_server_is_taken_back_for_prefill(backends: Backends, disaggregated: Router) -> None:
    """With its kind; without, it gets no requests."""
    url = backends.urls["one"]
    disaggregated.prefills(backends, "one", "two")
    _remove(disaggregated, url)
    disaggregated.prefills(backends, "two")
    assert post_json(f"{disaggregated.url}/workers", {"url": url}).status == 202
    until(lambda: url in [each["url"] for each in _workers(disaggregated)], "it is not taken back")
    disaggregated.prefills(backends, "two")
    _remove(disaggregated, url)
    until(lambda: url not in [each["url"] for each in _workers(disaggregated)], "it is not removed again")
    assert post_json(f"{disaggregated.url}/workers", {"url": url, "worker_type": "prefill"}).status == 202
    disaggregated.prefills(backends, "one", "two")
