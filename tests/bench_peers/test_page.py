"""The tables and plots that the bench of peers writes into the documentation."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pages import ROOT
from peers import page, plot, table
from peers.catalogue import BY_NAME, PEERS
from peers.model import Results, Sizes

ME = [BY_NAME[name] for name in ("kept", "graphile", "celery")]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results() -> Results:
    tenths = [float(rate) for rate in range(20_000, 11_000, -1_000)]
    return Results(
        drain={"kept": [50_000.0, 60_000.0, 55_000.0], "graphile": [25_000.0], "celery": [1_100.0]},
        latency={"kept": [0.5, 0.6, 3.0], "graphile": [0.7, 0.8, 2.5]},
        one={"kept": [1_000.0], "graphile": [700.0]},
        bulk={"kept": [90_000.0], "graphile": [40_000.0]},
        snapshot={"kept": [[20_000.0] * 9, [30_000.0] * 9], "graphile": [tenths]},
        behind={"kept": [49_000.0, 30_000.0, 55_000.0], "graphile": [5_000.0]},
        versions={"kept": "0.1.0", "graphile": "0.18.0", "celery": "5.7.0"},
        facts={
            "date": "2026-01-01", "cores": "2", "machine": "Linux x86_64", "python": "3.11.7", "server_version": "18.4",
            "fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB", "max_wal_size": "8GB",
        },
    )  # fmt: skip


# --- tables


def test_a_row_of_the_drain_has_the_median_the_range_the_version_and_the_settings(results):
    rows = table.drain(results, ME)
    assert rows[1] == ["Kept (defaults)", "0.1.0", "55,000", "50,000 to 60,000", "kept worker, nothing set"]
    assert [row[0] for row in rows[1:]] == [peer.title for peer in ME]


def test_growth_is_told_as_shares(results):
    rows = table.growth(results, ME)
    assert rows[1][1:] == ["100 %", "100 % to 100 %", "49,000", "98 %"]
    assert rows[2][1:] == ["64 %", "64 % to 64 %", "5,000", "20 %"]


def test_what_was_not_measured_has_no_table(results):
    assert "pick-up" not in table.text(replace(results, latency={}), ME)


def test_a_peer_that_failed_is_named_with_its_error(results):
    failed = replace(results, failed={"celery": "cannot be installed: no such version"})
    for told in (table.text(failed, ME), table.markdown(failed, ME)):
        assert "Celery (cannot be installed: no such version)" in told


def test_a_table_for_a_page_has_as_many_cells_in_every_row(results):
    for part in table.markdown(results, ME).split("\n\n"):
        assert len({line.count("|") for line in part.splitlines()}) == 1


# --- the page


def test_writing_twice_changes_nothing(tmp_path, results):
    page.write(tmp_path, results, ME, Sizes())
    once = {path.name: path.read_text() for path in tmp_path.iterdir()}
    page.write(tmp_path, results, ME, Sizes())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == once
    assert set(once) == {f"performance{part}" for part in (".md", "-drain.svg", "-latency.svg", "-growth.svg")}


def test_what_stands_around_the_marks_stays(tmp_path, results):
    around = f"# Mine\n\nbefore\n\n{page.BEGIN}\nold figures\n{page.END}\n\nafter\n"
    (tmp_path / "performance.md").write_text(around)
    page.write(tmp_path, results, ME, Sizes())
    written = (tmp_path / "performance.md").read_text()
    assert written.startswith(f"# Mine\n\nbefore\n\n{page.BEGIN}\nMeasured on 2026-01-01")
    assert written.endswith(f"{page.END}\n\nafter\n")
    assert "old figures" not in written


def test_a_page_without_marks_gets_them_at_its_end():
    assert page.replaced("# Mine\n", "figures") == f"# Mine\n\n{page.BEGIN}\nfigures\n{page.END}\n"


def test_a_plot_is_made_only_of_what_was_measured(results):
    assert set(page.plots(replace(results, latency={}, snapshot={}), ME)) == {"performance-drain.svg"}


def test_the_page_in_the_documentation_has_the_marks():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert text.count(page.BEGIN) == text.count(page.END) == 1


# --- plots


def boxes(svg: str) -> list[tuple[str, float, float, float, float]]:
    """Each text with the rectangle it takes, by the width of its letters."""
    found = []
    for text in ET.fromstring(svg).iter(f"{SVG}text"):
        size = 9.0 if "title" in text.attrib["class"] else 7.0
        width, x, y = size * len(text.text), float(text.attrib["x"]), float(text.attrib["y"])
        x -= {"start": 0, "middle": width / 2, "end": width}[text.attrib["text-anchor"]]
        found.append((text.text, x, y - 12, x + width, y + 3))
    return found


@pytest.mark.parametrize("name", ["performance-drain.svg", "performance-latency.svg", "performance-growth.svg"])
def test_no_text_of_a_plot_lies_on_another_or_outside(results, name):
    everybody = [peer for peer in PEERS if peer.name != "bare"]
    results.drain = {peer.name: [30_000.0 / (place + 1)] for place, peer in enumerate(everybody)}
    results.latency = {peer.name: [0.5 + place, 900.0] for place, peer in enumerate(everybody)}
    # All lines end at the same place: their names must not.
    results.snapshot = {peer.name: [[1_200_000.0] * 9] for peer in everybody[:5]}
    svg = page.plots(results, everybody)[name]
    taken = boxes(svg)
    height = float(ET.fromstring(svg).attrib["viewBox"].split()[3])
    for number, (text, left, top, right, bottom) in enumerate(taken):
        assert left >= 0 and right <= plot.WIDTH and top >= 0 and bottom <= height, text
        for other, *place in taken[number + 1 :]:
            apart = right <= place[0] or place[2] <= left or bottom <= place[1] or place[3] <= top
            assert apart, f"{text!r} lies on {other!r}"


def test_every_class_used_in_a_plot_has_a_colour_in_light_and_dark(results):
    for svg in page.plots(results, ME).values():
        style = ET.fromstring(svg).find(f"{SVG}style").text
        light, dark = style.split("@media (prefers-color-scheme: dark)")
        for name in {found for each in re.findall(r'class="([^"]+)"', svg) for found in each.split()}:
            assert f".{name} {{" in light
            assert f".{name} {{" in dark or name in ("line", "text", "title")
        # Rules that colours of the dark half, which come later, must not undo.
        assert "polyline.line { fill: none" in light
        assert "text.text { stroke: none" in light


def test_names_at_the_end_of_lines_keep_their_distance_and_stay_inside():
    for ends in ([100.0, 101.0, 330.0], [72.0, 72.0, 73.0], [335.0, 336.0, 336.0]):
        moved = list(plot.apart(dict(zip("abc", ends, strict=True)), 17, 72, 336).values())
        assert moved[0] >= 72 and moved[0] + 17 <= moved[1] and moved[1] + 17 <= moved[2] and moved[2] <= 336


# --- the catalogue


def test_everything_measured_in_sql_can_be_asked_in_sql():
    for peer in PEERS:
        assert not ({"drain"} & peer.measured and peer.store == "postgresql") or peer.left, peer.name
        assert "latency" not in peer.measured or "%(n)s" in peer.add, peer.name


def test_every_peer_has_its_adapter_and_its_pins():
    home = ROOT / "bench-peers"
    for peer in PEERS:
        assert (home / "adapters" / peer.adapter).exists()
        pins = home / ("node/package.json" if peer.node else f"requirements/{peer.home}.txt")
        if peer.home:
            pinned = re.search(rf'"?{re.escape(peer.package)}(\[[\w,]+\])?("?: "|==)\d', pins.read_text())
            assert pinned, f"{peer.name} is not pinned in {pins.name}"


def test_what_the_page_will_say_uses_our_words():
    for peer in PEERS:
        assert not re.search(r"heart-?beat|entrypoint|throttl", peer.settings), peer.name
