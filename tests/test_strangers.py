"""Parts of other packages: found, imported once, and refused in one sentence where they are bad."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Draftpick
from strangers import install, write_entries, write_my_parts

import collect
import decoders
import policies
from decoders.common import plugins
from decoders.common.errors import DraftpickError
from decoders.protocols import DraftRequest
from decoders.records import Proposal
from decoders.testing.tokenizers import save_llama, word_tokenizer

ROOT = Path(__file__).resolve().parent.parent

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
        ("plugins: [bad]", "'bad' that .* cannot be imported: division by zero"),
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
    site: Path, draftpick: Draftpick
) -> None:
    install(site, "half", MINE + "import no_such_package\n", "half-done = half")
    for word in ("arms", "--help"):
        assert draftpick(word, code=2).err == (
            "error: the plugin 'half-done' of half 1.2 cannot be imported: "
            "No module named 'no_such_package'; mend its package or uninstall it\n"
        )
    assert "mine" not in decoders.KINDS


TAKEN = {
    "arm kind": "from decoders import KINDS as parts, DraftingRecipe as part; name = 'max_gram'",
    "engine": "from decoders import ENGINES as parts, Engine as part; name = 'endpoint'",
    "executor": "from collect.sweeps.executors import EXECUTORS as parts; part = 0; "
    "name = 'endpoint'",
    "own guard": "from policies.fitting import OWN_GUARDS as parts; part, name = 0, 'thompson'",
    "verifier rule": "from decoders import RULES as parts, VerifierRecipe as part; name = 'lossy'",
    "draft length": "from decoders import LENGTHS as parts, DraftingRecipe as part; name = 'fixed'",
    "policy": "from policies import POLICIES as parts, fit_knn as part; name = 'exact'",
    "policy kind": "from policies import KINDS as parts, BasePolicy as part; name = 'constant'",
    "embedder": "from collect import EMBEDDERS as parts, Reward as part; name = 'target'",
    "backend": "from decoders import BACKENDS as parts, Backend as part; name = 'hf'",
    "replay adapter": "from collect import ADAPTERS as parts, ReplayAdapter as part; "
    "name = 'decoders.methods.neural.drafter:NeuralDrafter'",
    "measure": "from router.specbench.quality import SCORES as parts; part = 0; name = 'rouge_l'",
    "feature": "from collect import FEATURES as parts, Reward as part; name = 'greedy'",
    "reward": "from collect import REWARDS as parts, Reward as part; name = 'paper'",
    "command": "from router import COMMANDS as parts, Router as part; name = 'theory'",
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
    assert "is of the kind 'mine', which is not registered here (known: binned, constant, " in said
    assert "install or import the package that brings it" in said
    assert "damaged" not in said
    source = """
    from policies import KINDS
    from policies.fixed import ConstantPolicy
    KINDS["mine"] = ConstantPolicy
    """
    install(site, "brings", source, "brings = brings")
    assert policies.load(folder).arms == ["a", "b"]


def test_help_lists_what_is_registered(site: Path, draftpick: Draftpick) -> None:
    source = """
    from collect import REWARDS
    from policies import POLICIES, fit_uniform
    REWARDS["my-reward"] = REWARDS["paper"]
    POLICIES["my-policy"] = fit_uniform
    """
    install(site, "mine", source, "mine = mine")
    said = "".join(draftpick("train", "--help").out.split())  # a name may be broken at its hyphen
    kinds = "exact,knn,regression,logistic,binned,best-fixed,fixed,uniform,thompson,risk-control"
    assert f"{kinds},my-policy" in said
    assert "measured-speedup,speed-price,my-reward." in said, said
    assert "my-reward" in "".join(draftpick("collect", "--help").out.split())


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
    from collect.replay.batch import Batch
    from decoders.arms import recipe
    from decoders.costs.measured import Costs
    from decoders.testing.toys import ToyBackend

    target = ToyBackend.random(12, seed=3)

    class TwoRecipe(decoders.DraftingRecipe):
        def make_drafter(self, target: Any, tokenizer: Any) -> Any:
            return TwoGuesses(target.table)

    arms = {
        "autoregressive": recipe(name="autoregressive", kind="autoregressive"),
        "two": TwoRecipe(name="two", kind="two", length=decoders.LengthRecipe(k=3)),
    }
    engine = decoders.Engine(target, arms)
    batch = Batch(engine, Costs([0.01] * 8, {"two": 0.001}))
    prompt = [1, 2, 3]
    answer = batch.target([prompt], 21).ids[0]
    live = engine.decode("two", prompt, decoders.Request(21))
    assert live.ids == answer
    assert live.accepted >= 9
    forced = batch.replay("two", [prompt], [answer], 21)[0]
    assert (forced.rounds, forced.drafted, forced.accepted) == (
        live.rounds, live.drafted, live.accepted
    )  # fmt: skip
    assert not any(forced.agree[1:])


def test_an_adapter_takes_a_drafter_into_collections(site: Path) -> None:
    """By the adapter it counts what it counts one query at a time, at any temperature."""
    from collect.replay.batch import Batch
    from decoders.arms import recipe
    from decoders.costs.measured import Costs
    from decoders.testing.toys import ToyBackend

    write_my_parts(site)
    import_module("my_parts")
    arms = {
        "autoregressive": recipe(name="autoregressive", kind="autoregressive"),
        "again": recipe(name="again", kind="again", length={"k": 3}),
        "growing": recipe(name="growing", kind="again", length={"kind": "growing", "k": 3}),
    }
    engine = decoders.Engine(ToyBackend.random(4, seed=1), arms, eos_ids=(3,))
    batch = Batch(engine, Costs((0.01,) * 8, {"again": 0.001, "growing": 0.001}))
    prompts, seeds = [[0, 1], [2], [1, 1, 3], [0, 0]], [1, 2, 3, 4]
    answers = batch.target(prompts, 20).ids
    drawn = batch.target(prompts, 20, 1.0, seeds).ids

    def asked(arm: str) -> tuple[Any, Any, Any]:
        own = batch.arm(arm, prompts, 9).ids
        hot = batch.replay(arm, prompts, drawn, 20, 1.0, seeds)
        return own, batch.replay(arm, prompts, answers, 20), hot

    by_adapter = {arm: asked(arm) for arm in ("again", "growing")}
    del collect.ADAPTERS["my_parts.again:AgainDrafter"]
    for arm, (own, replays, hot) in by_adapter.items():
        assert asked(arm) == (own, replays, hot)
        assert sum(each.accepted for each in replays) > 0
        assert sum(each.accepted for each in hot) > 0


class Third:
    """A backend of no class that is known here, which has all that the native one has."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.cached: list[int] = []  # what `prefill` was told of

    def prefill(self, prompt_ids: list[int], cached: int = 0) -> Any:
        self.cached.append(cached)
        return self.inner.prefill(prompt_ids, cached)


