"""The hook of the EC connector factory."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.hooks.registry import HookRegistry
from penstock.instrumentation.vllm.ec.hook import EcConnectorHook
from penstock.instrumentation.vllm.ec.protocol import EcLoader

from tests.support.ec.fake_ec import ToyLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeScheduler = Callable[..., Any]


def test_the_hook() -> None:
    """It fits this vLLM, keeps the connector's name, and gives its class back."""
    registry = HookRegistry()
    assert registry.install(EcConnectorHook())
    (state,) = registry.report()
    assert (state.name, state.installed, state.reason) == ("ec_connector", True, "")
    transfer = ECTransferConfig(
        ec_connector="ToyLoader", ec_role="ec_consumer", ec_connector_module_path="tests.support.ec.fake_ec"
    )
    config = SimpleNamespace(ec_transfer_config=transfer)
    connector: Any = ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)
    assert type(connector) is not ToyLoader
    assert (type(connector).__name__, isinstance(connector, ToyLoader)) == ("ToyLoader", True)
    assert isinstance(connector, EcLoader)
    # Without a scheduler of ours it answers as it would by itself.
    by_itself: Any = connector
    by_itself.store.add("a")
    assert (by_itself.has_cache_item("a"), by_itself.has_cache_item("b")) == (True, False)
    registry.uninstall("ec_connector")
    assert type(connector) is ToyLoader
    assert type(ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)) is ToyLoader
