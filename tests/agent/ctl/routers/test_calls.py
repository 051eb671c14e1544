"""Calls to routers: a stand-in that answers as they do, and servers that answer otherwise. The real ones: tests/routers."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from penstock.agent.ctl.routers import calls
from penstock.agent.ctl.routers.calls import ROUTERS, NotTakenBackError, RouterCalls
from penstock.agent.ctl.routers.endpoints import EndpointState
from penstock.agent.ctl.routers.exchange import MAX_ANSWER_BYTES

from tests.support.agent.stand_in_router import StandInRouter, stand_in_router

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = "http://10.0.3.4:8000", "http://10.0.3.5:8000"
OUT = {A: EndpointState("failing", None, "")}


@pytest.fixture
def router() -> Iterator[StandInRouter]:
    """Run one with two workers."""
    with stand_in_router(A, B) as running:
        yield running


@pytest.mark.parametrize("kind", ROUTERS)
def test_out_and_in(router: StandInRouter, kind: str) -> None:
    """By the calls of each router; what is as it should be is not asked again, and at the end all are in."""
    found = RouterCalls(router.url, kind)
    removed, added = {
        "vllm-router": (f"POST /remove_worker {A}", f"POST /add_worker {A}"),
        "sglang-router": (f"DELETE /workers/ {A}", f"POST /workers {A}"),
    }[kind]
    assert found.apply({}, 0.0) == found.apply(OUT, 1.0) == found.apply(OUT, 2.0) == []
    assert (list(router.workers), router.calls) == ([B], [removed])
    assert found.apply({}, 3.0) == found.apply({}, 4.0) == []
    assert (set(router.workers), router.calls) == ({A, B}, [removed, added])
    found.apply(OUT, 5.0)
    assert found.restore() == []
    assert set(router.workers) == {A, B}


def test_ranks_of_one_server(router: StandInRouter) -> None:
    """A router over data-parallel ranks has a worker for each."""
    del router.workers[A]
    router.workers |= {f"{A}@{rank}": "regular" for rank in range(2)}
    assert RouterCalls(router.url, "vllm-router").apply(OUT, 0.0) == []
    assert router.calls == [f"POST /remove_worker {A}"]


@pytest.mark.parametrize("kind", ROUTERS)
def test_what_the_router_has_not_is_not_added(router: StandInRouter, kind: str) -> None:
    """Somebody else has taken it out, or the address is another."""
    del router.workers[A]
    found = RouterCalls(router.url, kind)
    (told,) = found.apply(OUT, 0.0)
    assert told == f"{router.url} does not let go of {A}: it has no such worker, so it is not added either"
    assert found.restore() == []
    assert router.calls == []


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_router_that_has_restarted(router: StandInRouter, kind: str) -> None:
    """It has all workers again; half a minute later that is seen."""
    found = RouterCalls(router.url, kind)
    found.apply({}, 0.0)
    found.apply(OUT, 1.0)
    router.workers[A] = "regular"
    found.apply(OUT, 29.0)
    assert A in router.workers
    found.apply(OUT, 31.0)
    assert list(router.workers) == [B]


def test_errors_are_told_once_and_tried_again_after_a_pause(router: StandInRouter) -> None:
    """A removal that failed may have been one: at the end it is undone."""
    found = RouterCalls(router.url, "vllm-router")
    router.refuse = lambda call: (500, b"out of \x1b order") if "remove" in call else None
    (told,) = found.apply(OUT, 0.0)
    assert told == f"{router.url} does not let go of {A}: 500: out of \x1b order"
    assert found.apply(OUT, 1.9) == []
    assert len(router.calls) == 1
    assert found.apply(OUT, 2.0) == []
    assert found.apply(OUT, 5.9) == []
    assert len(router.calls) == 2
    assert found.restore() == []
    # "already exists" is as good.
    assert router.calls[2:] == [f"POST /add_worker {A}"]


def test_one_that_stays_out_is_named(router: StandInRouter) -> None:
    """The operator has to add it."""
    found = RouterCalls(router.url, "vllm-router")
    found.apply(OUT, 0.0)
    router.refuse = lambda _: (503, b"busy")
    assert found.restore() == [
        f"{router.url} does not take {A} back: 503: busy",
        f"{A} is still out of {router.url}: add it there",
    ]


@pytest.mark.parametrize("kind", ROUTERS)
def test_prefill_and_decode_is_refused_before_anything_is_removed(router: StandInRouter, kind: str) -> None:
    """Such a router takes no removed server back."""
    router.workers[A] = "prefill"
    with pytest.raises(NotTakenBackError, match="is a prefill worker of"):
        RouterCalls(router.url, kind).apply(OUT, 0.0)
    assert router.calls == []


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_router_that_does_not_list(router: StandInRouter, kind: str) -> None:
    """It may be one that takes no removed server back: nothing is removed, and that is said once."""
    router.refuse = lambda call: (404, b"") if call == "GET /workers" else None
    found = RouterCalls(router.url, kind)
    (told,) = found.apply(OUT, 0.0)
    assert told == (
        f"{router.url} does not let go of {A}: it has no GET /workers, so nobody knows whether it takes a removed server "
        "back; upgrade it"
    )
    assert found.apply(OUT, 9.0) == found.restore() == router.calls == []


def test_prefill_and_decode_that_show_only_at_the_end(router: StandInRouter) -> None:
    """It is known from the first that is not taken back."""
    router.refuse = {f"POST /add_worker {A}": (400, b"PD router requires a type")}.get
    found = RouterCalls(router.url, "vllm-router")
    assert found.apply(OUT, 0.0) == []
    with pytest.raises(NotTakenBackError, match="takes no removed server back; restart it"):
        found.apply({}, 1.0)
    told, still = found.restore()
    assert "PD router requires" in told
    assert still == f"{A} is still out of {router.url}: add it there"


def test_one_that_stays_out_keeps_no_other_out(
    router: StandInRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a bug."""
    found = RouterCalls(router.url, "vllm-router")
    found.apply({**OUT, B: OUT[A]}, 0.0)
    add = found._add

    def broken(url: str, ends: float) -> None:
        if url == A:
            raise RuntimeError("a bug")
        add(url, ends)

    monkeypatch.setattr(found, "_add", broken)
    assert found.restore() == [
        f"{router.url} does not take {A} back: a bug",
        f"{A} is still out of {router.url}: add it there",
    ]
    assert list(router.workers) == [B]


