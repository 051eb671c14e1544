"""Shared by the demos, the engine tests and the benchmarks: agent, servers, clients, models, links."""
