"""The tables that an H200 recorded, as tests of the pages' words ask for them."""

from labkit import results

GPU = "nvidia-h200"


def recorded(lab, name):
    return results.recorded(lab, name, GPU).table


def by_first_column(table):
    return {row[table["columns"][0]]: row for row in table["rows"]}


def rows(lab, name):
    """{first column: row} of a recorded table, of a benchmark {name: row}."""
    table = recorded(lab, name)
    return {row["name"]: row for row in table["rows"]} if table["kind"] == "bench" else by_first_column(table)


def tables_of_all_runs(lab, name):
    """The table as each recorded run of the lab has it, for words about all of them."""
    runs, = (document["runs"] for document in results.documents() if document["gpu"]["slug"] == GPU)
    return [run["tables"][name] for run in runs if run["lab"] == lab]


def count(text):
    """The first number of "3 of 200"."""
    return int(text.split(" of ")[0])
