import dataclasses
import json

import pytest

from mintjax.bench import registry, turns_plot
from mintjax.bench.registry import BENCHMARKS
from mintjax.bench.rows import exact_ratio
from mintjax.bench.sharing import GroupSize
from mintjax.bench.turns_plot import Point
from mintjax.cli import main
from tests.tiny import CONFIG


@pytest.fixture
def measured(monkeypatch):
    """Benchmarks that only note that they were run, and how often they were to time."""
    calls = []

    def faked(benchmark):
        def measure(size, runs):
            calls.append((benchmark.name, runs))
            return exact_ratio(1.0, 4.0, "MiB")

        return dataclasses.replace(benchmark, measure=measure)

    fakes = {name: faked(benchmark) for name, benchmark in BENCHMARKS.items()}
    monkeypatch.setattr(registry, "BENCHMARKS", fakes)
    return calls


def test_json_has_an_object_a_line_for_what_was_named(measured, capsys):
    names = ["rollout_vs_reprefill_8", "segments_vs_packed_time"]
    assert main(["bench", *names, "--json", "--runs", "3"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == names
    assert all({"ours", "other", "ratio", "spread", "unit"} <= row.keys() for row in rows)
    assert measured == [(name, 3) for name in names]


def test_without_names_all_run_that_take_no_minutes(measured, capsys):
    assert main(["bench"]) == 0
    default = [name for name, benchmark in BENCHMARKS.items() if not benchmark.by_name]
    assert measured == [(name, 9) for name in default]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["benchmark", "ours", "other", "unit"]
    assert [line.split()[0] for line in lines[1:]] == default
    assert lines[1].split() == [default[0], "1", "4", "MiB", "0.250", "0.250", "..", "0.250"]


def test_a_benchmark_is_run_for_real(monkeypatch, capsys):
    small = dataclasses.replace(
        BENCHMARKS["group_sharing_prefill"],
        size=GroupSize(CONFIG, group=2, prompt=32, completion=8),
    )
    monkeypatch.setattr(registry, "BENCHMARKS", {small.name: small})
    assert main(["bench", "--json", "--runs", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["ratio"] == pytest.approx(row["other"] / row["ours"], rel=1e-3)
    assert main(["bench", "--runs", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()[1].split()) == 8 + 1


def test_the_list_measures_nothing(measured, capsys):
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHMARKS)
    assert lines[-1].endswith("without") and any(line.endswith("only by name") for line in lines)
    assert measured == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rollout_vs_reprefill_9"], "no benchmark is called 'rollout_vs_reprefill_9'; --list"),
        (["--runs", "0"], "expected a number of at least 1, got '0'"),
        (["--runs", "x"], "expected a number of at least 1, got 'x'"),
        (["--plot", "turns"], "--plot: expected a file name that ends in"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is_measured(
    measured, capsys, arguments, message
):
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert measured == []


def test_a_plot_alone_is_measured_where_nothing_is_named(measured, monkeypatch, tmp_path, capsys):
    asked = []

    def measure(turns, runs):
        asked.append((turns, runs))
        return Point(turns, 48 * turns, 1.0, 2.0, 3.0, 4.0, 5.0)

    monkeypatch.setattr(turns_plot, "measure", measure)
    plot = tmp_path / "turns.png"
    assert main(["bench", "--plot", str(plot), "--runs", "2"]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert asked == [(turns, 2) for turns in turns_plot.TURNS]
    assert measured == []
    captured = capsys.readouterr()
    assert captured.out == "" and str(plot) in captured.err
    assert main(["bench", "second_run_compile", "--plot", str(plot), "--runs", "1"]) == 0
    assert measured == [("second_run_compile", 1)]
