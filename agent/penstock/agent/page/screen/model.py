"""The first screen as values, and the answers that it is made from; docs/reference/page.md says what they promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.proto.v1 import admin_pb2 as admin


@dataclass(frozen=True, slots=True)
class CauseEvidence:
    """A fact, and the same of the time before; empty where there is nothing to compare."""

    fact: str
    before: str


@dataclass(frozen=True, slots=True)
class ShownCause:
    """A cause of what is wrong, as ``agentctl diagnose`` says it."""

    kind: str
    sentence: str
    confidence: str
    engines: tuple[str, ...]
    peer: str
    evidence: tuple[CauseEvidence, ...]
    alternatives: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """What is wrong, in a sentence, and its causes.

    Attributes:
        state: ``ok``, ``causes`` or ``unknown``.
        computed: milliseconds since 1970; 0 before the first answer.
        left_out: how many causes are not among *causes*.

    """

    state: str
    sentence: str
    command: str
    computed: float
    causes: tuple[ShownCause, ...] = ()
    looked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Banner:
    """Something that changes what the rest means: a pause, a drill, an engine that is away.

    Attributes:
        left_out: how many banners this one counts, because they are not shown; 0 for all but the last.

    """

    kind: str
    severity: str
    sentence: str
    command: str
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class PeerCell:
    """One peer as one engine sees it; durations in seconds, None where they are not known."""

    engine: str
    condition: str
    text: str
    reason: str
    failures_last_minute: int
    p99: float | None
    p99_before: float | None
    in_flight: int
    deferred: int
    command: str


@dataclass(frozen=True, slots=True)
class PeerTableRow:
    """One peer, with a cell for each engine of the table."""

    peer: str
    address: str
    worst: str
    command: str
    cells: tuple[PeerCell, ...]


@dataclass(frozen=True, slots=True)
class Peers:
    """The worst peers by the worst engines; of how many is None where that is not known, as at a relay."""

    engines: tuple[str, ...]
    rows: tuple[PeerTableRow, ...]
    total: int | None
    left_out: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A request that waits now.

    Attributes:
        since: milliseconds since 1970.
        request_id: the id itself where *request* shows it otherwise, for addresses only; empty elsewhere.

    """

    request: str
    engine: str
    peer: str
    reason: str
    since: float
    sentence: str
    command: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Waits:
    """The requests that have waited longest."""

    rows: tuple[WaitRow, ...]
    total: int
    unnamed: int
    sentence: str


@dataclass(frozen=True, slots=True)
class PolicyField:
    """A field of the policy that engines are to have; *engine_keys* names the first of them."""

    field: str
    value: str
    policy: str
    author: str
    changed: float | None
    engines: int
    engine_keys: tuple[str, ...]
    in_force: bool
    command: str


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """What is in force, field by field; *total* counts the fields of the policies that were looked up, with those left out."""

    rows: tuple[PolicyField, ...]
    total: int
    sentence: str


@dataclass(frozen=True, slots=True)
class EngineTableRow:
    """An engine; *last_seen*: milliseconds since 1970, None if it was never seen."""

    key: str
    role: str
    model: str
    connected: bool
    last_seen: float | None
    policy: str
    sentence: str
    command: str


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines, those in trouble first."""

    rows: tuple[EngineTableRow, ...]
    total: int
    left_out: int


@dataclass(frozen=True, slots=True)
class Screen:
    """The first screen.

    Attributes:
        now: the server's clock, milliseconds since 1970.
        data_time: when the oldest of the answers that it shows was asked for.

    """

    now: float
    data_time: float
    verdict: ShownVerdict
    banners: tuple[Banner, ...]
    peers: Peers
    waits: Waits
    policy: PolicyTable
    engines: Engines


@dataclass(frozen=True, slots=True)
class ScreenAnswers:
    """The last answer to each question; None before the first.

    Attributes:
        now: seconds since the epoch.
        data_time: when the oldest of the answers about engines, peers and requests was asked for, seconds; 0 for never.
        diagnosed: when the diagnosis was asked for, seconds.
        effective: the merged policy by the hash that engines are to have.
        since: seconds that the diagnosis is about; None for those of ``agentctl diagnose``.
        trouble: why the admin service does not answer; empty while it does.

    """

    now: float
    data_time: float = 0.0
    diagnosed: float = 0.0
    status: admin.AgentStatus | None = None
    engines: admin.ListEnginesResponse | None = None
    peers: admin.ListPeersResponse | None = None
    waits: admin.ListRequestsResponse | None = None
    diagnosis: admin.Diagnosis | None = None
    drills: admin.ListDrillsResponse | None = None
    quarantines: admin.ListQuarantinesResponse | None = None
    rollouts: admin.ListPolicyRolloutsResponse | None = None
    policies: admin.ListPoliciesResponse | None = None
    effective: Mapping[str, admin.EffectivePolicy] = field(default_factory=dict)
    coverage: admin.RelayCoverage | None = None
    since: float | None = None
    trouble: str = ""
