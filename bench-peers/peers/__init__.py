"""The same work through Kept and its peers, side by side. Start with ``make bench-peers``."""
