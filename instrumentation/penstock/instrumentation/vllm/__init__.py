"""The hooks into vLLM. Nothing outside this package may import vllm, torch, zmq or numpy."""
