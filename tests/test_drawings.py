"""Heat maps, timelines, and the points and marks of curves: what is drawn, and what a terminal shows instead."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import colormaps, colors
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from labkit import figures, heat_figure, report, svg

REPOSITORY = Path(__file__).resolve().parents[1]

HEAT = {"kind": "heat", "title": "Throughput <by> geometry", "unit": "GB/s",
        "x": {"label": "elements a thread", "values": [1, 2, 4]},
        "y": {"label": "threads a block", "values": [32, 1024]}, "cells": [[412.25, 1800.0, 1993.4], [3600.0, 4102.0, None]],
        "marks": [{"label": "the article's choice", "x": 4, "y": 32}, {"label": "fastest", "x": 2, "y": 1024},
                  {"label": "version 6", "x": 2, "y": 1024}],
        "lines": [{"label": "copy", "value": 4153.0}]}
TIMELINE = {"kind": "timeline", "title": "Copies", "unit": "ms", "lanes": [
    {"name": "copy", "group": "in turn", "spans": [{"label": "0", "start": 0.0, "end": 4.0},
                                                  {"label": "one", "start": 9.9, "end": 10}]},
    {"name": "copy", "group": "at once", "spans": [{"label": "0", "start": 1.0, "end": 3.0, "color": 3}]},
    {"name": "kernel", "group": "in turn", "spans": []}]}
CURVE = {"kind": "curve", "title": "Copy",
         "x": {"label": "bytes", "scale": "log", "values": [1 << k for k in range(10, 31)],
               "ticks": [1 << 10, 1 << 20, 1 << 30], "tick_labels": ["1 KiB", "1 MiB", "1 GiB"]},
         "y": {"label": "GB/s"}, "series": {"copy": [100.0 * k for k in range(21)]},
         "points": [{"label": "fused", "x": 1 << 20, "y": 900.0}, {"label": "eager", "x": 1 << 20, "y": 900.0}],
         "vertical": [{"label": "half of L2", "x": 25 << 20}, {"label": "L2, 50 MiB", "x": 50 << 20}]}


def elements(drawing: str, name: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith(f"}}{name}")]


def words(drawing: str) -> list[str]:
    return ["".join(each.itertext()) for each in elements(drawing, "text")]


def titled(drawing: str, start: str) -> ElementTree.Element:
    """The one bar or cell whose title begins so."""
    found, = [each for each in elements(drawing, "rect") if any((child.text or "").startswith(start) for child in each)]
    return found


def label(drawing: str) -> str:
    return ElementTree.fromstring(drawing).get("aria-label")


@pytest.mark.parametrize("record", [HEAT, TIMELINE, CURVE], ids=lambda record: record["kind"])
def test_a_drawing_is_well_formed_takes_the_pages_colours_and_shares_no_name_with_another(record):
    drawing = figures.figure(record)
    other = figures.figure({**record, "title": "Another"} | ({"series": {"a": [7.0] * 21}} if record is CURVE else {}))
    assert "currentColor" in drawing and figures.INK not in drawing and not re.search(r"#000(000)?\b|\bblack\b", drawing)
    assert all(text in label(drawing) for text in (record["title"], "copy"))
    assert 'style="width:100%;max-width:32rem"' in drawing and "\n\n" not in drawing
    named = [{each.get("id"): ElementTree.tostring(each) for each in ElementTree.fromstring(of).iter() if each.get("id")}
             for of in (drawing, other)]
    assert all(named[0][name] == named[1][name] for name in set(named[0]) & set(named[1]))


# -- heat maps ----------------------------------------------------------------------------------------------

def test_a_heat_map_holds_every_number_and_every_setting():
    shown = words(figures.figure(HEAT))
    assert shown[:5] == ["threads a block", "32", "412.2", "1,800", "1,993"]
    assert shown[5:9] == ["1,024", "3,600", "4,102", "–"]
    assert shown[9:13] == ["1", "2", "4", "elements a thread"]


def test_a_heat_maps_marks_and_lines_are_named_below_it_and_aloud():
    drawing = figures.figure(HEAT)
    said = " ".join(words(drawing))
    assert "the article's choice: 1,993\u202fGB/s at 32 threads a block, 4 elements a thread" in said
    assert "fastest; version 6: 4,102\u202fGB/s at 1,024 threads a block, 2 elements a thread" in said
    assert "copy: 4,153\u202fGB/s" in said
    assert "Largest: 4,102\u202fGB/s at 1,024 threads a block, 2 elements a thread" in label(drawing)
    assert "smallest: 412.2\u202fGB/s at 32 threads a block, 1 element a thread" in label(drawing)
    assert "the article's choice: 1,993" in label(drawing)
    outlines = [each for each in elements(drawing, "rect") if each.get("stroke-width") == "2"]
    assert len(outlines) == 4 and len({each.get("stroke-dasharray") for each in outlines}) == 2  # each cell, each in the legend


def test_an_outline_goes_round_the_cell_it_marks():
    drawing = figures.figure({**HEAT, "marks": HEAT["marks"][:1]})
    outline = next(each for each in elements(drawing, "rect") if each.get("stroke-width") == "2")
    cell = titled(drawing, "32 threads a block, 4 elements")
    for start, length in (("x", "width"), ("y", "height")):
        assert float(outline.get(start)) < float(cell.get(start))
        assert float(outline.get(start)) + float(outline.get(length)) > float(cell.get(start)) + float(cell.get(length))


def test_a_heat_maps_colours_run_from_its_least_number_to_the_greatest_reference():
    drawing = figures.figure({**HEAT, "cells": [[0.0, 2000.0, 3000.0], [3600.0, 4102.0, None]]})
    fills = [titled(drawing, f"32 threads a block, {x} element").get("fill") for x in (1, 2, 4)]
    assert fills == [colors.to_hex(colormaps["cividis"](share)) for share in (0.0, 2000 / 4153, 3000 / 4153)]
    assert titled(drawing, "1,024 threads a block, 4 elements a thread: not measured").get("fill") == "none"
    tick, _ = elements(drawing, "line")  # in the key, and in the legend
    assert float(tick.get("x1")) == pytest.approx(svg.WIDE - 2, abs=0.1)


def test_every_number_can_be_read_on_the_colour_of_its_cell():
    for k in range(256):
        ground = colors.to_hex(colormaps["cividis"](k))
        assert svg.contrast(svg.ink_on(ground), ground) >= 4.5
    assert svg.contrast("#000000", "#ffffff") == pytest.approx(21) and svg.contrast("#777777", "#777777") == 1


def test_a_cells_number_is_as_small_as_its_cell_asks_for():
    wide = {**HEAT, "x": {"label": "elements", "values": list(range(10))}, "y": {"label": "threads", "values": [32]},
            "cells": [[1234.0] * 9 + [12345.0]], "marks": []}
    drawing = figures.figure(wide)
    number = next(each for each in elements(drawing, "text") if each.text == "12,345")
    cell = titled(drawing, "32 threads, 9 elements")
    assert svg.text_width("12,345", float(number.get("font-size"))) <= float(cell.get("width"))
    assert next(each for each in elements(figures.figure(HEAT), "text") if each.text == "1,993").get("font-size") == "12.5"


def test_a_map_of_one_number_is_drawn():
    one = {"kind": "heat", "title": "T", "unit": "µs", "x": {"label": "x", "values": [1]}, "y": {"label": "y", "values": [1]},
           "cells": [[5]]}
    assert words(figures.figure(one)) == ["y", "1", "5", "1", "x"]


def test_a_setting_of_one_is_read_in_the_singular():
    said = {"threads a block": "1 thread a block", "batches": "1 batch", "passes over x": "1 pass over x", "warp": "1 warp"}
    for plural, singular in said.items():
        heat = {"x": {"label": plural}, "y": {"label": plural}}
        assert heat_figure.place_of(heat, 1, 2) == f"2 {plural}, {singular}"


def test_a_heat_map_is_a_table_too():
    heads, rows = figures.grid(HEAT)
    assert heads == ["threads a block ↓ elements a thread →", "1", "2", "4"]
    assert rows == [["32", "412.2", "1,800", "1,993"], ["1,024", "3,600.0", "4,102", "–"]]


# -- timelines ----------------------------------------------------------------------------------------------

def test_bars_stand_where_and_as_long_as_the_spans_lasted():
    drawing = figures.figure(TIMELINE)
    first, late, other = (titled(drawing, start)
                          for start in ("in turn: copy 0: 0 to 4 ms", "in turn: copy one", "at once: copy 0"))
    x, width = ([float(each.get(key)) for each in (first, late, other)] for key in ("x", "width"))
    unit = (x[1] - x[0]) / 9.9
    assert x[2] - x[0] == pytest.approx(unit, abs=0.02)
    assert width == pytest.approx([4 * unit - 0.8, 0.1 * unit - 0.8, 2 * unit - 0.8], abs=0.02)
    assert x[1] + width[1] <= svg.WIDE
    assert other.get("fill") == figures.PALETTE[3] and first.get("fill") == figures.PALETTE[0]
    ticks = {text.text: float(text.get("x")) for text in elements(drawing, "text") if (text.text or "").isdigit()}
    assert ticks["10"] - x[0] == pytest.approx(10 * unit, abs=0.1)


def test_lanes_of_a_group_stand_together_under_its_name():
    shown = words(figures.figure(TIMELINE))
    named = [text for text in shown if text in ("in turn", "at once", "copy", "kernel")]
    assert named == ["in turn", "copy", "kernel", "at once", "copy"]


def test_a_label_is_printed_in_its_bar_only_where_it_fits():
    shown = words(figures.figure(TIMELINE))
    assert "0" in shown and "one" not in shown
    wide = {**TIMELINE, "lanes": [{"name": "copy", "spans": [{"label": "one", "start": 0, "end": 1}]}]}
    assert "one" in words(figures.figure(wide))


def test_a_long_name_of_a_lane_is_broken_and_stays_in_the_drawing():
    name = "cudaMemcpyAsync host to device, stream 7"
    drawing = figures.figure({**TIMELINE, "lanes": [{"name": name, "spans": [{"start": 0, "end": 1}]}]})
    lines = [each for each in elements(drawing, "text") if each.text in svg.wrapped(name, 105)]
    assert " ".join(line.text for line in lines) == name and len(lines) == 3
    assert all(float(line.get("x")) - svg.text_width(line.text) > -0.1 for line in lines)


def test_spans_that_took_no_time_are_drawn():
    at_once = {**TIMELINE, "lanes": [{"name": "copy", "spans": [{"start": 0, "end": 0}]}]}
    assert float(titled(figures.figure(at_once), "copy: 0 to 0 ms").get("width")) > 0


def test_a_timeline_is_a_table_too():
    heads, rows = figures.grid(TIMELINE)
    assert heads == ["lane", "spans", "start, ms", "end, ms", "total, ms"]
    assert rows[0] == ["in turn: copy", "2", "0", "10", "4.1"]
    assert rows[2] == ["in turn: kernel", "0", "–", "–", "0.0"]


# -- curves -------------------------------------------------------------------------------------------------

def test_ticks_points_and_vertical_lines_are_named():
    drawing = figures.figure(CURVE)
    shown = words(drawing)
    assert {"1 KiB", "1 MiB", "1 GiB", "fused", "eager", "half of L2", "L2, 50 MiB"} <= set(shown)
    assert not any("10^" in text or "mathdefault" in text for text in shown)
    assert "fused: 900 at bytes 1,048,576" in label(drawing)


def test_an_axis_has_the_ticks_it_was_given_and_no_others():
    narrow = {"kind": "curve", "title": "T", "x": {"label": "warps", "scale": "log", "values": [1, 2, 4], "ticks": [1, 2, 4]},
              "series": {"a": [0.25, 0.5, 0.75]}}
    shown = words(figures.figure(narrow))
    assert shown[:4] == ["1", "2", "4", "warps"]


def test_tick_labels_that_do_not_fit_beside_one_another_stand_upright():
    many = {**CURVE, "x": {**CURVE["x"], "ticks": [1 << k for k in range(10, 20)],
                           "tick_labels": [f"{1 << k} KiB" for k in range(10)]}}
    turned = [[each for each in elements(figures.figure(curve), "text") if "KiB" in "".join(each.itertext())
               and "rotate(-90)" in each.get("transform", "")] for curve in (many, CURVE)]
    assert len(turned[0]) == 10 and turned[1] == []


def test_names_of_close_vertical_lines_stand_in_rows_of_their_own():
    near = {text: height for text, height in heights(CURVE).items() if "L2" in text}
    assert near["half of L2"] < near["L2, 50 MiB"]  # the pole on the right is the shorter; y grows downwards
    apart = {**CURVE, "vertical": [{"label": "A", "x": 1 << 12}, {"label": "B", "x": 1 << 25}]}
    assert heights(apart)["A"] == heights(apart)["B"]
    last = {**CURVE, "vertical": [{"label": "all of the memory", "x": 1 << 30}]}
    drawn = next(each for each in elements(figures.figure(last), "text") if "".join(each.itertext()) == "all of the memory")
    assert "text-anchor: end" in drawn.get("style")


ROOFS = {"kind": "curve", "title": "Roofs", "x": {"label": "operations a byte", "scale": "log", "values": [1, 2, 4]},
         "y": {"label": "GFLOP/s", "scale": "log"}, "series": {"tensor cores, bfloat16": [1e4, 1e5, 1e6], "float32": [1, 2, 3]},
         "points": [{"label": f"operator v{k}", "x": k, "y": k} for k in (1, 2, 3)]}
RECORDED = [table for run in json.loads((REPOSITORY / "results" / "nvidia-h200.json").read_text(encoding="utf-8"))["runs"]
            for table in run["tables"].values() if table["kind"] == "curve"]


@pytest.mark.parametrize("curve", [CURVE, ROOFS, *RECORDED], ids=lambda curve: curve["title"])
def test_the_names_of_lines_and_points_stay_in_the_drawing(curve):
    drawing = figures.figure(curve)
    width = float(ElementTree.fromstring(drawing).get("viewBox").split()[2])
    names = {*curve["series"], *(point["label"] for point in curve.get("points", []))}
    ends = {text: float(each.get("x")) + svg.text_width(text, 13) for each in elements(drawing, "text")
            if (text := "".join(each.itertext())) in names and "start" in each.get("style", "")}
    assert set(ends) == names and max(ends.values()) <= width


def heights(curve: dict) -> dict[str, float]:
    """At which height each text stands."""
    place = re.compile(r"translate\([\d.]+ ([\d.]+)\)")
    found = {}
    for each in elements(figures.figure(curve), "text"):
        at = place.search(each.get("transform", ""))
        found["".join(each.itertext())] = float(at[1] if at else each.get("y"))
    return found


# -- in a lab -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("record, line", [
    (HEAT, "32 412.2 1,800 1,993"),
    (TIMELINE, "in turn: copy 2 0 10 4.1"),
    (CURVE, "copy: at most 2,000, at the end 2,000")], ids=lambda value: value["kind"] if isinstance(value, dict) else "")
def test_a_terminal_shows_the_numbers_of_a_figure(record, line, capsys):
    report.show_figure(record, "Recorded on X")
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{figures.title(record)}. Recorded on X." and line in [" ".join(each.split()) for each in lines]


def test_a_notebook_shows_the_drawing_with_its_title(monkeypatch):
    pages = []
    monkeypatch.setattr(report, "show_html", lambda page, plain: pages.append(page()))
    report.show_figure(HEAT)
    page, = pages
    assert page.startswith("<figure><svg") and "<figcaption>Throughput &lt;by&gt; geometry, GB/s. On the CPU" in page


def widths(element: ElementTree.Element, size=16.0, weight="normal", anchor="start"):
    """(words, left, right) of each text of a drawing, set in DejaVu Sans, which is wider than most fonts of pages."""
    size, weight = float(element.get("font-size", size)), element.get("font-weight", weight)
    anchor = element.get("text-anchor", anchor)
    if element.tag.endswith("}text"):
        font = FT2Font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
        font.set_size(size, 72)
        said = "".join(element.itertext())
        font.set_text(said)
        width, x = font.get_width_height()[0] / 64, float(element.get("x"))
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        yield said, left, left + width
    for child in element:
        yield from widths(child, size, weight, anchor)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "book" / "figures").glob("*.svg")), ids=lambda path: path.stem)
def test_the_words_of_a_drawn_figure_stay_in_it_in_a_wide_font(path):
    drawing = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    left, _, width, _ = map(float, drawing.get("viewBox").split())
    assert "transform" not in path.read_text(encoding="utf-8"), "where its words stand is then not known here"
    said = list(widths(drawing))
    assert said and not [word for word, start, end in said if start < left - 0.5 or end > left + width + 0.5]
