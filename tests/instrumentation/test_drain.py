"""What a container's preStop runs: it waits for the agent's word, and always ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation import drain
from penstock.instrumentation.drain import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

YES, NO, ABSENT = Answer(True, "drained"), Answer(False, "1 lease, 3s ago"), Answer(None, "no agent")


def play(
    answers: Sequence[Answer], timeout: float = 60.0, settle: float = 3.0
) -> tuple[Outcome, list[str], float]:
    """Wait with these *answers*, of which the last repeats; return the outcome, what was said, and the time it took."""
    now, left = [0.0], list(answers)
    said: list[str] = []

    def look() -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    outcome = drain.wait(
        look,
        timeout,
        settle,
        said.append,
        lambda: now[0],
        lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    return outcome, said, now[0]


@pytest.mark.parametrize(
    ("answers", "outcome", "said"),
    [
        ([YES], Outcome(True, "drained after 3.0 s"), []),
        ([NO, NO, YES], Outcome(True, "drained after 4.0 s"), [NO.text]),
        ([NO], Outcome(False, f"gave up after 60 s: {NO.text}"), [NO.text]),
        # One look without a lease between two with one is no end.
        ([YES, NO, YES], Outcome(True, "drained after 4.0 s"), [NO.text]),
        ([ABSENT], Outcome(False, "gave up after 10 s: no agent"), ["no agent"]),
        ([NO, ABSENT], Outcome(False, "gave up after 10 s: no agent"), [NO.text, "no agent"]),
        ([ABSENT, YES], Outcome(True, "drained after 3.5 s"), ["no agent"]),
        ([NO, Answer(False, "1 lease, 4s ago"), Answer(False, "2 leases"), YES],
         Outcome(True, "drained after 4.5 s"), [NO.text, "2 leases"]),
    ],
)  # fmt: skip
def test_the_wait(answers: Sequence[Answer], outcome: Outcome, said: list[str]) -> None:
    """It ends when the engines are drained for long enough, at the time-out, or soon where no agent knows."""
    got, told, _ = play(answers)
    assert (got, told) == (outcome, said)


@given(
    st.lists(st.sampled_from([YES, NO, ABSENT]), min_size=1, max_size=200), st.floats(0, 90), st.floats(0, 20)
)
def test_it_always_ends(answers: list[Answer], timeout: float, settle: float) -> None:
    """Whatever the agent says, the wait is never longer than the time-out and one look; drained is only what was said."""
    outcome, _, took = play(answers, timeout, settle)
    assert took <= timeout + 0.5
    assert not outcome.drained or YES in answers


@pytest.fixture
def agent() -> Iterator[Any]:
    """Serve what a test puts into ``answer``: status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.paths.append(self.path)
            status, body = server.answer
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.paths, server.url = [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("status", "body", "drained", "text"),
    [
        (200, b"engine 0 is drained\n", True, "engine 0 is drained"),
        (503, b"engine 0 is not drained\n", False, "engine 0 is not drained"),
        (503, b"\x1b[2J\xff\n" + b"x" * 100_000, False, "?[2J"),
        (404, b"no engine is known\n", None, "says: no engine is known"),
        (500, b"", None, "is it an agent of this version? (500)"),
        (302, b"", None, "(302)"),
    ],
)
def test_an_answer(agent: Any, status: int, body: bytes, drained: bool | None, text: str) -> None:
    """Only 200 and 503 are the agent's word; what it says is bounded and printable."""
    agent.answer = (status, body)
    answer = drain.ask(agent.url, "prefill 1/0")
    assert answer.drained is drained
    assert text in answer.text
    assert len(answer.text) <= 17_000
    assert all(each.isprintable() for each in answer.text.splitlines())
    assert agent.paths == ["/drained?engine=prefill%201%2F0"]


def test_as_a_program(agent: Any) -> None:
    """It takes the server's name from the environment, asks no proxy, loads neither gRPC nor vLLM, and says how it ended."""
    agent.answer = (200, b"engine 0 is drained\n")
    script = (
        "import sys; from penstock.instrumentation import drain; code = drain.main(sys.argv[1:]); "
        "assert not {'grpc', 'vllm', 'google.protobuf'} & set(sys.modules); sys.exit(code)"
    )
    environment = {"PENSTOCK_SERVER": "prefill", "http_proxy": "http://127.0.0.1:1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, "--settle", "0s", "--url", agent.url],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("drained after 0.")
    assert agent.paths == ["/drained?engine=prefill"]
    agent.answer = (503, b"engine prefill/0 is not drained: 1 unread lease\n")
    refused = subprocess.run(
        [sys.executable, "-m", "penstock.instrumentation.drain", "--timeout", "0.1", "--url", agent.url],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "gave up after" in refused.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--timeout", "soon"),
        ("--settle", "1 day"),
        ("--url", "unix:///run/a"),
        ("--url", "http://[::"),
        ("--url", "https://a"),
    ],
)
def test_a_wrong_option(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names the value and shows one that is right."""
    with pytest.raises(SystemExit) as ended:
        drain.main(arguments)
    assert ended.value.code == 2
    assert "such as" in capsys.readouterr().err
