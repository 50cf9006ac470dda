"""The pages cannot rot: their commands parse, their snippets run, their links and lists hold."""

import ast
import csv
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from pages import PAGES, ROOT, WORD, Snippet, anchors, named, page, prose, snippets
from policy_tables import table
from strangers import write_my_parts

from decoders.records import StepStats
from router.cli import make_app

# -- commands -------------------------------------------------------------------------------------


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(where, words) of every shell command, cut before a pipe or a redirection."""
    for snippet in snippets("bash"):
        for line in snippet.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            ends = [i for i, word in enumerate(words) if word in ("|", ">", ">>", "&&")]
            if words:
                yield snippet.where, words[: ends[0]] if ends else words


COMMANDS = list(command_lines())
WHEEL = "dist/draftpick-*-manylinux*.whl"
INSTALLS = {f"install {what}" for what in (".", ".[otel]", ".[vllm]", "--no-deps .", WHEEL)}
OPERATORS = (
    "curl", "diff", "haproxy", "install", "ln", "make", "mlflow", "podman", "python3", "source",
    "sudo", "systemctl", "vllm",
)  # fmt: skip
OF_ENGINES = {
    "--disable-log-stats", "--enable-log-outputs", "--enable-log-requests", "--enable-metrics",
    "--max-log-len", "--metrics", "--per-request-spec-decode-metrics", "--spec-default",
}  # fmt: skip
OURS = [(where, w[1:]) for where, w in COMMANDS if Path(w[0]).name == "draftpick"]


def make_commands() -> list[list[str]]:
    """The arguments of every `make`, in blocks and in sentences."""
    spoken = [w for page in PAGES for w in WORD.findall(prose(page)) if w.startswith("make ")]
    typed = [words[1:] for _, words in COMMANDS if words[0] == "make"]
    return [*(shlex.split(words)[1:] for words in spoken), *typed]


@cache
def group() -> Any:
    return typer.main.get_command(make_app())


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Command and values, as the real application reads them; nothing is executed."""
    name, *rest = [argument for argument in arguments if argument != "--debug"]
    assert name in group().commands, f"there is no command {name!r}"
    context = group().commands[name].make_context(name, rest)
    return name, dict(context.params)


@pytest.mark.parametrize(("where", "arguments"), OURS)
def test_commands_parse(where: str, arguments: list[str]) -> None:
    name, values = parsed(arguments)
    assert_known(name, values)


def test_a_wrong_command_would_be_caught() -> None:
    for wrong in (
        ["generat", "hello"],
        ["generate", "hello", "--max-tokens", "3"],
        ["train", "--out", "policy"],
        ["generate", "hello", "--top-k", "many"],
    ):
        with pytest.raises(Exception, match=r"(?i)no command|no such|missing|valid"):
            parsed(wrong)


def assert_known(command: str, values: dict[str, Any]) -> None:
    """The names in a command exist: arms that ship, rewards, policies and their options."""
    from collect.queries import TASKS
    from collect.rewards import REWARDS
    from decoders.arms import load_arms
    from policies import POLICIES, options_of
    from policies.selection.guard import AUTO
    from router.logs.record import LOG_REWARDS

    if values.get("arm") and values["config"] is None:
        assert values["arm"] in load_arms()
    if values.get("reward") is not None:
        known = LOG_REWARDS if values.get("logs") else REWARDS
        assert values["reward"] in known
    if command == "train":
        assert values["policy"] in (None, AUTO, *POLICIES)
        for pair in values["settings"] or ():
            assert pair.partition("=")[0] in options_of(values["policy"] or AUTO)
    if command == "align" and values["tasks"]:
        assert set(values["tasks"].split(",")) <= set(TASKS)


@cache
def flags(name: str) -> set[str]:
    """The options of a command."""
    named = (flag for p in group().commands[name].params for flag in (*p.opts, *p.secondary_opts))
    return {"--help", *named}


FILE = re.compile(
    r"(decoders|collect|policies|router|tests|benchmarks|docs|mlruns)"
    r"/[\w/.-]*(\.(py|md|yaml|jsonl|png)|/)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_text_names_exists(page: Path) -> None:
    """`draftpick train --alpha ...` within a sentence, an option by itself, a file, a link."""
    every = {"--debug"}.union(*map(flags, group().commands))
    for words in WORD.findall(prose(page)):
        name, _, rest = words.removeprefix("draftpick ").partition(" ")
        if words.startswith("draftpick "):
            assert name in group().commands, words
            assert set(re.findall(r"--[\w-]+", rest)) <= flags(name), words
        assert set(re.findall(r"--[a-z][\w-]*", words)) <= every | OF_ENGINES, words
        assert not FILE.fullmatch(words) or (ROOT / words).exists(), words
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" not in link:
            name, _, place = link.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), link
            assert not place or place in anchors(there), link


