"""Patches and their undoing."""

from __future__ import annotations

from penstock.instrumentation.hooks.patch import Patch


class Patched:
    """Something of vLLM's with all kinds of methods."""

    @staticmethod
    def static(value: int) -> int:
        """Return what it is given."""
        return value

    @classmethod
    def of_class(cls) -> str:
        """Name the class."""
        return cls.__name__

    def plain(self) -> str:
        """Say something."""
        return "plain"


class Heir(Patched):
    """Inherits all."""


def test_patch() -> None:
    """Every kind of method is replaced as what it is, and put back as it was."""
    before = dict(vars(Patched))
    patch = Patch()
    patch.set(Patched, "static", lambda value: value + 1)
    patch.set(Patched, "of_class", classmethod(lambda _: "ours"))
    patch.set(Patched, "plain", lambda _: "ours")
    patch.set(Heir, "plain", lambda _: "heir's")
    assert (Patched().static(1), Patched.static(1), Patched.of_class(), Patched().plain()) == (
        2,
        2,
        "ours",
        "ours",
    )
    assert Heir().plain() == "heir's"
    patch.undo()
    assert {name: vars(Patched)[name] for name in ("static", "of_class", "plain")} == {
        name: before[name] for name in ("static", "of_class", "plain")
    }
    assert "plain" not in vars(Heir)


def test_patch_of_another_library_over_ours() -> None:
    """A later patch by other code stays."""
    patch, theirs, original = Patch(), lambda _: "theirs", vars(Patched)["plain"]
    patch.set(Patched, "plain", lambda _: "ours")
    Patched.plain = theirs  # type: ignore[method-assign]
    patch.undo()
    assert Patched().plain() == "theirs"
    Patched.plain = original  # type: ignore[method-assign]
