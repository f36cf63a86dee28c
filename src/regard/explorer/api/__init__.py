"""The endpoints of the page, by topic."""
