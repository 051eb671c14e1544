"""The scenarios: which engine's recorded traffic is played, with which connector, and what becomes of it.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from benchmarks.replay.traffic import Arrival, Recording, timetable

if TYPE_CHECKING:
    from collections.abc import Mapping

STEPS: Final = 300
"""Steps of one play in which requests arrive; their ends come later."""

_STREAMS: Final = 16
"""Recordings at once, each with one request at a time: as many as the most of the engines' benchmark over NIXL."""

_DECODING: Final = 8
_SHORT: Final = 4
_PICTURE: Final = 64
_NIXL: Final = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of engine under one kind of traffic.

    Attributes:
        name: a group of rows.
        server: whose requests of the recording arrive; empty where none does after the beginning.
        kind: what is done with the recorded ones; names the scenario in labels.
        transfer: the engine's KVTransferConfig.

    """

    name: str
    server: Literal["", "prefill", "decode"]
    kind: Literal["decode", "short", "load", "lease", "picture"]
    transfer: Mapping[str, Any] = field(default_factory=dict)

    def arrivals(self, recordings: Mapping[str, Recording]) -> list[Arrival]:
        """Return what arrives."""
        if not self.server:
            return [Arrival(0, 8, STEPS + 2) for _ in range(_DECODING)]
        found = timetable(recordings[self.server], streams=_STREAMS, steps=STEPS)
        if self.kind == "short":
            return [replace(each, output=min(each.output, _SHORT), lease=None) for each in found]
        if self.kind == "picture":
            return [replace(each, prompt=max(each.prompt, _PICTURE), lease=None) for each in found]
        return found


SCENARIOS: Final = (
    Scenario("Decode only", "", "decode"),
    Scenario("Prefill-heavy: requests come and go", "prefill", "short"),
    Scenario("Decode side over NIXL", "decode", "load", {**_NIXL, "kv_role": "kv_consumer"}),
    Scenario("Prefill side over NIXL", "prefill", "lease", {**_NIXL, "kv_role": "kv_producer"}),
    Scenario("Encoder → language", "decode", "picture"),
)
