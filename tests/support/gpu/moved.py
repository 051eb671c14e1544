"""What a server has moved so far, as the agent counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from demo.common.steps import until

if TYPE_CHECKING:
    from tests.support.engine.bench import AgentBench


@dataclass(frozen=True, slots=True)
class Moved:
    """Good transfers of a channel, received or loaded.

    Attributes:
        duration: of all of them, in seconds.

    """

    transfers: float
    bytes: float
    duration: float

    @classmethod
    def until_now(cls, bench: AgentBench, channel: str) -> Self:
        """Return what *bench*'s server has moved on a channel."""
        return cls(
            bench.value("penstock_transfers_total", channel=channel, direction="receive", result="ok"),
            bench.value("penstock_transfer_size_bytes_sum", channel=channel, direction="receive"),
            bench.value("penstock_transfer_duration_seconds_sum", channel=channel),
        )

    def since(self, before: Moved) -> Moved:
        """Return what was moved after *before*."""
        return Moved(
            self.transfers - before.transfers, self.bytes - before.bytes, self.duration - before.duration
        )

    @classmethod
    def wait(cls, bench: AgentBench, channel: str, before: Moved, transfers: int) -> Moved:
        """Wait for this number of transfers after *before*, and return all that was moved after it."""
        until(
            lambda: cls.until_now(bench, channel).since(before).transfers >= transfers,
            f"penstock_transfers_total does not count {transfers} transfers",
        )
        return cls.until_now(bench, channel).since(before)

    def __str__(self) -> str:
        """Return it as a figure."""
        each = max(self.transfers, 1)
        return (
            f"{self.transfers:.0f} transfers, {self.bytes / each:,.0f} bytes and "
            f"{self.duration / each * 1e3:.2f} ms each"
        )
