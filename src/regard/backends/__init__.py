"""The backends: their protocol, their registry, and what they share."""
