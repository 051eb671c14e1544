"""Hooks: what each needs, whether it is installed, and if not, why.

A hook that does not fit this vLLM version is left out with a reason; the rest work.
"""

from __future__ import annotations

import dis
import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock.instrumentation.core import guard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.proto.v1.common_pb2 import Component
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_REASON_MAX = 256


class Hook(Protocol):
    """One place where Penstock attaches to vLLM.

    Attributes:
        name: as in ``penstock_hook_installed{hook}`` and ``PENSTOCK_HOOKS_DISABLED``.
        component: ``COMPONENT_*``, the part it observes.

    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def component(self) -> int: ...  # noqa: D102

    def requires(self) -> Iterable[Need]:
        """Return what must be there; an ImportError or AttributeError counts as a requirement not met."""
        ...

    def install(self) -> None:
        """Attach. Called once until :meth:`uninstall`."""
        ...

    def uninstall(self) -> None:
        """Put everything back as it was before :meth:`install`."""
        ...


class Need(Protocol):
    """Something that a hook needs of the host: :class:`Requirement`, :class:`Extension` or :class:`InstanceState`."""

    def unmet(self) -> str:
        """Return why it is not met, in a few words; empty if it is."""
        ...


@dataclass(frozen=True)
class Requirement:
    """An attribute that a hook needs, and parameters by which it is called.

    Attributes:
        owner: a class, module or object.
        attribute: its name there.
        parameters: names that the callable must accept, in any order; ``self`` may be left out.

    """

    owner: Any
    attribute: str
    parameters: tuple[str, ...] = ()

    def unmet(self) -> str:
        """Return why it is not met, in a few words; empty if it is."""
        place = f"{getattr(self.owner, '__qualname__', None) or getattr(self.owner, '__name__', repr(self.owner))}"
        place = f"{place}.{self.attribute}"
        found = inspect.getattr_static(self.owner, self.attribute, None)
        if found is None and not hasattr(self.owner, self.attribute):
            return f"{place} is missing"
        if not self.parameters:
            return ""
        try:
            accepted = inspect.signature(getattr(self.owner, self.attribute)).parameters
        except (TypeError, ValueError):
            return f"{place} has no signature"
        missing = [name for name in self.parameters if name not in accepted]
        if missing:
            return f"{place} has no parameter {', '.join(missing)} (it has {', '.join(accepted)})"
        return ""


@dataclass(frozen=True)
class Extension:
    """Methods of a host's class that a mixin extends: each must take all that the host's own takes.

    A host that calls one with an argument more than the mixin knows would get a TypeError of ours.

    Attributes:
        mixin: the class that goes in front; what it has of its own (``_penstock…``) and what the host lacks is left out.
        owner: the host's class.

    """

    mixin: type
    owner: type

    def unmet(self) -> str:
        """Return which calls ours would not take; empty if there is none."""
        found = [
            f"{self.owner.__qualname__}.{name} is called in a way that Penstock does not know: {refused}"
            for name, ours in self._methods().items()
            if (refused := _refused(ours, getattr(self.owner, name, None)))
        ]
        return "; ".join(found)

    def _methods(self) -> dict[str, Callable[..., Any]]:
        return {
            name: method
            for each in reversed(self.mixin.__mro__[:-1])
            for name, method in vars(each).items()
            if inspect.isfunction(method) and not name.startswith(("__", "_penstock"))
        }


@dataclass(frozen=True)
class InstanceState:
    """Attributes that objects of a class have from their constructor on.

    Read off the constructors' code, because a class does not know its objects' attributes.
    """

    owner: type
    attributes: tuple[str, ...]

    def unmet(self) -> str:
        """Return which are not set; empty if all are."""
        constructors = (vars(each).get("__init__") for each in self.owner.__mro__)
        known = {
            step.argval
            for each in constructors
            if inspect.isfunction(each)
            for step in dis.get_instructions(each)
            if step.opname == "STORE_ATTR"
        }
        missing = [name for name in self.attributes if name not in known and not hasattr(self.owner, name)]
        return f"{self.owner.__qualname__} has no {', '.join(missing)}" if missing else ""


def _refused(ours: Callable[..., Any], theirs: Any) -> str:
    """Return what *ours* would say to the fullest call that *theirs* takes, by place and by name; empty if it takes both."""
    try:
        parameters = inspect.signature(theirs).parameters.values()
    except (TypeError, ValueError):
        return ""  # no method of the host, or one without a signature
    mine = inspect.signature(ours)
    for by_name in (False, True):
        places: list[str] = []
        names: dict[str, str] = {}
        for parameter in parameters:
            keyword = parameter.kind in {parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD}
            # The first is the object itself.
            if keyword or (by_name and places and parameter.kind is parameter.POSITIONAL_OR_KEYWORD):
                names[parameter.name] = ""
            elif not (by_name and parameter.kind is parameter.VAR_POSITIONAL):
                places.append("")
        try:
            mine.bind(*places, **names)
        except TypeError as error:
            return str(error)
    return ""


@dataclass(frozen=True)
class HookState:
    """A hook as the snapshot reports it; *reason* is empty if it is installed."""

    name: str
    component: int
    installed: bool
    reason: str = ""


class HookRegistry:
    """All hooks of the process. Every method is idempotent and never raises."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._installed: dict[str, Hook] = {}
        self._states: dict[str, HookState] = {}

    def install(self, hook: Hook, disabled: Collection[str] = ()) -> bool:
        """Install *hook* unless it is, or is disabled, or does not fit; tell whether it is installed now."""
        with self._lock:
            if hook.name in self._installed:
                return True
            reason = "disabled by PENSTOCK_HOOKS_DISABLED" if hook.name in disabled else self._attach(hook)
            if not reason:
                self._installed[hook.name] = hook
            self._states[hook.name] = HookState(hook.name, hook.component, not reason, reason[:_REASON_MAX])
            return not reason

    def uninstall(self, name: str) -> None:
        """Take the hook of that name out, if it is installed."""
        with self._lock:
            hook = self._installed.pop(name, None)
            if hook is None:
                return
            self._states[name] = HookState(name, hook.component, installed=False, reason="uninstalled")
            with guard(f"hook.{name}"):
                hook.uninstall()

    def uninstall_all(self) -> None:
        """Take all hooks out, the last installed first."""
        for name in reversed(list(self._installed)):
            self.uninstall(name)

    def report(self) -> tuple[HookState, ...]:
        """Return the state of every hook that was ever to be installed, by name."""
        return tuple(sorted(self._states.copy().values(), key=lambda state: state.name))

    def fill(self, snapshot: Snapshot) -> None:
        """Add the report to *snapshot*."""
        for state in self.report():
            snapshot.hooks.add(
                name=state.name,
                component=cast("Component", state.component),
                installed=state.installed,
                reason=state.reason,
            )

    def reset_lock(self) -> None:
        """Make the lock anew: for a child after a fork, which inherits the hooks as they are."""
        self._lock = threading.RLock()

    @staticmethod
    def _attach(hook: Hook) -> str:
        """Install and return the reason why not; empty for success."""
        reason = misfit(hook)
        if reason:
            return reason
        try:
            hook.install()
        except Exception as error:  # noqa: BLE001  (a hook that fails leaves the rest at work)
            guard.record(f"hook.{hook.name}", error)
            with guard(f"hook.{hook.name}"):
                hook.uninstall()
            return f"{type(error).__name__}: {error}"
        return ""


def misfit(hook: Hook) -> str:
    """Return why *hook* does not fit this vLLM, empty if it does; installs nothing and never raises."""
    try:
        return "; ".join(unmet for need in hook.requires() if (unmet := need.unmet()))
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  (whatever vLLM's modules raise on import)
        guard.record(f"hook.{hook.name}", error)
        return f"{type(error).__name__}: {error}"


registry = HookRegistry()
