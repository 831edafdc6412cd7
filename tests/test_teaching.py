"""The teaching guide: plans by the clock with exercises that there are, and slides of what is recorded."""

import re
import subprocess
import sys

import pytest
import yaml

from labkit import REPOSITORY, exercises, teaching

PAUSES = ("Break", "Lunch")
PLANS = yaml.safe_load(teaching.PLANS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name, minutes", [("half-day", 240), ("one-day", 490)])
def test_a_plan_goes_by_the_clock_and_its_exercises_are_there(name, minutes):
    rows = teaching.plan(name)["rows"]
    assert sum(row["minutes"] for row in rows) == minutes
    hours, past = map(int, rows[-1]["from"].split(":"))
    assert 60 * hours + past + rows[-1]["minutes"] == 9 * 60 + minutes
    for row, step in zip(rows, PLANS[name]["steps"], strict=True):
        assert row["exercises"].count("; ") + 1 >= step.get("exercises", 0)
        assert "chapter" not in step or (REPOSITORY / "book" / f"{step['chapter']}.md").is_file()
    longest = max(sum(step["minutes"] for step in part) for part in parts(PLANS[name]["steps"]))
    assert longest <= 100, "nobody sits that long without a break"
    assert all(row["the room"] != "–" for row, step in zip(rows, PLANS[name]["steps"]) if step["what"] not in PAUSES)


def parts(steps):
    """The steps between breaks."""
    found = [[]]
    for step in steps:
        found.append([]) if step["what"] in PAUSES else found[-1].append(step)
    return found


@pytest.mark.parametrize("step, words", [
    ({"what": "x"}, "'x' has None minutes"),
    ({"what": "x", "minutes": 5, "chapter": "08_sync_pitfalls"}, "'x' does not say what the room does"),
    ({"what": "x", "minutes": 25, "talk": 6, "room": "y", "chapter": "08_sync_pitfalls", "exercises": 2},
     "leaves 19 minutes beside the talk, and its exercises take 20"),
    ({"what": "x", "minutes": 5, "talk": 5, "room": "y", "chapter": "08_sync_pitfalls"}, "leaves 0 minutes"),
    ({"what": "x", "minutes": 990, "room": "y", "chapter": "08_sync_pitfalls", "exercises": 99},
     "wants 99 exercises, and the lab has")])
def test_a_plan_that_cannot_be_is_refused(tmp_path, monkeypatch, step, words):
    path = tmp_path / "plans.yml"
    path.write_text(yaml.safe_dump({"short": {"begins": "09:00", "steps": [step]}}))
    monkeypatch.setattr(teaching, "PLANS", path)
    with pytest.raises(teaching.PlanError, match=words):
        teaching.plan("short")
    with pytest.raises(teaching.PlanError, match="there is no plan 'long' in workshop/plans.yml; there are short"):
        teaching.plan("long")


def test_every_chapter_has_its_words_for_the_teacher_and_its_slides():
    guide = (REPOSITORY / "book" / "14_teaching.md").read_text(encoding="utf-8")
    steps = re.findall(r"^### .*?(?=^#|\Z)", guide.partition("## Step by step")[2], re.MULTILINE | re.DOTALL)
    assert len(steps) == len(list((REPOSITORY / "labs").glob("[0-9]*.ipynb")))
    assert all(all(f"**{word}" in step for word in ("Say:", "Where people get stuck:", "Skip:")) for step in steps)
    deck = (REPOSITORY / "workshop" / "slides" / "index.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^## ", deck, re.MULTILINE)) == len(steps) + 1  # the chapters, and the end


def test_the_guide_says_once_what_nobody_has_tried():
    guide = (REPOSITORY / "book" / "14_teaching.md").read_text(encoding="utf-8")
    tried, untried = re.search(r"### What was tried\n(.*?)\*\*Not tried\*\*(.*?)^## ", guide, re.DOTALL | re.MULTILINE).groups()
    assert "`try_hub.py`" in tried and guide.lower().count("not tried") == 1
    assert all(what in untried for what in ("a class of people", "MIG", "T4", "systemd", "Colab", "Docker", "Kubernetes"))


def test_all_exercises_are_listed_with_what_is_graded():
    rows = teaching.all_exercises()["rows"]
    assert [row["name"] for row in rows] == exercises.names()
    for row in rows:
        asked = exercises.read(row["name"])
        graded = row["graded beside values"]
        assert all(limit in graded for limit in asked.limits)
        assert ("gradient" in graded) == any(launch.mode.startswith("backward") for launch in asked.launches)


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """The page of the slides, built strictly."""
    pytest.importorskip("sphinx_revealjs", reason="needs workshop/requirements.txt")
    made = tmp_path_factory.mktemp("slides")
    done = subprocess.run([sys.executable, "-m", "sphinx", "-b", "revealjs", "-q", "-W", "-n",
                           str(REPOSITORY / "workshop" / "slides"), str(made)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made / "index.html"


def test_the_slides_show_what_is_recorded_and_each_says_what_to_say(slides):
    page = slides.read_text(encoding="utf-8")
    deck = (REPOSITORY / "workshop" / "slides" / "index.md").read_text(encoding="utf-8")
    assert page.count('<svg') >= deck.count("{results-figure}") and page.count("<table") == deck.count("{results-table}")
    assert page.count('class="notes"') == len(re.findall("^#+ ", deck, re.MULTILINE)) and "Recorded on NVIDIA H200" in page
    assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css)', page), "a workshop may have no network"


def test_every_slide_fits_the_screen_and_can_be_read_from_the_last_row(slides, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(slides.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    for _ in range(page.evaluate("Reveal.getTotalSlides()")):
        title, right, bottom, cut, smallest = page.evaluate(SEEN)
        assert right <= 1280 and bottom <= 800 and cut <= 2, f"{title}: {right:.0f} × {bottom:.0f}, and {cut} cut off"
        assert smallest >= 14, f"{title}: letters of {smallest:.0f} pixels"
        page.evaluate("Reveal.next()")
    assert page.evaluate("Reveal.isLastSlide()")
    page.close()


SEEN = """() => {  // of the slide that is shown: its title, where it ends, how much code is cut off, its smallest letters
    const slide = Reveal.getCurrentSlide(), shown = [...slide.querySelectorAll("*")].filter(
        one => !one.closest(".notes") && one.getBoundingClientRect().height);
    const ends = side => Math.max(...shown.map(one => one.getBoundingClientRect()[side]));
    const code = shown.filter(one => one.matches("pre, code"));
    const letters = shown.filter(one => [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim())).map(
        one => one instanceof SVGElement ? one.getBoundingClientRect().height
                                         : parseFloat(getComputedStyle(one).fontSize));
    return [slide.querySelector("h1, h2, h3").innerText, ends("right"), ends("bottom"),
            Math.max(0, ...code.map(one => Math.max(one.scrollHeight - one.clientHeight, one.scrollWidth - one.clientWidth))),
            Math.min(...letters)];
}"""
