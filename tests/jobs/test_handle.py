"""What a caller holds of a job."""

from __future__ import annotations

import pytest

from kept.jobs.handle import Job


def test_a_handle_shows_what_it_knows_and_not_whom_it_asks():
    shown = repr(Job(id=7, task="send", queue="mail", state="pending", _app=object()))
    assert shown.startswith("Job(id=7, task='send', queue='mail', state='pending'")
    assert "_app" not in shown


def test_a_handle_is_a_snapshot_that_nobody_changes():
    job = Job(id=7, task="send", queue="mail", state="pending")
    with pytest.raises(AttributeError):
        job.state = "done"
    job.headers["a"] = "b"
    assert Job(id=8, task="send", queue="mail", state="pending").headers == {}
