"""``@app.runner``: what is refused before anything starts."""

from __future__ import annotations

import pytest

from kept import App, Misconfigured, Refused, RunnerContext, Settings


@pytest.fixture
def app() -> App:
    return App("postgresql://nowhere", settings=Settings())


@pytest.mark.parametrize(
    "options",
    [{"every": "0s"}, {"every": "1us"}, {"max_items": 0}, {"max_items": -1}, {"max_time": "0s"}, {"every": "soon"}],
)
def test_odd_limits_are_refused(app, options):
    with pytest.raises(Refused):
        app.runner("sweep", **options)(lambda: None)
    assert app.runners == {}


@pytest.mark.parametrize("options", [{"every": 60}, {"max_items": "many"}, {"max_items": True}, {"max_time": 1.5}])
def test_limits_of_the_wrong_type_are_type_errors(app, options):
    with pytest.raises(TypeError):
        app.runner("sweep", **options)(lambda: None)


def test_a_name_is_declared_once(app):
    app.runner("sweep")(lambda: None)
    with pytest.raises(Refused, match="declared already"):
        app.runner("sweep")(lambda: None)
    with pytest.raises(Refused, match="declared already"):
        app.call("sweep", "POST", "/x")


def test_a_runner_is_not_called_as_one_of_ours(app):
    with pytest.raises(Refused, match="'jobs'"):
        app.runner("jobs")(lambda: None)


def test_a_function_that_wants_arguments_is_refused(app):
    with pytest.raises(Refused, match="wants 'limit'"):
        app.runner("sweep")(lambda ctx, limit: None)


def test_the_function_stays_as_it_is_and_the_context_is_found_by_its_type(app):
    def sweep(context: RunnerContext) -> int:
        return 1

    assert app.runner("sweep")(sweep) is sweep
    assert app.runners["sweep"].takes_context


def test_an_unknown_runner_stops_the_start(database):
    app = App(database, settings=Settings(tick_runners=("jobs", "classesBilling")))
    app.runner("sweep")(lambda: None)
    with pytest.raises(
        Misconfigured, match="'classesBilling'; there are: reclaim, promote, schedules, upkeep, jobs, sweep"
    ):
        app.worker()
