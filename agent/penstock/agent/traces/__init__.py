"""Journal -> spans -> OTLP, and the answers about one request; four rooms below."""
