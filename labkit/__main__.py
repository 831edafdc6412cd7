"""The command line: python -m labkit setup | labs | lab | exercises | assignments | ledger | record | book | test ..."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 10):  # before labkit's own imports, which older ones cannot read
    sys.exit(f"Python 3.10 or newer is needed, and this is {sys.version.split()[0]} ({sys.executable}). "
             "Name a newer one: make labs PYTHON=python3.12")

from labkit import REPOSITORY, machine, setup  # noqa: E402

CACHES = ("__pycache__", ".pytest_cache", ".hypothesis")
FOR_WORKSHOPS = ("slides", "exercises", "assignments", "preflight", "dashboard")  # need workshop/requirements.txt too


def main(arguments: list[str]) -> int:
    """Run one command; returns its exit status (0 done, 1 something failed, 2 wrong usage, 130 interrupted)."""
    options, extra = _parse(arguments)
    try:
        if options.command == "clean":
            return clean(everything=options.all)
        inside = Path(sys.prefix) == setup.VENV.resolve()
        if options.command == "doctor" and not options.here:
            # It must work where a set-up does not: it installs nothing, and uses .venv where that is complete.
            python = setup.usable()
        else:
            python = None if options.here else setup.ensure()
        if python and not inside:
            sys.stdout.flush()
            os.execve(python, [str(python), "-m", "labkit", "--here", *arguments], setup.activate(os.environ))
        return _run(options, extra)
    except setup.SetupError as error:
        print(f"Set-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


def clean(everything: bool = False) -> int:
    """Remove what builds have made: build/, _build/ and caches; with `everything` also .venv. Nothing else."""
    folders = [REPOSITORY / "build", REPOSITORY / "_build"]
    folders += [REPOSITORY / ".venv"] if everything else []
    for folder, names, _ in os.walk(REPOSITORY):
        folders += [Path(folder, name) for name in names if name in CACHES]
        names[:] = [name for name in names if name not in {*CACHES, ".venv", ".git", "build", "_build"}]
    for folder in folders:
        if folder.is_symlink():
            print(f"left {folder}: it is a link")
        elif folder.exists():
            shutil.rmtree(folder)
            if folder.name not in CACHES:
                print(f"removed {folder}")
    return 0


def book() -> int:
    """Build the book strictly, from nothing, and print where its first page is; warnings fail the build."""
    # A build over an old one passes over pages that it need not write again, with their warnings.
    shutil.rmtree(REPOSITORY / "_build", ignore_errors=True)
    start = "from jupyter_book.cli.main import main; main()"
    status = _python("-c", start, "build", str(REPOSITORY), "-W", "-n", "--keep-going")
    page = REPOSITORY / "_build" / "html" / "index.html"
    if status == 0 and not page.is_file():
        print(f"Jupyter Book reported no error but wrote no {page}", file=sys.stderr)
        return 1
    print(f"\nThe book: {page}" if status == 0 else "\nThe book was not built: see the warnings and errors above.")
    return 1 if status else 0


def slides() -> int:
    """Build the workshop's slides strictly, from nothing, and print where they are."""
    made = REPOSITORY / "_build" / "slides"
    shutil.rmtree(made, ignore_errors=True)
    status = _python("-m", "sphinx", "-b", "revealjs", "-q", "-W", "-n", "--keep-going",
                     str(REPOSITORY / "workshop" / "slides"), str(made))
    print(f"The slides: {made / 'index.html'}" if status == 0 else "The slides were not built: see the warnings above.")
    return 1 if status else 0


def _run(options: argparse.Namespace, extra: list[str]) -> int:
    try:
        if options.command == "setup":
            print(f"Ready: {sys.executable}")
            return 0
        if options.command == "labs":
            from labkit import labs

            return labs.run(options.names, save=options.save, jobs=options.jobs)
        if options.command == "doctor":
            from labkit.diagnosis import doctor

            return 1 if any(finding.state == "fail" for finding in doctor()) else 0
        if options.command == "book":
            return book()
        if options.command == "slides":
            import sphinx_revealjs  # noqa: F401

            return slides()
        if options.command == "exercises":
            from labkit import starters

            starters.write()
            return 0
        if options.command == "assignments":
            from labkit import assignments

            assignments.write(options.course)
            return 0
        if options.command == "dashboard":
            from labkit import dashboard

            return dashboard.tell(options.course, options.html)
        if options.command == "preflight":
            from labkit import preflight

            return preflight.tell(options.course, options.learners)
        if options.command == "ledger":
            from labkit import claims

            return claims.tell(options.gpu)
        if options.command == "record":
            from labkit import recording

            return recording.record(options.file)
        if options.command == "compare":
            from labkit import baselines

            return baselines.compare(options.old, options.new, options.threshold, options.other_gpu, options.all)
        if options.command == "lab":
            # In the place of this process, so that a signal to it reaches the server.
            os.chdir(REPOSITORY)
            os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={REPOSITORY}",
                                      "--LabApp.default_url=/lab/tree/labs", *extra])
        # A GPU is not shared: what tests time on it must run alone.
        if machine.backend() == "cuda":
            return _python("-m", "pytest", "-q", *extra)
        # A worker a core: with threads of their own on top, PyTorch's operators wait for one another.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return _python("-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *extra)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "labkit":
            raise
        file = "requirements.txt" + " -r workshop/requirements.txt" * (options.command in FOR_WORKSHOPS)
        print(f"This Python ({sys.executable}) lacks {error.name}. Install what is needed with\n"
              f"  {sys.executable} -m pip install -r {file}", file=sys.stderr)
        return 1


