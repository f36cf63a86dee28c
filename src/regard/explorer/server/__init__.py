"""The server of the page, over HTTP on this machine."""
