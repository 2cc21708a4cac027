import subprocess
import sys
import types

import pytest

import mintjax
from mintjax.cli import main
from mintjax.train.run_directory import RunDirectoryError


@pytest.fixture
def loop(monkeypatch):
    """A training loop that only notes what it was asked."""
    calls = []
    module = types.ModuleType("mintjax.train.loop")
    module.run = lambda config, *, overwrite: calls.append((config, overwrite))  # type: ignore
    monkeypatch.setitem(sys.modules, "mintjax.train.loop", module)
    return calls, module


def test_train_hands_the_configuration_to_the_loop(loop):
    calls, _ = loop
    assert main(["train", "count_down", "steps=3", "--overwrite", "--model.rank", "2"]) == 0
    [(config, overwrite)] = calls
    assert (config.steps, config.model.rank, overwrite) == (3, 2, True)
    assert main(["train", "count_down"]) == 0
    assert calls[1][1] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count_down", "stpes=3"], "stpes: unknown field of TrainConfig; did you mean steps?"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["steps=3"], "CONFIG.yaml: expected a file first, got steps=3"),
        ([], "CONFIG.yaml: expected a file first, got nothing"),
        (["count_down", "--steps"], "--steps: expected a value after it"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line_and_status_2(
    loop, capsys, arguments, message
):
    assert main(["train", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"mintjax: error: {message}")


def raise_named(*_, **__):
    raise RunDirectoryError("runs/x: in use")


def raise_plain(*_, **__):
    from mintjax.train.advantages import group_advantages
    from mintjax.train.normalisers import normalise

    normalise(group_advantages([]), [], "nonsense", max_tokens=1)


def break_down(*_, **__):
    raise ValueError("a bug somewhere else")


@pytest.mark.parametrize(
    ("failure", "message"),
    [(raise_named, "runs/x: in use"), (raise_plain, "normaliser: expected one of")],
)
def test_an_error_that_mintjax_raised_is_a_message_and_status_1(loop, capsys, failure, message):
    loop[1].run = failure
    assert main(["train", "count_down"]) == 1
    assert capsys.readouterr().err.startswith(f"mintjax: error: {message}")


def test_any_other_error_keeps_its_traceback(loop):
    loop[1].run = break_down
    with pytest.raises(ValueError, match="a bug somewhere else"):
        main(["train", "count_down"])


def test_a_warning_is_one_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("name: x\nenvironment: {type: count_down}\nloss: {type: ppo, ratio_min: 0.5}\n")
    program = (
        "import sys, types\n"
        "module = types.ModuleType('mintjax.train.loop')\n"
        "module.run = lambda config, overwrite: None\n"
        "sys.modules['mintjax.train.loop'] = module\n"
        "from mintjax.cli import main\n"
        f"sys.exit(main(['train', {str(file)!r}, 'loss.type=cross_entropy']))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0
    [line] = result.stderr.splitlines()
    assert line.startswith("mintjax: warning: loss: the command line changes its type")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["render", "--help"],
        ["bench", "--help"],
        ["plan", "--help"],
    ],
)
def test_help_is_there_without_loading_jax(arguments):
    program = (
        "import sys\n"
        "from mintjax.cli import main\n"
        "try:\n"
        f"    status = main({arguments!r})\n"
        "except SystemExit as error:\n"
        "    status = error.code\n"
        "heavy = {'jax', 'torch', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "assert status == 0 and not heavy, (status, heavy)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    expected = {
        "--help": "train CONFIG.yaml",
        "--version": f"mintjax {mintjax.__version__}",
        "bench": "usage: mintjax bench ",
        "plan": "usage: mintjax plan ",
        "render": "usage: mintjax render ",
        "train": "\noptimizer.learning_rate: float = 0.0003\n",
    }[arguments[0]]
    assert expected in result.stdout


def test_an_unknown_command_names_those_there_are(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["tarin"])
    assert caught.value.code == 2
    assert "invalid choice: 'tarin'" in capsys.readouterr().err
