"""The guide "Attention, step by step": its widgets, their data and its script."""
