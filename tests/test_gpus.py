"""The appendix of results: what it tells of each GPU, and the switch between two, driven in a browser."""

import math
import re

import pytest
from doctored_results import another_gpu, document, row, table, write

from labkit import figures, gpus_figure, headlines, results

SLOW = "NVIDIA Slow"


def slow(**changes):
    """A GPU whose benchmarks take twice as long, and its memory is half as fast."""
    found = another_gpu(SLOW, times=2.0, **changes)
    row(found, "03", "levels", "memory")["GB/s"] /= 2
    return found


# -- headlines ----------------------------------------------------------------------------------------------

def benchmark(**medians):
    """A run of lab 04 with one benchmark, limit 100 µs, and rows of these times."""
    rows = [{"name": name.replace("_", " "), "median_us": us, "low_us": us, "high_us": us, "gbps": 1.0, "of_limit": 100.0 / us,
             "host_bound": False, "max_error": None} for name, us in {"copy": 100.0, **medians}.items()]
    return {"04_fused_kernel": {"tables": {"forward": {"kind": "bench", "title": "GeLU", "size": [8], "dtype": "float32",
                                                       "bytes": 64, "rounds": 3, "limit": "copy", "rows": rows}}}}


def test_a_headline_has_the_fastest_of_ours_and_the_fastest_rival_but_not_the_limit():
    found, = headlines.headlines(benchmark(v1=300.0, v2=120.0, v10=130.0, composed=900.0, Triton=110.0, F=125.0))
    assert (found.limit["name"], found.ours["name"], found.rival["name"]) == ("copy", "v2", "Triton")
    assert headlines.table([found])["rows"] == [
        {"benchmark": "GeLU, 8 float32", "limit, µs": 100.0, "best rival": "Triton", "its µs": 110.0, "ours, µs": 120.0,
         "ours, of the limit": "83.3%"}]
    assert headlines.shares([found])["rows"] == [{"benchmark": "GeLU", "ours": 83.3, "best rival": 90.9}]


def test_a_headline_without_a_rival_has_a_gap_and_one_without_ours_is_left_out():
    found, = headlines.headlines(benchmark(ours__input_kept=125.0))
    assert found.rival is None and headlines.table([found])["rows"][0]["best rival"] is None
    assert "–" in figures.html_table(headlines.table([found]), "c") and "<svg" in figures.figure(headlines.shares([found]))
    assert headlines.headlines(benchmark(Triton=110.0)) == [] == headlines.headlines({})


def test_every_headline_is_recorded_on_the_books_gpu():
    found = headlines.headlines(results.latest_runs(document()["runs"]))
    assert len(found) == len(headlines.BENCHMARKS)
    assert all(each.rival and each.ours["median_us"] >= 0.9 * each.limit["median_us"] for each in found)


def test_the_facts_of_a_gpu_are_those_of_its_latest_runs_and_name_what_is_missing():
    found = slow(leave_out=["05", "06"])
    found["runs"][0]["versions"]["torch"] = "2.12.0"
    found["runs"][0]["date"] = "2026-12-03T00:00:00Z"
    facts = headlines.facts(found)
    assert facts["GPU"] == "NVIDIA Slow, compute capability 9.0, 132 SMs" and facts["torch"] == "2.11.0, 2.12.0"
    assert facts["measured"].endswith(" to 2026-12-03") and "05" not in facts["labs"]
    assert "05_jit_builds, 06_mixed_precision" in facts["not recorded"]
    for run in found["runs"]:
        run["clocks"] = None
    assert "power limit" not in headlines.facts(found)


# -- the switch ---------------------------------------------------------------------------------------------

@pytest.fixture
def opened(open_figure, tmp_path):
    """opened(documents, ...) opens the figure made of these results files; see open_figure."""
    def open_page(documents, **options):
        path = tmp_path / "compare.html"
        path.write_text(gpus_figure.html(documents), encoding="ascii")  # alone it says no encoding
        return open_figure(path, **options)

    return open_page


def choose(page, name, gpu):
    page.locator(f"select[name={name}]").select_option(label=gpu)


def told(page, measure):
    """What the figure says of one measure: its line in words, and the two values."""
    item = page.locator("li").filter(has_text=measure).first
    return item.locator(".cg-said").inner_text(), item.locator(".cg-value").all_inner_texts()


