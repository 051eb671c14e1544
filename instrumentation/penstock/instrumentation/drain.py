"""``python -m penstock.instrumentation.drain``: wait until this engine's KV is read; for a container's ``preStop``.

It asks the agent's ``GET /drained``, twice a second, and changes nothing. Standard library only: it starts at once, and
neither vLLM nor gRPC is loaded. Kubernetes shows what it prints in the event ``FailedPreStopHook``, if it gives up.

Exit codes: 0 drained; 1 given up; 2 usage error.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_URL: Final = "http://127.0.0.1:9464"
_POLL_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 3.0
# An agent that is not there, or knows no such engine: an engine without Penstock has to end, too.
_ABSENT_SECONDS: Final = 10.0
_MAX_BYTES: Final = 16 << 10
_OK, _NOT_FOUND, _UNAVAILABLE = 200, 404, 503
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


class Answer(NamedTuple):
    """What the agent says.

    Attributes:
        drained: whether nothing of the engines is needed; None if no agent knows.
        text: sentences.

    """

    drained: bool | None
    text: str


class Outcome(NamedTuple):
    """How the wait ended: whether the engines are drained, and in a sentence."""

    drained: bool
    text: str


def ask(url: str, engine: str) -> Answer:
    """Ask the agent at *url* once about *engine*, a server or one of its engines; empty for all engines of the agent."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", f"/drained?engine={quote(engine, safe='')}" if engine else "/drained")
        response = connection.getresponse()
        said = _printable(response.read(_MAX_BYTES).decode(errors="replace"))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(None, f"the agent at {url} does not answer ({type(error).__name__}: {error})")
    finally:
        connection.close()
    if response.status in (_OK, _UNAVAILABLE):
        return Answer(response.status == _OK, said)
    hint = "" if response.status == _NOT_FOUND else f"; is it an agent of this version? ({response.status})"
    return Answer(None, f"the agent at {url} says: {said}{hint}")


def wait(
    look: Callable[[], Answer],
    timeout: float,
    settle: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Wait until *look* has said for *settle* seconds that the engines are drained; at most *timeout* seconds."""
    began = known_at = clock()
    drained_since, told = None, ""
    while True:
        answer = look()
        now = clock()
        if answer.drained is not None:
            known_at = now
        if not answer.drained:
            drained_since = None
        elif now - (drained_since := now if drained_since is None else drained_since) >= settle:
            return Outcome(True, f"drained after {now - began:.1f} s")
        if now - known_at >= _ABSENT_SECONDS:
            return Outcome(False, f"gave up after {now - began:.0f} s: {answer.text}")
        if now - began >= timeout:
            but = f"drained, but not for {settle:g} s yet" if answer.drained else answer.text
            return Outcome(False, f"gave up after {now - began:.0f} s: {but}")
        # The ages in it change with every answer.
        if (gist := re.sub(r"\d+[smhd] ago", "", answer.text)) != told and not answer.drained:
            told = gist
            say(answer.text)
        sleep(_POLL_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Wait, say for whom, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.instrumentation.drain",
        description="Wait until nothing of this engine is needed any more: no lease unread, no transfer or save under way. "
        "Asks the agent, and changes nothing.",
        epilog="Exit codes: 0 drained; 1 given up, with what others still need; 2 usage error.",
    )
    parser.add_argument("--timeout", type=_seconds, default=60.0, help="give up after this long (60s)")
    parser.add_argument(
        "--settle", type=_seconds, default=3.0, help="nothing must be needed for this long (3s)"
    )
    parser.add_argument("--url", type=_url, default=_URL, help=f"the agent's HTTP port ({_URL})")
    parser.add_argument(
        "--engine",
        default=os.environ.get("PENSTOCK_SERVER", ""),
        help="a server, or SERVER/ENGINE (the variable PENSTOCK_SERVER; without it all engines of the agent)",
    )
    options = parser.parse_args(arguments)
    outcome = wait(lambda: ask(options.url, options.engine), options.timeout, options.settle, _say)
    _say(outcome.text)
    return 0 if outcome.drained else 1


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


def _printable(text: str) -> str:
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in text.splitlines())


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 60s, 2m or 500ms")
    return float(found[1]) * _SECONDS[found[2]]


def _url(text: str) -> str:
    try:
        place = urlsplit(text)
        usable = place.scheme == "http" and bool(place.hostname) and (place.port is None or place.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as {_URL}")
    return text


if __name__ == "__main__":
    sys.exit(main())
