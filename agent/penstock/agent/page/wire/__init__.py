"""The bottom of the page: questions to the admin service, and values as JSON."""

from __future__ import annotations

from penstock.agent.admin.in_process import ANSWER_SECONDS, AdminCalls, AnswerError
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
from penstock.agent.views.command_lines import about, command

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
