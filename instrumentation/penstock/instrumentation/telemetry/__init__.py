"""The way of an entry: emit, queue, batch, outbox, stream."""
