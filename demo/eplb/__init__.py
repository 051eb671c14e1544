"""The expert demo: two processes move expert weights through vLLM's load balancer."""
