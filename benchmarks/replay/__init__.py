"""Plays recorded traffic on vLLM's scheduler, with Penstock and without it, under a counter: a program for :mod:`benchmarks.areas.instructions`."""
