"""The base of what Penstock puts beside a connector of vLLM's that moves items ahead of scheduling, and of the hooks on its parts.

Such a connector is no ``EcLoader`` itself. Each of its requests has transfers of its own, so an item is given up for one request: another
one that needs the same item may have its transfer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from penstock.instrumentation.hooks import Swaps, registry
from penstock.instrumentation.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.instrumentation.hooks import Need
    from penstock.instrumentation.vllm.ec.protocol import EcFailure, EcListener
    from penstock.instrumentation.vllm.messages import ItemFailure
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests import Cause

_NOTHING: Final[Mapping[str, Cause]] = {}


@dataclass(frozen=True, slots=True)
class Loss:
    """An item that a connector can no longer obtain for a request; *failure* is the event, None if it is reported already."""

    cause: Cause
    failure: EcFailure | None = None


class LossDecider(Protocol):
    """Decides about items that a connector cannot obtain while it is asked about a request: the scheduler's controller."""

    def decide_loss(self, request: Any, item: str, cause: Cause) -> bool | None:
        """Return whether *request* encodes *item* here (True) or fails (False); None where vLLM's own behaviour stays."""
        ...

    def on_own_fallback(self, request: Any, item: str, cause: Cause) -> None:
        """Report that the connector itself has *request* encode *item* here."""
        ...


class RequestLoads(ABC):
    """The items that one connector obtains for its requests: an ``EcLoader``. On the scheduler's thread, :meth:`in_flight` on any.

    Attributes:
        load_failure_default: what the connector itself does about an item that it cannot obtain: ``recompute`` or ``fail``.
        place: where an item lies that the connector has when the scheduler asks; None if that is not known.

    """

    load_failure_default: str
    place: ClassVar[Peer | None] = None

    def __init__(self) -> None:
        self._observer: EcListener | None = None
        self._decider: LossDecider | None = None
        # By request. Bounded by the scheduler's own requests.
        self._without: dict[str, dict[str, Cause]] = {}

    # As EcLoader says.

    def observe(self, observer: EcListener) -> None:
        """Report to *observer* from now on."""
        self._observer = observer

    def take_failed_loads(self) -> list[EcFailure]:
        """Return nothing: a request that cannot have its items is reported by :meth:`losses`."""
        return []

    @abstractmethod
    def waits_for(self, item: str) -> bool:
        """Return whether the connector waits for *item*, for any request."""

    @abstractmethod
    def transfer_began(self, item: str) -> int | None:
        """Return when a transfer of *item* began (wall clock, ns), None while none has."""

    @abstractmethod
    def peer_of(self, item: str) -> Peer | None:
        """Return the peer that *item* comes from, as far as that is known."""

    def give_up(self, item: str) -> None:
        """Keep *item* for others: it is given up for a request, by :meth:`do_without`."""
        del item

    @abstractmethod
    def in_flight(self) -> list[tuple[Peer, int, int]]:
        """Return (peer, transfers of this process, the oldest one's start)."""

    # Of one request.

    def decide_by(self, decider: LossDecider) -> None:
        """Ask *decider* from now on."""
        self._decider = decider

    @abstractmethod
    def losses(self, request: Any, items: Collection[str]) -> dict[str, Loss]:
        """Return those of the *items* that the connector has given up for *request*, and why."""

    def do_without(self, request: Any, item: str, cause: Cause) -> None:
        """Have *request* encode *item* here, for as long as it lives."""
        self._without.setdefault(request.request_id, {})[item] = cause

    def without(self, request_id: str) -> Mapping[str, Cause]:
        """Return the items that a request encodes here, and why."""
        return self._without.get(request_id, _NOTHING)

    def can_load(self, item: str) -> bool:
        """Return whether *item*, which the connector says it has, is in the workers or comes with this step."""
        del item
        return True

    def on_worker_failures(self, failures: Iterable[ItemFailure]) -> None:
        """Record the loads that workers report as failed and that no request computed on."""
        del failures

    def on_finished(self, request_id: str) -> None:
        """Forget a request that has finished."""
        self._without.pop(request_id, None)


class PartHook:
    """Requires what mixins extend in the parts of a connector; it patches objects only.

    Attributes:
        name: as in ``penstock_hook_installed{hook}``.
        component: ``COMPONENT_*``.
        swaps: parts whose class was replaced.

    """

    def __init__(self, name: str, component: int, needs: Callable[[], Iterable[Need]]) -> None:
        """Require *needs*, which imports vLLM's classes when it is called."""
        self.name = name
        self.component = component
        self.swaps = Swaps()
        self._needs = needs

    def requires(self) -> Iterable[Need]:
        """Return what the mixins extend and read."""
        return self._needs()

    def install(self) -> None:
        """Do nothing: the connector's adapter instruments each part."""

    def uninstall(self) -> None:
        """Restore the classes of live parts."""
        self.swaps.restore()

    def fits(self) -> bool:
        """Register the hook, once; return whether its requirements are met and it is not disabled."""
        settings = runtime.settings
        return registry.install(self, settings.hooks_disabled if settings is not None else ())


class EcAdapter(Protocol):
    """What Penstock knows of one connector beyond vLLM's interface."""

    def matches(self, connector: Any) -> bool:
        """Return whether *connector* is of its kind."""
        ...

    def hooks(self) -> Iterable[PartHook]:
        """Return its hooks, for a survey."""
        ...

    def on_scheduler_side(self, connector: Any) -> RequestLoads | None:
        """Instrument the parts of a scheduler's *connector*; None if they do not fit."""
        ...

    def on_worker_side(self, config: Any, connector: Any, worker: Any) -> None:
        """Instrument the parts of a worker's *connector*; *config* is the ``VllmConfig``, *worker* its ``EcWorker``."""
        ...


def has_name(connector: Any, name: str) -> bool:
    """Return whether *connector* is of a class of that *name*, or derives from one; imports nothing."""
    return any(each.__name__ == name for each in type(connector).__mro__)
