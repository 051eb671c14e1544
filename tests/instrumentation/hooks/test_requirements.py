"""Requirements of hooks: attributes and parameters, overridden methods, attributes of objects."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.instrumentation.hooks.requirements import AnyOf, Extension, InstanceState, Requirement


class Host:
    """A class of vLLM's."""

    attribute = None

    def schedule(self, request: object, *, step: int = 0) -> None:
        """Schedule a request."""


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        (Requirement(Host, "schedule"), ""),
        (Requirement(Host, "schedule", ("request", "step")), ""),
        (Requirement(Host, "attribute"), ""),
        (Requirement(Host(), "schedule", ("request",)), ""),
        (Requirement(Host, "gone"), "Host.gone is missing"),
        (
            Requirement(Host, "schedule", ("request", "rank")),
            "Host.schedule has no parameter rank (it has self, request, step)",
        ),
        (Requirement(Host, "attribute", ("x",)), "Host.attribute has no signature"),
    ],
)
def test_requirements(requirement: Requirement, reason: str) -> None:
    """A requirement is met by name and parameters, or says what is missing."""
    assert requirement.unmet() == reason


def test_any_of() -> None:
    """One way is enough; of none, the newest vLLM's is named."""
    new, old, known = (Requirement(Host, name) for name in ("new", "old", "schedule"))
    assert AnyOf((new, known)).unmet() == ""
    assert AnyOf((known, old)).unmet() == ""
    assert AnyOf((new, old)).unmet() == "Host.new is missing"


class Before:
    """What goes in front of a host's class."""

    def fixed(self, request: Any) -> None:
        """Take just this."""

    def open(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Take whatever comes."""

    def _penstock_own(self) -> None: ...


def _fixed(self: Any, request: Any) -> None: ...


def _renamed(self: Any, req: Any) -> None: ...


def _longer(self: Any, request: Any, rank: int = 0) -> None: ...


def _named(self: Any, request: Any, *, rank: int = 0) -> None: ...


def _variadic(self: Any, request: Any, *more: Any) -> None: ...


def _catching(self: Any, request: Any, **more: Any) -> None: ...


def _shorter(self: Any) -> None: ...


_UNKNOWN = "Host.fixed is called in a way that Penstock does not know: "


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ({"fixed": _fixed}, ""),
        ({"open": _longer}, ""),
        ({"open": _named}, ""),
        ({"open": _variadic}, ""),
        ({"open": _catching}, ""),
        ({}, ""),
        ({"fixed": 1}, ""),
        ({"_penstock_own": _longer}, ""),
        ({"fixed": _longer}, _UNKNOWN + "too many positional arguments"),
        ({"fixed": _named}, _UNKNOWN + "got an unexpected keyword argument 'rank'"),
        ({"fixed": _variadic}, _UNKNOWN + "too many positional arguments"),
        ({"fixed": _catching}, _UNKNOWN + "got an unexpected keyword argument 'more'"),
        ({"fixed": _renamed}, _UNKNOWN + "missing a required argument: 'request'"),
        ({"fixed": _shorter}, _UNKNOWN + "missing a required argument: 'request'"),
    ],
)
def test_extensions(methods: dict[str, Any], reason: str) -> None:
    """An override must accept every call that the host's own accepts; methods that the host lacks are not compared."""
    assert Extension(Before, type("Host", (), methods)).unmet() == reason


def test_an_extension_in_parts() -> None:
    """Of a mixin made of several the method in front counts."""

    class Front(Before):
        def fixed(self, request: Any, *args: Any, **kwargs: Any) -> None: ...

    assert Extension(Front, type("Host", (), {"fixed": _longer})).unmet() == ""


class Constructed:
    """A class whose constructor sets an attribute."""

    of_class = 1

    def __init__(self) -> None:
        self.own: Any = object()


class Derived(Constructed):
    """A subclass whose constructor sets another."""

    def __init__(self) -> None:
        super().__init__()
        self.more = getattr(self.own.lost, "gone", 0)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (("own", "more", "of_class"), ""),
        ((), ""),
        (("own", "gone", "lost"), "Derived has no gone, lost"),
    ],
)
def test_state(attributes: tuple[str, ...], reason: str) -> None:
    """Attributes of the constructors count, those of a base included; the missing ones are named."""
    assert InstanceState(Derived, attributes).unmet() == reason
    assert not InstanceState(object, ()).unmet()
