"""Who may take a lease, and how long its holder may be sure of it. Pure: times are the caller's monotonic seconds.

Clocks of two machines are never compared. A holder counts from before it sends a renewal; the others count from when
they first see it, which is later. So a holder ends before another may begin, whatever wall clocks say.
"""

from __future__ import annotations

from dataclasses import dataclass

# A holder gives up after this part of the lease's duration.
_SURE = 2 / 3


@dataclass(frozen=True, slots=True)
class LeaseWord:
    """What the lease says.

    Attributes:
        holder: its name; empty if the lease is absent or was given back.
        duration: for how long it is valid after each renewal, seconds; 0 if it was given back.
        version: changes with each renewal; empty if the lease is absent.

    """

    holder: str
    duration: float
    version: str

    @property
    def given_back(self) -> bool:
        """Whether its last holder wrote that it holds it no more."""
        return bool(self.version) and not self.holder and not self.duration


class Tenure:
    """What one relay knows of a lease."""

    def __init__(self, name: str, duration: float) -> None:
        """Know nothing yet.

        Args:
            name: of this holder, no other's ever.
            duration: of its own renewals, seconds.

        """
        self._name = name
        self._duration = duration
        self._seen: tuple[LeaseWord, float] | None = None
        self._sure_until = float("-inf")

    def see(self, word: LeaseWord, now: float) -> None:
        """Note what the lease says at *now*; another holder ends one's own tenure."""
        if self._seen is None or self._seen[0] != word:
            self._seen = (word, now)
        if word.holder != self._name:
            self.lose()

    def may_take(self, now: float) -> bool:
        """Return whether to write one's own name at the version that was seen last.

        An absent lease is waited for as well: it may have been deleted under its holder.
        """
        if self._seen is None:
            return False
        word, since = self._seen
        free = word.given_back or word.holder == self._name
        return free or now - since >= max(word.duration, self._duration)

    def renewed(self, version: str, asked: float) -> None:
        """Note that the lease took one's own name; *asked*: when the request was sent."""
        self._seen = (LeaseWord(self._name, self._duration, version), asked)
        self._sure_until = asked + self._duration * _SURE

    def lose(self) -> None:
        """Note that the lease is another's."""
        self._sure_until = float("-inf")

    def held(self, now: float) -> bool:
        """Return whether no other relay can have the lease."""
        return now < self._sure_until
