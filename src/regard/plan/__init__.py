"""The plan of a call: its backend, its tiles, its predicted cost and its text."""
