"""What a question or a write says, checked. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.agent.page.wire import MAX_NAME, AnswerError
from penstock.agent.parsing import parse_key
from penstock.proto.v1.admin_pb2 import EngineSelector
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Mapping

_BAD = 400
_MAX_DIGITS = 18


def name_of(values: Mapping[str, Any], name: str, *, needed: bool = True) -> str:
    """Return a name; empty if it is not *needed* and not given.

    Raises:
        AnswerError: it is missing, no text, or too long.

    """
    value = values.get(name, "")
    if not isinstance(value, str) or len(value) > MAX_NAME or "\0" in value:
        raise AnswerError(_BAD, f"{name} is a text of at most {MAX_NAME} characters")
    if needed and not value:
        raise AnswerError(_BAD, f"{name} is missing")
    return value


def engine_of(values: Mapping[str, Any], name: str) -> EngineKey | None:
    """Return the engine that is named; None for none.

    Raises:
        AnswerError: it names no engine.

    """
    text = name_of(values, name, needed=False)
    if not text:
        return None
    try:
        key = parse_key(text)
    except ValueError as error:
        raise AnswerError(_BAD, str(error)) from None
    return EngineKey(server=key.server, engine=key.engine)


def selector_of(key: EngineKey | None) -> EngineSelector:
    """Return the selector of one engine, or of all."""
    return EngineSelector() if key is None else EngineSelector(engines=[key])


def number_of(values: Mapping[str, Any], name: str, default: int, most: int) -> int:
    """Return a whole number from 0 to *most*, which a query has as text and a body as a number.

    Raises:
        AnswerError: it is something else.

    """
    value = values.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise AnswerError(_BAD, f"{name} is a whole number from 0 to {most}")
    return value


def flag_of(values: Mapping[str, Any], name: str) -> bool:
    """Return a truth value; false if it is not given.

    Raises:
        AnswerError: it is something else.

    """
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise AnswerError(_BAD, f"{name} is true or false")
    return value
