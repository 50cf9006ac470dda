"""Parts of other packages: found, imported once, and refused in one sentence where they are bad."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import collect
import decoders
import policies
from decoders import plugins
from decoders.errors import DraftpickError


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
