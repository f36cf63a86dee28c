"""Prints stages as text, LaTeX, HTML and torch code."""
