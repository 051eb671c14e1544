"""Recorded requests of a prefill and a decode engine, and at which step each of them arrives, is received and is read.

Pure. The clock is virtual: it is the number of the step, and a step is as long as the recorded engine's was.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_US_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request that an engine has served; times in microseconds.

    Attributes:
        arrival: since the first of the recording.
        prompt, output: tokens.
        wait: that it waited for its KV from a peer; None if it loaded none.
        lease: that its blocks were kept for a reader after its end; None if they were not.

    """

    arrival: int
    prompt: int
    output: int
    wait: int | None = None
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """The requests of one engine in the order of their arrival, and the microseconds of its step."""

    requests: tuple[Recorded, ...]
    step: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a replay; times in steps.

    Attributes:
        step: at which it arrives.
        wait: from the step in which its load begins until its workers report it as received.
        lease: from its end until its workers report it as sent.

    """

    step: int
    prompt: int
    output: int
    wait: int | None = None
    lease: int | None = None


def parse(events: Iterable[Mapping[str, Any]], server: str) -> Recording:
    """Return what *server* has served, from the events that ``agentctl get events -o json`` prints.

    What waited for the first handshake is left out, and what came before its end: it is there once in an engine's life.

    Raises:
        ValueError: no request of *server* is left.

    """
    mine = [each["event"] for each in events if each["key"]["server"] == server]
    handshakes = [
        _us(each["event"]["handshake"]["endTime"]) for each in events if "handshake" in each["event"]
    ]
    began = max(handshakes, default=0)
    waits = {
        each["requestId"]: _seconds(each["deferralEnd"]["duration"])
        for each in mine
        if "deferralEnd" in each and each["deferralEnd"]["reason"] == "remote_kv"
    }
    leases = {
        each["requestId"]: _us(each["time"]) - _us(each["leaseClosed"]["startTime"])
        for each in mine
        if "leaseClosed" in each
    }
    closed = sorted(
        (each for each in mine if "requestClosed" in each and _arrival(each) >= began), key=_arrival
    )
    if not closed:
        raise ValueError(f"The recording has no request of {server!r}.")
    first = _arrival(closed[0])
    found = tuple(
        Recorded(
            _arrival(each) - first,
            each["requestClosed"]["promptTokens"],
            each["requestClosed"]["outputTokens"],
            waits.get(each["requestId"]),
            leases.get(each["requestId"]),
        )
        for each in closed
    )
    return Recording(found, statistics.median(_steps(closed)))


def timetable(recording: Recording, *, streams: int, steps: int) -> list[Arrival]:
    """Return the arrivals of *steps* steps: the recording over and over, *streams* of it at once, evenly shifted.

    A wait or a lease takes one step at least.
    """
    requests = recording.requests
    # From the last arrival to the first of the next pass as long as between two of them.
    gap = requests[-1].arrival / max(len(requests) - 1, 1)
    period = (requests[-1].arrival + gap) / recording.step
    found = []
    for stream in range(streams):
        begin = -stream * period / streams
        while begin < steps:
            for each in requests:
                step = int(begin + each.arrival / recording.step)
                if 0 <= step < steps:
                    found.append(_arrive(each, step, recording.step))
            begin += period
    return sorted(found, key=lambda each: each.step)


def _arrive(each: Recorded, step: int, length: float) -> Arrival:
    return Arrival(
        step, each.prompt, each.output, _in_steps(each.wait, length), _in_steps(each.lease, length)
    )


def _in_steps(time: int | None, length: float) -> int | None:
    return None if time is None else max(round(time / length), 1)


def _steps(closed: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the microseconds between two tokens, of each request that has two."""
    found = []
    for each in closed:
        body = each["requestClosed"]
        if body["outputTokens"] > 1:
            found.append((_us(each["time"]) - _us(body["firstTokenTime"])) / (body["outputTokens"] - 1))
    return found


def _arrival(event: Mapping[str, Any]) -> int:
    return _us(event["requestClosed"]["arrivalTime"])


def _us(time: str) -> int:
    """Return the microseconds of a time such as ``2026-11-24T21:28:33.351621997Z``."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * _US_PER_S + int(fraction.ljust(6, "0")[:6] or 0)


def _seconds(duration: str) -> int:
    """Return the microseconds of a duration such as ``0.040147650s``."""
    return round(float(duration.removesuffix("s")) * _US_PER_S)
