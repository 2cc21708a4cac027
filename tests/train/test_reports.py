import io
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console
from rich.text import Text

from mintjax.train import plots
from mintjax.train.metrics import append_metrics, read_metrics
from mintjax.train.progress import report
from mintjax.train.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    (tmp_path / "plots").mkdir()
    return RunDirectory(tmp_path)


def rows(run):
    append_metrics(run.metrics, 0, {"eval/greedy/rewards/turn/mean": 0.1})
    for step in (1, 2, 3):
        turns = {f"rewards/turn_{k}/mean": 0.1 * step for k in (1, 2, 3)}
        append_metrics(run.metrics, step, {"rewards/turn/mean": 0.1 * step, **turns})
    append_metrics(run.metrics, 4, {"rewards/turn/mean": float("nan")})


def test_the_plot_says_which_curve_is_sampled_and_which_greedy(run):
    rows(run)
    svg, png = plots.reward(run, title="demo <1> & grpo")
    assert png.read_bytes().startswith(b"\x89PNG")
    tree = ElementTree.parse(svg)
    comments = svg.read_text()
    assert tree.getroot().tag.endswith("svg")
    for label in (
        "sampled, mean of turns",
        "greedy evaluation",
        "sampled, turn 1 only",
        "sampled, turn 3 only",
        "mean reward a turn",
    ):
        assert f"<!-- {label} -->" in comments
    again = svg.read_bytes()
    plots.reward(run, title="demo <1> & grpo")
    assert svg.read_bytes() == again


def test_points_stand_at_the_updates_of_their_policy_and_missing_ones_are_left_out(run):
    rows(run)
    table = read_metrics(run.metrics)
    # Step 1 samples the policy that has taken no step yet, as the evaluation before it does.
    sampled = plots._points(table, "rewards/turn/mean", updates=-1)
    assert sampled == [(0, 0.1), (1, 0.2), (2, 0.1 * 3)]
    assert plots._points(table, "eval/greedy/rewards/turn/mean", updates=0) == [(0, 0.1)]


def test_a_run_without_a_step_has_no_plot(run):
    append_metrics(run.metrics, 0, {"eval/greedy/rewards/turn/mean": 0.3})
    with pytest.raises(ValueError, match=r"metrics\.jsonl: expected rows with rewards/turn"):
        plots.reward(run, title="demo")


def test_lines_are_plain_where_there_is_no_terminal(tmp_path):
    output = io.StringIO()
    log = tmp_path / "run.log"
    with report(log, 10, console=Console(file=output, width=20)) as reporter:
        reporter.phase("rollout")
        reporter.step(
            {
                "step": 3,
                "rewards/turn/mean": 0.51234,
                "loss": None,
                "grad_norm": 2.0,
                "time/step": 1.5,
            }
        )
        reporter.say("[red]model output[/red] [/]")
    lines = output.getvalue().splitlines()
    assert lines == [
        "step 3/10  reward a turn 0.5123  grad norm 2  seconds 1.5",
        "[red]model output[/red] [/]",
    ]
    assert [line.split(" ", 1)[1] for line in log.read_text().splitlines()] == lines


def test_a_terminal_has_a_live_line_and_the_same_lines(tmp_path):
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True)
    with report(tmp_path / "run.log", 10, console=console) as reporter:
        reporter.phase("roll[out]")
        reporter.step({"step": 3, "rewards/turn/mean": 0.5})
        reporter.say(Text("two\nlines"))
        reporter.phase("gradients")
    assert "step 3/10  reward a turn 0.5" in output.getvalue()
    assert "3/10" in output.getvalue()
    assert "gradients" in output.getvalue()
    assert "two\nlines" in (tmp_path / "run.log").read_text()


def test_another_process_prints_nothing(tmp_path, capsys):
    with report(tmp_path / "run.log", 1, console=Console(quiet=True)) as reporter:
        reporter.say("hello")
    assert capsys.readouterr().out == ""
