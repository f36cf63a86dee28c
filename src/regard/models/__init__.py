"""Whole models, one readable file each, what they were trained on, and two that come with the package."""
