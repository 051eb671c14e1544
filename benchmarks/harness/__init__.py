"""Interleaved measurement, result rows, and the document made of them."""
