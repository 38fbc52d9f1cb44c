"""``python bench-peers``: see ``--help``, or call ``make bench-peers``."""

import sys

from peers.cli import main

sys.exit(main())
