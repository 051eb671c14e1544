"""Sockets: the gRPC and HTTP servers, who may call them, and how errors become statuses."""

from __future__ import annotations

from penstock.agent.server.addresses import (
    Address,
    TcpAddress,
    UnixAddress,
    parse_address,
    parse_admin,
    parse_tcp,
)
from penstock.agent.server.callers import LOCAL, AdminTls, AllowList, Caller, Role, parse_allow_list

__all__ = [
    "LOCAL",
    "Address",
    "AdminTls",
    "AllowList",
    "Caller",
    "Role",
    "TcpAddress",
    "UnixAddress",
    "parse_address",
    "parse_admin",
    "parse_allow_list",
    "parse_tcp",
]
