"""Labs whose record is still that of earlier sources: results/stale.yml declares each with its reason, and the pages say so.

The file is there only while there are such labs: {lab: what changed since, in a sentence}. tests/test_truth.py holds it
against the hashes, so that no lab is left out of it, and none stays there once it is recorded again.
"""

from __future__ import annotations

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


def remark(run: dict) -> str:
    """What a reader of a recorded run's figures has to know where it is declared and of earlier sources; else "".

    One line; backticks mark code, as in Markdown.
    """
    lab = run["lab"]
    reason = declared().get(lab)
    if reason is None or run["sources"] == sources.sources_hash(lab):
        return ""
    return (f"The figures of lab {lab.partition('_')[0]} were recorded before a later change of their sources, and will be "
            f"recorded again. The change: {reason}")