def forwarded(name: str) -> property:
    return property(lambda third: getattr(third.inner, name))


for name in (
    "ahead", "context", "device", "dtype", "embed", "exit_hidden", "extend", "extend_until",
    "final_states", "head_rows", "keep_states", "length", "lower", "lower_parameters",
    "open_exit", "parameters", "prompts_read", "reach", "read_out", "state_size", "truncate",
    "vocab_size",
):  # fmt: skip
    setattr(Third, name, forwarded(name))


def native(model: Path) -> Any:
    from decoders.models import targets

    return targets.load_backend(model, torch.device("cpu"), torch.float32, "native")


def test_a_backend_is_asked_what_it_can_do(model: Path) -> None:
    """An exit after its layers, a prompt that is not read again: by protocol, not by class."""
    from decoders.arms import recipe

    arms = {
        "autoregressive": recipe(name="autoregressive", kind="autoregressive"),
        "exit": recipe(name="exit", kind="early_exit", layer=1),
    }
    prompt, request = [5, 6, 7, 8], decoders.Request(20)
    ours = decoders.Engine(native(model), arms).decode("exit", prompt, request)
    target = Third(native(model))
    engine = decoders.Engine(target, arms)
    theirs = engine.decode("exit", prompt, request)
    assert theirs.ids == ours.ids == engine.decode("autoregressive", prompt, request).ids
    assert (theirs.rounds, theirs.accepted) == (ours.rounds, ours.accepted)
    assert theirs.accepted > 0
    engine.prefill([*prompt, 9], reuse=True)
    assert target.cached[-1] == len(prompt)


def test_an_adapter_of_another_backend_is_refused(model: Path, tmp_path: Path) -> None:
    from decoders.arms import recipe
    from decoders.backends.exit_adapter import Adapter

    Adapter.plain(native(model), 1).save(tmp_path)
    arm = recipe(name="early", kind="early_exit", drafter=str(tmp_path))
    engine = decoders.Engine(Third(native(model)), {"early": arm})
    with pytest.raises(DraftpickError, match=r"arm 'early': .*, and this one is a Third; give"):
        engine.decode("early", [5, 6], decoders.Request(4))


def test_an_exit_of_a_backend_that_cannot_read_it(model: Path) -> None:
    from decoders.arms import recipe

    bare = type("Bare", (), {k: v for k, v in vars(Third).items() if k != "read_out"})
    arm = recipe(name="early", kind="early_exit", layer=1)
    engine = decoders.Engine(bare(native(model)), {"early": arm})
    with pytest.raises(DraftpickError, match=r"arm 'early': the backend Bare has no `read_out`"):
        engine.decode("early", [5, 6], decoders.Request(4))


