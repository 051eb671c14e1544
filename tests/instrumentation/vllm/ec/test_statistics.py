"""vLLM's own ECConnectorStats beside Penstock's report: neither takes the other's place."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.messages.worker_report import EcReport

from tests.support.engine.schedulers import request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorStats
    from vllm.v1.outputs import ECConnectorOutput, ModelRunnerOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    MakeScheduler = Callable[..., Any]


class Stats(ECConnectorStats):
    """Counts."""

    def is_empty(self) -> bool:
        """Tell whether there is nothing."""
        return not self.data

    def aggregate(self, other: ECConnectorStats) -> ECConnectorStats:
        """Add another's counts."""
        names = {*self.data, *other.data}
        return Stats({name: self.data.get(name, 0) + other.data.get(name, 0) for name in names})


def test_they_reach_the_scheduler_statistics(
    make_ec_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's statistics travel beside our report, and the connector's own in the scheduler are added."""
    scheduler = make_ec_scheduler()
    monkeypatch.setattr(
        type(scheduler.ec_connector), "get_ec_connector_stats", lambda _self: Stats({"loads": 2})
    )
    scheduler.add_request(request("r"))
    scheduled = scheduler.schedule()
    moved = ECConnectorOutput(
        ec_connector_worker_meta=EcReport(inner="its own"), ec_connector_stats=Stats({"loads": 1})
    )
    output = ModelRunnerOutput(
        req_ids=["r"],
        req_id_to_index={"r": 0},
        sampled_token_ids=[[7]],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        ec_connector_output=moved,
    )
    (batch,) = scheduler.update_from_output(scheduled, output).values()
    assert batch.scheduler_stats.ec_connector_stats == {"loads": 3}
    assert moved.ec_connector_worker_meta == "its own"
