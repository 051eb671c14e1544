"""`make demo`: Penstock at work on two real vLLM servers. The engine tests run the same steps."""
