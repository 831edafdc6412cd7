"""Labs whose record is still that of earlier sources: results/stale.yml declares each with its reason, and the pages say so.

The file is there only while there are such labs: {lab: what changed since, in a sentence}. tests/test_truth.py holds it
against the hashes, so that no lab is left out of it, and none stays there once it is recorded again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterable

import yaml

from labkit import results, sources

DECLARED = "results/stale.yml"


def declared() -> dict[str, str]:
    """{lab: reason, on one line}; empty where there is no such file. Raises ResultsError for what cannot be declared."""
    try:
        said = yaml.safe_load((sources.REPOSITORY / DECLARED).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as error:
        raise results.ResultsError(f"{DECLARED}: not valid YAML: {error}") from error
    if not isinstance(said, dict):
        raise results.ResultsError(f'{DECLARED} must hold lines such as "04_fused_kernel: What changed.", not {said!r}')
    for lab, reason in said.items():
        try:
            sources.notebook(lab)
        except FileNotFoundError as error:
            raise results.ResultsError(f"{DECLARED}: {error}") from error
        if not isinstance(reason, str) or not reason.strip().endswith("."):
            raise results.ResultsError(f"{DECLARED}: the reason for {lab} is {reason!r}; say in a sentence, with its full "
                                       "stop, what changed since the lab was recorded")
    return {lab: " ".join(reason.split()) for lab, reason in said.items()}


def may_carry(lab: str) -> set[str]:
    """The hashes that a record of the lab may carry: of the sources here; of a declared lab also what its notebook states.

    Raises FileNotFoundError where there is no such lab.
    """
    earlier = {sources.stated_hash(sources.notebook(lab))} if lab in declared() else set()
    return {sources.sources_hash(lab), *earlier}


def remarks(runs: Iterable[dict]) -> list[str]:
    """What a reader of the recorded runs' figures has to know of those that are declared and of earlier sources.

    A line for each reason; backticks mark code, as in Markdown.
    """
    said, labs = declared(), defaultdict(list)
    for run in runs:
        lab = run["lab"]
        if lab in said and run["sources"] != sources.sources_hash(lab):
            labs[said[lab]].append(lab.partition("_")[0])
    return [f"The figures of lab{'s' * (len(names) > 1)} {_listed(names)} were recorded before a later change of their "
            f"sources, and will be recorded again. The change: {reason}" for reason, names in labs.items()]


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
