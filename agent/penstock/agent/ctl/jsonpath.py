r"""JSONPath templates as kubectl has them. Pure.

A template is text with expressions in braces: ``{.items[*].name}{"\n"}``. The subset: fields (``.a``, ``['a']``,
``a\.b``), ``*``, indices and slices of lists, unions (``[0,2]``, ``['a','b']``), ``..``, ``$``, ``@``, filters with one
comparison (``[?(@.a=="b")]``), ``{range …}…{end}`` and quoted text. A field that is absent yields nothing.
"""

from __future__ import annotations

import json
import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.agent.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_NAME = re.compile(r"""(?:[^.\[\]\s\\'"(){}*?@$,=!<>]|\\.)+""")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_INDEX = re.compile(r"-?\d+")
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(\d+))?")
_COMPARED = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NESTED = 16


class _Path(NamedTuple):
    absolute: bool
    steps: tuple[Any, ...]

    def values(self, current: Any, root: Any) -> list[Any]:
        found = [root if self.absolute else current]
        for step in self.steps:
            found = [value for item in found for value in step(item, root)]
        return found


class _Range(NamedTuple):
    path: _Path
    body: tuple[Any, ...]


Template = tuple[Any, ...]
"""Texts, paths and ranges, in order."""


def parse_template(text: str) -> Template:
    """Parse a template; one without braces is an expression.

    Raises:
        ValueError: the text is no template; says where and why.

    """
    if "{" not in text:
        text = f"{{{text}}}"
    open_ranges: list[_Path] = []
    bodies: list[list[Any]] = [[]]
    for kind, part in _parts(text):
        word = part.strip()
        if kind == "text":
            bodies[-1].append(part)
        elif word == "end":
            if not open_ranges:
                raise ValueError("{end} without {range …}")
            body = tuple(bodies.pop())
            bodies[-1].append(_Range(open_ranges.pop(), body))
        elif word.startswith("range "):
            open_ranges.append(_parse_path(word.removeprefix("range ").strip()))
            bodies.append([])
            if len(bodies) > _NESTED:
                raise ValueError(f"more than {_NESTED} ranges inside each other")
        elif _QUOTED.fullmatch(word):
            bodies[-1].append(_unquoted(word))
        else:
            bodies[-1].append(_parse_path(word))
    if open_ranges:
        raise ValueError("{range …} without {end}")
    return tuple(bodies[0])


def fill_template(template: Template, document: Any) -> str:
    """Return the text of *template* for *document*; values are escaped by :func:`printable`."""
    return "".join(_filled(template, document, document))


