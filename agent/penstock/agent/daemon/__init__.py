"""The process: configuration, start, health, stop. The only package that knows all the others."""