def test_options_of_engines_are_written_as_they_are_typed() -> None:
    """Nowhere without their dashes."""
    bare = {f"`{option.removeprefix('--')}`" for option in OF_ENGINES}
    assert not [(page.name, name) for page in PAGES for name in bare if name in prose(page)]


def test_the_other_commands_exist() -> None:
    """make, mlflow, scripts of ours and the installation, and what an operator has; a reader may
    lack anything else."""
    others = [(where, w) for where, w in COMMANDS if Path(w[0]).name != "draftpick"]
    assert others
    for where, (program, *arguments) in others:
        if Path(program).name == "python" and arguments[0] == "-m":
            assert find_spec(arguments[1]), where
        elif Path(program).name == "python":
            script = ROOT / arguments[0]
            assert script.is_file(), where
            source = script.read_text()
            for flag in (a for a in arguments if a.startswith("--")):
                assert f'"{flag}"' in source, f"{where}: {arguments[0]} has no {flag}"
        else:
            own = Path(program).name  # /opt/draftpick/bin/pip
            assert own in OPERATORS or (own == "pip" and " ".join(arguments) in INSTALLS), where
            files = [word for word in arguments if word.startswith("docs/")]
            assert all((ROOT / name).is_file() for name in files), where


EXAMPLES = re.compile(r"```jsonc\n(.*?)```", re.DOTALL)


def test_the_options_of_the_proposer_for_vllm_are_all_there_and_the_example_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.engines.vllm.options import Options, given, read_options

    told = page("docs/engines/vllm.md")
    options = told.partition("## Options\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == set(Options.model_fields)
    (example,) = (each for each in EXAMPLES.findall(told) if '"policy"' in each)
    (tmp_path / "options.json").write_text(example)
    read, arms = read_options(tmp_path / "options.json")
    assert list(arms) == ["autoregressive", "copy"] and len(read.policy) == 2
    bare, with_file = (w for _, w in COMMANDS if w[0] == "vllm")
    for words in (bare, with_file):
        chosen = json.loads(words[words.index("--speculative-config") + 1])
        module, _, name = chosen["model"].rpartition(".")
        assert hasattr(import_module(module), name)
    assert "--additional-config" not in bare
    monkeypatch.chdir(tmp_path)
    place = json.loads(with_file[with_file.index("--additional-config") + 1])
    assert given(place) == (read, arms, Path("options.json"))


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", page("Makefile"), re.MULTILINE))
    assert {words[0] for words in make_commands()} >= {"test", "reproduce"}
    for words in make_commands():
        assert {word for word in words if "=" not in word} <= targets, words


def test_reproductions_named_exist() -> None:
    parser = import_module("benchmarks.reproduce.__main__").parser()
    known = import_module("benchmarks.reproduce.registry").REPRODUCTIONS
    asked = [words[1:] for words in make_commands() if words[0] == "reproduce"]
    assert any(asked)
    for words in asked:
        given = dict(word.split("=", 1) for word in words)
        assert given.keys() <= {"TABLE", "ARGS"}
        assert given.get("TABLE", "table-1") in {*known, "NAME"}  # NAME: any of them
        parser.parse_args(shlex.split(given.get("ARGS", "")))


def test_the_engines_that_export_writes_for_are_named() -> None:
    from router.engines.export import ENGINES

    for name in ("docs/README.md", "docs/engines/README.md"):
        (told,) = re.findall(r"arms as options of (.*?)(?:\.$| \(| \|$)", page(name), re.MULTILINE)
        assert re.split(", | or ", told) == [engine.name for engine in ENGINES.values()]


def test_every_command_is_in_the_index() -> None:
    index = page("docs/README.md")
    assert {name for name in group().commands if f"| `draftpick {name}`" not in index} <= {
        name for name in group().commands if f", `draftpick {name}` |" in index
    }


def test_every_variable_of_the_environment_is_in_the_index() -> None:
    packages = ("collect", "decoders", "policies", "router")
    files = [ROOT / "setup.py", *(f for each in packages for f in (ROOT / each).rglob("*.py"))]
    read = {n for f in files for n in re.findall(r'"(DRAFTPICK_[A-Z_]+)"', f.read_text("utf-8"))}
    assert read == set(re.findall(r"`(DRAFTPICK_[A-Z_]+)`", page("docs/README.md")))


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w/-]+\.md)\)", page("docs/README.md"))) & pages


