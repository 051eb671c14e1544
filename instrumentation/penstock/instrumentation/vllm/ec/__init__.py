"""Encoder outputs: scheduler and worker side of any EC connector."""
