"""Where the scene is shown: on the whole terminal, or as a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from view import Scene, draw, plain

LINE_EVERY = 2.0  # seconds between two lines


class Display:
    """Shows the scene. If nobody can be shown anything any more, *gone* is called and the rest is silence."""

    def __init__(self, *, terminal: bool, gone: Callable[[], None]) -> None:
        console = Console()
        self._live = Live(console=console, screen=True, auto_refresh=False) if terminal else None
        self._gone = gone
        self._silent = False
        self._next_line = time.monotonic() + LINE_EVERY

    def __enter__(self) -> Self:
        if self._live is not None:
            self._try(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._try(self._live.stop)

    def show(self, scene: Scene) -> None:
        """Show how things are; without a terminal only now and then."""
        live = self._live
        if live is not None:
            self._try(lambda: live.update(draw(scene), refresh=True))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self._line(plain(scene))

    def happened(self, scene: Scene, text: str, style: str = "") -> None:
        """Something worth telling: kept in the scene, and a line of its own where there is no picture."""
        scene.events.append((scene.elapsed, text, style))
        if self._live is None:
            self._line(f"{scene.elapsed:5.1f} s  {text}")

    def _line(self, text: str) -> None:
        def write() -> None:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

        self._try(write)

    def _try(self, write: Callable[[], None]) -> None:
        if self._silent:
            return
        try:
            write()
        except OSError:
            self._silent = True
            self._gone()
