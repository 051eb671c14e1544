"""Traces: the log folded into spans, their export, and the answers about one request."""
