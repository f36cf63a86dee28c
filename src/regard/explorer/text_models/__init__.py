"""Models that the explorer can run on a text."""
