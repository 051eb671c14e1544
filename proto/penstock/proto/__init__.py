"""The wire contract between the engine and the agent, and the version of all of Penstock."""

from penstock.proto.version import DISTRIBUTION, SCHEMA_VERSION, __version__

__all__ = ["DISTRIBUTION", "SCHEMA_VERSION", "__version__"]
