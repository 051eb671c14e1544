"""Registers ``ZmqECConnector`` with vLLM's factory, so that the plugin's users need no module path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.hooks import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME: Final = "ZmqECConnector"


class ZmqEcRegistration:
    """Registers the connector with ``ECConnectorFactory``; the connector is imported when it is used."""

    name = "zmq_ec_connector"
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self._registered = False

    def requires(self) -> Iterable[Requirement]:
        """Return the factory's method, and what tells a vLLM in which the connector's workers are heard."""
        from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
        from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

        return [
            Requirement(ECConnectorFactory, "register_connector", ("name", "module_path", "class_name")),
            Requirement(ECConnectorFactory, "_registry"),
            Requirement(ECConnectorBase, "take_unavailable_requests"),
        ]

    def install(self) -> None:
        """Register, unless a connector of that name is registered already."""
        from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

        if _NAME not in ECConnectorFactory._registry:
            ECConnectorFactory.register_connector(_NAME, "penstock.instrumentation.vllm.zmq_ec", _NAME)
            self._registered = True

    def uninstall(self) -> None:
        """Remove the registration, if :meth:`install` made it."""
        from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

        if self._registered:
            ECConnectorFactory._registry.pop(_NAME, None)
            self._registered = False
