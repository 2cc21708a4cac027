"""The choice among plans, on needs made by hand and on those of a model."""

import json
import re
from dataclasses import replace

import pytest

from mintjax.adapters import LoraConfig
from mintjax.cache import bucket
from mintjax.renderers import to_segment
from mintjax.train.advantages import group_advantages
from mintjax.train.batches import micro_batches
from mintjax.train.config import ConfigError, GradientConfig
from mintjax.train.estimators import GroupMean
from mintjax.train.loop import train
from mintjax.train.metrics import read_metrics
from mintjax.train.plan import Plan
from mintjax.train.plan_choice import (
    PlanChoice,
    PlanMemoryError,
    PlanNeed,
    choose,
    longest_row,
    named_plan,
    plan_needs,
)
from mintjax.train.plan_memory import PlanMemory, Shapes, shapes_of, token_bytes
from mintjax.train.plan_programs import programs
from mintjax.train.plan_settling import settle_plan
from mintjax.train.run_directory import RunDirectory
from tests.tiny import CONFIG
from tests.train.tiny_run import tiny_config, tiny_parts

# Rows of 512 tokens need 102,400, 51,200 and 61,440 bytes, and 1,000 more each.
NEEDS = [
    PlanNeed(Plan("packed"), 2, PlanMemory(100, 1000), rows=2),
    PlanNeed(Plan("packed", remat=True), 3, PlanMemory(50, 1000), rows=2),
    PlanNeed(Plan("segments"), 3, PlanMemory(60, 1000), rows=2),
]


@pytest.mark.parametrize(
    ("memory", "name", "why"),
    [
        (115_000, "packed", "the fastest that fits"),
        (114_000, "packed_remat", "the fastest that fits"),
        (58_000, "packed_remat", "the fastest that fits"),
        (53_000, "packed_remat", "the one that needs least"),
    ],
)
def test_the_fastest_that_fits_is_taken_and_else_the_leanest(memory, name, why):
    choice = choose(NEEDS, 512, memory)
    assert choice.need is not None
    assert (choice.need.name, choice.why, choice.plan) == (name, why, choice.need.plan)


def test_where_nothing_fits_the_error_says_what_is_missing_and_what_helps():
    message = (
        "gradients.memory: the plan that needs least, packed_remat, takes about 51.0 KiB for 2 rows of 512 tokens, "
        "and there are 48.8 KiB. Lower gradients.rows"
    )
    with pytest.raises(PlanMemoryError, match=re.escape(message)):
        choose(NEEDS, 512, 50_000)


def test_rows_are_reckoned_with_the_padding_that_they_get():
    packed, _, segments = NEEDS
    assert packed.bytes(500) == packed.bytes(512) == 1000 + 2 * 512 * 100
    assert packed.bytes(513) == 1000 + 2 * 640 * 100
    assert replace(segments, plan=Plan("segments", 200)).bytes(512) == 1000 + 2 * 600 * 60
    reverse = PlanNeed(Plan("reverse_only"), 2, PlanMemory(60, 1000), 2, held=300, capacity=700)
    assert reverse.bytes(100) == 1000 + 1024 * (2 * 60 + 300), "the rollout's caches are held"
    assert reverse.bytes(1100) == 1000 + 2048 * (2 * 60 + 300)
    assert packed.bytes(0) == packed.bytes(1)


def test_a_runs_plans_go_from_the_fastest_to_the_slowest(tmp_path):
    shapes = Shapes(CONFIG, LoraConfig(rank=3), "float32")
    config = tiny_config(str(tmp_path), "x", gradients={"rows": 5, "segment": 32})
    needs = plan_needs(config, shapes)
    assert [need.forwards for need in needs] == sorted(need.forwards for need in needs)
    assert len({need.plan for need in needs}) == 6
    assert {(need.rows, need.plan.segment) for need in needs} == {(5, 32)}
    # Two groups of three, and what each begins with.
    held = 2 * (3 + 1) * token_bytes(shapes).cache
    for need in needs:
        walks = need.plan.kind == "reverse_only"
        assert (need.held, need.capacity) == ((held, 192) if walks else (0, 0))
    # Memory enough, and the least there can be: what is chosen of a real model's needs.
    assert choose(needs, 4096, 2**40).plan == Plan("packed", 32)
    least = min(need.bytes(4096) for need in needs)
    assert choose(needs, 4096, least).plan.kind == "segments"