def test_a_dry_run_calls_nothing(router: StandInRouter) -> None:
    """It says what it would."""
    found = RouterCalls(router.url, "vllm-router", dry_run=True)
    assert found.apply(OUT, 0.0) == [f"would remove {A} from {router.url}"]
    assert found.apply(OUT, 1.0) == []
    assert found.apply({}, 2.0) == [f"would add {A} to {router.url}"]
    found.apply(OUT, 3.0)
    assert found.restore() == router.calls == []


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((200, b"x" * (MAX_ANSWER_BYTES + 1)), f"more than {MAX_ANSWER_BYTES} bytes"),
        ((200, b"[" * 100_000), "otherwise than vllm-router"),
        ((200, b'{"workers": [{}]}'), "otherwise than vllm-router"),
        ((200, b"\xff"), "otherwise than vllm-router"),
        ((302, b"http://127.0.0.1:1/"), "302"),
    ],
)
def test_answers_that_no_router_gives(
    router: StandInRouter, answer: tuple[int, bytes], sentence: str
) -> None:
    """A sentence, and nothing is removed."""
    router.refuse = lambda call: answer if call.startswith("GET") else None
    (told,) = RouterCalls(router.url, "vllm-router").apply(OUT, 0.0)
    assert sentence in told
    assert router.calls == []


def test_nobody_answers() -> None:
    """A port that refuses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    (told,) = RouterCalls(url, "vllm-router").apply(OUT, 0.0)
    assert "Connection refused" in told


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1."],
)
def test_one_that_never_ends(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """The wait has an end, however little comes, be it of the head; and so has the connection."""
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.3)
    cut = False
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            nonlocal cut
            taken, _ = server.accept()
            with taken:
                taken.settimeout(0.05)
                taken.recv(1 << 16)
                taken.sendall(said)
                ends = time.monotonic() + 20
                while time.monotonic() < ends and not cut:
                    try:
                        taken.sendall(b"x" if said else b"")
                        cut = not taken.recv(1)
                    except TimeoutError:
                        pass
                    except OSError:
                        cut = True

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        begun = time.monotonic()
        (told,) = RouterCalls(url, "vllm-router").apply(OUT, 0.0)
        assert time.monotonic() - begun < 10
        thread.join()
    assert "no answer" in told
    assert cut
