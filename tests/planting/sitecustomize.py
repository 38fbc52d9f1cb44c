"""Found by every Python process that is started with this folder on its path: workers, their keepers and children."""

import os

if os.environ.get("KEPT_TEST_PLANTS"):
    import plants

    plants.plant(os.environ["KEPT_TEST_PLANTS"].split(","))
