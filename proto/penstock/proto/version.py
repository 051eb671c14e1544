"""The version of the distribution and of the wire contract."""

__version__ = "0.1.0.dev0"

# What package indexes call it: `penstock` there is another project's.
DISTRIBUTION = "penstock-vllm"

# Raised when an old peer would misread a new one; added fields do not raise it.
SCHEMA_VERSION = 1
