"""The house's own rules: who may import whom, whose packages these are, what ships with them."""

import ast
import pkgutil
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from importlib import import_module, metadata
from pathlib import Path

import grimp
import pytest

import collect

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("decoders", "policies", "collect", "router")
GROUND = "decoders.common"  # what every package may stand on
ABOVE = {  # who may import whom; of decoders, policies need the ground alone
    "decoders": set[str](),
    "policies": {"decoders"},
    "collect": {"decoders", "policies"},
    "router": {"decoders", "policies", "collect"},
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import of the four packages, those inside functions and for types alone included."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_imports_go_one_way(graph: grimp.ImportGraph) -> None:
    assert {module.split(".")[0] for module in graph.modules} == set(PACKAGES)
    up = [
        f"{importer} imports {imported}"
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if imported.split(".")[0] not in ABOVE[importer.split(".")[0]] | {importer.split(".")[0]}
    ]
    assert not up


# what finds, loads and converts models, and the model of tests
LOADERS = ("decoders.backends", "decoders.models", "decoders.zoo", "decoders.testing")


def test_the_loader_alone_imports_a_backend(graph: grimp.ImportGraph) -> None:
    """Of decoders: what decodes knows a backend by its protocols."""
    knowing = {
        f"{module} imports {imported}"
        for module in graph.modules
        if module.startswith("decoders.") and ".".join(module.split(".")[:2]) not in LOADERS
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.startswith("decoders.backends")
    }
    assert not knowing


def test_policies_stand_on_the_ground_alone(graph: grimp.ImportGraph) -> None:
    found = {
        imported
        for module in graph.modules
        if module.startswith("policies")
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.startswith("decoders")
    }
    assert found
    below = {
        imported
        for module in graph.find_descendants(GROUND)
        for imported in graph.find_modules_directly_imported_by(module)
    }
    assert all(module.startswith(f"{GROUND}.") for module in found | below)


OUTER = (
    "decoders.papers", "decoders.endpoints",
    "collect.align", "collect.endpoints", "collect.traffic",
    "policies.online", "policies.risk_control",
    "router.engines", "router.mlflow_model", "router.specbench", "router.theory", "router.training",
)  # fmt: skip
PLUGINS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


HEAVY = {"torch", "transformers", "mlflow", "datasets", "sentence_transformers", "matplotlib"}


def is_outer(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in OUTER)


def test_the_inner_ring_imports_nothing_of_the_outer(graph: grimp.ImportGraph) -> None:
    assert set(OUTER) <= graph.modules
    out = [
        f"{importer} imports {imported}"
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if is_outer(imported) and not is_outer(importer)
    ]
    assert not out


def registers(path: Path) -> bool:
    """Whether importing the module puts something into a dict of another one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    brought = {
        name.asname or name.name
        for each in tree.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
        if name.name.isupper()
    }
    filled = [each.target for each in tree.body if isinstance(each, ast.AugAssign)]
    for each in tree.body:
        if isinstance(each, ast.Assign):
            filled += [at.value for at in each.targets if isinstance(at, ast.Subscript)]
    return any(isinstance(each, ast.Name) and each.id in brought for each in filled)


def test_what_the_outer_ring_registers_is_an_entry_point() -> None:
    registering = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for room in OUTER
        for path in (ROOT / room.replace(".", "/")).rglob("*.py")
        if registers(path)
    }
    assert registering == {module for group in PLUGINS.values() for module in group.values()}


def loaded_by(code: str) -> set[str]:
    """Top-level modules in memory after it in a fresh interpreter."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_starting_a_command_loads_no_arrays_and_no_client() -> None:
    modules = ", ".join((*PLUGINS["draftpick"].values(), "collect", "decoders.zoo"))
    code = f"import router.commands.collect.command, {modules}\nfrom router.cli import main"
    loaded = loaded_by(f"{code}\nassert main(['--help']) == 0")
    assert "decoders" in loaded and not loaded & {"numpy", "httpx", "pyarrow", *HEAVY}


def test_importing_policies_loads_arrays_alone() -> None:
    assert not loaded_by("import policies") & {"pandas", "sklearn", *HEAVY}


def test_no_circle_and_no_import_that_runs_up(graph: grimp.ImportGraph) -> None:
    """In the whole tree and among the parts of every package: they can be put on floors such that
    each imports from lower ones only."""
    circles = {
        package: breakers
        for package in sorted(graph.modules)
        if graph.find_children(package) and (breakers := graph.nominate_cycle_breakers(package))
    }
    assert not circles
    modules: dict[str, set[str]] = {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }
    try:
        list(TopologicalSorter(modules).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of modules: {error.args[1]}")


def test_no_package_stands_on_the_toys(graph: grimp.ImportGraph) -> None:
    toys = graph.find_descendants("decoders.testing") | {"decoders.testing"}
    on_them = {by for toy in toys for by in graph.find_modules_that_directly_import(toy)}
    assert len(toys) > 1 and on_them <= toys


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_is_ours(package: str) -> None:
    """The names are common: what is imported must be what stands beside these tests, or what the
    distribution `draftpick` installed."""
    module = import_module(package)
    assert module.__file__ is not None
    place = Path(module.__file__).resolve()
    if place == ROOT / package / "__init__.py":
        return
    try:
        files = metadata.distribution("draftpick").files or []
    except metadata.PackageNotFoundError:
        files = []
    assert place in {Path(str(file.locate())).resolve() for file in files}


@pytest.mark.parametrize("package", PACKAGES)
def test_types_are_shipped(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in settings["package-data"][package]
    assert f"{package}*" in settings["packages"]["find"]["include"]


ABSENT = (
    "datasets", "matplotlib", "mlflow", "pandas", "pyarrow", "rouge_score", "scipy",
    "sentence_transformers", "sklearn", "typer",
)  # fmt: skip
BARE = (
    "decoders.engine",
    "collect.replay.batch",
    "decoders.models.targets",
    "decoders.common.provenance",
    "collect.queries",
    "router.specbench.journal",
    *sorted(
        f"collect.align.{path.stem}"
        for path in (ROOT / "collect" / "align").glob("*.py")
        if path.stem != "__init__"
    ),
)
SCRIPTS = (
    "collect_speed", "decode", "floor", "gpu_summary", "lossless",
    "random_llama", "rounds", "train_t5_family",
)  # fmt: skip
CORE = {"loop": 20, "methods.plain.drafter": 20} | {
    f"methods.{name}.drafter": 30 for name in ("max_gram", "neural", "suffix", "hybrid")
}
INNER = """
from importlib import metadata
metadata.entry_points = lambda **asked: ()
import router.cli
from collect import shipped
from decoders import DraftpickError, Engine, EngineOptions
from decoders.arms import recipe
from router.routing.loading import shipped_for
options, policy = shipped_for(EngineOptions())
assert set(policy.arms) <= set(options.recipes())
try:
    recipe(name="a", kind="endpoint", url="http://localhost/v1", model="m")
except ValueError as error:
    assert "pip install" in str(error)
"""
REFUSED = "import sys; sys.modules.update(dict.fromkeys({}))"  # None: import raises
QUESTIONS = {name: f"import decoders.{name}" for name in CORE} | {
    "inner": INNER,
    "bare": f"{REFUSED.format(ABSENT)}; sys.path.append({str(ROOT / 'benchmarks')!r}); "
    f"import {', '.join((*BARE, *SCRIPTS))}",
    "server": "import router.serve.app; from router.serve.spans import sending; sending(None)",
}
FORKS = f"""
import os, sys, torch
for name, code in {QUESTIONS}.items():
    if not os.fork():
        exec(code, {{}})
        print(name, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Modules in memory after each question, asked in a fork of one interpreter, which has loaded
    PyTorch."""
    done = subprocess.run([sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True)
    found = {name: set(modules) for name, *modules in map(str.split, done.stdout.splitlines())}
    assert found.keys() == QUESTIONS.keys(), done.stderr
    return found


def test_the_core_loads_no_backend(loaded: dict[str, set[str]]) -> None:
    for name, most in CORE.items():
        own = {module for module in loaded[name] if module.split(".")[0] in PACKAGES}
        assert f"decoders.{name}" in own and len(own) <= most, name
        assert not {module for module in own if module.startswith("decoders.backends")}, name


def test_the_inner_ring_answers_alone(loaded: dict[str, set[str]]) -> None:
    """As on a machine that runs a checkout which is not installed, so that no entry point tells of
    the outer ring."""
    assert not list(filter(is_outer, loaded["inner"]))


def test_what_decodes_and_trains_needs_torch_and_transformers_alone(
    loaded: dict[str, set[str]],
) -> None:
    """Of the heavy packages, that is: a GPU machine may have no others."""
    assert {"torch", "transformers"} <= loaded["bare"]
    assert "transformers" not in loaded["inner"]


def test_a_server_without_spans_loads_no_sdk(loaded: dict[str, set[str]]) -> None:
    """FastAPI loads the API by itself where it is there."""
    sent = ("opentelemetry.sdk", "opentelemetry.exporter")
    assert not [module for module in loaded["server"] if module.startswith(sent)]


def test_a_proposer_for_vllm_needs_little() -> None:
    """`pip install --no-deps draftpick` is enough: what it needs comes with vLLM."""
    absent = (*ABSENT, "accelerate", "gguf", "greenlet", "huggingface_hub", "rich", "threadpoolctl")
    choosing = "import numpy as np, policies.products as p; p.product(np.eye(2), np.eye(2))"
    proposing = "from router.engines.vllm import Proposer"
    loaded = loaded_by("; ".join((REFUSED.format(absent), proposing, choosing)))
    assert not loaded & (HEAVY - set(absent))


def test_the_default_target_is_named_once() -> None:
    name = import_module("decoders.zoo.catalogue").TARGET
    naming = [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if f'"{name}"' in path.read_text(encoding="utf-8")
    ]
    assert naming == ["decoders/zoo/catalogue.py"]


def test_no_test_file_imports_another() -> None:
    """What two of them need has a home beside them, in a module that holds no tests."""
    importing = re.compile(r"^\s*(from|import) (\S+\.)?test_\w+", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert not [file.name for file in files if importing.search(file.read_text(encoding="utf-8"))]


def test_text_is_utf_8_whatever_the_locale() -> None:
    """Files and output of other programs are read and written in a named encoding."""
    unnamed = []
    for folder in (*PACKAGES, "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and _is_in_the_locale_s_encoding(call):
                    unnamed.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert not unnamed


def _is_in_the_locale_s_encoding(call: ast.Call) -> bool:
    whole = ast.unparse(call.func)
    name, named = whole.rpartition(".")[2], {each.arg for each in call.keywords}
    if "encoding" in named or whole == "log.open":  # a log of decisions
        return False
    if name in ("read_text", "write_text"):
        return len(call.args) < 1 + (name == "write_text")
    if name in ("run", "Popen", "check_output"):
        return bool(named & {"text", "universal_newlines"})
    if name not in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile"):
        return False
    given = [*call.args, *(each.value for each in call.keywords)]
    modes = [each.value for each in given if isinstance(each, ast.Constant)]
    if any("b" in str(mode) for mode in modes):
        return False
    usual = whole == "open" or (name == "open" and not given)
    return usual or any(re.fullmatch(r"[rwax]t?\+?", str(mode)) for mode in modes)


# -- what `from collect import ...` gives ----------------------------------------------------------


def test_every_public_name_is_there_and_no_module_hides_it() -> None:
    modules = {module.name for module in pkgutil.iter_modules(collect.__path__)}
    for name in collect.__all__:
        assert getattr(collect, name) is not None
        assert name not in modules, f"the module collect.{name} would be imported in its place"
