import dataclasses
from collections import Counter

import pytest

from mintjax.train.config import (
    ConfigError,
    EnvironmentConfig,
    TrainConfig,
    register_environment,
)
from mintjax.train.config_files import (
    ConfigWarning,
    find_config,
    from_dict,
    load_config,
    parse_overrides,
    to_dict,
    to_yaml,
)
from mintjax.train.config_help import field_docs, help_text
from mintjax.train.config_schema import dotted_fields, fields_of, is_choice
from mintjax.train.environments.count_down import CountDownConfig
from mintjax.train.losses import CrossEntropy, ImportanceSampling, Ppo

MINIMAL = "name: demo\nenvironment: {type: count_down}\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="run.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_defaults_then_file_then_command_line(write):
    file = write(MINIMAL + "steps: 20\noptimizer: {learning_rate: 1e-4, b1: 0.8}\n")
    config = load_config(file, ["optimizer.b1=0.7", "--model.rank", "4", "--seed=3"])
    assert config.steps == 20
    assert config.optimizer.learning_rate == 1e-4
    assert config.optimizer.b1 == 0.7
    assert config.optimizer.b2 == 0.95
    assert (config.model.rank, config.seed) == (4, 3)
    assert isinstance(config.loss, Ppo)


def test_the_shipped_experiment_loads_and_round_trips(write):
    config = load_config("count_down")
    assert load_config(write(to_yaml(config))) == config
    assert from_dict(to_dict(config)) == config


def test_every_field_round_trips_with_a_value_that_is_not_its_default(write):
    overrides = [
        "name=null",
        "root=a: b",
        "seed=7",
        "steps=3",
        "renderer=[chatml]",
        "model.name=1e5",
        "model.rank=2",
        "model.alpha=1.5e-3",
        "model.dtype=bfloat16",
        "model.train_attn=false",
        "model.train_unembed=true",
        "rollout.top_k=5",
        "rollout.top_p=0.25",
        "rollout.temperature=0.7",
        "advantage.type=gigpo",
        "advantage.gamma=0.5",
        "advantage.std=true",
        "loss.negative_ratio_max=3",
        "correction.type=masked",
        "correction.level=sequence",
        "correction.ratio_min=0.5",
        "truncation.episodes=mask",
        "truncation.reasons=[overflow]",
        "truncation.budget=500",
        "truncation.cache=100",
        "rollout.resample_rounds=2",
        "normaliser=max_tokens",
        "loss.ratio_min=0.5",
        "optimizer.clip_norm=null",
        "optimizer.schedule=cosine",
        "optimizer.eps=1e-30",
        "gradients.plan=segments",
        "gradients.remat=true",
        "checkpoint.keep_best=false",
        "evaluation.at_end=false",
        "evaluation.every=4",
        "environment.numbers=[5, 6]",
    ]
    config = load_config(write(MINIMAL), overrides)
    assert (config.name, config.root, config.renderer, config.model.name) == (
        "null",
        "a: b",
        "[chatml]",
        "1e5",
    )
    assert config.optimizer.clip_norm is None
    assert config.environment.numbers == (5, 6)  # type: ignore
    assert load_config(write(to_yaml(config))) == config


@pytest.mark.parametrize(("text", "memory"), [("2GiB", "2GiB"), ("2000", 2000), ("null", None)])
def test_a_size_is_a_number_a_text_or_null(write, text, memory):
    config = load_config(write(MINIMAL), [f"gradients.memory={text}"])
    assert config.gradients.memory == memory
    assert load_config(write(MINIMAL + f"gradients: {{memory: {text}}}\n")) == config
    assert load_config(write(to_yaml(config))) == config


