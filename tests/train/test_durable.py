import json
import math

import pytest

from mintjax.train.durable import append_row, read_rows, write_atomic, write_rows
from mintjax.train.metrics import append_metrics, read_metrics, reproducible


def test_rows_come_back_in_order(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"step": 1, "text": "a\nb </é>"}, {"step": 2, "list": [1.5, None, True]}]
    for row in rows:
        append_row(file, row)
    assert (
        read_rows(file)
        == rows
        == [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    )


def test_a_missing_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("kept", range(1, len('{"step": 2}')))
def test_a_torn_last_row_is_left_out_and_overwritten(tmp_path, kept):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"step": 1}\n' + b'{"step": 2}'[:kept])
    assert read_rows(file) == [{"step": 1}]
    append_row(file, {"step": 2})
    assert file.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_file_with_nothing_but_a_torn_row_is_empty(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"st')
    assert read_rows(file) == []
    append_row(file, {"step": 1})
    assert read_rows(file) == [{"step": 1}]


def test_a_broken_row_in_the_middle_is_an_error_that_names_the_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2"):
        read_rows(file)


def test_rows_refuse_what_json_has_not(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_row(tmp_path / "rows.jsonl", {"x": math.nan})


def test_a_failed_replacement_leaves_the_old_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    write_rows(file, [{"step": 1}])
    with pytest.raises(ValueError, match="JSON"):
        write_rows(file, [{"step": 2}, {"x": math.inf}])
    assert read_rows(file) == [{"step": 1}]
    write_atomic(file, "new")
    assert file.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


def test_metrics_write_null_for_what_is_not_finite_and_keep_every_digit(tmp_path):
    import numpy as np

    file = tmp_path / "metrics.jsonl"
    values = {
        "a": 0.1 + 0.2,
        "n": 3,
        "nan": math.nan,
        "inf": np.float32("inf"),
        "f": np.float32(0.1),
    }
    row = append_metrics(file, 4, values)
    assert read_metrics(file) == [row]
    assert row == {
        "step": 4,
        "a": 0.1 + 0.2,
        "n": 3,
        "nan": None,
        "inf": None,
        "f": float(np.float32(0.1)),
    }
    assert isinstance(read_metrics(file)[0]["n"], int)


def test_metrics_refuse_what_is_no_number(tmp_path):
    with pytest.raises(TypeError, match=r"'name'.*'x'"):
        append_metrics(tmp_path / "metrics.jsonl", 1, {"name": "x"})  # type: ignore
    assert not (tmp_path / "metrics.jsonl").exists()


def test_reproducible_leaves_out_what_measures_the_machine():
    row = {"step": 1, "loss": 0.5, "time/step": 3.0, "perf/compiles": 2, "timely": 1}
    assert reproducible(row) == {"step": 1, "loss": 0.5, "timely": 1}