def test_an_unknown_backend_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(DraftpickError, match="unknown backend 'onnx'; use auto, native, hf"):
        decoders.Engine.load("/no/such/model", backend="onnx")


def test_a_tree_is_for_the_lossless_verifier_whoever_drafts_it(site: Path) -> None:
    from decoders.arms import recipe

    source = """
    from decoders import KINDS, DraftingRecipe

    class Bush(DraftingRecipe):
        @property
        def branches(self):
            return True

    KINDS["bush"] = Bush
    """
    install(site, "bushes", source, "bushes = bushes")
    plugins.load()
    assert recipe(kind="bush").lossless
    with pytest.raises(ValueError, match="a tree is verified by the target's own tokens"):
        recipe(kind="bush", verifier={"rule": "lossy", "alpha": 0.1})
    with pytest.raises(ValueError, match="kind: 'bush' is for the target's verification alone"):
        recipe(kind="vertical", review="x", inner={"kind": "bush"})


def test_an_unknown_length_keeps_its_path(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text("arms: {a: {kind: max_gram, length: {kind: endless}}}")
    says = "a.length.kind: 'endless' is not known; give one of fixed, adaptive, scheduled"
    with pytest.raises(DraftpickError, match=says):
        decoders.load_arms(path)


def test_a_measure_that_there_is_not_is_told_before_the_first_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.specbench.bench import load_questions
    from router.specbench.quality import MEASURES

    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "1", "task": "code", "turns": ["?"]}\n')
    assert load_questions([path])[0].task == "code"
    monkeypatch.setitem(MEASURES, "code", "tests_passed")
    says = "unknown measure of the task 'code': 'tests_passed'; known: bleu, exact_match, rouge_2"
    with pytest.raises(DraftpickError, match=says):
        load_questions([path])


# -- a package with a part of every kind, through the command line --------------------------------

WORDS = [f"w{i}" for i in range(120)]  # costs are measured on ids below 98
ARMS = """
arms:
  again: {kind: again, length: {kind: growing, k: 3}}
  loose: {kind: again, verifier: top_two}
  copy: {kind: max_gram}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers over 120 words."""
    folder = tmp_path_factory.mktemp("strangers") / "tiny"
    sizes = {"max_position_embeddings": 256, "tie_word_embeddings": False}
    return save_llama(folder, word_tokenizer(WORDS, "w0"), initializer_range=0.3, **sizes)


def run(commands: list[list[str]], folder: Path, *path: Path) -> list[tuple[int, str, str]]:
    """(exit code, output, errors) of each command, one after the other in one fresh interpreter."""
    code = """
import contextlib, io, json, sys
from router.cli import main
done = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    done.append((code, out.getvalue(), err.getvalue()))
json.dump(done, sys.__stdout__)
"""
    places = os.pathsep.join(map(str, (*path, ROOT)))
    environment = os.environ | {"PYTHONPATH": places, "DRAFTPICK_CACHE": str(folder / "cache")}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, input=json.dumps(commands),
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return [(code, out, err) for code, out, err in json.loads(process.stdout)]


