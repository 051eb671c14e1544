"""All that vLLM pickles between scheduler and workers for us."""
