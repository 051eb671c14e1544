"""What a policy is: its schema, its validation, how several are merged. Pure."""
