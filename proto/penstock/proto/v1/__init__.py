"""Generated code of the wire contract, version 1 (see the .proto files beside it)."""
