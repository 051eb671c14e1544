"""What the feed for routers is made of. Later versions add fields."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

VERSION: Final = "v1"
MAX_ROWS: Final = 2_000
"""Maximum rows, and as many pairs."""
MAX_READERS: Final = 64
"""Maximum rows of one endpoint."""
MAX_MISSING: Final = 20
"""Maximum agents that are named as missing."""

State: TypeAlias = Literal["ok", "unknown", "slow", "failing", "quarantined", "incompatible", "unreachable"]
Confidence: TypeAlias = Literal["possible", "likely", "certain"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Side(_Part):
    """An engine: one end of a pair."""

    engine: str | None = Field(description="Its name, as agentctl has it; null where it is not known.")
    address: str | None = Field(
        description="host:port where others read its blocks, which is not that of its API; null where it is not known."
    )


class FeedRow(_Part):
    """One source as one reader sees it."""

    reader: Side
    source: Side
    state: State = Field(description="What a router goes by.")
    condition: str = Field(
        description="The same in the words of 'agentctl get peers', which has more of them."
    )
    since: str | None = Field(description="Since when, RFC 3339; null where it is not known.")
    until: str | None = Field(description="End of a quarantine, RFC 3339; null where it is not known.")
    share: float | None = Field(
        ge=0,
        le=1,
        description="Failed loads of the last minute, of these and the transfers that succeeded; null without any.",
    )
    why: str = Field(description="A sentence for people; empty for ok.")
    confidence: Confidence | None = Field(
        description="Of the diagnosis; null where the state is what the engine itself has counted."
    )


class FeedEndpoint(_Part):
    """One source over all its readers."""

    source: Side
    state: State = Field(
        description="That of most readers that have read it lately, the worse of two; unknown where none has."
    )
    agree: int = Field(ge=0, description="Readers with that state, of readLately.")
    read_lately: int = Field(ge=0, description="Readers whose state is not unknown.")
    states: dict[State, int] = Field(description="Readers by state, unknown included.")
    readers: list[FeedRow] = Field(max_length=MAX_READERS, description="The worst first.")


class Avoided(_Part):
    """A pair that must not be formed, either way round."""

    reader: Side
    source: Side
    why: str = Field(description="A sentence for people.")


class Feed(_Part):
    """What both kinds have."""

    version: Literal["v1"] = Field(description="It changes when a field gets another meaning or goes.")
    generated: str = Field(
        description="Since when the content is as it is, RFC 3339; the header Age has its age."
    )
    truncated: bool = Field(description="Something is left out; what is left out is not known to be ok.")
    left_out: int = Field(ge=0, description="Rows and pairs that are left out, the least bad ones.")


class AgentFeed(Feed):
    """What an agent says of the peers of its engines."""

    kind: Literal["agent"]
    peers: list[FeedRow] = Field(max_length=MAX_ROWS, description="The worst first.")


class RelayFeed(Feed):
    """What a relay says of all endpoints of its fleet."""

    kind: Literal["relay"]
    endpoints: list[FeedEndpoint] = Field(max_length=MAX_ROWS, description="The worst first.")
    pairs_to_avoid: list[Avoided] = Field(max_length=MAX_ROWS, description="The worst first.")
    missing: list[str] = Field(
        max_length=MAX_MISSING + 1, description="Agents that have not answered: their readers are not in it."
    )