def _filled(template: Template, current: Any, root: Any) -> Iterator[str]:
    for part in template:
        if isinstance(part, str):
            yield part
        elif isinstance(part, _Range):
            for value in part.path.values(current, root):
                yield from _filled(part.body, value, root)
        else:
            yield " ".join(printable(_text(value)) for value in part.values(current, root))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the literal texts and the contents of the braces."""
    at = 0
    while at < len(text):
        begin = text.find("{", at)
        if begin < 0:
            yield "text", text[at:]
            return
        if begin > at:
            yield "text", text[at:begin]
        at = begin + 1
        while at < len(text) and text[at] != "}":
            quoted = _QUOTED.match(text, at)
            at = quoted.end() if quoted else at + 1
        if at >= len(text):
            raise ValueError(f"the brace of {text[begin : begin + 40]!r} is not closed")
        yield "braces", text[begin + 1 : at]
        at += 1


def _parse_path(text: str) -> _Path:
    path, end = _path_at(text, 0)
    if end != len(text):
        raise ValueError(f"{text!r} cannot be read from {text[end:]!r} on")
    return path


def _path_at(text: str, at: int) -> tuple[_Path, int]:
    """Parse the path that begins at *at*; return it and its end."""
    begin = at
    absolute = text.startswith("$", at)
    if absolute or text.startswith("@", at):
        at += 1
    steps: list[Any] = []
    while text.startswith(("[", "."), at):
        if text.startswith("[", at):
            step, at = _bracket(text, at + 1)
        elif text.startswith("..", at):
            # What follows is a bracket, or a name behind its own point.
            step, at = _descend, at + (2 if text.startswith("[", at + 2) else 1)
        elif not steps and at + 1 == len(text):
            # A single point is the value itself.
            step, at = _itself, at + 1
        else:
            step, at = _dotted(text, at + 1)
        steps.append(step)
    if at == begin:
        raise ValueError(f"{text[begin:]!r} is no path; write it like .items[*].name")
    return _Path(absolute, tuple(steps)), at


def _dotted(text: str, at: int) -> tuple[Any, int]:
    """Parse what stands behind a point."""
    if text.startswith("*", at):
        return _every, at + 1
    found = _NAME.match(text, at)
    if not found:
        raise ValueError(f"{text!r} has no name behind its point")
    return _field(re.sub(r"\\(.)", r"\1", found[0])), found.end()


def _bracket(text: str, at: int) -> tuple[Any, int]:
    """Parse what stands behind ``[``; return the step and the end of the bracket."""
    if text.startswith("?(", at):
        return _filter(text, at + 2)
    steps: list[Any] = []
    while True:
        quoted, part, index = _QUOTED.match(text, at), _SLICE.match(text, at), _INDEX.match(text, at)
        if text.startswith("*", at):
            step, at = _every, at + 1
        elif quoted:
            step, at = _field(_unquoted(quoted[0])), quoted.end()
        elif part:
            step, at = _slice(*(int(number) if number else None for number in part.groups())), part.end()
        elif index:
            step, at = _index(int(index[0])), index.end()
        else:
            raise ValueError(f"{text!r}: [{text[at:]!s} is no index, slice, name or filter")
        steps.append(step)
        if text.startswith("]", at):
            return steps[0] if len(steps) == 1 else _union(steps), at + 1
        if not text.startswith(",", at):
            raise ValueError(f"{text!r}: a bracket is not closed")
        at += 1


def _filter(text: str, at: int) -> tuple[Any, int]:
    left, at = _operand(text, at)
    sign = _COMPARED.match(text, at)
    right: Any = None
    if sign:
        right, at = _operand(text, sign.end())
    if not text.startswith(")]", at):
        raise ValueError(f"{text!r}: a filter is one comparison, such as [?(@.role=='decode')]")

    def keeps(item: Any, root: Any) -> bool:
        first = left.values(item, root)
        if sign is None:
            return bool(first)
        second = right.values(item, root)
        return any(_compare(sign[1], one, other) for one in first for other in second)

    def step(value: Any, root: Any) -> list[Any]:
        return [item for item in _every(value, root) if keeps(item, root)]

    return step, at + 2


def _operand(text: str, at: int) -> tuple[_Path, int]:
    """Parse a path or a constant."""
    quoted, number = _QUOTED.match(text, at), _NUMBER.match(text, at)
    if quoted:
        return _constant(_unquoted(quoted[0])), quoted.end()
    if number:
        return _constant(json.loads(number[0])), number.end()
    for word, value in _WORDS.items():
        if text.startswith(word, at):
            return _constant(value), at + len(word)
    return _path_at(text, at)


def _constant(value: Any) -> _Path:
    return _Path(absolute=False, steps=(lambda _, __: (value,),))


def _compare(sign: str, left: Any, right: Any) -> bool:
    try:
        return bool(_OPERATORS[sign](left, right))
    except TypeError:
        # A text is neither more nor less than a number.
        return False


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])


def _field(name: str) -> Any:
    def step(value: Any, _: Any) -> tuple[Any, ...]:
        return (value[name],) if isinstance(value, dict) and name in value else ()

    return step


def _every(value: Any, _: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _index(number: int) -> Any:
    def step(value: Any, _: Any) -> tuple[Any, ...]:
        inside = isinstance(value, list) and -len(value) <= number < len(value)
        return (value[number],) if inside else ()

    return step


def _slice(begin: int | None = None, end: int | None = None, stride: int | None = None) -> Any:
    if stride == 0:
        raise ValueError("a slice's step is 0")
    return lambda value, _: value[begin:end:stride] if isinstance(value, list) else ()


def _union(steps: list[Any]) -> Any:
    return lambda value, root: [found for step in steps for found in step(value, root)]


def _itself(value: Any, _: Any) -> tuple[Any, ...]:
    return (value,)


def _descend(value: Any, root: Any) -> Iterator[Any]:
    """Yield *value* and everything inside it."""
    yield value
    for inner in _every(value, root):
        yield from _descend(inner, root)
