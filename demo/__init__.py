"""The KV demo: Penstock on two real vLLM servers; the engine tests run the same steps."""
