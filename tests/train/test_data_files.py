"""Data files: what is wrong is named with its line, and every example comes once before any comes again."""

import json

import pytest

from mintjax.renderers import get_renderer
from mintjax.train.config_dataset import DpoConfig, SftConfig
from mintjax.train.data_files import DataError, find_data, read_examples
from mintjax.train.data_order import examples_at
from mintjax.train.dpo import DpoObjective
from mintjax.train.environments.count_down import grade
from mintjax.train.sft import SftObjective
from tests.tiny import tiny_tokenizer

USER, GOOD, BAD = (
    {"role": role, "content": text}
    for role, text in (("user", "Hi"), ("assistant", "Yes"), ("assistant", "No"))
)


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", tiny_tokenizer())


def sft(**options):
    return SftObjective(SftConfig(name="x", data="x", **options))


DPO = DpoObjective(DpoConfig(name="x", data="x"))


def text(renderer, document):
    return tiny_tokenizer().decode(
        document.tokens[document.weights > 0].tolist(), skip_special_tokens=False
    )


def test_replies_train_and_weights_make_the_mean_that_is_named(renderer):
    row = {"messages": [USER, GOOD, USER, BAD], "id": "not read"}
    ((document,),) = sft().read(row, renderer)
    assert text(renderer, document) == "Yes<|im_end|>No<|im_end|>"
    ((last,),) = sft(train_on="last_assistant_message").read(row, renderer)
    assert text(renderer, last) == "No<|im_end|>"
    ((every,),) = sft(train_on="all_tokens").read(row, renderer)
    assert every.weights.tolist() == [0] + [1] * (len(every.tokens) - 1)
    # 7 tokens and 3: by tokens each counts a tenth, by examples a fourteenth and a sixth.
    examples = [(document,), (last,)]
    assert [x.weights.max() for (x,) in sft().weigh(examples)] == pytest.approx([0.1, 0.1])
    weighed = sft(normaliser="example_tokens").weigh(examples)
    assert [x.weights.max() for (x,) in weighed] == pytest.approx([1 / 14, 1 / 6])


def test_a_pair_trains_its_replies_alone(renderer):
    row = {"prompt": [USER, GOOD, USER], "chosen": [GOOD], "rejected": [BAD]}
    ((chosen, rejected),) = DPO.read(row, renderer)
    assert text(renderer, chosen) == "Yes<|im_end|>" and text(renderer, rejected) == "No<|im_end|>"
    first, second = DPO.weigh([(chosen, rejected), (chosen, rejected)])
    assert sum(float(x.weights.sum()) for x in first) == pytest.approx(0.5)
    assert second[0].weights.max() == second[1].weights.max() == pytest.approx(1 / 14)


@pytest.mark.parametrize(
    ("line", "read", "message"),
    [
        ("[1]", "sft", "line 2: expected a JSON object, got \\[1\\]"),
        ("{", "sft", "line 2: expected a JSON object, got '{'"),
        ({"text": "Hi"}, "sft", "line 2: messages: missing; the row has text"),
        ({"messages": [USER]}, "sft", "line 2: train_on: 'all_assistant_messages' chooses none"),
        ({"messages": [{"role": "robot", "content": ""}]}, "sft", "line 2: message 0"),
        ({"prompt": [USER], "chosen": [GOOD]}, "dpo", "line 1: rejected: missing"),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": [GOOD]}, "dpo", "expected another reply"),
    ],
)
def test_a_bad_line_is_named(tmp_path, renderer, line, read, message):
    file = tmp_path / "data.jsonl"
    good = json.dumps({"messages": [USER, GOOD]}) + "\n" if read == "sft" else ""
    file.write_text(good + (line if isinstance(line, str) else json.dumps(line)))
    objective = {"sft": sft(), "dpo": DPO}[read]
    with pytest.raises(DataError, match=message):
        read_examples(file, lambda row: objective.read(row, renderer))


def test_files_that_are_not_there_or_empty(tmp_path, renderer):
    with pytest.raises(
        DataError, match=r"nowhere\.jsonl: no such file; .* shipped: dpo_count_down\.jsonl"
    ):
        find_data("nowhere.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(
        DataError, match=r"empty\.jsonl: expected an example a line, got an empty file"
    ):
        read_examples(tmp_path / "empty.jsonl", lambda row: sft().read(row, renderer))


@pytest.mark.parametrize("held_out", ["", "_held_out"])
def test_shipped_data_is_what_the_environment_rewards(held_out):
    for line in find_data(f"sft_count_down{held_out}.jsonl").read_text().splitlines():
        _, *messages = json.loads(line)["messages"]
        for asked, said in zip(messages[::2], messages[1::2], strict=True):
            number = int(asked["content"].removeprefix("Start from "))
            assert grade(said["content"], number, ended=True) == 1
    for line in find_data(f"dpo_count_down{held_out}.jsonl").read_text().splitlines():
        row = json.loads(line)
        number = int(row["prompt"][-1]["content"].removeprefix("Start from "))
        rewards = [
            grade(row[name][0]["content"], number, ended=True) for name in ("chosen", "rejected")
        ]
        assert rewards[0] == 1 > rewards[1]


def test_all_examples_come_once_before_any_comes_again():
    places = examples_at(0, 15, 5, seed=3)
    assert [sorted(places[i : i + 5]) for i in (0, 5, 10)] == [list(range(5))] * 3
    assert places[:5] != places[5:10]
    # Any cut into steps, and a start anywhere, gives the same.
    assert [x for step in range(5) for x in examples_at(3 * step, 3, 5, seed=3)] == places
    assert examples_at(0, 15, 5, seed=4) != places
