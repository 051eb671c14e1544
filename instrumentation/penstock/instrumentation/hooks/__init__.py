"""What a hook is: what it needs of the host, how it attaches and detaches. Knows no vLLM."""
