"""Pictures of a warp's request, and tables that hold source lines."""

import re

from labkit import figures, results

REQUEST = {"kind": "request", "title": "Warp 0 reads", "shared": False, "size": 4, "starts": 0,
           "example": [8 * lane for lane in range(31)] + [None]}


def test_a_request_is_drawn_with_its_lanes_and_sectors():
    results._validate(REQUEST, "a request", part="table")
    assert results.Recorded({}, {}, REQUEST).caption() == "Counted, not timed: the same on every machine"
    svg = figures.figure(REQUEST)
    assert 'role="img"' in svg and 'style="width:100%' in svg and 'aria-label="Warp 0 reads"' in svg
    assert svg.count("<title>lane") == 31 and ">28–30<" in svg and ">0–3<" in svg
    assert not re.search(r"#000(000)?\b|\bblack\b", svg)


def test_banks_are_drawn_wavefront_by_wavefront_up_to_eight():
    conflict = {**REQUEST, "shared": True, "starts": 1, "example": [128 * lane for lane in range(32)]}
    svg = figures.figure(conflict)
    assert svg.count("<title>bank 0:") == 8 and "and 24 more wavefronts" in svg
    halves = {**REQUEST, "shared": True, "size": 8, "starts": 1 | 1 << 16, "example": [8 * lane for lane in range(32)]}
    svg = figures.figure(halves)
    assert svg.count("<title>bank") == 64 and "more wavefronts" not in svg


def test_columns_are_told_apart_by_what_they_hold():
    heads = ["row", "count", "share", "name", "line", "text"]
    rows = [["v1", "1,024", "99.3%", "gelu v1", "93: y[i] = x[i];", "short"], ["v2", "8", "–", "x", "", "a" * 31]]
    assert figures.column_kinds(heads, rows) == ["name", "number", "number", "name", "code", "words"]
    table = {"kind": "table", "title": "T", "columns": heads, "rows": [dict(zip(heads, row)) for row in rows]}
    html = figures.html_table(table, "here")
    assert '<th class="number">share</th>' in html and '<td class="code" style="text-align: left">93: y[i] = x[i];</td>' in html
    assert "a" * 31 in html  # whole
    lines = figures.text_table(table).splitlines()
    assert lines[1].index("1,024") + 5 == lines[2].index("8") + 1 and lines[1].index("gelu") == lines[2].index(" x ") + 1
