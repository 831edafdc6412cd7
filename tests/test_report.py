"""What is shown in place of a measurement."""

import pytest

from labkit import report, results


def test_where_no_lab_was_started_there_is_no_record_to_show(monkeypatch, capsys):
    monkeypatch.setattr(results, "_session", results.Session())
    with pytest.raises(ValueError, match=r"Levels: there is no GPU here, and no lab was started.*labkit.start\(\"NN_topic\"\)"):
        report.show_recorded(["levels"], "Levels")
    assert not capsys.readouterr().out


def test_the_first_record_that_is_missing_is_said_and_ends_it(session, capsys):
    assert report.show_recorded(["levels", "more"], "Levels", "there is no ncu here") == []
    assert capsys.readouterr().out == "Levels: there is no ncu here, and nothing is recorded.\n"


@pytest.mark.parametrize("asked, says", [([], ""), (["copy v1"], ""), (["copy v1", "v6", "copy v2"], "v6, copy v2")])
def test_rows_that_were_asked_for_and_are_not_recorded_are_named(capsys, asked, says):
    table = results.table_of("T", [{"launch": "copy v1, add 1", "µs": 1.0}, {"launch": "copy v3", "µs": 2.0}])
    report.say_absent(table, asked)
    assert capsys.readouterr().out == (f"Not in that record: {says}.\n" if says else "")
