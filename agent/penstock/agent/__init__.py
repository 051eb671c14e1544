"""The nouns and the errors that every part shares; nothing else lies in the root."""
