"""The bottom of the page: questions to the admin service, and values as JSON."""

from __future__ import annotations

from penstock.agent.page.wire.admin_calls import ANSWER_SECONDS, AdminCalls
from penstock.agent.page.wire.answer_error import AnswerError
from penstock.agent.page.wire.commands import about, command
from penstock.agent.page.wire.encoding import (
    MAX_MESSAGE_BYTES,
    MAX_NAME,
    MAX_TEXT,
    as_values,
    encode,
    encode_fields,
    hidden_name,
    join_fields,
    milliseconds,
    plain,
)

__all__ = [
    "ANSWER_SECONDS",
    "MAX_MESSAGE_BYTES",
    "MAX_NAME",
    "MAX_TEXT",
    "AdminCalls",
    "AnswerError",
    "about",
    "as_values",
    "command",
    "encode",
    "encode_fields",
    "hidden_name",
    "join_fields",
    "milliseconds",
    "plain",
]
