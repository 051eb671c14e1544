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
# Of one policy. One that uses each limit of a manifest has 4,700.
MAX_POLICY_VALUES = 5_000
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
        lines: list[dict[Location, int]] = [{} for _ in items]
        for place, line in self.lines.items():
            if len(place) > 1 and place[0] == "items":
                lines[int(place[1])][place[2:]] = line
        yield from map(Document, items, lines)


def read_documents(text: str, max_values: int = MAX_VALUES) -> list[Document]:
    """Parse all documents of *text*; empty ones are left out.

    PyYAML takes up to 25 µs a value, and 1.4 µs a character of a comment.

    Raises:
        DocumentError: it is not YAML, more than JSON can say, or has more than *max_values* values.

    """
    reading = _Reading(max_values)
    try:
        documents = [reading.document(node) for node in _nodes(text, max_values)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        raise DocumentError(f"this is not YAML: {problem}", mark.line + 1 if mark else 1) from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"this is not YAML: {' '.join(str(error).split())}", 1) from None
    finally:
        # A loader refers to itself, and knows every node: without this they stay until a full collection.
        reading.scalars.dispose()
    return [document for document in documents if document.value is not None]


def _nodes(text: str, max_values: int) -> Iterator[yaml.Node]:
    loader = _Loader(text)
    loader.max_values = max_values
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield node
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Moments stay text, and what is too large or too deep is not read to its end.

    A node takes a kilobyte. The scanner looks at each open bracket again with each token.
    """

    nodes = 0
    max_values = MAX_VALUES

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own shape)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        # A value, and perhaps the name of its field.
        if self.nodes > 2 * self.max_values:
            raise _too_large(f"{self.max_values} values", self.line + 1)
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        self._check_depth()
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        added = super().add_indent(column)
        if added:
            self._check_depth()
        return added

    def _check_depth(self) -> None:
        # The outermost is no level, and an open bracket is counted by the next one.
        if self.flow_level + len(self.indents) > MAX_DEPTH + 1:
            raise _too_deep(self.line + 1)


@dataclass
class _Reading:
    """A file on its way from nodes to values."""

    max_values: int
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
        if len(place) > MAX_DEPTH:
            raise _too_deep(line)
        if self.count > self.max_values:
            raise _too_large(f"{self.max_values} values", line)
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


def _too_deep(line: int) -> DocumentError:
    return DocumentError(f"this is more than {MAX_DEPTH} levels deep; write it flat", line)


def _too_large(limit: str, line: int) -> DocumentError:
    return DocumentError(
        f"this is more than {limit} (aliases count as often as they are used); split it", line
    )
