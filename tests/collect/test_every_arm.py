"""Every kind of arm, through a real engine: collected, rewarded, learned from, chosen, decoded."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collect_fakes import all_pairs, make_queries, pairs
from stored_tables import table_of

from collect.replay.batch import Batch
from collect.rewards import REWARDS
from collect.store.manifest import read_manifest
from collect.store.tables import read_table
from collect.sweeps.batch import SweepOptions
from collect.sweeps.run import sweep
from decoders.arms import recipe
from decoders.engine import Engine
from decoders.lengths import FixedLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.plain.drafter import NullDrafter
from decoders.papers.cascades.strategies import OracleCascade, SequenceCascade, TokenCascade
from decoders.protocols import Strategy
from decoders.records import Request, Sampling
from decoders.testing.toys import ToyBackend
from decoders.verify import Coupled
from policies import fit

V = 110  # costs are measured on a prompt of some hundred different tokens
NEURAL = {"kind": "neural", "drafter": "x"}
RECIPES = {
    "autoregressive": recipe(name="autoregressive", kind="autoregressive"),
    "small": recipe(name="small", kind="neural", drafter="x"),
    "copy": recipe(name="copy", kind="max_gram"),
    "token": recipe(name="token", kind="token_cascade", drafter=NEURAL, alpha=0.5),
    "sequence": recipe(name="sequence", kind="sequence_cascade", drafter=NEURAL, alpha=1),
    "oracle": recipe(name="oracle", kind="oracle_cascade", drafter=NEURAL, alpha=0.1),
    "undrafted": recipe(name="undrafted", kind="calm", threshold=0.9),
}


class Words:
    """Token i is the word wi; prompts come from the words' lengths."""

    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [1 + (7 * len(word) + 3 * at) % (V - 1) for at, word in enumerate(text.split())]

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(f"w{i}" for i in ids)


class Undrafted:
    """A way to answer without a drafter: the target's own, as CALM at threshold 1 gives it."""

    name, parameters, context = "undrafted", 0, 1 << 30

    def __init__(self, alone: SpeculativeDecoding) -> None:
        self.decode = alone.decode


def toy(seed: int) -> ToyBackend:
    """A target and a drafter that mostly agree."""
    shared = torch.Generator().manual_seed(0)
    own = torch.Generator().manual_seed(seed)
    shape = (V, V, V)
    table = torch.randn(shape, generator=shared) + 0.1 * torch.randn(shape, generator=own)
    return ToyBackend(4 * table)


@pytest.fixture(scope="module")
def engine() -> Engine:
    target, draft = toy(1), toy(2)

    def parts(name: str) -> Strategy:
        drafter = NeuralDrafter(ToyBackend(draft.table))
        alone = SpeculativeDecoding(name, NullDrafter(target.device), Coupled(), FixedLength(0))
        made: dict[str, Any] = {
            "autoregressive": alone,
            "small": SpeculativeDecoding("small", drafter, Coupled(), FixedLength(3)),
            "copy": SpeculativeDecoding(
                "copy", MaxGramDrafter(target.device), Coupled(), FixedLength(3)
            ),
            "token": TokenCascade("token", drafter, 0.5),
            "sequence": SequenceCascade("sequence", drafter, 1.0),
            "oracle": OracleCascade("oracle", drafter, 0.1),
            "undrafted": Undrafted(alone),
        }
        return made[name]

    class Given(Engine):
        """Its arms' parts are those above, whatever the recipes say."""

        def strategy(self, name: str) -> Strategy:
            if name not in self._strategies:
                self._strategies[name] = parts(name)
            return super().strategy(name)

    return Given(target, RECIPES, tokenizer=Words(), eos_ids=(5,))


@pytest.fixture(scope="module")
def folder(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("collected")
    options = SweepOptions(max_new_tokens=12, batch_size=4, measure=True)
    report = sweep(engine, Batch(engine), make_queries(), out, options)
    assert report.errors == 0
    assert pairs(out) == all_pairs(make_queries(), tuple(RECIPES))
    return out


def test_rows_say_what_each_arm_did(engine: Engine, folder: Path) -> None:
    prompts = {
        row["query_id"]: row["prompt_ids"] for row in read_table(folder, "queries").to_pylist()
    }
    for row in read_table(folder, "outcomes").to_pylist():
        result = engine.decode(row["arm"], prompts[row["query_id"]], Request(12))
        if row["arm"] == "autoregressive":
            continue
        assert row["rounds"] == result.target_calls - 1
        assert row["new_tokens"] == len(result.ids)
        if row["arm"] in ("small", "copy"):
            assert row["target_ids"] == result.ids
            assert len(row["agree"]) == len(result.ids)
        else:
            assert row["output_ids"] == result.ids
            assert (row["drafted"], row["accepted"]) == (result.drafted, result.accepted)
            assert row["agree"] == []


def test_arms_are_described_by_what_they_run(engine: Engine, folder: Path) -> None:
    manifest = read_manifest(folder)
    parameters = {arm.name: arm.parameters for arm in manifest.arms}
    whole = engine.target.parameters
    assert parameters == {name: whole for name in RECIPES} | {"copy": 0}  # the toys are one size
    assert set(manifest.costs.draft_s) == {"small", "copy", "token", "sequence", "oracle"}


@pytest.mark.parametrize("reward", [name for name, one in REWARDS.items() if not one.needs_prices])
def test_every_arm_is_rewarded(folder: Path, reward: str) -> None:
    table = table_of(folder, reward)
    assert table.arms == list(RECIPES)
    assert np.isfinite(table.rewards).all()


def test_what_is_learned_is_chosen_and_decoded(engine: Engine, folder: Path) -> None:
    arms = ("token", "sequence", "oracle", "undrafted")
    table = table_of(folder, "modelled", arms=arms, features=())
    policy = fit("regression", table).policy
    for prompt in ([3, 9], [4, 4, 4, 90]):
        prefilled = engine.prefill(prompt)
        arm = policy.choose(prefilled.embedding.numpy()).arm
        assert arm in table.arms
        assert engine.decode(arm, prompt, Request(6), prefilled).ids


def test_every_kind_of_arm_at_a_temperature(engine: Any, tmp_path: Path) -> None:
    """A row foretells what the arm's loop does to the row's seed, and what it writes."""
    options = SweepOptions(
        max_new_tokens=10, batch_size=4, temperatures=(0, 0.7, 1), draws=2, similarity=False
    )
    report = sweep(engine, Batch(engine), make_queries(1), tmp_path, options)
    assert report.errors == 0
    prompts = {
        row["query_id"]: row["prompt_ids"] for row in read_table(tmp_path, "queries").to_pylist()
    }
    counted = Counter[str]()
    for row in read_table(tmp_path, "outcomes").to_pylist():
        if row["temperature"] == 0:
            continue
        arm, sampling = row["arm"], Sampling(row["temperature"])
        live = engine.decode(arm, prompts[row["query_id"]], Request(10, sampling, seed=row["seed"]))
        own = row["target_ids"] if arm in ("autoregressive", "small", "copy") else row["output_ids"]
        assert own == live.ids
        assert (row["rounds"], row["new_tokens"]) == (live.target_calls - 1, len(live.ids))
        assert (row["drafted"], row["accepted"]) == (live.drafted, live.accepted)
        counted[arm] += row["accepted"]
    assert counted["small"] > 40
    table = table_of(tmp_path, "modelled")
    assert np.isfinite(table.rewards).all() and len(table) == 18
