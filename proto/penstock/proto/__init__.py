"""The wire contract between the engine and the agent, and the version of all of Penstock."""

from penstock.proto.version import SCHEMA_VERSION, __version__

__all__ = ["SCHEMA_VERSION", "__version__"]
