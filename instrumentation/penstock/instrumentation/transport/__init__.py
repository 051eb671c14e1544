"""Threads and streams to the agent; the only package that imports grpc."""