FORWARD = "GeLU forward, 16384 × 16384 bfloat16, ours"


def forward(times=1):
    """What the figure says of that benchmark on a GPU that takes `times` as long as the recorded one."""
    return f"{times * gpus_figure.measures(document())[FORWARD]['value']:.1f} µs"


def test_what_is_compared_is_what_was_recorded():
    found = gpus_figure.measures(document())
    timed = min((each for each in table(document(), "04", "forward")["rows"] if each["name"].startswith("v")),
                key=lambda each: each["median_us"])
    assert found[FORWARD] == {
        "unit": "µs", "value": timed["median_us"], "low": timed["low_us"], "high": timed["high_us"]}
    assert found["memory, read"]["value"] == row(document(), "03", "levels", "memory")["GB/s"]
    assert len(found) == len(headlines.BENCHMARKS) + 4


def test_two_gpus_stand_beside_each_other_and_the_faster_is_named(opened):
    page = opened([document(), slow()])
    said, values = told(page, "GeLU forward, 16384")
    assert said == "NVIDIA H200 2.00× as fast" and values == [forward(), forward(2)]
    read = row(document(), "03", "levels", "memory")["GB/s"]
    said, values = told(page, "memory, read")
    assert said == "NVIDIA H200 2.00× as fast" and values == [
        f"{rate:,.0f} GB/s" for rate in (read, math.floor(read / 2 + 0.5))]
    bars = [bar.bounding_box()["width"] for bar in page.locator("li").first.locator(".cg-bar").all()]
    assert bars[1] == pytest.approx(bars[0] / 2, rel=0.02), "a longer bar is faster"
    assert page.locator("li").count() == len(gpus_figure.measures(document()))
    assert not page.locator(".cg-all").is_visible()


def test_the_reader_switches_to_a_third_gpu_by_keyboard(opened):
    page = opened([document(), slow(), another_gpu("NVIDIA Quick", times=0.5)])
    page.locator("select[name=b]").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("select[name=b] option:checked").inner_text() == "NVIDIA Quick"
    assert told(page, "GeLU forward, 16384")[0] == "NVIDIA Quick 2.00× as fast"
    choose(page, "a", SLOW)
    assert told(page, "GeLU forward, 16384")[0] == "NVIDIA Quick 4.00× as fast"
    assert told(page, "GeLU forward, 16384")[1] == [forward(2), forward(0.5)]


def test_a_gpu_cannot_be_chosen_on_both_sides(opened):
    page = opened([document(), slow(), another_gpu("NVIDIA Quick")])
    assert page.locator("select[name=a] option:disabled").all_inner_texts() == [SLOW]
    choose(page, "b", "NVIDIA Quick")
    assert page.locator("select[name=a] option:disabled").all_inner_texts() == ["NVIDIA Quick"]
    assert page.locator("select[name=b] option:disabled").all_inner_texts() == ["NVIDIA H200"]


def test_times_within_the_spread_are_not_told_as_a_difference(opened):
    page = opened([document(), another_gpu("NVIDIA Same", times=1.001)])
    assert told(page, "GeLU forward, 16384")[0] == "within the spread"
    assert told(page, "memory, read")[0] == "the same", "it has no spread to be within"


def test_what_one_has_not_measured_is_a_gap(opened):
    page = opened([document(), slow(leave_out=["04"])])
    said, values = told(page, "GeLU forward, 16384")
    assert said == "measured on one of them" and values == [forward(), "–"]
    assert page.locator("li").first.locator("[role=img]").nth(1).get_attribute("aria-label") == "NVIDIA Slow: not measured"


def test_without_javascript_there_is_a_table_of_all(opened):
    page = opened([document(), slow(), another_gpu("NVIDIA Quick", times=0.5)], java_script_enabled=False)
    assert not page.locator(".cg-live").is_visible()
    cells = page.locator("tr").filter(has_text="GeLU forward, 16384").locator("td").all_inner_texts()
    assert cells[1:] == [forward(), forward(2), forward(0.5)]
    assert page.locator("th").all_inner_texts()[1:] == ["NVIDIA H200", SLOW, "NVIDIA Quick"]


