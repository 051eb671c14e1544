"""CURVE from vLLM's configuration to the sockets of ``ZmqECConnector``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.ec.connectors import WIDTH, greet, output, run, save
from tests.support.ec.keys import make_keys
from tests.support.ec.rig import PATIENT, feature, request, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def curve(tmp_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of a producer and of a consumer that it allows."""
    producer, consumer = make_keys(tmp_path, "producer"), make_keys(tmp_path, "consumer")
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "consumer.key").write_bytes(consumer.public.read_bytes())
    return (
        {"curve_key_file": str(producer.secret), "curve_allowed_clients": str(tmp_path / "clients")},
        {"curve_key_file": str(consumer.secret), "curve_server_key_file": str(producer.public)},
    )


def test_curve_reaches_both_roles(make: Callable[..., Any], tmp_path: Path) -> None:
    """From vLLM's configuration to the sockets: an item arrives, and a consumer without keys gets none."""
    served, allowed = curve(tmp_path)
    producer = make("WORKER", "ec_producer", **served)
    sent = torch.randn(5, WIDTH)
    save(producer, "a", sent)
    addresses = {"producers": [producer._publisher.server.address], **PATIENT}
    scheduler = make("SCHEDULER", "ec_consumer", **addresses, **allowed)
    worker = make("WORKER", "ec_consumer", **allowed)
    greet(scheduler, worker)
    asked = request("r", feature("a", 5))
    wait_for(lambda: scheduler.ensure_cache_available(asked, 0))
    assert scheduler.has_cache_item("a")
    scheduler.update_state_after_alloc(asked, 0)
    cache: dict[str, torch.Tensor] = {}
    run(worker, scheduler.build_connector_meta(output()), cache)
    assert torch.equal(cache["a"], sent)

    stranger = make("SCHEDULER", "ec_consumer", **addresses)
    greet(stranger, worker)
    wait_for(lambda: stranger.ensure_cache_available(asked, 0))
    assert not stranger.has_cache_item("a")


@pytest.mark.parametrize(
    ("side", "role", "missing"),
    [
        ("WORKER", "ec_producer", "curve_allowed_clients"),
        ("SCHEDULER", "ec_consumer", "curve_server_key_file"),
        ("WORKER", "ec_both", "curve_allowed_clients"),
        ("SCHEDULER", "ec_both", "curve_server_key_file"),
    ],
)
def test_half_a_curve_configuration_ends_the_start(
    make: Callable[..., Any], tmp_path: Path, side: str, role: str, missing: str
) -> None:
    """An engine with a key never serves or fetches without CURVE."""
    own = make_keys(tmp_path, "own")
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        make(side, role, curve_key_file=str(own.secret))
