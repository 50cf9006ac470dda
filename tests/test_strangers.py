"""Parts of other packages: found, imported once, and refused in one sentence where they are bad."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

import collect
import decoders
import policies
from decoders import plugins
from decoders.errors import DraftpickError
from decoders.protocols import DraftRequest
from decoders.records import Proposal


def install(folder: Path, name: str, source: str, entries: str = "") -> None:
    """A distribution of one module as pip leaves it; entries: lines of its entry-point group."""
    (folder / f"{name}.py").write_text(dedent(source))
    if entries:
        about = folder / f"{name}-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (about / "entry_points.txt").write_text(f"[draftpick]\n{dedent(entries)}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; what is registered from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    modules, imported = set(sys.modules), set(plugins._imported)
    parts = {what: dict(seen.parts) for what, seen in plugins._watched.items()}
    owners = {what: dict(seen.owners) for what, seen in plugins._watched.items()}
    yield folder
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", "").startswith(str(folder)):
            del sys.modules[name]
    plugins._imported.intersection_update(imported)
    for what, seen in plugins._watched.items():
        if what in parts:
            seen.parts.clear()
            seen.parts.update(parts[what])
            seen.owners = owners[what]


MINE = """
from decoders import KINDS, DraftingRecipe

class MineRecipe(DraftingRecipe):
    drafter: str | None = None