def test_a_name_that_looks_like_markup_is_shown_as_it_is(opened):
    name = "NVIDIA </script><b>\u00e9"
    found = slow()
    found["gpu"]["name"] = name
    page = opened([document(), found])
    assert told(page, "GeLU forward, 16384")[1] == [forward(), forward(2)]
    assert page.locator("select[name=b] option:checked").inner_text() == name and page.locator("b").count() == 0


@pytest.mark.parametrize("theme, ink", [("light", "rgb(34, 40, 50)"), ("dark", "rgb(206, 214, 221)")])
def test_it_takes_the_pages_colours_and_fits_a_phone(opened, theme, ink):
    page = opened([document(), slow()], theme=theme, width=390)
    for place in (".compare-gpus", "select[name=a]", "li strong"):
        assert page.locator(place).first.evaluate("element => getComputedStyle(element).color") == ink
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("select[name=a]").bounding_box()["height"] >= 44


# -- on a page ----------------------------------------------------------------------------------------------

@pytest.fixture
def built(one_page, tmp_path, monkeypatch):
    """built(text, *documents): the HTML and the warnings of a book of that one page, with these results files."""
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setenv("LABKIT_RESULTS", str(folder))

    def build(text, *documents):
        write(folder, *documents)
        return one_page(text, "extensions = ['myst_parser', 'labkit.book', 'labkit.appendices']", "myst_heading_anchors = 3",
                        "html_theme = 'basic'")

    return build


PAGE = "```{compare-gpus}\n```\n\n## Add your GPU\n\n```{recorded-gpus}\n```"


def test_with_one_gpu_the_page_says_that_a_switch_needs_a_second(built):
    html, warnings = built(PAGE, document())
    assert not warnings and "<select" not in html
    assert "one GPU is recorded here: NVIDIA H200." in html and 'href="#add-your-gpu"' in html
    assert html.count("<section") == 3 and '<section id="nvidia-h200">' in html and html.count("<svg") == 4


def test_with_two_gpus_there_is_a_switch_and_a_section_for_each(built):
    html, warnings = built(PAGE, another_gpu(SLOW, leave_out=["03"]), document())
    assert not warnings and html.count('<div class="compare-gpus"') == 1 and "is recorded here" not in html
    assert html.index('<section id="nvidia-h200">') < html.index('<section id="nvidia-slow">'), "the book's GPU stands first"
    part = html[html.index('<section id="nvidia-slow">'):]
    assert "The levels of the memory" not in part and "03_memory_hierarchy" in part and "NVIDIA Slow" in part


def test_with_no_gpu_the_pages_say_so(built):
    html, warnings = built(f"{PAGE}\n\n```{{claims-ledger}}\n```")
    assert not warnings and "no GPU is recorded here" in html and "<svg" not in html
    assert "No GPU has recorded" in html and "<table" not in html


def test_the_ledger_has_a_row_for_each_claim_and_gpu(built):
    html, warnings = built("```{claims-ledger}\n```", document(), slow(leave_out=["02"]))
    assert not warnings
    body = re.search(r"<tbody>(.*?)</tbody>", html, re.DOTALL)[1]
    assert body.count("<tr") == 28 and body.count('rowspan="2"') == 14
    assert re.findall(r"<strong>(C\d+)</strong>", body) == [f"C{number}" for number in range(1, 15)]
    words = re.findall(r'<p class="verdict verdict-([\w-]+)">', body)
    assert len(words) == 28 and words[4:6] == ["not-reproduced", "none"], "C3, whose lab the second GPU has not run"
    assert re.search(r"On NVIDIA Slow: .*\d not measured\.", html)
    assert "{{" not in html and "<code" in body


def test_a_change_of_any_results_file_makes_the_pages_anew(built):
    """That of a GPU whose figures no other page prints."""
    html, _ = built("```{claims-ledger}\n```", document(), slow())
    assert html.count("25.5% of the kernels") == 2
    found = slow()
    row(found, "09", "hot_composed_summary", "that is, of the distinct kernels, %")["value"] = 12.5
    html, _ = built("```{claims-ledger}\n```", document(), found)
    assert html.count("12.5% of the kernels") == html.count("25.5% of the kernels") == 1
