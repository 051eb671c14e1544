"""The mixin over vLLM's scheduler."""
