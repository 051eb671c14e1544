"""Words of explanations: peers, channels, durations, sizes. Pure."""

from __future__ import annotations

from penstock.agent import limits
from penstock.agent.badness import NO_SERVERS
from penstock.agent.traces.spans import attributes
from penstock.proto.v1 import common_pb2

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def channel(number: int) -> str:
    """Return the name of a channel."""
    return (attributes.enum_word(common_pb2.Channel, number) or "remote").upper() if number else "remote"


def peer(of: common_pb2.Peer) -> str:
    """Return a peer's address, or what it is if it has none."""
    return NO_SERVERS.get(of.address or "unknown", of.address)


def words(mode: int, error_type: int) -> str:
    """Return a failure's mode and error type."""
    found = (
        attributes.enum_word(common_pb2.FailureMode, mode),
        attributes.enum_word(common_pb2.ErrorType, error_type),
    )
    return ", ".join(filter(None, found)) or "no cause given"


def counted(number: int, noun: str) -> str:
    """Return ``1 block``, ``4,096 tokens``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(nano: int) -> str:
    """Return a duration: ``12.9 s``, ``54 ms``."""
    seconds = attributes.seconds(max(nano, 0))
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def took(nano: int, unseen_nano: int) -> str:
    """Return how long a transfer took, and if it may have been much shorter: ``1.1 s (it ended up to 990 ms before that was seen)``."""
    late = limits.is_loose(nano - unseen_nano, nano)
    return duration(nano) + (
        f" (it ended up to {duration(unseen_nano)} before that was seen)" if late else ""
    )


def size(number: int) -> str:
    """Return a number of bytes: ``1.5 MiB``."""
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004  (the step of the binary units)
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
