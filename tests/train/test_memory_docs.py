"""The tables of docs/memory.md say what the estimate says: `python -m tests.memory_table` prints them."""

from mintjax.train.plan_choice import PLAN_COSTS
from tests.layout import ROOT
from tests.memory_table import LORA, PLANNED, TOKENS, layer_rows, model_rows, plan_rows

DOC = (ROOT / "docs" / "memory.md").read_text()


def test_the_tables_at_real_shapes_are_the_estimates():
    lines = DOC.splitlines()
    assert f"{TOKENS:,} tokens" in DOC and LORA.rank == 16
    plans = (row for config in PLANNED for row in plan_rows(config))
    for row in (*model_rows(), *plans, *layer_rows()):
        assert row in lines


def test_plans_are_listed_in_the_order_they_are_tried_in():
    told = [
        (row[1].replace("`", "").strip(), row[2].strip())
        for row in (line.split("|") for line in DOC.splitlines())
        if len(row) == 6 and row[2].strip().isdigit()
    ]
    tried = [(kind + ", remat" * remat, str(cost)) for (kind, remat), cost in PLAN_COSTS.items()]
    assert told == tried
