"""Other answers to an exercise, as changes of its solution."""

from labkit import exercises


def changed(name: str, change: dict[str, str]) -> str:
    """The solution's text with each of {old: new} made, which has to be possible once."""
    text = exercises.read(name).solution.read_text(encoding="utf-8")
    for old, new in change.items():
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the solution"
        text = text.replace(old, new)
    return text
