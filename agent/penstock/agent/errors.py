"""All errors of the agent, and what others' errors say, as it is quoted to a person.

A message of an error says what was wrong, with which value, and what to do.
"""

from __future__ import annotations

import re
from typing import Final


class PenstockError(Exception):
    """Base of all errors that are shown to users."""


class ConfigError(PenstockError):
    """A flag, a variable or a file of the configuration is wrong; exit code 2."""


class StateError(PenstockError):
    """The state directory cannot be used."""


class UnwritableError(StateError):
    """The state directory exists and cannot be written."""


class TakenError(StateError):
    """Another agent owns the state directory."""


class DamageError(StateError):
    """The journal is damaged, or its writer has ended, while the agent runs: the next start recovers.

    What is damaged is set aside then.
    """


class UncountableError(StateError):
    """Entries of the log cannot be counted: a bug of the agent."""


class ManifestError(PenstockError):
    """A policy manifest is wrong.

    Attributes:
        field: path of the field in the manifest (``spec.kvLoadFailure.action``); empty for the whole.
        location: the same, part by part: names, and numbers of list items.

    """

    def __init__(self, message: str, field: str = "", location: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.field = field
        self.location = location


class ConflictError(PenstockError):
    """The policy's generation moved on (compare-and-set)."""


class OwnedError(PenstockError):
    """The policy belongs to a file, which is the place to change it."""


class AccessError(PenstockError):
    """The caller lacks permission."""


class HeldError(AccessError):
    """Another process speaks for this engine, or has this epoch."""


class NotFoundError(PenstockError):
    """There is no such policy, engine or request."""


class ImpossibleError(PenstockError):
    """The request is valid but cannot be carried out in the present state."""


class ContractError(PenstockError):
    """A message of a peer breaks the wire contract; it must not be sent again."""


class GapError(PenstockError):
    """A batch came out of order; the sender has to reconnect and resend."""


class FullError(PenstockError):
    """A limit is reached; the sender may retry later."""


class LimitError(FullError):
    """A limit of what clients may hold is reached.

    Attributes:
        limit: which one, in a word, as metrics count it.

    """

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class FilesError(PenstockError):
    """The files are refused, as a whole; the sentence names file, line and field."""


class BundleError(PenstockError):
    """A file is no bundle, or cannot be used as one; the sentence says what is wrong with it."""


class ClusterError(PenstockError):
    """A Kubernetes API server does not answer as it should.

    Attributes:
        outdated: whether what is known of it is too old, so that all has to be listed again.
        retry_after: the least seconds until the next attempt.

    """

    def __init__(self, message: str, *, outdated: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.outdated = outdated
        self.retry_after = retry_after


# The mismatch of compatibility hashes of vLLM 0.32 ends so: blocks would then be read as what they are not.
_ADVICE: Final = re.compile(r"\s*Disable this check using\b.*", re.DOTALL)


def without_advice(text: str) -> str:
    """Return an error's *text* without vLLM's advice to switch its check of compatibility off."""
    return _ADVICE.sub("", text)


def in_one_line(text: str, most: int) -> str:
    """Return an error's *text* in one line of at most *most* characters, those that do not print escaped.

    What is longer loses its middle: the end says what to do.
    """
    kept = most // 2
    line = " ".join(text.split())
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return shown if len(shown) <= most else f"{shown[: kept - 3]} … {shown[kept - most :]}"