KINDS["mine"] = MineRecipe
"""


def test_a_module_of_the_entry_point_group_is_imported_once(site: Path) -> None:
    install(site, "mine", MINE + "print('imported')", "anything = mine")
    plugins.load()
    recipe = decoders.KINDS["mine"]
    plugins.load()
    assert decoders.KINDS["mine"] is recipe
    del decoders.KINDS["mine"]
    plugins.load()
    assert "mine" not in decoders.KINDS


def test_an_arms_file_names_modules(site: Path, tmp_path: Path) -> None:
    install(site, "mine", MINE)
    path = tmp_path / "arms.yaml"
    path.write_text("plugins: [mine]\narms: {a: {kind: mine}}")
    assert decoders.load_arms(path)["a"].kind == "mine"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plugins: [nowhere]", "'nowhere' that .*arms.yaml names cannot .* no module 'nowhere'; "),
        ("plugins: [no.where]", "there is no module 'no.where'; install it, or add its folder"),
        ("plugins: mine", "1 mistake.*plugins: Input should be a valid list"),
        ("plugins: [bad]", "'bad' that .* cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_an_arms_file_cannot_have(
    text: str, says: str, site: Path, tmp_path: Path
) -> None:
    install(site, "bad", "1 / 0")
    path = tmp_path / "arms.yaml"
    path.write_text(f"{text}\narms: {{a: {{kind: max_gram}}}}")
    with pytest.raises(DraftpickError, match=says) as caught:
        decoders.load_arms(path)
    assert "\n" not in str(caught.value)


def test_a_plugin_that_cannot_be_imported_is_named_with_its_distribution(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from router.cli import main

    install(site, "half", MINE + "import no_such_package\n", "half-done = half")
    for _ in range(2):
        assert main(["arms"]) == 2
        said = capsys.readouterr().err
        assert said == (
            "error: the plugin 'half-done' of half 1.2 cannot be imported: ModuleNotFoundError: "
            "No module named 'no_such_package'; mend its package or uninstall it\n"
        )
    assert "mine" not in decoders.KINDS


TAKEN = {
    "arm kind": "from decoders import KINDS as parts, DraftingRecipe as part; name = 'max_gram'",
    "verifier rule": "from decoders import RULES as parts, VerifierRecipe as part; name = 'lossy'",
    "draft length": "from decoders import LENGTHS as parts, DraftingRecipe as part; name = 'fixed'",
    "policy": "from policies import POLICIES as parts, fit_knn as part; name = 'exact'",
    "policy kind": "from policies import KINDS as parts, BasePolicy as part; name = 'constant'",
    "reward": "from collect import REWARDS as parts, Reward as part; name = 'paper'",
}


@pytest.mark.parametrize("what", TAKEN)
def test_no_part_takes_the_name_of_ours(what: str, site: Path) -> None:
    install(site, "greedy", f"{TAKEN[what]}\nparts[name] = part", "greedy = greedy")
    before = [dict(p) for p in (decoders.KINDS, decoders.RULES, policies.KINDS, collect.REWARDS)]
    for _ in range(2):
        with pytest.raises(DraftpickError) as caught:
            plugins.load()
        said = str(caught.value)
        assert said.startswith(f"the {what} '")
        assert "comes twice, from draftpick itself and from the plugin 'greedy' of greedy" in said
    assert before == [decoders.KINDS, decoders.RULES, policies.KINDS, collect.REWARDS]


def test_two_plugins_with_one_name(site: Path) -> None:
    install(site, "mine", MINE, "one = mine")
    install(site, "other", MINE, "two = other")
    with pytest.raises(DraftpickError, match=r"'mine' comes twice, .* 'one' of mine .* 'two' of o"):
        plugins.load()
    assert decoders.KINDS["mine"].__module__ == "mine"


def test_a_policy_of_a_kind_that_nothing_brings_is_not_called_damaged(
    site: Path, tmp_path: Path
) -> None:
    policy = policies.uniform_policy(["a", "b"])
    folder = policies.storage.write(tmp_path / "p", "mine", policy.origin, {}, policy.arrays())
    with pytest.raises(DraftpickError) as caught:
        policies.load(folder)
    said = str(caught.value)
    assert "is of the kind 'mine', which is not registered here (known: constant, " in said
    assert "install or import the package that brings it" in said
    assert "damaged" not in said
    source = """
    from policies import KINDS
    from policies.fixed import ConstantPolicy
    KINDS["mine"] = ConstantPolicy
    """
    install(site, "brings", source, "brings = brings")
    assert policies.load(folder).arms == ["a", "b"]


def test_help_lists_what_is_registered(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from router.cli import main

    source = """
    from collect import REWARDS
    from policies import POLICIES, fit_uniform
    REWARDS["my-reward"] = REWARDS["paper"]
    POLICIES["my-policy"] = fit_uniform
    """
    install(site, "mine", source, "mine = mine")
    assert main(["train", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "reinforce, exact, knn, regression, logistic, best-fixed, fixed, uniform, my-poli" in said
    )
    assert "measured-speedup, my-reward." in said
    assert main(["collect", "--help"]) == 0
    assert "my-reward" in capsys.readouterr().out


# -- what they bring is taken for what it does ----------------------------------------------------


class TwoGuesses:
    """Drafts one level of a tree whose second branch is the target's own next token, and a chain
    of one wrong token where only one is asked for."""

    parameters = 7
    context = 500
    calls = 0

    def __init__(self, table: Any) -> None:
        self._table = table

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.calls += 1
        right = int(self._table[context[-2], context[-1]].argmax())
        wrong = (right + 1) % len(self._table)
        if asked.k == 1:
            return Proposal(torch.tensor([wrong]))
        return Proposal(torch.tensor([wrong, right]), parents=(-1, -1))

    def commit(self, context: list[int]) -> None:
        pass


def test_a_tree_is_known_by_its_proposals() -> None:
    """Collected with the rounds that it takes live, where a branch beside the first is accepted."""
    from decoders.arms import recipe
    from decoders.backends.toy import ToyBackend
    from decoders.lengths import FixedLength
    from decoders.loop import SpeculativeDecoding
    from decoders.offline.batch import Batch
    from decoders.offline.costs import Costs
    from decoders.verify import Lossless

    target = ToyBackend.random(12, seed=3)
    drafter = TwoGuesses(target.table)
    arms = {name: recipe(name=name, kind="max_gram") for name in ("two",)}
    arms["autoregressive"] = recipe(name="autoregressive", kind="autoregressive")
    engine = decoders.Engine(
        target,
        arms,
        build=lambda recipe, target, tokenizer: (
            SpeculativeDecoding(recipe.name, drafter, Lossless(), FixedLength(3))
            if recipe.name == "two"
            else recipe.build(target, tokenizer)
        ),
    )
    batch = Batch(engine, Costs([0.01] * 8, {"two": 0.001}))
    prompt = [1, 2, 3]
    answer = batch.target([prompt], 21).ids[0]
    live = engine.decode("two", prompt, decoders.Request(21))
    assert live.ids == answer
    assert live.accepted >= 9
    forced = batch.teacher_forced("two", [prompt], [answer])[0]
    assert (forced.rounds, forced.drafted, forced.accepted) == (
        live.rounds, live.drafted, live.accepted
    )  # fmt: skip
    assert not any(forced.agree[1:])