def test_without_a_named_size_the_longest_segments_that_fit_are_taken(tmp_path):
    shapes = Shapes(CONFIG, LoraConfig(rank=3), "float32")
    config = tiny_config(str(tmp_path), "x", gradients={"rows": 5})
    needs = plan_needs(config, shapes)
    assert [need.forwards for need in needs] == sorted(need.forwards for need in needs)
    scans = [need for need in needs if need.name == "segments"]
    assert [need.plan.segment for need in scans] == [256, 128, 64, 32]
    assert [need.bytes(4096) for need in scans] == sorted(
        (need.bytes(4096) for need in scans), reverse=True
    )
    assert [need.plan.segment for need in needs if need.plan.kind == "packed"] == [128, 128]
    for need in scans:
        memory = int(need.bytes(4096) / 0.9) + 1
        assert choose(scans, 4096, memory).plan == Plan("segments", need.plan.segment)


def test_a_single_row_is_rematerialised_before_its_products_get_small(tmp_path):
    shapes = Shapes(CONFIG, LoraConfig(rank=3), "float32")
    config = tiny_config(str(tmp_path), "x", gradients={"rows": 1})
    scans = [need.plan for need in plan_needs(config, shapes) if need.plan.kind == "segments"]
    # About the order of their times in docs/memory.md, where two shapes differ.
    assert [(plan.segment, plan.remat) for plan in scans] == [
        (256, False),
        (128, False),
        (256, True),
        (64, False),
        (128, True),
        (32, False),
        (64, True),
        (32, True),
    ]


def test_the_longest_row_is_what_the_configuration_lets_expect(tmp_path):
    config = tiny_config(str(tmp_path), "x")
    assert longest_row(config, CONFIG) == 192
    open_ended = replace(config, rollout=replace(config.rollout, capacity=0, max_turns=3))
    assert longest_row(open_ended, CONFIG) == 3 * 12
    assert longest_row(open_ended, replace(CONFIG, context=20)) == 20
    limited = replace(open_ended.rollout, max_episode_tokens=30)
    assert longest_row(replace(open_ended, rollout=limited), CONFIG) == 30


def test_auto_names_no_plan():
    with pytest.raises(ValueError, match=r"gradients\.plan: 'auto' names no plan"):
        named_plan(GradientConfig())
    assert named_plan(GradientConfig(plan="segments", remat=True)) == Plan("segments", 128, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remat": True}, r"gradients\.remat: expected false with gradients\.plan \"auto\""),
        ({"plan": "packed", "memory": "1GiB"}, r"gradients\.memory: expected null unless"),
        ({"memory": "much"}, r"gradients\.memory: expected bytes, .*, got 'much'"),
    ],
)
def test_what_a_plan_does_not_heed_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GradientConfig(**options)


def test_programs_cover_every_shape_that_is_met(tmp_path, make_episode):
    config = tiny_config(str(tmp_path), "x")
    found = programs(config, CONFIG, 400)
    assert (found.capacities, found.segments) == ((64, 128, 256, 512), (16, 32, 64, 128, 256, 512))
    for tokens in (1, 31, 200, 256, 257, 400):
        episodes = [
            make_episode([reward], member=i, prompts=[tokens - 1], samples=[1])
            for i, reward in enumerate((0.0, 1.0))
        ]
        (batch,) = micro_batches(episodes, group_advantages(episodes, GroupMean()), rows=2)
        assert batch.tokens.shape[1] in found.rows
        assert to_segment([episodes[0].tokens]).tokens.shape[1] in found.segments
        assert bucket(max(tokens, 192)) in found.capacities


