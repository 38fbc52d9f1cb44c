"""``kept bench``: what Kept does on this machine and this server, measured against its own limit."""
