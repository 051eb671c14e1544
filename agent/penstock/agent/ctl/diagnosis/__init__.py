"""What doctor checks. Pure but for the socket probe."""
