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
from penstock.agent.server.callers import LOCAL, AllowList, Caller, Role, parse_allow_list
from penstock.agent.server.grpc_server import MAX_SEND_BYTES, GrpcServer, raise_file_limit
from penstock.agent.server.http_server import HttpServer
from penstock.agent.server.request_decoding import decode_request
from penstock.agent.server.status_codes import abort_with
from penstock.agent.server.tls import AdminTls, Certificates

__all__ = [
    "LOCAL",
    "MAX_SEND_BYTES",
    "Address",
    "AdminTls",
    "AllowList",
    "Caller",
    "Certificates",
    "GrpcServer",
    "HttpServer",
    "Role",
    "TcpAddress",
    "UnixAddress",
    "abort_with",
    "decode_request",
    "parse_address",
    "parse_admin",
    "parse_allow_list",
    "parse_tcp",
    "raise_file_limit",
]
