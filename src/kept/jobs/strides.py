"""Who takes what of a deep backlog, where several workers take of it. Pure.

A claim passes by what others hold, but not for nothing: jobs that somebody claimed while our statement was under way
are locked, looked at again and only then left alone, and their worker has to wait for us before it can settle them.
Workers that claim at the same place take a sixth of each other's speed by that. So as long as a lane gives all that is
asked for, each worker takes blocks of ids in turn with its peers.

What it passes over is for its peers to take. As soon as a claim brings less than was asked for, or a survey finds
something that nobody took, whatever was passed over is claimed first, whoever's block it is in.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

Entry = tuple[int, int]  # lane, priority

BLOCK = 4  # full claims
DEEP = 100  # jobs: a lane that gave so many at once may have a backlog


class Stride(Struct):
    """How far we are in one lane and priority."""

    mark: int  # where we were when a survey last looked: what it finds from here on may be about to be taken
    at: int  # where the next claim begins


class Strides:
    """Where to claim from, so that peers do not meet."""

    def __init__(self) -> None:
        self._place, self._peers = 0, 1
        self._strides: dict[Entry, Stride] = {}
        self._reached: dict[Entry, int] = {}  # ids below this were passed over once: they come first

    def stand(self, place: int, peers: int) -> None:
        """We are number *place* of *peers*. If that is news, whoever left may have left something."""
        if (place, peers) != (self._place, self._peers):
            self._place, self._peers = place, peers
            for entry in list(self._strides):
                self.stop(entry)

    def serve(self, lanes: Collection[int]) -> None:
        """These lanes and no others."""
        self._strides = {entry: stride for entry, stride in self._strides.items() if entry[0] in lanes}
        self._reached = {entry: id for entry, id in self._reached.items() if entry[0] in lanes}

    def next(self, entry: Entry, take: int, batch: int) -> int | None:
        """Where to claim from when *take* jobs are likely to be taken; None: from the floor."""
        stride = self._strides.get(entry)
        if stride is None:
            return None
        at = _own(stride.at, BLOCK * batch, self._place, self._peers)
        stride.at = at + take
        return at

    def gave_all(self, entry: Entry, count: int, highest: int) -> None:
        """A claim brought all of the *count* jobs it asked for."""
        stride = self._strides.get(entry)
        if stride is not None:
            stride.at = max(stride.at, highest + 1)
        elif self._peers > 1 and count >= DEEP and highest >= self._reached.get(entry, 0):
            self._strides[entry] = Stride(highest + 1, highest + 1)

    def stop(self, entry: Entry) -> None:
        """Claim from the floor again, until what was passed over is taken."""
        stride = self._strides.pop(entry, None)
        if stride is not None:
            self._reached[entry] = stride.at

    def are_left(self, entry: Entry, id: int) -> bool:
        """Whether jobs from *id* on, the lowest that a survey found, are left for us: nobody took them for long."""
        stride = self._strides.get(entry)
        if stride is None:
            return True
        mark, stride.mark = stride.mark, stride.at
        return id < mark


def _own(at: int, size: int, place: int, peers: int) -> int:
    """The first id from *at* on that lies in a block of ours: one in *peers*, *size* ids long."""
    block = (at - 1) // size
    ahead = (place - block) % peers
    return (block + ahead) * size + 1 if ahead else at
