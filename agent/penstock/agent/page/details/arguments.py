"""What a question or a write says, checked: its body, and each of its values. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.agent.page.wire import MAX_NAME, AnswerError
from penstock.agent.parsing import parse_key
from penstock.proto.v1.admin_pb2 import EngineSelector
from penstock.proto.v1.common_pb2 import EngineKey

if TYPE_CHECKING:
    from collections.abc import Mapping

_BAD = 400
_MAX_DIGITS = 18
_UNSUPPORTED = 415
_CHARSETS = frozenset({"utf-8", "utf8"})

_MAX_SHOWN = 40


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


def json_object(content: bytes, charset: str | None) -> dict[str, Any]:
    """Return the values of a body; *charset* as its Content-Type says, None where it says nothing.

    Raises:
        AnswerError: the body has another charset, cannot be decoded, is no JSON object, or has a text that UTF-8 cannot say.

    """
    if charset is not None and charset.lower() not in _CHARSETS:
        raise AnswerError(
            _UNSUPPORTED, f"the charset {charset[:_MAX_SHOWN]!r} is not taken; send the body in UTF-8"
        )
    try:
        body = json.loads(content.decode(), parse_constant=_refuse)
        # JSON can name half a character, which no call and no answer can carry.
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise AnswerError(_BAD, "the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise AnswerError(
            _BAD, "the body has a lone surrogate (\\ud800 to \\udfff); send whole characters"
        ) from None
    except (ValueError, RecursionError):
        raise AnswerError(_BAD, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise AnswerError(_BAD, "the body is no JSON object")
    return body


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not know."""
    raise ValueError(constant)