# -- Python ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("snippet", snippets("python"), ids=named)
def test_snippets_compile_and_their_imports_resolve(snippet: Snippet) -> None:
    tree = ast.parse(snippet.text, snippet.where)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(find_spec(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            source = node.module or ""
            if source.split(".")[0] not in ("router", "collect", "decoders", "policies"):
                assert find_spec(source)
                continue
            for alias in node.names:
                assert hasattr(import_module(source), alias.name), f"{source}.{alias.name}"


def test_the_site_lists_every_page() -> None:
    """And no page that is not there."""
    listed = set(re.findall(r"^ +- ([\w/.-]+\.md)$", page("mkdocs.yml"), re.MULTILINE))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    named = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    apis = {f"api/{package}.md" for package in ("collect", "decoders", "policies", "router")}
    assert listed == pages | named | apis


def test_the_readme_is_short_and_begins_with_what_to_do() -> None:
    """Words of sentences and tables; blocks of code are not read but pasted."""
    told = page("README.md")
    assert len(re.sub(r"```.*?```", "", told, flags=re.DOTALL).split()) <= 700
    first = re.findall(r"^## (.*)", told, re.MULTILINE)[:3]
    assert first == ["Install", "What drafting would gain on your logs", "Answer and serve"]


def test_the_router_has_what_the_readme_calls() -> None:
    import inspect

    from router.records import RoutedResult
    from router.routing.router import Router

    calls = 0
    for snippet in snippets("python"):
        for node in ast.walk(ast.parse(snippet.text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
                ("router.", "Router.")
            ):
                method = getattr(Router, ast.unparse(node.func).partition(".")[2])
                known = set(inspect.signature(method).parameters)
                assert {keyword.arg for keyword in node.keywords} <= known
                calls += 1
    assert calls
    members = {field.name for field in fields(RoutedResult)} | set(dir(RoutedResult))
    assert set(re.findall(r"\banswer\.(\w+)", page("README.md"))) <= members


def test_the_table_at_a_glance_is_the_measured_one() -> None:
    """Each speed-up is that of the method's first row in the CSV for this column."""
    told = page("docs/notes/methods_measured.md")
    table = told.partition("## At a glance\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    measured: dict[tuple[str, ...], str] = {}
    with (ROOT / "docs/notes/methods_measured.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = (row["method"], row["models"], row["task"], row["temperature"])
            measured.setdefault(place, row["speed-up"])
    columns = [("decoder-only", "", t) for t in "01"]
    columns += [("T5", task, t) for task in ("translations", "summaries") for t in "01"]
    for method, _, *shown in lines[2:]:
        assert shown == [measured.get((method, *column), "-") for column in columns], method
    assert {method for method, *_ in lines[2:]} == {
        place[0] for place, found in measured.items() if found
    }


# -- the parts of CONTRIBUTING.md -----------------------------------------------------------------


@pytest.fixture
def parts(site: Path) -> Any:
    """The package that CONTRIBUTING.md writes, imported; forgotten afterwards."""
    write_my_parts(site)
    return import_module("my_parts")


def answer(arm: str, kind: str = "again", **body: Any) -> Any:
    """What an arm of such a recipe gives over a toy target, through the engine."""
    from decoders import Engine, Request
    from decoders.arms import recipe
    from decoders.testing.toys import ToyBackend

    arms = {arm: recipe(name=arm, kind=kind, **body)}
    return Engine(ToyBackend.random(4, seed=1), arms).decode(arm, [0, 1], Request(40))


def test_the_drafter_and_the_length_to_add_work(parts: Any) -> None:
    plain = answer("plain", "autoregressive")
    for length in ({"k": 3}, {"kind": "growing", "k": 3}):
        ours = answer("ours", length=length)
        assert ours.ids == plain.ids
        assert ours.drafted > 0
    by_hand = parts.growing.GrowingLength(3, 0.0)
    taken = []
    for accepted in (1, 2, 3, 3, 0, 1):
        drafted = by_hand.next()
        taken.append(drafted)
        by_hand.observe(StepStats(drafted, min(accepted, drafted), 0.0, 0.0))
    assert taken == [1, 2, 3, 3, 3, 1]


def test_the_verifier_to_add_works(parts: Any) -> None:
    strict, loose = answer("strict"), answer("loose", verifier="top_two")
    assert len(loose.ids) == len(strict.ids)
    assert loose.accepted > strict.accepted


def test_the_policy_to_add_works(parts: Any, tmp_path: Path) -> None:
    import policies

    x = np.array([[0, 0], [0, 1], [9, 9]], dtype=np.float32)
    rewards = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    fitted = policies.fit("centroid", table(x, rewards, ["x", "y"]), smoothing=0.0)
    loaded = policies.load(fitted.policy.save(tmp_path))
    assert [loaded.choose(row).arm for row in x] == ["x", "x", "y"]
    assert loaded.distribution(x[:1]).tolist() == [[1.0, 0.0]]


def test_the_small_parts_to_add_work(parts: Any) -> None:
    """A reward, an embedder, a feature, a measure."""
    from collect import REWARDS, RequestContext, feature_vector, load_embedder
    from collect.records import ArmInfo, Outcome
    from collect.rewards import Context
    from decoders.costs.measured import Costs
    from router.specbench.quality import quality

    context = Context({"a": ArmInfo("a", "neural", 1, True, {})}, Costs((0.1,), {}))
    row = Outcome(query_id="q", arm="a", parameters=1, rounds=4, new_tokens=13)
    assert REWARDS["tokens-per-round"].function(row, context) == 3.0
    found = load_embedder("letters")
    assert found is not None
    assert found.embed(["Bab 7", ""])[:, :2].tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert load_embedder(found.name) is not None
    for most, brief in ((3, 1.0), (4, 0.0)):
        assert feature_vector(["brief"], RequestContext([1, 2, 3], most)).tolist() == [brief]
    assert quality("code", ["a\n  b"], ["a\nb\nc\nd"]) == 0.5


# -- other languages ------------------------------------------------------------------------------


@pytest.mark.parametrize("snippet", snippets("yaml"), ids=named)
def test_arms_files_are_valid(snippet: Snippet, tmp_path: Path, site: Path) -> None:
    from decoders.arms import load_arms

    write_my_parts(site)
    path = tmp_path / "arms.yaml"
    path.write_text(snippet.text)
    assert len(load_arms(path)) > 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_arms_of_commands_are_declared(page: Path) -> None:
    import yaml

    texts = [snippet.text for snippet in snippets("yaml") if snippet.page == page]
    declared = {name for text in texts for name in yaml.safe_load(text).get("arms", {})}
    used = {
        values["arm"]
        for where, arguments in OURS
        if where.startswith(f"{page.relative_to(ROOT)}:")
        for values in [parsed(arguments)[1]]
        if values.get("arm") and values["config"] is not None
    }
    assert used <= declared


@pytest.mark.parametrize("snippet", snippets("json"), ids=named)
def test_query_lines_are_read(snippet: Snippet, tmp_path: Path) -> None:
    from collect.queries import read_queries

    path = tmp_path / "queries.jsonl"
    path.write_text(snippet.text)
    assert len(read_queries(path)) == len(snippet.text.splitlines())


# -- links and lists ------------------------------------------------------------------------------


def in_backticks(name: str) -> set[str]:
    return set(WORD.findall(prose(ROOT / name)))


def test_the_guide_lists_the_arms_that_ship() -> None:
    from decoders.arms import load_arms

    table = page("docs/which_arm.md").partition("| arm |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(load_arms())


def test_the_guide_lists_the_arms_of_known_models() -> None:
    from decoders.arms import load_arms
    from decoders.arms.file import own_arms

    tables = page("docs/which_arm.md").split("| its arm |")[1:]
    listed = [re.findall(r"^\| `([\w.-]+)` \|", each.partition("\n\n")[0], re.M) for each in tables]
    assert listed == [list(load_arms(path)) for path in own_arms().values()]


def test_the_fields_of_json_are_listed() -> None:
    from router.records import RoutedResult

    class Anything:
        def __getattr__(self, name: str) -> Any:
            return [] if name.endswith(("ids", "position")) else 1.0

    result: Any = Anything()
    printed = set(RoutedResult(result, "a", 1.0, [], 0.0, 0.0).to_json())
    assert printed <= in_backticks("docs/usage.md")


def test_every_reward_policy_and_column_is_documented() -> None:
    from collect.features import FEATURES
    from collect.queries import TASKS
    from collect.rewards import REWARDS
    from collect.store.manifest import Identity
    from collect.store.tables import OUTCOMES_SCHEMA, QUERIES_SCHEMA
    from policies import POLICIES
    from router.specbench.metrics import Cell

    assert set(REWARDS) <= in_backticks("docs/rewards.md")
    assert set(POLICIES) | set(FEATURES) <= in_backticks("docs/policies.md")
    assert set(TASKS) <= in_backticks("docs/usage.md")
    columns = {*QUERIES_SCHEMA.names, *OUTCOMES_SCHEMA.names}
    recorded = {field.name for record in (Identity, Cell) for field in fields(record)}
    assert columns | recorded <= in_backticks("docs/data.md")


def test_the_changelog_names_this_version() -> None:
    import tomllib

    version = tomllib.loads(page("pyproject.toml"))["project"]["version"]
    assert f"## {version}" in page("CHANGELOG.md")
