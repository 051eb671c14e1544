"""Questions about one request, answered from the journal: its trace, and one sentence."""
