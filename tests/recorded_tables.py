"""The tables that an H200 recorded, as tests of the pages' words ask for them."""

from labkit import results


def recorded(lab, name):
    return results.recorded(lab, name, "nvidia-h200").table


def by_first_column(table):
    return {row[table["columns"][0]]: row for row in table["rows"]}


def rows(lab, name):
    """{first column: row} of a recorded table, of a benchmark {name: row}."""
    table = recorded(lab, name)
    return {row["name"]: row for row in table["rows"]} if table["kind"] == "bench" else by_first_column(table)


def count(text):
    """The first number of "3 of 200"."""
    return int(text.split(" of ")[0])