def test_a_size_is_not_a_truth_value(write):
    with pytest.raises(ConfigError, match="memory: expected int or str or null, got True"):
        load_config(write(MINIMAL + "gradients: {memory: true}\n"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optimizer.learing_rate=1",
            "learing_rate: unknown .* did you mean optimizer.learning_rate?",
        ),
        ("learning_rate=1", "learning_rate: unknown .* did you mean optimizer.learning_rate?"),
        ("modle.rank=1", "modle: unknown field .* did you mean model?"),
        ("loss.type=ppoo", "loss.type: expected .*, got 'ppoo'; did you mean ppo?"),
        ("environment.turn=1", "environment.turn: unknown .* did you mean environment.turns?"),
        ("zzz=1", "zzz: unknown field of TrainConfig; it has name, environment, "),
        ("seed.x=1", "seed.x: seed has no fields"),
        ("steps=ten", "steps: expected int, got 'ten'"),
        ("steps=1.5", "steps: expected int, got 1.5"),
        ("steps=true", "steps: expected int, got True"),
        ("steps=null", "steps: expected int, got None"),
        ("optimizer.b1=[1]", r"optimizer.b1: expected float, got \[1\]"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate: expected .*, got nan"),
        (
            "gradients.plan=pack",
            "gradients.plan: expected auto or packed or segments or reverse_only, got 'pack'",
        ),
        ("rollout.group_size=1", "rollout.group_size: expected at least 2 .*, got 1"),
        (
            "rollout.groups_in_flight=9",
            r"rollout.groups_in_flight: expected from 0 .* to 8 \(.*, got 9",
        ),
        ("rollout.rows=99", r"rollout.rows: expected from 0 .* to 32 \(.*, got 99"),
        ("rollout.slots=2", "rollout.slots: expected 0 without rollout.rows: .*, got 2"),
        (
            "rollout.max_episode_tokens=-1",
            "rollout.max_episode_tokens: expected at least 0, got -1",
        ),
        (
            "rollout.step_timeout=0",
            "rollout.step_timeout: expected a positive number or null, got 0",
        ),
        (
            "rollout.episode_timeout=.inf",
            "rollout.episode_timeout: expected a positive number .*inf",
        ),
        (
            "rollout.parse_errors=ignore",
            "rollout.parse_errors: expected pass or observe or end, got",
        ),
        (
            "rollout.parse_error_reward=-1",
            r"rollout.parse_error_reward: expected .*observe.*got -1",
        ),
        ("rollout=5", "rollout: expected a section, got 5"),
        ("advantage=grpo", "advantage: expected a section with type: group_mean or .*, got 'grpo'"),
        ("advantage.type=grp", "advantage.type: expected .*, got 'grp'; did you mean grpo?"),
        ("advantage.gamma=1", "advantage.gamma: unknown field of GroupTurnMean"),
        ("loss.ratio_min=1.5", "loss.ratio_min: expected a ratio from 0 to 1, got 1.5"),
        ("loss.ratio_max=0.9", "loss.ratio_max: expected a ratio of at least 1, got 0.9"),
        ("loss.negative_ratio_max=1", "loss.negative_ratio_max: expected a ratio above 1 or null"),
        ("normaliser=tokens", "normaliser: expected batch_tokens or .*, got 'tokens'"),
        ("rollout.temperature=0", "rollout.temperature: expected a positive number .*, got 0"),
        ("rollout.resample_rounds=-1", "rollout.resample_rounds: expected at least 0, got -1"),
        (
            "truncation.cache=1",
            r"truncation.cache: expected from 0 to 0 \(truncation.budget\), got 1",
        ),
        (
            "truncation.budget=1024",
            r"truncation.budget: expected less than 1024 \(.*\) plus truncation.cache, .* got 1024",
        ),
        ("name=a/b", "name: expected a directory name"),
        ("steps", "steps: expected field=value"),
        ("--steps", "--steps: expected a value after it"),
        ("steps=[", r"steps: expected int, got '\['"),
    ],
)
def test_a_bad_override_is_one_error_that_names_the_field(write, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(MINIMAL), [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rows=8", "where=jit"], 'rollout.rows: expected 0 with rollout.where "jit", .*, got 8'),
        (
            ["rows=8", "groups_in_flight=2"],
            "rollout.groups_in_flight: expected 0 with rollout.rows, .*, got 2",
        ),
        (
            ["slots=1", "rows=1"],
            "rollout.rows: expected rows and slots for a whole group of 4 .* got 2",
        ),
    ],
)
def test_rows_that_cannot_refill_are_refused(write, overrides, message):
    given = [f"rollout.{override}" for override in overrides]
    with pytest.raises(ConfigError, match=message):
        load_config(write(MINIMAL), given)
    packed = ["rollout.rows=8", "rollout.slots=4", "gradients.plan=packed"]
    with pytest.raises(ConfigError, match=r"rollout\.slots: expected 0 unless gradients"):
        load_config(write(MINIMAL), packed)
    rollout = load_config(write(MINIMAL), packed[:2]).rollout
    assert (rollout.groups_together, rollout.cache_rows) == (1, 8 + 4 + 8 // 4 + 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: 1\nstpes: 2\n", r"run\.yaml: stpes: unknown field .* did you mean steps\?"),
        ("steps: 1\nsteps: 2\n", r"the key 'steps' is given twice"),
        ("model: {rank: 1, rank: 2}\n", r"the key 'rank' is given twice"),
        ("seed: 1\n", "environment: missing; expected a section with type: "),
        (
            "environment: {turns: 2}\n",
            "environment.type: missing; expected count_down or grid_walk",
        ),
        ("renderer: 5\n", "renderer: expected str, got 5; put it in quotes"),
        ("model: 3\n", "model: expected a section, got 3"),
        ("[1, 2]\n", "expected fields and values"),
        ("a: [1\n", "not valid YAML"),
        ("model: !include other.yaml\n", r"other\.yaml: no such file"),
        ("model: !include run.yaml\n", "leads back"),
    ],
)
def test_a_bad_file_is_one_error(write, text, message):
    start = "name: demo\n" if text.isascii() and not text.startswith("[") else ""
    file = write(start + text)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_what_the_file_lacks_may_come_from_the_command_line(write):
    file = write("environment: {turns: 2, numbers: [4, 5]}\n")
    config = load_config(file, ["name=x", "--environment.type", "count_down"])
    assert config.environment.turns == 2  # type: ignore


