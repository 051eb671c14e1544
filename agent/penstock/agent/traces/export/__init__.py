"""From finished spans to an OTLP backend, with a cursor in the journal."""
