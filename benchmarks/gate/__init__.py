"""Counts the instructions of fixed jobs under callgrind and compares them with the stored counts: ``make bench-gate``."""
