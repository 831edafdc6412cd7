"""What tests share: a lab's session, a browser, and that tests marked `gpu` are skipped where kernels cannot run on one."""

import gc
import importlib.util
import os
import shutil

import pytest

from labkit import build_folder, machine, results


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A function that returns the session of lab 11, which begins empty and with no results recorded."""
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path))
    monkeypatch.setattr(results, "_session", results.Session(lab="11_trace"))
    return results.session


ODD = "Kern (el) & ä"  # a folder whose path falls apart where it is not quoted; nvcc takes no quotes in one


@pytest.fixture(scope="session")
def torch_in_an_odd_folder(tmp_path_factory):
    """A PYTHONPATH by which new processes find torch in an odd folder, as they do beneath a repository that lies in one."""
    folder = tmp_path_factory.mktemp("torch") / ODD
    folder.mkdir()
    (folder / "torch").symlink_to(os.path.dirname(importlib.util.find_spec("torch").origin))
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


@pytest.fixture
def own_builds(tmp_path, monkeypatch):
    """A build root without a build, but with the objects that were kept so far, which take longest; in an odd folder."""
    odd = ODD if machine.backend() == "cuda" else f"it's {ODD}"
    kept, root = build_folder.build_root(), tmp_path / odd / "build"
    root.mkdir(parents=True)
    for path in [*kept.glob("*.o"), *kept.glob("*.sizes")]:
        shutil.copy(path, root)
    for path in kept.glob("parsed-*"):
        if not path.suffix:  # a whole one
            shutil.copytree(path, root / path.name)
    monkeypatch.setenv("LABKIT_BUILD", str(root))
    return root


@pytest.fixture
def one_page(tmp_path):
    """one_page(text, *settings): the HTML and the warnings of a book of that one page; settings: lines of its conf.py."""
    from sphinx.testing.util import SphinxTestApp

    source = tmp_path / "page"

    def build(text, *settings):
        source.mkdir(exist_ok=True)
        for name, content in {"conf.py": "\n".join(settings), "index.md": f"# Title\n\n{text}\n"}.items():
            path = source / name
            if not path.exists() or path.read_text() != content:  # what is written anew is read anew for that alone
                path.write_text(content)
        app = SphinxTestApp("html", srcdir=source)
        try:
            app.build()
            return (source / "_build" / "html" / "index.html").read_text(), app.warning.getvalue()
        finally:
            app.cleanup()

    return build


# The modules whose tests take longest: begun first, so that at the end no worker waits for another that has one left.
LONG = ("test_exercises", "test_grading", "test_cubin", "test_wheels", "test_checkpoints", "test_builds", "test_suspects",
        "test_kernels_are_clean", "test_gpu_counts")


def pytest_collection_finish():
    """What was imported stays, and need not be looked through for garbage again and again: a tenth of the time."""
    gc.freeze()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONG)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and machine.backend() != "cuda":
        reason = "needs an NVIDIA GPU that torch sees, and nvcc; the backend here is host"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


# -- interactive figures, in a real browser -----------------------------------------------------------------

BROWSERS = "chromium", "chromium-browser", "google-chrome"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
# The theme's colours on a page of the book.
COLOURS = {"light": {"text-base": "#222832", "text-muted": "#48566b", "background": "#fff", "surface": "#f3f4f5"},
           "dark": {"text-base": "#ced6dd", "text-muted": "#9ca4af", "background": "#121212", "surface": "#29313d"}}


@pytest.fixture(scope="module")  # no longer: its event loop would be in the way of others'
def browser():
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on the PATH, and CHROMIUM names none")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=QUIET, headless=True)
        yield started
        started.close()


@pytest.fixture
def open_figure(browser, tmp_path):
    """open_figure(path, theme=None, width=1200, **context): an HTML figure, alone or in a book page of that theme.

    Afterwards: nothing was requested but the files themselves, and nothing was written to the console.
    """
    contexts, files, requests, complaints = [], [], [], []

    def open_page(path, theme=None, width=1200, **context):
        if theme:
            colours = "".join(f"--pst-color-{name}: {value};" for name, value in COLOURS[theme].items())
            text = path.read_text()
            path = tmp_path / f"{theme}.html"
            path.write_text(f'<!doctype html><html lang="en" data-theme="{theme}" style="{colours}"><meta name="viewport" '
                            'content="width=device-width"><body style="background: var(--pst-color-background)"><main>'
                            f"{text}</main></body></html>")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **context))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        files.append(path.as_uri())
        page.goto(files[-1])
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert requests == files
    assert complaints == []
