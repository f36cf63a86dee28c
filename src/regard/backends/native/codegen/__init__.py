"""Compiles masks and score modifiers to programs for the tile interpreter."""
