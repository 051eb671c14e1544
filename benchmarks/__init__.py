"""Benchmarks of Penstock beside their peers: python -m benchmarks."""
