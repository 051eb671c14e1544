"""The daemon beside the engine, and its command line."""
