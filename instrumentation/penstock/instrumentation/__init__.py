"""What vLLM loads (plugin), what people run (check), what hooks talk to (runtime)."""
