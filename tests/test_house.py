"""The house's own rules: who may import whom, whose packages these are, what ships with them."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "decoders": set[str](),
    "policies": set[str](),
    "collect": {"decoders", "policies"},
    "router": {"decoders", "policies"},
}
MOUNTS = "router/cli.py"  # the one file that may also import collect, to mount its commands


def siblings(path: Path) -> set[str]:
    """The packages of this house that a file imports, wherever in it and however."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            outside = max(node.level - len(path.relative_to(ROOT).parts) + 1, 0)
            assert not outside, f"{path} climbs out of its package"
            if node.level == 0 and node.module:
                found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {str(a.value).split(".")[0] for a in node.args if isinstance(a, ast.Constant)}
    return found & set(MAY_IMPORT)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        allowed = MAY_IMPORT[package] | {package} | ({"collect"} if name == MOUNTS else set())
        assert siblings(path) <= allowed, f"{name} imports {siblings(path) - allowed}"


def test_the_command_line_mounts_collect() -> None:
    assert "collect" in siblings(ROOT / MOUNTS)


@pytest.mark.parametrize("package", MAY_IMPORT)
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


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_types_are_shipped(package: str) -> None:
    import tomllib

    assert (ROOT / package / "py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in settings["package-data"][package]
    assert f"{package}*" in settings["packages"]["find"]["include"]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after one statement in a fresh interpreter."""
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"torch", "transformers", "mlflow", "datasets", "sentence_transformers", "matplotlib"}


@pytest.mark.parametrize(
    "statement",
    ["import decoders", "import decoders.arms", "import decoders.zoo", "import router.cli"],
)
def test_importing_costs_nothing(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "decoders" in loaded or statement == "import router.cli"
    assert not loaded & HEAVY


ABSENT = (
    "datasets", "matplotlib", "mlflow", "pandas", "pyarrow", "rouge_score", "sacrebleu", "scipy",
    "sentence_transformers", "sklearn", "typer",
)  # fmt: skip
BARE = (
    "decoders.engine",
    "decoders.batch",
    "decoders.targets",
    "collect.provenance",
    "collect.queries",
    "router.specbench.journal",
    *sorted(
        f"collect.align.{path.stem}"
        for path in (ROOT / "collect" / "align").glob("*.py")
        if path.stem not in ("__init__", "commands")  # the command line's own
    ),
)
SCRIPTS = (
    "collect_speed", "decode", "floor", "footprint", "glance", "gpu_summary", "lossless",
    "perplexity", "random_llama", "train_t5_family",
)  # fmt: skip


@pytest.mark.parametrize("names", [BARE, SCRIPTS], ids=["packages", "benchmarks"])
def test_what_decodes_and_trains_needs_torch_and_transformers_alone(names: tuple[str, ...]) -> None:
    """Of the heavy packages, that is: a GPU machine may have no others."""
    refused = f"sys.modules.update(dict.fromkeys({ABSENT}))"  # None there: import raises
    scripts = f"sys.path.append({str(ROOT / 'benchmarks')!r})"
    loaded = loaded_by(f"{refused}; {scripts}; import {', '.join(names)}")
    assert {"torch", "transformers"} <= loaded
    refusal = "import datasets"
    with pytest.raises(subprocess.CalledProcessError):
        loaded_by(f"{refused}; {refusal}")
