from __future__ import annotations

import os

from kept.worker.board import Board


def test_a_board_that_is_closed_twice_closes_nothing_of_anybody_else() -> None:
    board = Board.create(1)
    board.close()
    reader, writer = os.pipe()
    try:
        assert board.fd in (reader, writer), "the kernel gives out the lowest number that is free"
        board.close()
        os.write(writer, b"x")
        assert os.read(reader, 1) == b"x"
    finally:
        os.close(reader)
        os.close(writer)
