"""The tasks of the bench, as an application would declare them: ``kept worker kept_app:app``."""

from __future__ import annotations

from kept import App
from tally import Tally

app = App()
tally = Tally()


@app.task(queue="bench")
async def bench(n: int, text: str) -> None:
    tally.note(n)


@app.task(queue="other")
async def other(n: int, text: str) -> None:
    """Nobody serves its queue."""
