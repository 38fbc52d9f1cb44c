"""How the demo is told to stop: a signal, or Ctrl-C as a key."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Iterator
from types import FrameType

CTRL_C = b"\x03"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Asked once: finish what was accepted, then end. Asked twice: end."""

    def __init__(self) -> None:
        self._times = 0
        self._keys: int | None = None

    def ask(self) -> None:
        """Ask once more."""
        self._times += 1

    def asked(self) -> bool:
        """Whether it is time to end."""
        self._read_keys()
        return self._times > 0

    def hurried(self) -> bool:
        """Whether there is no time left to finish anything."""
        self._read_keys()
        return self._times > 1

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Signals only count while this lasts: whatever is going on is brought to its end. Later is too late."""
        for each in SIGNALS:
            signal.signal(each, self._on_signal)
        try:
            with self._ctrl_c_as_key():
                yield
        finally:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Signals wait until this is over, for us and for programs started meanwhile: Ctrl-C is sent to all of us."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.ask()

    @contextlib.contextmanager
    def _ctrl_c_as_key(self) -> Iterator[None]:
        """Take Ctrl-C from the terminal as a key: as a signal it would also end ``make``, with an error."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()) or not _in_foreground(sys.stdin.fileno()):
            yield
            return
        keys = sys.stdin.fileno()
        before = termios.tcgetattr(keys)
        ours = termios.tcgetattr(keys)
        ours[3] &= ~(termios.ICANON | termios.ECHO)
        ours[6][termios.VINTR] = os.fpathconf(keys, "PC_VDISABLE")
        termios.tcsetattr(keys, termios.TCSADRAIN, ours)
        self._keys = keys
        try:
            yield
        finally:
            self._keys = None
            with contextlib.suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(keys, termios.TCSAFLUSH, before)

    def _read_keys(self) -> None:
        if self._keys is None or not select.select([self._keys], [], [], 0)[0]:
            return
        with contextlib.suppress(OSError):
            typed = os.read(self._keys, 1024)
            self._times += typed.count(CTRL_C) + typed.count(b"q")
            if not typed:
                self._keys = None


def _in_foreground(terminal: int) -> bool:
    """In the background, changing the terminal would stop us."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