def _python(*arguments: str) -> int:
    return subprocess.run([sys.executable, *arguments], cwd=REPOSITORY).returncode


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    here = argparse.ArgumentParser(add_help=False)
    here.add_argument("--here", action="store_true", default=argparse.SUPPRESS,
                      help="use this Python as it is; make and install nothing")
    parser = argparse.ArgumentParser(prog="python -m labkit", parents=[here], allow_abbrev=False,
                                     description="Set up, run and check the labs of Kernel to Gradient.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about, parents=[here], allow_abbrev=False)

    command("setup", "make .venv and install into it what the labs need")
    labs = command("labs", "run the labs top to bottom; executed copies go to build/labs/")
    labs.add_argument("names", nargs="*", metavar="LAB", help="such as 04 or 04_fused_kernel; all when left out")
    labs.add_argument("--save", action="store_true", help="on a GPU: write the outputs back into labs/")
    labs.add_argument("--jobs", type=int, choices=range(1, 33), default=1, metavar="N",
                      help="without a GPU: run N labs at a time")
    command("lab", "open JupyterLab on the labs; further arguments go to it")
    command("test", "run the tests; further arguments go to pytest")
    command("book", "build the book as HTML, strictly, and print where it is")
    command("slides", "build the workshop's slides as HTML, strictly, and print where they are")
    command("exercises", "derive the starters of exercises/ from their solutions")
    command("assignments", "write a course's notebooks for nbgrader, from the exercises").add_argument(
        "course", metavar="COURSE", type=Path, help="the course's folder")
    dashboard = command("dashboard", "say who passed which exercise, by nbgrader's gradebook")
    dashboard.add_argument("course", metavar="COURSE", type=Path, help="the course's folder")
    dashboard.add_argument("--html", metavar="FILE", type=Path, help="write the table as a page, too")
    preflight = command("preflight", "say whether this machine is ready for a workshop, and what to do where it is not")
    preflight.add_argument("course", metavar="COURSE", type=Path, help="the course's folder")
    preflight.add_argument("--learners", metavar="N", type=int, default=12, help="how many come at once (12 when left out)")
    command("ledger", "hold the article's claims against what this GPU has recorded").add_argument(
        "gpu", metavar="GPU", nargs="?", help="another recorded one, such as nvidia-h200")
    command("record", "check what a GPU has recorded, and add it to results/").add_argument(
        "file", metavar="FILE", nargs="?", help="a results file from another machine; this machine's when left out")
    compare = command("compare", "say which benchmarks became faster or slower from one record to another")
    compare.add_argument("old", metavar="OLD", help="a file of results/, or one of a revision: HEAD~1:results/nvidia-h200.json")
    compare.add_argument("new", metavar="NEW", nargs="?", help="the same; when left out, OLD's latest runs and those before")
    compare.add_argument("--threshold", type=float, default=5.0, metavar="PERCENT",
                         help="fail where a row is slower by more than this, and outside of the spread (5 when left out)")
    compare.add_argument("--other-gpu", action="store_true", help="compare records of different GPUs too")
    compare.add_argument("--all", action="store_true", help="list the rows that are within the spread as well")
    command("doctor", "say what this machine has, what is wrong, and what to do about it")
    command("clean", "remove what builds have made").add_argument("--all", action="store_true", help="also .venv")
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    options, extra = parser.parse_known_args(arguments)
    if extra and options.command not in ("lab", "test"):
        parser.error(f"{options.command} does not take {' '.join(extra)}")
    options.here = getattr(options, "here", False)
    return options, extra


if __name__ == "__main__":
    for stream in sys.stdout, sys.stderr:
        stream.reconfigure(errors="replace")  # of a terminal that has no × the rest can still be read
    sys.exit(main(sys.argv[1:]))
