"""Sockets: the gRPC and HTTP servers, who may call them, and how errors become statuses."""
