"""The hooks into vLLM; laid out as vLLM lays out what they hook."""
