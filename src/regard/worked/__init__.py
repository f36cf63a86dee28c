"""The worked computation: every number between queries and output, as values, text, HTML, LaTeX and torch code."""
