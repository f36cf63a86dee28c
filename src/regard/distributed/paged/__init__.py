"""A paged key-value cache with prefix sharing."""
