"""Results files made from the recorded one of the H200, for tests: other numbers, other GPUs."""

import copy
import json
from pathlib import Path

from labkit import machine, results

RECORDED = Path(__file__).resolve().parents[1] / "results" / "nvidia-h200.json"


def document():
    """The recorded file, the latest run of each lab alone."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {**found, "runs": list(results.latest_runs(found["runs"]).values())}


def table(found, lab, name):
    """The table of this name in the run of the lab whose number is `lab`."""
    return next(run for run in found["runs"] if run["lab"].startswith(lab))["tables"][name]


def row(found, lab, name, first):
    """The last row of a table that begins with `first`, as the pages take it."""
    rows = table(found, lab, name)["rows"]
    return [each for each in rows if next(iter(each.values())) == first][-1]


def another_gpu(name, times=1.0, leave_out=()):
    """A results file of a GPU of this name that takes `times` as long in every benchmark, without the labs left out."""
    found = copy.deepcopy(document())
    found["gpu"] |= {"name": name, "slug": machine.slug(name)}
    found["runs"] = [run for run in found["runs"] if not run["lab"].startswith(tuple(leave_out))]
    for run in found["runs"]:
        for timed in (each for each in run["tables"].values() if each["kind"] == "bench"):
            for each in timed["rows"]:
                each |= {key: times * each[key] for key in ("median_us", "low_us", "high_us")}
                each["gbps"] = each["gbps"] and each["gbps"] / times
    return found


def write(folder, *documents):
    """Each as results/<gpu>.json in the folder; returns the paths."""
    paths = [folder / f"{found['gpu']['slug']}.json" for found in documents]
    for path, found in zip(paths, documents):
        path.write_text(json.dumps(found), encoding="utf-8")
    return paths
