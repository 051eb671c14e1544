"""YAML as JSON knows it, and the line of every value. Pure.

No moments, no binary, no key twice, and no more than its limits however it is
written: an alias counts as often as it is used.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 32
# Of one file. 256 policies that set everything have 15,000.
MAX_VALUES = 30_000
# Of the names and texts of one file, and of a file that agentctl reads.
MAX_CHARACTERS = 4 << 20
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MAPPING = "tag:yaml.org,2002:map"
_SEQUENCE = "tag:yaml.org,2002:seq"
_TEXT = "tag:yaml.org,2002:str"
_SCALARS = frozenset({_TEXT, *(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null"))})
# In characters of what is no text: PyYAML takes minutes for a long 1:1:1:..., which is a number to the base of 60.
_LONGEST = 100

# No field takes more, and Python prints no number of any length.
_MOST = 2**63

Location = tuple[str | int, ...]


class DocumentError(Exception):
    """The text cannot be read.

    Attributes:
        line: where, from 1.

    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        value: JSON values.
        lines: the line of each value inside, by where it is: ``("spec", "selector", "models", 0)``; a
            field's is that of its name.

    """

    value: Any
    lines: dict[Location, int]

    def line_of(self, location: Location) -> int:
        """Return the line of *location*, or of its nearest parent."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]

    def items(self) -> Iterator[Document]:
        """Yield the items of a ``List``, or else the document itself."""
        if not isinstance(self.value, dict) or self.value.get("kind") != "List":
            yield self
            return
        items = self.value.get("items")
        if not isinstance(items, list):
            raise DocumentError("a List has no items; write items: [] for none", self.line_of(("items",)))
        for number, item in enumerate(items):
            prefix = ("items", number)
            yield Document(
                item, {place[2:]: line for place, line in self.lines.items() if place[:2] == prefix}
            )


def read_documents(text: str) -> list[Document]:
    """Parse all documents of *text*; empty ones are left out.

    Raises:
        DocumentError: it is not YAML, or more than JSON can say.

    """
    reading = _Reading()
    try:
        documents = [reading.document(node) for node in yaml.compose_all(text, _Loader)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        raise DocumentError(f"this is not YAML: {problem}", mark.line + 1 if mark else 1) from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"this is not YAML: {' '.join(str(error).split())}", 1) from None
    except RecursionError:
        raise DocumentError("this is nested too deeply; write it flat", 1) from None
    return [document for document in documents if document.value is not None]


class _Loader(yaml.SafeLoader):
    """Moments stay text, and a document of too many nodes is not composed to its end: a node takes a kilobyte."""

    nodes = 0

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own shape)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        # A value, and perhaps the name of its field.
        if self.nodes > 2 * MAX_VALUES:
            raise _too_large(f"{MAX_VALUES} values", self.line + 1)
        return super().compose_node(parent, index)


@dataclass
class _Reading:
    """A file on its way from nodes to values."""

    scalars: _Loader = field(default_factory=lambda: _Loader(""))
    count: int = 0
    characters: int = 0
    lines: dict[Location, int] = field(default_factory=dict)

    def document(self, node: yaml.Node) -> Document:
        self.lines = {}
        return Document(self.value(node, ()), self.lines)

    def value(self, node: yaml.Node, place: Location) -> Any:
        line = node.start_mark.line + 1
        self.count += 1
        if len(place) > MAX_DEPTH or self.count > MAX_VALUES:
            limit = f"{MAX_DEPTH} levels" if len(place) > MAX_DEPTH else f"{MAX_VALUES} values"
            raise _too_large(limit, line)
        self.lines.setdefault(place, line)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE:
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise DocumentError(f"{node.tag} is nothing that JSON can say; write plain values", line)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        self.characters += len(node.value)
        if self.characters > MAX_CHARACTERS:
            raise _too_large(f"{MAX_CHARACTERS} characters", node.start_mark.line + 1)
        if node.tag in _SCALARS and (node.tag == _TEXT or len(node.value) <= _LONGEST):
            # What an explicit tag promises, PyYAML may fail to find in the text.
            with suppress(ValueError, LookupError):
                value = self.scalars.construct_object(node)
                if not isinstance(value, int | float) or -_MOST <= value <= _MOST:
                    return value
        raise DocumentError(
            f"{node.value!r:.80} is nothing that JSON can say here; quote it", node.start_mark.line + 1
        )

    def _mapping(self, node: yaml.MappingNode, place: Location) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = self._scalar(key) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                raise DocumentError(f"{name!r:.80} is no name of a field; quote it", line)
            if name in fields:
                first = self.lines[*place, name]
                raise DocumentError(f"{name!r:.80} is there twice, first in line {first}; leave one", line)
            self.lines[*place, name] = line
            fields[name] = self.value(value, (*place, name))
        return fields


def _too_large(limit: str, line: int) -> DocumentError:
    return DocumentError(
        f"this is more than {limit} (aliases count as often as they are used); split it", line
    )
