"""Keeps encoder outputs and hands them out."""