@pytest.mark.slow
def test_a_package_of_its_own_through_the_command_line(model: Path, tmp_path: Path) -> None:
    """A drafter, a verifier rule, a draft length, a backend, a policy with a class of its own, a
    reward, an embedder, a task with its measure and a command, none of them known here."""
    site = tmp_path / "site"
    site.mkdir()
    write_my_parts(site)
    write_entries(site, "my_parts", "my-parts = my_parts")
    (tmp_path / "arms.yaml").write_text(ARMS)
    lines = [
        {"id": f"{task}{i}", "task": task, "turns": [f"w{7 * i + 1} w{i + 2} w{i + 3} w{5 * i}"]}
        | {"reference": "w1 w2\nw3"}
        for task in ("code", "qa")
        for i in range(6)
    ]
    lines.append({"question_id": 9, "category": "cooking", "turns": ["w4 w5 w6"]})
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    how = ["--target", str(model), "--dtype", "float32", "--device", "cpu", "--config", "arms.yaml"]
    ours = [*how, "--backend", "rereading", "--max-new-tokens", "12"]
    results = run(
        [
            ["collect", "--queries", "q.jsonl", "--out", "rewards", "--json",
             "--embedder", "letters", *ours],
            ["collect", "--summary", "rewards", "--reward", "tokens-per-round", "--json"],
            ["train", "--rewards", "rewards", "--policy", "centroid", "--set", "smoothing=2",
             "--no-guard", "--reward", "tokens-per-round", "--out", "policy", "--json",
             "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db"],
            ["generate", "w8 w9 w10", "--policy", "policy", "--json", *ours],
            ["generate", "w8 w9 w10", "--arm", "again", "--json", *ours],
            ["generate", "w8 w9 w10", "--arm", "again", "--json", *how, "--backend", "hf",
             "--max-new-tokens", "12"],
            ["specbench", "--questions", "q.jsonl", "--limit", "2", "--policy", "policy",
             "--out", "bench", "--json", *ours],
            ["train", "--help"],
            ["generate", "w8", "--arm", "again", *how, "--backend", "onnx"],
            ["count", "q.jsonl"],
            ["--help"],
        ],
        tmp_path,
        site,
    )  # fmt: skip
    codes = [code for code, _, _ in results]
    assert codes == [0] * 8 + [2, 0, 0], [err for code, _, err in results if code]
    collected, summary, trained, routed, again, through_hf, bench = (
        json.loads(out) for _, out, _ in results[:7]
    )
    assert (collected["collected"], collected["errors"]) == (13, 0)
    assert list(summary["queries"]) == ["qa", "code", "cooking", "overall"]
    assert summary["arms"]["autoregressive"]["mean"]["overall"] == 1.0
    assert summary["arms"]["loose"]["mean"]["overall"] >= 1.0
    assert "greedy" in trained["values"]
    assert json.loads((tmp_path / "policy" / "policy.json").read_text())["origin"]["embedder"] == (
        "letters@000001"
    )
    assert routed["arm"] in summary["arms"]
    assert again["drafted"] > 0
    assert again["ids"] == through_hf["ids"], "a backend of one's own is as lossless as ours"
    assert list(bench["tasks"]) == ["qa", "code", "cooking"]
    cell = bench["arms"]["again"]["code"]
    assert cell["quality_measure"] == "lines"
    assert bench["arms"]["again"]["qa"]["quality_measure"] == "rouge_l"
    assert set(bench["policy_choices"]) == {"qa", "code", "cooking"}
    told = " ".join(results[7][1].split()).replace("- ", "-")  # lines break at hyphens
    assert (
        "uniform, centroid, thompson, risk-control." in told
        and "measured-speedup, speed-price, tokens-per-round." in told
    )
    assert results[8][2].startswith("error: unknown backend 'onnx'; use auto, native, hf, fused,")
    assert "compiled, rereading" in results[8][2]
    assert results[9][1] == "code: 6\nqa: 6\ncooking: 1\n"
    assert "  count       Count the queries of each task." in results[10][1]

    # a module that the arms file names will do, where nothing is installed
    shutil.rmtree(site / "my_parts-1.2.dist-info")
    (tmp_path / "named.yaml").write_text(f"plugins: [my_parts]\n{ARMS}")
    named = ["named.yaml" if word == "arms.yaml" else word for word in ours]
    commands = [
        ["generate", "w8 w9 w10", "--policy", "policy", "--json", *named],
        ["collect", "--queries", "q.jsonl", "--limit", "1", "--out", "again", "--json",
         "--embedder", "letters", *named],
    ]  # fmt: skip
    found = run(commands, tmp_path, site)
    assert [code for code, _, _ in found] == [0, 0], found
    assert json.loads(found[0][1])["ids"] == routed["ids"]

    # without the package each of its parts is missing, and that is what is said
    without = [
        ["generate", "w8", "--policy", "policy"],
        ["arms", "--config", "arms.yaml"],
        ["count", "q.jsonl"],
    ]
    found = run(without, tmp_path)
    assert [code for code, _, _ in found] == [2, 2, 2]
    assert "of the kind 'centroid', which is not registered here" in found[0][2]
    assert "arms.again.kind: 'again' is not known; give one of autoregressive" in found[1][2]
    assert "No such command 'count'" in found[2][2]


def test_a_command_of_its_own(site: Path, draftpick: Draftpick) -> None:
    source = """
    from dataclasses import dataclass

    import typer

    from router import COMMANDS
    from router.commands.options import EngineRecord

    @dataclass(frozen=True)
    class Loud:
        loud: bool = False

    def greet(name: str, how: Loud, options: EngineRecord) -> None:
        \"\"\"Greet somebody.\"\"\"
        typer.echo(f"hello {name} on {options.device}" + "!" * how.loud)

    COMMANDS["greet"] = greet
    """
    install(site, "greets", source, "greets = greets")
    assert draftpick("greet", "you", "--loud", "--device", "cpu").out == "hello you on cpu!\n"
    assert "  greet       Greet somebody." in draftpick("--help").out
