"""Label selectors, with Kubernetes' meaning and Kubernetes' short syntax."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from penstock.agent.model import EngineKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]

KEY_PATTERN = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,251}[A-Za-z0-9])?"
VALUE_PATTERN = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"

_EQUALS = re.compile(rf"(?P<key>{KEY_PATTERN})\s*(?P<op>==?|!=)\s*(?P<value>{VALUE_PATTERN})")
_SET = re.compile(rf"(?P<key>{KEY_PATTERN})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EXISTS = re.compile(rf"(?P<not>!?)\s*(?P<key>{KEY_PATTERN})")
# A comma inside parentheses belongs to its set.
_TERM = re.compile(r"(?:[^,()]|\([^()]*\))+")


@dataclass(frozen=True, slots=True)
class Target:
    """The properties of an engine that a selector matches.

    Attributes:
        labels: those of ``PENSTOCK_LABELS`` and the downward API, ``role`` among them.
        identity: as its agent gives it, where another process asks; empty where it follows from the rest.

    """

    key: EngineKey
    model: str
    labels: Mapping[str, str]
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a selector: ``tier in (a, b)``."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether *labels* satisfy the term; NotIn is true of a label that is absent."""
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        return (labels.get(self.key) in self.values) == (self.operator == "In")


MAX_GLOBS, MAX_GLOB = 64, 256
"""Of models, and of the characters of one: a long glob takes minutes to read."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which engines: every requirement holds, and any of the models and any of the keys fit.

    No models, and no keys, mean all of them.
    """

    requirements: tuple[Requirement, ...] = ()
    models: tuple[str, ...] = ()
    keys: frozenset[EngineKey] = frozenset()

    @property
    def everything(self) -> bool:
        """True if it selects every engine, present and future."""
        return not (self.requirements or self.models or self.keys)

    def matches(self, target: Target) -> bool:
        """Return whether *target* is selected."""
        return (
            all(requirement.matches(target.labels) for requirement in self.requirements)
            and (not self.models or any(fnmatchcase(target.model, glob) for glob in self.models))
            and (not self.keys or target.key in self.keys)
        )


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parse ``role=decode,tier in (a,b),!canary``; an empty text has no terms.

    Raises:
        ValueError: a term cannot be read; the text names it.

    """
    if not text.strip():
        return ()
    terms = _TERM.findall(text)
    if ",".join(terms) != text:
        raise ValueError(f"selector {text!r} cannot be read; write it like role=decode,tier in (a,b),!canary")
    return tuple(_term(term.strip()) for term in terms)


def format_labels(requirements: Iterable[Requirement]) -> str:
    """Format what :func:`parse_labels` parses."""
    return ",".join(map(_format, requirements))


def parse_key(text: str) -> EngineKey:
    """Parse an engine's key: ``0``, or ``decode/0`` if a pod has several servers.

    Raises:
        ValueError: the text names no engine.

    """
    server, _, engine = text.rpartition("/")
    if not engine:
        raise ValueError(f"engine {text!r} cannot be read; write its index (0) or server/index (decode/0)")
    return EngineKey(server, engine)


def no_engine(key: EngineKey, known: Iterable[EngineKey]) -> str:
    """Return the sentence for an unknown engine *key*, with similar ones among *known*."""
    known = sorted(known)
    of_server = [str(each) for each in known if each.server and str(key) == each.server]
    if of_server:
        return f"{str(key)!r} is a server; name one of its engines: {', '.join(of_server)}"
    close = get_close_matches(str(key), map(str, known))
    hint = f"did you mean {' or '.join(close)}?" if close else "'agentctl get engines' lists them"
    return f"there is no engine {str(key)!r}; {hint}"


def select(targets: Iterable[Target], selection: Selection) -> list[Target]:
    """Return the selected targets, ordered by key."""
    return sorted((target for target in targets if selection.matches(target)), key=lambda target: target.key)


def _format(requirement: Requirement) -> str:
    key, values = requirement.key, requirement.values
    if requirement.operator == "Exists":
        return key
    if requirement.operator == "DoesNotExist":
        return f"!{key}"
    if len(values) == 1:
        return f"{key}{'=' if requirement.operator == 'In' else '!='}{values[0]}"
    return f"{key} {'in' if requirement.operator == 'In' else 'notin'} ({','.join(values)})"


def _term(term: str) -> Requirement:
    if match := _EQUALS.fullmatch(term):
        operator: Operator = "NotIn" if match["op"] == "!=" else "In"
        return Requirement(match["key"], operator, (match["value"],))
    if match := _SET.fullmatch(term):
        values = tuple(value.strip() for value in match["values"].split(","))
        if all(re.fullmatch(VALUE_PATTERN, value) for value in values):
            return Requirement(match["key"], "In" if match["op"] == "in" else "NotIn", values)
    elif match := _EXISTS.fullmatch(term):
        return Requirement(match["key"], "DoesNotExist" if match["not"] else "Exists")
    raise ValueError(
        f"selector term {term!r} cannot be read; write key=value, key!=value, key in (a,b), key or !key"
    )
