"""vLLM's expert balancer, observed."""
