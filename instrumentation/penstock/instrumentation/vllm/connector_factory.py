"""What the hooks of vLLM's two connector factories share: the wrapper of ``create_connector`` and its removal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks import Patch, Swaps
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.naming import engine_identity


class ConnectorFactoryHook(ABC):
    """Wraps ``create_connector`` of a connector factory. A subclass instruments the connectors that it returns.

    Attributes:
        name: of the hook, and of the guard that contains its errors.
        patch: what was replaced in vLLM; :meth:`uninstall` restores it.
        swaps: connectors whose class was replaced; :meth:`uninstall` restores it.

    """

    name: str
    component = c.COMPONENT_WORKER

    def __init__(self) -> None:
        self.swaps = Swaps()
        self.patch = Patch()

    @abstractmethod
    def factory(self) -> Any:
        """Import and return vLLM's factory."""

    @abstractmethod
    def on_scheduler_side(self, connector: Any) -> None:
        """Instrument a connector of the scheduler."""

    @abstractmethod
    def on_worker_side(self, config: Any, connector: Any) -> None:
        """Instrument a connector of a worker; *config* is the ``VllmConfig``."""

    def install(self) -> None:
        """Patch the factory."""
        factory = self.factory()
        original = factory.create_connector
        contain = guard(self.name)

        def create_connector(_cls: type, config: Any, role: Any, *args: Any, **kwargs: Any) -> Any:
            connector = original(config, role, *args, **kwargs)
            with contain:
                if role.name == "WORKER":
                    self.on_worker_side(config, connector)
                    engine_identity.identify_worker(config)
                    runtime.start()
                else:
                    self.on_scheduler_side(connector)
            return connector

        self.patch.set(factory, "create_connector", classmethod(create_connector))

    def uninstall(self) -> None:
        """Restore the factory and the classes of live connectors."""
        self.patch.undo()
        self.swaps.restore()
