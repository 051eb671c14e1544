"""What vLLM loads (plugin), what people and pods run (check, drain), what hooks talk to (runtime)."""
