"""The page that a browser gets for an address without the key of this start: what happened, and what to do."""

import hashlib
from base64 import b64encode

SENTENCE = "there is nothing here; open the address that regard look printed."
STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.6 system-ui,sans-serif;max-width:34em;margin:14vh auto;padding:0 1.5em}"
    "h1{font-size:1.35em;line-height:1.3}code{font-size:.95em}"
)
POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HTML = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>regard: this address is out of date</title>
<style>{STYLE}</style>
</head>
<body>
<h1>This address does not belong to the running explorer.</h1>
<p>The explorer was probably started again since this page was opened. Each start has an address of its own: open the
one that <code>regard look</code> printed in its terminal.</p>
<p>To keep one address for bookmarks and open tabs, start it with a port, as in
<code>regard look --port 8123</code>.</p>
</body>
</html>
"""
