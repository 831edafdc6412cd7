"""The interactive figure of launches: its arithmetic against brute force, and its use by keyboard, by touch and in the dark."""

import collections
import functools
import itertools
import random
import re
from pathlib import Path

import pytest

FIGURE = Path(__file__).resolve().parents[1] / "book/figures/launch_geometry.html"


@pytest.fixture
def opened(open_figure):
    """opened(theme=None, width=1200, **context): the figure in a browser page; see open_figure."""
    return functools.partial(open_figure, FIGURE)


def words(page, place):
    """The text in one part of the figure, in one line."""
    return " ".join(page.locator(f".lg-{place}").inner_text().split())


def fill(page, **values):
    for name, value in values.items():
        page.locator(f'[name="{name}"]').fill(str(value))


def preset(page, name):
    page.get_by_role("button", name=name).click()


# -- which thread takes which element -----------------------------------------------------------------------

def kernel(s):
    """Every thread of every block runs: yields (block, thread, [the elements it takes, in order])."""
    if s["order"] == "tile":
        grid = -(-s["rows"] // s["tileY"]), -(-s["columns"] // s["tileX"])
        for by, bx, ty, tx in itertools.product(*map(range, (*grid, s["tileY"], s["tileX"]))):
            row, column = by * s["tileY"] + ty, bx * s["tileX"] + tx
            inside = row < s["rows"] and column < s["columns"]
            yield by * grid[1] + bx, ty * s["tileX"] + tx, [row * s["columns"] + column] if inside else []
        return
    n, threads, each = s["n"], s["threads"], s["each"]
    blocks = s["blocks"] if s["order"] == "stride" else -(-n // (threads * each))
    for block, thread in itertools.product(range(blocks), range(threads)):
        if s["order"] == "consecutive":
            first = (block * threads + thread) * each
            taken = range(first, first + each)
        elif s["order"] == "apart":
            first = block * threads * each + thread
            taken = range(first, first + threads * each, threads)
        else:
            taken = range(block * threads + thread, n, blocks * threads)
        yield block, thread, [i for i in taken if i < n]


def settings():
    """The edges, then random ones."""
    base = {"order": "consecutive", **dict.fromkeys(["n", "threads", "each", "blocks", "rows", "columns", "tileX", "tileY"], 1)}
    edges = [{}, {"n": 1000, "threads": 128}, {"n": 256, "threads": 256}, {"n": 257, "threads": 256},
             {"n": 100, "threads": 100}, {"n": 1000, "threads": 32, "each": 4}, {"n": 129, "threads": 32, "each": 4},
             {"n": 700, "threads": 1024}, {"order": "stride", "n": 10, "threads": 64, "blocks": 4},
             {"order": "stride", "n": 1000, "threads": 64, "blocks": 4},
             {"order": "tile", "rows": 28, "columns": 48, "tileX": 32, "tileY": 8}, {"order": "tile", "tileX": 32, "tileY": 8},
             {"order": "tile", "rows": 9, "columns": 70, "tileX": 8, "tileY": 4}]
    yield from ({**base, **edge} for edge in edges)
    pick = random.Random(2)
    for order, _ in itertools.product(["consecutive", "apart", "stride", "tile"], range(20)):
        yield {"order": order, "n": pick.randint(1, 900), "each": pick.choice([1, 2, 4, 8, 16]), "blocks": pick.randint(1, 9),
               "threads": pick.choice([1, 7, 32, 64, 100, 128, pick.randint(1, 300)]),
               "rows": pick.randint(1, 40), "columns": pick.randint(1, 70),
               "tileX": pick.choice([1, 8, 16, 32, 33]), "tileY": pick.randint(1, 8)}


def touched(elements, size):
    """How many sectors hold a byte of these elements of `size` bytes."""
    return len({byte // 32 for i in elements for byte in range(i * size, (i + 1) * size)})


def spaced(numbers):
    return " ".join(map(str, numbers))


def test_owners_requests_and_sectors_are_those_of_a_kernel_run_thread_by_thread(opened):
    cases = list(settings())
    answers = opened().evaluate("""cases => {
        const figure = document.querySelector(".launch-geometry").launchGeometry;
        const {launch, owners, elementOf, request, sectors, idleThreads} = figure;
        return cases.map(s => {
            const of = owners(s);
            return {launch: launch(s), idle: idleThreads(s), owners: of.map(({block, thread, k}) => `${block} ${thread} ${k}`),
                back: of.map(owner => elementOf(s, owner)), requests: of.map(owner => request(s, owner).join(" ")),
                sectors: of.map(owner => [2, 4, 8].map(bytes => sectors(request(s, owner), bytes)).join(" "))};
        });
    }""", cases)
    for s, answer in zip(cases, answers):
        threads = list(kernel(s))
        owners = {i: [block, thread, k] for block, thread, taken in threads for k, i in enumerate(taken)}
        n = len(owners)
        assert sorted(owners) == list(range(n)) and n == sum(len(taken) for *_, taken in threads), s
        together = collections.defaultdict(list)
        for block, thread, taken in threads:
            for k, i in enumerate(taken):
                together[block, thread // 32, k].append(i)
        requests = [together[block, thread // 32, k] for block, thread, k in map(owners.get, range(n))]
        assert answer["launch"]["blocks"] == 1 + max(block for block, *_ in threads), s
        assert answer["launch"]["threads"] == 1 + max(thread for _, thread, _ in threads), s
        assert answer["launch"]["each"] >= max(len(taken) for *_, taken in threads), s
        assert answer["owners"] == [spaced(owners[i]) for i in range(n)], s
        assert answer["back"] == list(range(n)), s
        assert answer["requests"] == [spaced(elements) for elements in requests], s
        assert answer["sectors"] == [spaced(touched(elements, size) for size in (2, 4, 8)) for elements in requests], s
        assert answer["idle"] == sum(not taken for *_, taken in threads), s


def test_the_words_and_the_marks_are_those_of_the_chosen_element(opened):
    page = opened()
    assert "i = blockIdx.x * blockDim.x + threadIdx.x = 3 * 128 + 17 = 401" in words(page, "element")
    assert "block 3, thread 17; warp 0 of the block, lane 17" in words(page, "element")
    assert "elements 384 to 415, side by side: 32 active lanes" in words(page, "element")
    assert "4 sectors of 32 bytes, the fewest possible" in words(page, "element")
    assert "The last block: 24 threads without an element." in words(page, "grid")
    preset(page, "the article")
    assert "i = (blockIdx.x * blockDim.x + threadIdx.x) * 4 + k = (3 * 32 + 4) * 4 + 1 = 401" in words(page, "element")
    assert "takes 400, 401, 402, 403, one by one" in words(page, "element")
    assert "elements 385 to 509, 4 apart" in words(page, "element")
    assert "16 sectors of 32 bytes, where 4 could do" in words(page, "element")
    mine = page.locator("[data-i].lg-mine").evaluate_all("cells => cells.map(cell => +cell.dataset.i)")
    together = page.locator("[data-i].lg-request").evaluate_all("cells => cells.map(cell => +cell.dataset.i)")
    assert mine == [400, 401, 402, 403] and together == list(range(385, 512, 4))
    page.locator('[name="bytes"]').select_option("2")
    assert "8 sectors of 32 bytes, where 2 could do" in words(page, "element")
    page.locator('[name="order"]').select_option("apart")
    assert "i = (blockIdx.x * 4 + k) * blockDim.x + threadIdx.x = (3 * 4 + 0) * 32 + 17 = 401" in words(page, "element")
    preset(page, "grid-stride")
    assert "+ k * gridDim.x * blockDim.x = 2 * 64 + 17 + 1 * 4 * 64 = 401" in words(page, "element")
    preset(page, "2-D tile")
    fill(page, chosen=9 * 48 + 40)
    assert "row = blockIdx.y * blockDim.y + threadIdx.y = 1 * 8 + 1 = 9" in words(page, "element")
    assert "column = blockIdx.x * blockDim.x + threadIdx.x = 1 * 32 + 8 = 40" in words(page, "element")
    assert "i = row * columns + column = 9 * 48 + 40 = 472" in words(page, "element")
    assert "block (1, 1), thread (8, 1), number 40 of its block; warp 1 of the block, lane 8" in words(page, "element")


def test_blocks_and_warps_are_told_apart_by_lines_too(opened):
    page = opened()
    for i, line in {0: None, 32: "warp-top", 128: "block-top", 129: "block-top", 160: "warp-top", 161: "warp-top"}.items():
        classes = page.locator(f'[data-i="{i}"]').get_attribute("class")
        assert re.findall(r"(?:warp|block)-\w+", classes) == ([line] if line else []), i
    fill(page, threads=8)
    assert "lg-block-left" in page.locator('[data-i="8"]').get_attribute("class")
    assert "lg-block-left" not in page.locator('[data-i="9"]').get_attribute("class")


# -- how many blocks fit ------------------------------------------------------------------------------------

# NVIDIA, CUDA Programming Guide, "Compute Capabilities": warps, blocks and KB of shared memory an SM.
LIMITS = {"7.5": (32, 16, 64), "8.0": (64, 32, 164), "8.6": (48, 16, 100), "8.9": (48, 24, 100), "9.0": (64, 32, 228),
          "10.0": (64, 32, 228), "12.0": (48, 24, 100)}


def resident(capability, threads, registers, shared):
    """Blocks on an SM, found by placing one after the other until something is used up."""
    warps, blocks, kilobytes = LIMITS[capability]
    free, room = [16384] * 4, kilobytes * 1024  # registers of each quarter, bytes
    needs, unit = -(-threads // 32), 256 if capability == "7.5" else 128
    a_warp = -(-registers * 32 // 256) * 256
    a_block = -(-(shared + (0 if capability == "7.5" else 1024)) // unit) * unit
    if -(-needs // 4) * 4 * a_warp > 65536:
        return 0
    for placed in itertools.count():
        room -= a_block
        for _ in range(needs):
            quarter = free.index(max(free))
            free[quarter] -= a_warp
        if placed == blocks or (placed + 1) * needs > warps or min(free) < 0 or room < 0:
            return placed


def occupancies(page, launches):
    return page.evaluate('cases => cases.map(c => document.querySelector(".launch-geometry").launchGeometry.occupancy(...c))',
                         launches)


def test_occupancy_is_that_of_placing_block_after_block(opened):
    pick = random.Random(3)
    launches = [(capability, pick.choice([32, 64, 96, 100, 128, 256, 384, 512, 1024, pick.randint(1, 1024)]),
                 pick.choice([16, 32, 33, 40, 64, 128, 255, pick.randint(16, 255)]),
                 pick.choice([0, 0, 1, 1024, 16384, 49152, 65536, 101376, 232448, pick.randint(0, 232448)]))
                for capability in LIMITS for _ in range(200)]
    for launch, answer in zip(launches, occupancies(opened(), launches)):
        assert answer["blocks"] == resident(*launch), launch
        assert answer["warps"] == answer["blocks"] * -(-launch[1] // 32), launch


KNOWN = [  # a launch; its blocks and warps on an SM; what limits them
    (("9.0", 256, 32, 0), 8, 64, {"warps", "registers"}),
    (("9.0", 32, 32, 0), 32, 32, {"blocks"}),
    (("9.0", 256, 33, 0), 6, 48, {"registers"}),
    (("9.0", 128, 16, 232448), 1, 4, {"shared bytes"}),
    (("9.0", 1024, 65, 0), 0, 0, {"registers"}),
    (("7.5", 1024, 64, 0), 1, 32, {"warps", "registers"}),
    (("7.5", 32, 16, 65536), 1, 1, {"shared bytes"}),
    (("7.5", 128, 32, 73 * 128), 6, 24, {"shared bytes"}),
    (("8.0", 128, 32, 48 * 1024), 3, 12, {"shared bytes"}),
    (("8.6", 1024, 32, 0), 1, 32, {"warps"}),
    (("8.9", 64, 32, 0), 24, 48, {"warps", "blocks"}),
    (("12.0", 128, 32, 100 * 1024), 0, 0, {"shared bytes"})]


def test_known_occupancies(opened):
    for answer, (launch, *known) in zip(occupancies(opened(), [launch for launch, *_ in KNOWN]), KNOWN, strict=True):
        limits = {name for name, (_, _, fits) in answer["limits"].items() if fits == answer["blocks"]}
        assert [answer["blocks"], answer["warps"], limits] == known, launch


def test_occupancy_waves_and_bytes_in_flight_are_shown(opened):
    page = opened()
    preset(page, "the article")
    assert "An SM holds 32 blocks: 32 of 64 warps, 50% occupancy." in words(page, "occupancy")
    assert "32 blocks × 32 threads × 4 elements × 4 bytes = 16,384 bytes" in words(page, "occupancy")
    assert [row.inner_text().split()[0] for row in page.locator("tr.lg-limiting").all()] == ["blocks"]
    fill(page, threads=33)  # two warps, of which one has a single lane
    assert "32 blocks × 33 threads × 4 elements × 4 bytes = 16,896 bytes" in words(page, "occupancy")
    preset(page, "268 million")
    assert "this grid has 1,048,576, 993 waves." in words(page, "occupancy")
    assert "The picture shows 4,096 of them" in words(page, "grid")
    page.locator('[name="gpu"]').select_option(label="T4 (7.5)")
    assert page.locator('[name="sms"]').input_value() == "40"
    assert "An SM holds 4 blocks: 32 of 32 warps, 100% occupancy." in words(page, "occupancy")
    fill(page, shared=232448)
    assert "Cannot launch" in words(page, "occupancy")


# -- use ----------------------------------------------------------------------------------------------------

NAME = "const name = e => e.name || (e.dataset.of ? `${e.dataset.of} slider` : e.dataset.i || e.textContent)"


def focused(page):
    return page.evaluate(f"() => {{ {NAME}; return name(document.activeElement); }}")


def test_the_keyboard_reaches_every_control_in_order_and_the_picture_once(opened):
    page = opened()
    controls = page.evaluate(f"""() => {{
        {NAME};
        return [...document.querySelectorAll("button, select, input, [tabindex='0']")].filter(e => e.offsetParent).map(name);
    }}""")
    reached = []
    for _ in controls:
        page.keyboard.press("Tab")
        reached.append(focused(page))
    assert reached == controls and len(set(controls)) == 20
    assert reached[reached.index("chosen") + 1] == "401"


def test_arrow_keys_move_the_chosen_element(opened):
    page = opened()
    page.locator("[data-i][tabindex='0']").focus()
    for key, i, filled in [("ArrowRight", 402, "3 * 128 + 18"), ("ArrowDown", 434, "3 * 128 + 50"),
                           ("ArrowLeft", 433, "3 * 128 + 49"), ("End", 447, "3 * 128 + 63"), ("ArrowUp", 415, "3 * 128 + 31"),
                           ("Home", 384, "3 * 128 + 0"), ("ArrowUp", 352, "2 * 128 + 96")]:
        page.keyboard.press(key)
        assert focused(page) == str(i)
        assert f"= {filled} = {i}" in words(page, "element")
        assert page.locator('[name="chosen"]').input_value() == str(i)
    assert page.locator("[data-i][tabindex='0']").count() == page.locator("[aria-selected='true']").count() == 1


@pytest.mark.parametrize("corner, keys", [(0, ["ArrowLeft", "ArrowUp", "Home"]), (999, ["ArrowRight", "ArrowDown", "End"])])
def test_arrow_keys_stop_at_the_ends(opened, corner, keys):
    page = opened()
    fill(page, chosen=corner)
    page.locator("[data-i][tabindex='0']").focus()
    for key in keys:
        page.keyboard.press(key)
        assert focused(page) == page.locator('[name="chosen"]').input_value() == str(corner), key


def test_sliders_move_their_numbers(opened):
    page = opened()
    for name, key, value in [("threads", "ArrowRight", "160"), ("n", "End", "4096"), ("registers", "Home", "16")]:
        page.locator(f'[data-of="{name}"]').focus()
        page.keyboard.press(key)
        assert page.locator(f'[name="{name}"]').input_value() == value
    assert "26 blocks of 160 threads" in words(page, "grid")


@pytest.mark.parametrize("name, value, said", [
    ("threads", "1025", "Threads a block: a whole number from 1 to 1024."), ("threads", "", "Threads a block"),
    ("n", "1.5", "Elements"), ("registers", "0", "Registers a thread")])
def test_a_wrong_number_is_named_and_changes_nothing(opened, name, value, said):
    page = opened()
    before = words(page, "grid"), words(page, "occupancy")
    fill(page, **{name: value})
    assert said in words(page, "message")
    assert (words(page, "grid"), words(page, "occupancy")) == before
    fill(page, **{name: 64})
    assert words(page, "message") == ""


def test_a_tile_of_too_many_threads_is_refused(opened):
    page = opened()
    preset(page, "2-D tile")
    fill(page, tileY=33)
    assert words(page, "message") == "A block has at most 1,024 threads; this one has 1,056."


def test_fewer_elements_move_the_chosen_one(opened):
    page = opened()
    fill(page, n=100)
    page.locator('[name="n"]').blur()
    assert page.locator('[name="chosen"]').input_value() == "99" and "= 99" in words(page, "element")


def test_a_finger_on_a_phone(opened):
    page = opened(theme="light", width=390, has_touch=True, is_mobile=True)
    for name in ["2-D tile", "grid-stride", "268 million", "the article", "one element"]:
        page.get_by_role("button", name=name).tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        small = page.evaluate("""[...document.querySelectorAll("button, select, input")].filter(e => e.offsetParent)
            .filter(e => Math.min(e.offsetWidth, e.offsetHeight) < 40).map(e => e.outerHTML)""")
        assert small == [], name
    page.locator('[data-i="700"]').tap()
    assert "Element 700: block 2, thread 188; warp 5 of the block, lane 28." in words(page, "element")


CONTRAST = """() => {
    const parse = colour => (colour.match(/[\\d.]+/g) ?? []).map(Number), opaque = c => c.length === 3 || c[3] === 1;
    const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (e, c = parse(getComputedStyle(e).backgroundColor)) => opaque(c) ? c : behind(e.parentElement);
    const texts = "p, pre, th, td, button, select, input:not([type=range]), label, cite, strong, [role=rowheader]";
    return [...document.querySelectorAll(texts)].filter(e => e.offsetParent).map(e => {
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
        return [e.outerHTML.slice(0, 80), (a + 0.05) / (b + 0.05)];
    });
}"""


@pytest.mark.parametrize("theme, scheme", [("light", "dark"), ("dark", "light"), (None, "light"), (None, "dark")])
def test_text_stands_out_in_the_page_and_alone_in_light_and_dark(opened, theme, scheme):
    page = opened(theme=theme, color_scheme=scheme)
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 40
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []
    paper = page.evaluate('getComputedStyle(document.querySelector(".launch-geometry")).backgroundColor')
    assert (sum(map(int, re.findall(r"\d+", paper))) < 200) == ((theme or scheme) == "dark")


def test_without_javascript_there_is_a_picture_and_no_dead_control(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("svg").is_visible() and page.locator("svg").bounding_box()["height"] > 200
    assert page.locator("button, input, select").count() > 10
    assert not any(control.is_visible() for control in page.locator("button, input, select").all())
    assert page.locator("pre").inner_text() == opened().locator("pre").inner_text()


def test_the_figure_keeps_to_itself(opened):
    text = FIGURE.read_text()
    assert text.isascii() and text.startswith('<div class="launch-geometry"') and text.endswith("</div>\n")
    assert text.count("\n") <= 400
    page = opened(theme="light")
    rules = page.evaluate("""[...document.querySelector(".launch-geometry style").sheet.cssRules]
        .flatMap(rule => rule.selectorText ?? [...rule.cssRules].map(inner => inner.selectorText))""")
    assert rules and [rule for rule in rules if "launch-geometry" not in rule] == []
    left = page.evaluate("""() => {
        const fresh = document.body.appendChild(document.createElement("iframe")).contentWindow;
        return Object.getOwnPropertyNames(window).filter(name => !(name in fresh));
    }""")
    assert [name for name in left if not name.isdigit()] == []
