"""Operators' orders for a time: quarantines, fault drills, the kill switch."""
