"""Plants each bug in the workers of a run with faults at random: does the oracle find it without a scene of its own?

``python tests/planted_at_random.py`` takes a run for each; names of plants as arguments choose some. It tells and does
not judge: that each bug is found is what the scenes of `planted_bugs.py` are for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from kept.errors import Error
from kept.verify.run import Plan, run
from planted_bugs import PROMISES

HERE = Path(__file__).parent


def broken(plant: str) -> Mapping[str, str]:
    """The environment of workers with this bug."""
    return {"KEPT_TEST_PLANTS": plant, "PYTHONPATH": f"{HERE / 'planting'}{os.pathsep}{HERE}"}


def found(plant: str, seconds: float, seed: int) -> set[int]:
    """The promises that a run with this bug finds broken, and what it says of them."""
    with TemporaryDirectory() as logs:
        plan = Plan(seconds=seconds, jobs=int(250 * seconds), seed=seed, environ=dict(broken(plant)), keep=Path(logs))
        try:
            breaches = [each for each in run(plan).breaches if each.promise]
        except Error as error:  # with the bug nothing goes on at all
            print(f"{plant:34}{error}", flush=True)
            return set()
    said = "; ".join(f"promise {each.promise}: {each.sentence}" for each in breaches)
    print(f"{plant:34}{said or 'nothing found'}", flush=True)
    return {each.promise for each in breaches}


def main() -> int:
    """0 whatever is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plants", nargs="*", metavar="PLANT", help=", ".join(PROMISES))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chosen = options.plants or list(PROMISES)
    caught = sum(PROMISES[plant] in found(plant, options.seconds, options.seed) for plant in chosen)
    print(f"found at random: {caught}/{len(chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
