"""A learner's path through an exercise, acted out in JupyterLab in a real browser: open, run, fail, hint, edit, pass.

Pictures of each step go to build/learner_path/.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from playwright.sync_api import expect

from labkit import REPOSITORY, starters
from labkit.environment import importable

LAB, NAME = "08_sync_pitfalls", "barrier"
PICTURES = REPOSITORY / "build" / "learner_path"
LIMIT = 90  # seconds for one step; the first builds


@pytest.fixture
def address(tmp_path):
    """JupyterLab on a folder with the lab; the kernel finds labkit in the repository, and the learner's file beside the lab."""
    (tmp_path / "labs").mkdir()
    shutil.copy(REPOSITORY / "labs" / f"{LAB}.ipynb", tmp_path / "labs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {**importable(os.environ), "LABKIT_WORK": str(tmp_path / "work"),
                 "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "JUPYTER_DATA_DIR": str(tmp_path / "data")}
    options = [f"--port={port}", "--ip=127.0.0.1", f"--ServerApp.root_dir={tmp_path}", "--IdentityProvider.token=learner",
               "--no-browser", "--allow-root", "--ServerApp.port_retries=0"]
    with (tmp_path / "server.txt").open("w") as said:
        server = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options], env=variables, stdout=said, stderr=said)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token=learner").close()
                break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail((tmp_path / "server.txt").read_text())
        yield f"http://127.0.0.1:{port}/lab/tree/labs/{LAB}.ipynb?token=learner"
    finally:
        server.terminate()
        server.wait(20)


def test_a_learner_opens_a_lab_fails_takes_a_hint_mends_the_file_and_passes(address, browser, tmp_path):
    expect.set_options(timeout=1e3 * LIMIT)
    PICTURES.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(1e3 * LIMIT)
    page.goto(address)

    def cell(words):
        return page.locator(".jp-CodeCell", has=page.locator(".jp-InputArea", has_text=words)).first

    def run(words):
        found = cell(words)
        number = found.locator(".jp-InputPrompt")
        before = number.inner_text().strip()
        for _ in range(5):  # a key that is pressed before JupyterLab is ready is lost, and so is what a starting kernel is sent
            found.locator(".jp-InputArea-editor").click()
            page.keyboard.press("Control+Enter")
            for _ in range(20 * LIMIT // 5):
                now = number.inner_text().strip()
                if re.fullmatch(r"\[\d+\]:", now) and now != before:
                    return found.locator(".jp-OutputArea")
                before = "" if now == "[*]:" else before  # the number that was saved may come again
                page.wait_for_timeout(50)
        pytest.fail(f"the cell with {words} does not run")

    def picture(step):
        page.screenshot(path=PICTURES / f"{step}.png")

    # Before, JupyterLab may ask in a dialog for a kernel to run a cell with; a notebook's own sign says idle from the start.
    expect(page.locator("#jp-main-statusbar")).to_contain_text(re.compile(r"Python 3.* \| Idle"))
    expect(run("labkit.start(")).to_contain_text("sources")
    expect(run(f'labkit.exercise("{NAME}")')).to_contain_text(f"{NAME}.cu")
    picture("1 the task")

    expect(run(f'labkit.grade("{NAME}")')).to_contain_text("✗ races")
    expect(cell(f'labkit.grade("{NAME}")')).to_contain_text("Think of this: ")
    picture("2 it fails")

    page.keyboard.press("Escape")
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    page.keyboard.type(f'labkit.hint("{NAME}")')
    page.keyboard.press("Control+Enter")
    expect(cell(f'labkit.hint("{NAME}")')).to_contain_text("Hint 1 of 3")
    picture("3 a hint")

    cell(f'labkit.exercise("{NAME}")').get_by_role("link", name=f"{NAME}.cu").click()
    editor = page.locator(".jp-FileEditor")
    expect(editor).to_contain_text(starters.STUB)
    editor.get_by_text(starters.STUB).click()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.type("__syncthreads();")
    page.keyboard.press("Control+s")
    for _ in range(100):
        if "    __syncthreads();\n" in (tmp_path / "work" / f"{NAME}.cu").read_text():
            break
        page.wait_for_timeout(100)
    picture("4 the line goes in")

    page.locator(".lm-TabBar-tab", has_text=LAB[:8]).first.click()
    expect(run(f'labkit.grade("{NAME}")')).to_contain_text("The barrier that is missing: passed")
    picture("5 it passes")
    page.close()
