"""What ``ZmqECConnector`` tells vLLM's own statistics: its log line "EC Transfer metrics", and who else reads them."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Final

from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats

_COUNTS: Final = ("num_failed_transfers", "num_probe_hits", "num_probe_misses", "num_failed_probes")
_SAMPLES: Final = ("transfer_duration", "bytes_transferred")


class ZmqECConnectorStats(ECConnectorStats):  # type: ignore[misc]  # Any, without vLLM
    """Seconds and bytes of each transfer that brought its item, and counts of what did not.

    Its *data* travels as it is from the scheduler to vLLM's loggers: lists of numbers and numbers.
    """

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        """Hold *data*; what is missing in it is nothing."""
        super().__init__(data={})
        self.reset()
        self.data.update(data or {})

    def reset(self) -> None:
        """Forget all."""
        self.data: dict[str, Any] = {name: [] for name in _SAMPLES} | dict.fromkeys(_COUNTS, 0)

    def is_empty(self) -> bool:
        """Return whether nothing was moved or asked."""
        return not any(self.data.values())

    def aggregate(self, other: ECConnectorStats) -> ZmqECConnectorStats:
        """Add what *other* holds."""
        for name in (*_SAMPLES, *_COUNTS):
            self.data[name] = self.data[name] + other.data.get(name, [] if name in _SAMPLES else 0)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return one interval in the words of vLLM's NIXL and Mooncake statistics."""
        seconds, sizes = self.data["transfer_duration"], self.data["bytes_transferred"]
        total, megabytes = sum(seconds), sum(sizes) / 2**20
        return {
            "Num successful transfers": len(seconds),
            "Avg xfer time (ms)": round(fmean(seconds) * 1e3, 3) if seconds else 0,
            "Avg MB per transfer": round(megabytes / len(sizes), 3) if sizes else 0,
            "Throughput (MB/s)": round(megabytes / total, 3) if total > 0 else 0,
            "Num failed transfers": self.data["num_failed_transfers"],
            "Num probe hits": self.data["num_probe_hits"],
            "Num probe misses": self.data["num_probe_misses"],
            "Num failed probes": self.data["num_failed_probes"],
        }
