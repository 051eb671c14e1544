"""What rules read of the log: one record an event, without what no rule needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.agent.batch import GateTimes
    from penstock.agent.model import EngineKey


class Failure(NamedTuple):
    """A failed attempt; numbers of the wire's enums.

    Attributes:
        time: nanoseconds, by the agent's clock as far as the offset is known; so in all records.
        caused_by: the peer whose trouble it fell victim to; empty for none.
        factors: that differ, of an incompatible handshake.

    """

    time: int
    key: EngineKey
    request_id: str
    channel: int
    mode: int
    error_type: int
    peer: str
    caused_by: str
    factors: tuple[str, ...]
    text: str
    rehearsal: bool


class LoadEnd(NamedTuple):
    """What was done for a request whose load failed."""

    time: int
    key: EngineKey
    request_id: str
    channel: int
    outcome: int
    decided_by: int
    mode: int
    error_type: int
    peer: str
    tokens: int
    policy_hash: str
    rehearsal: bool


class Wait(NamedTuple):
    """A deferral that has ended; ``seconds`` is 0 if its start is not known."""

    time: int
    key: EngineKey
    request_id: str
    reason: int
    peer: str
    ending: int
    seconds: float


class Delay(NamedTuple):
    """A transfer that another peer's trouble held up."""

    time: int
    key: EngineKey
    request_id: str
    peer: str
    caused_by: str
    seconds: float


class LeaseEnd(NamedTuple):
    """Blocks that were kept for a reader and let go."""

    time: int
    key: EngineKey
    request_id: str
    ending: int
    blocks: int
    seconds: float


class Rebalance(NamedTuple):
    """A rebalance of experts on one rank.

    Attributes:
        start: nanoseconds, by the agent's clock as far as the offset is known.
        step: of the engine; 0 for unknown.

    """

    time: int
    key: EngineKey
    ok: bool
    pause: float
    seconds: float
    text: str
    rank: int
    model: str
    step: int
    start: int


class Sleep(NamedTuple):
    """A worker had taken its KV caches from its connector since *since*, nanoseconds, and gave them back at *time*."""

    time: int
    key: EngineKey
    since: int


class Loss(NamedTuple):
    """A process that vanished without a goodbye."""

    time: int
    key: EngineKey
    process: str
    role: str


class Closed(NamedTuple):
    """A request that left the scheduler.

    Attributes:
        first_token: seconds from its arrival; 0 for none.
        gates: how long it was at each gate; None where its engine does not report it.

    """

    time: int
    key: EngineKey
    request_id: str
    kv_role: int
    peer: str
    first_token: float
    prompt_tokens: int
    finish_reason: str
    gates: GateTimes | None = None


class PolicyRefusal(NamedTuple):
    """A policy that an engine refused."""

    time: int
    key: EngineKey
    policy_hash: str
    error: str


class Pinning(NamedTuple):
    """A transfer that was given up, and whose blocks could not be released, or now are."""

    time: int
    key: EngineKey
    peer: str
    blocks: int
    released: bool
