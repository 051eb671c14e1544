"""What a child of a fork has of its parent's gRPC, and must never let go of.

The destructor of a call takes the call's lock, and that of a channel the core's. Where a thread that the child does not
have held it at the fork, the child waits for ever. What the parent has closed is no exception: a call that has failed
is in a cycle with its traceback, and the collector of a child may be the one that finds it.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

_alive: Final[WeakValueDictionary[int, object]] = WeakValueDictionary()


def note_grpc_object(thing: object) -> None:
    """Note a call or a channel for :func:`grpc_objects`, as long as it lives. From any thread."""
    _alive[id(thing)] = thing


def grpc_objects() -> list[object]:
    """Return the calls and channels of this process that are alive, with those that only the collector would find."""
    return [found for reference in _alive.valuerefs() if (found := reference()) is not None]
