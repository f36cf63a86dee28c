"""Walkthrough of an attention call: every number as values, text, HTML, LaTeX and torch code."""
