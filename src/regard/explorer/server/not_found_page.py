"""The page for an address without the key of this server, with the cause and the fix."""

import hashlib
from base64 import b64encode

NOT_FOUND_MESSAGE = "this address does not exist; open the address that regard explore printed."
NOT_FOUND_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.6 system-ui,sans-serif;max-width:34em;margin:14vh auto;padding:0 1.5em}"
    "h1{font-size:1.35em;line-height:1.3}code{font-size:.95em}"
)
NOT_FOUND_CSP = (
    f"default-src 'none'; style-src 'sha256-{b64encode(hashlib.sha256(NOT_FOUND_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
NOT_FOUND_HTML = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>regard: this address is out of date</title>
<style>{NOT_FOUND_STYLE}</style>
</head>
<body>
<h1>This address does not belong to the running explorer.</h1>
<p>The explorer was probably restarted after this page was opened. Each start uses a new address: open the address that
<code>regard explore</code> printed in its terminal.</p>
<p>To keep the same address for bookmarks and open tabs, start the explorer with a port, as in
<code>regard explore --port 8123</code>.</p>
</body>
</html>
"""