@pytest.fixture(scope="module")
def parts():
    return tiny_parts()


def test_a_run_says_its_plan_and_keeps_it(tmp_path, parts, monkeypatch):
    free = [2**40]
    monkeypatch.setattr("mintjax.train.plan_settling.free_memory", lambda: (free[0], "free here"))
    config = tiny_config(str(tmp_path), "run", steps=2)
    train(replace(config, steps=2), *parts)
    run = tmp_path / "run"
    kept = json.loads((run / "plan.json").read_text())
    assert (kept["name"], kept["why"]) == ("packed", "the fastest that fits")
    assert (kept["tokens"], kept["memory"]) == (192, 2**40)
    assert (
        "gradients    packed: the fastest that fits; 6 rows of 192 tokens need about"
        in (run / "run.log").read_text()
    )
    for row in read_metrics(run / "metrics.jsonl"):
        assert (row["plan/packed"], row["plan/auto"]) == (1, 1)
        assert 0 < row["plan/need_bytes"] <= kept["need"] < row["perf/plan_memory_bytes"] == 2**40
    # A start with nothing free goes on as it began: the numbers of a run are not the machine's.
    free[0] = 1
    train(config, *parts)
    assert json.loads((run / "plan.json").read_text()) == kept


def test_a_run_takes_what_fits_into_the_memory_it_is_given(tmp_path, parts):
    options = {"rows": 6, "memory": "1B", "segment": 64}
    with pytest.raises(PlanMemoryError, match=r"gradients\.memory: .* there are 1 B"):
        train(tiny_config(str(tmp_path), "none", steps=1, gradients=options), *parts)
    config = tiny_config(str(tmp_path), "some", steps=1)
    needs = plan_needs(config, Shapes(parts[0].config, parts[0].lora, "float32"))
    packed = next(need for need in needs if need.name == "packed")
    options["memory"] = packed.bytes(192) - 1
    train(tiny_config(str(tmp_path), "some", steps=1, gradients=options), *parts)
    (row,) = read_metrics(tmp_path / "some" / "metrics.jsonl")
    assert "plan/packed" not in row and row["plan/auto"] == 1


def test_the_segment_that_was_chosen_is_what_runs_and_a_later_start_keeps_it(tmp_path, parts):
    policy = parts[0]
    config = tiny_config(str(tmp_path), "run", gradients={"rows": 6})
    needs = plan_needs(config, shapes_of(policy))
    size = longest_row(config, policy.config)
    # A memory that serves some plan with shorter segments than a named plan has, and none before it.
    wanted = next(
        need
        for i, need in enumerate(needs)
        if need.plan.segment < Plan.segment
        and need.bytes(size) < min(before.bytes(size) for before in needs[:i])
    )
    memory = int(wanted.bytes(size) / 0.9) + 1
    limited = replace(config, gradients=replace(config.gradients, memory=memory))
    directory = RunDirectory(tmp_path)
    for start in (limited, config):  # the second with all that is free
        settled, choice = settle_plan(start, policy, directory)
        assert named_plan(settled.gradients) == choice.plan == wanted.plan


def test_a_named_plan_is_not_reckoned_and_a_row_that_outgrows_the_choice_is_told():
    named = PlanChoice(Plan("segments", 64, remat=True), "gradients.plan names it")
    assert named.metrics(100) == {"plan/segments_remat": 1.0, "plan/auto": 0.0}
    assert str(named) == "segments_remat, 64 tokens a segment: gradients.plan names it"
    assert not named.exceeded(10**9)
    chosen = choose(NEEDS, 512, 120_000)
    assert not chosen.exceeded(512) and chosen.exceeded(700)
