"""Masks secrets in what leaves the agent. Pure."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"
"""What stands for a secret."""

_USERINFO = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s\"'<>]*@")
_QUERY = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?\"'<>]*\?)[^\s\"'<>#]*")


def mask_urls(text: str) -> str:
    """Return *text* without the user, the password and the query of each URL in it."""
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1{MASK}@", text))


def mask_message(message: Any) -> None:
    """Mask the URLs in all texts of a protobuf message, at any depth."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            _mask_inner(field, value)
        elif field.type == field.TYPE_STRING:
            if field.is_repeated:
                value[:] = [mask_urls(text) for text in value]
            else:
                setattr(message, field.name, mask_urls(value))


def _mask_inner(field: Any, value: Any) -> None:
    if field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        for key in list(value):
            if entry.type == entry.TYPE_STRING:
                value[key] = mask_urls(value[key])
            elif entry.type == entry.TYPE_MESSAGE:
                mask_message(value[key])
    elif field.is_repeated:
        for item in value:
            mask_message(item)
    else:
        mask_message(value)
