"""What a worker says when it starts."""

from __future__ import annotations

import pytest

from fleet import Fleet
from support import eventually

pytestmark = pytest.mark.acceptance


def test_a_variable_that_is_no_setting_is_warned_about_once_however_many_processes_there_are(fleet: Fleet) -> None:
    workers = fleet.start("--processes", "2", KEPT_WHATSIT="1")
    eventually(lambda: len(workers.lines("worker_started")) == 2, 30, what="both workers")
    said = [line["message"] for line in workers.lines("warned")]
    assert said == ["KEPT_WHATSIT is not a setting of Kept"]
