"""Requirements of a hook: what the host's classes must have so that the hook fits."""

from __future__ import annotations

import dis
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Need(Protocol):
    """A requirement of any kind: :class:`Requirement`, :class:`AnyOf`, :class:`Extension` or :class:`InstanceState`."""

    def unmet(self) -> str:
        """Return why it is not met, in a few words; empty if it is."""
        ...


@dataclass(frozen=True)
class Part:
    """A detail of a hook, and what it needs beyond the hook: where that is missing, the hook works without the detail.

    Attributes:
        name: as in ``penstock_hook_installed{hook,part}``.
        lost: what is lost without it, in a user's words, behind "without:".
        needs: all of them, or the part is missing.

    """

    name: str
    lost: str
    needs: tuple[Need, ...]

    def missing(self) -> str:
        """Return what the host lacks for it, in a few words; empty for nothing."""
        return "; ".join(unmet for need in self.needs if (unmet := need.unmet()))


@dataclass(frozen=True)
class Requirement:
    """An attribute of the host, and the parameters with which the hook calls it.

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
class AnyOf:
    """Several ways to the same end: one of them is needed. The first is the newest vLLM's."""

    ways: tuple[Need, ...]

    def unmet(self) -> str:
        """Return why the first is not met if none is; else empty."""
        reasons = [way.unmet() for way in self.ways]
        return reasons[0] if all(reasons) else ""


@dataclass(frozen=True)
class Extension:
    """Methods of a host's class that a mixin overrides: each must accept every call that the host's own accepts.

    A host that passes an argument unknown to the mixin would get a TypeError of ours.

    Attributes:
        mixin: the class that goes in front; its own members (``_penstock…``) and those that the host lacks are not
            compared.
        owner: the host's class.

    """

    mixin: type
    owner: type

    def unmet(self) -> str:
        """Return which calls ours would not accept; empty if there is none."""
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

    Found in the constructors' bytecode, because a class does not list its objects' attributes.
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
    """Return the error of *ours* on the fullest call that *theirs* accepts, positional and by name; empty if it accepts both."""
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