def test_includes_are_relative_to_their_file_and_own_keys_win(write, tmp_path):
    (tmp_path / "parts").mkdir()
    write("rank: 3\nalpha: 6\n", "parts/model.yaml")
    write("steps: 5\nseed: 9\n", "base.yaml")
    file = write("<<: !include base.yaml\nsteps: 6\nmodel: !include parts/model.yaml\n" + MINIMAL)
    config = load_config(file)
    assert (config.model.rank, config.model.alpha, config.seed, config.steps) == (3, 6.0, 9, 6)


def test_another_type_on_the_command_line_drops_the_files_fields_with_a_warning(write):
    file = write(MINIMAL + "loss: {type: ppo, ratio_min: 0.5}\n")
    with pytest.warns(
        ConfigWarning, match="loss: .* from ppo to importance_sampling, .* ratio_min is"
    ):
        config = load_config(file, ["loss.type=importance_sampling"])
    assert config.loss == ImportanceSampling()
    # The same type again drops nothing; fields of the new type may stand before it.
    assert load_config(file, ["loss.type=ppo"]).loss == Ppo(ratio_min=0.5)
    file = write(MINIMAL + "loss: {type: cross_entropy}\n")
    config = load_config(file, ["loss.ratio_max=3", "loss.type=ppo"])
    assert config.loss == Ppo(ratio_max=3.0)


def test_a_default_loss_changes_type_without_a_warning(write):
    assert load_config(write(MINIMAL), ["loss.type=cross_entropy"]).loss == CrossEntropy()


def test_a_field_twice_on_the_command_line_is_refused():
    with pytest.raises(ConfigError, match="seed: given twice"):
        parse_overrides(["seed=1", "--seed", "2"])
    assert parse_overrides(["--a.b", "-1", "c=d=e", "--f="]) == [
        (("a", "b"), "-1"), (("c",), "d=e"), (("f",), ""),
    ]  # fmt: skip


def test_a_missing_file_names_itself_and_what_is_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("cuont_down.yaml", "elsewhere/count_down.yaml"):
        with pytest.raises(ConfigError, match=f"{path}: no such file; .* count_down"):
            load_config(path)


def test_shipped_names_resolve_unless_a_file_here_is_meant_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = find_config("count_down")
    assert find_config("count_down.yaml") == find_config("configs/count_down.yaml") == shipped
    (tmp_path / "count_down.yaml").write_text(MINIMAL)
    assert find_config("count_down.yaml").resolve() == tmp_path / "count_down.yaml"
    with pytest.raises(ConfigError, match=r"both the file count_down\.yaml and a shipped"):
        find_config("count_down")


def test_help_lists_every_field_with_type_default_and_documentation():
    lines = help_text().splitlines()
    # Kinds of one section may have fields of one name.
    for keys, count in Counter(dotted_fields()).items():
        places = [i for i, line in enumerate(lines) if line.startswith(f"{'.'.join(keys)}: ")]
        assert len(places) == count, keys
        for place in places:
            assert " = " in lines[place] or "(required)" in lines[place]
            assert lines[place + 1].startswith("    ")
    assert "optimizer.clip_norm: float or null = 1.0" in lines
    assert "loss.ratio_min: float = 0.8 [loss.type: ppo]" in lines
    assert "name: str (required)" in lines


def test_every_field_of_every_section_is_documented():
    sections = [TrainConfig]
    while sections:
        section = sections.pop()
        docs = field_docs(section)
        for field in dataclasses.fields(section):
            assert docs.get(field.name, "").endswith("."), (section, field.name)
            below = fields_of(section)[field.name]
            if is_choice(below):
                sections += below.get_known_choices().values()
            elif dataclasses.is_dataclass(below):
                sections.append(below)


def test_a_registered_environment_is_a_choice_and_a_name_is_taken_once(write, monkeypatch):
    monkeypatch.setattr(
        EnvironmentConfig, "_choice_registry", dict(EnvironmentConfig._choice_registry)
    )

    @register_environment("test_only")
    @dataclasses.dataclass(frozen=True)
    class TestOnly(EnvironmentConfig):
        level: int = 1
        """How hard it is."""

        def make(self):
            raise AssertionError("not part of this test")

        def tasks(self, position, count, seed):
            return [position] * count

    config = load_config(write("name: x\nenvironment: {type: test_only, level: 3}\n"))
    assert config.environment == TestOnly(level=3)
    assert to_dict(config)["environment"] == {"type": "test_only", "level": 3}
    with pytest.raises(TypeError, match="Ppo: expected a class derived from EnvironmentConfig"):
        register_environment("ppo")(Ppo)
    with pytest.raises(ValueError, match="already registered"):
        register_environment("test_only")(CountDownConfig)
