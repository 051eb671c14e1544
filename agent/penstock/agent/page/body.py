"""The body of a write: UTF-8, JSON, an object. Pure."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from penstock.agent.page.wire import AnswerError

_BAD = 400
_UNSUPPORTED = 415
_CHARSETS = frozenset({"utf-8", "utf8"})
_MAX_SHOWN = 40


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
