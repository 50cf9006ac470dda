"""What is installed: every dependency pinned, none from a URL, and audited."""

import ast
import importlib.util
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from strangers import installed_with

ROOT = Path(__file__).resolve().parent.parent
OURS = {"draftpick", "pip"}  # the package itself, and what installs it
SETTINGS = (ROOT / "pyproject.toml").read_text()
LINES = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!]+)")


def declared() -> list[Requirement]:
    """Of pyproject.toml, what builds the package and all extras but vLLM's, which pins its own."""
    settings = tomllib.loads(SETTINGS)
    project = settings["project"]
    groups = {
        name: group for name, group in project["optional-dependencies"].items() if name != "vllm"
    }
    extras = [each for group in groups.values() for each in group]
    found = [*settings["build-system"]["requires"], *project["dependencies"], *extras]
    return [Requirement(each) for each in found]


def test_constraints_are_exact_versions_alone() -> None:
    """No URL, no repository, no path, no range, nothing twice."""
    assert not [line for line in LINES if not PIN.fullmatch(line)]
    names = [canonicalize_name(line.partition("==")[0]) for line in LINES]
    assert len(set(names)) == len(names) > 100


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)
    }
    for each in declared():
        assert each.url is None, f"{each} comes from a URL"
        if each.name not in OURS:
            assert each.specifier.contains(pins[canonicalize_name(each.name)]), each


EXTRAS = {  # what needs an extra -> where else it may be imported
    "ray": ("collect/sweeps/on_ray.py", "collect/sweeps/ray_cluster.py"),
    "dev": ("decoders/backends/cuda/",),  # triton, which comes with torch where there is a GPU
}


@cache
def imported() -> set[tuple[str, str]]:
    """(file, top-level module) of every import in the four packages."""
    found = set()
    for package in ("decoders", "policies", "collect", "router"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    names = [node.module]
                else:
                    continue
                file = path.relative_to(ROOT).as_posix()
                found |= {(file, name.partition(".")[0]) for name in names}
    return found


def test_every_dependency_says_what_it_is_for_and_is_imported_or_says_that_it_is_not() -> None:
    listed = SETTINGS.partition("\ndependencies = [")[2].partition("\n]")[0]
    said = dict(re.findall(r'^  "([\w-]+)>=[\d.]+",  # (.+)$', listed, re.MULTILINE))
    named = tomllib.loads(SETTINGS)["project"]["dependencies"]
    assert [*said] == [Requirement(each).name for each in named]
    distributions = packages_distributions()
    used = {canonicalize_name(d) for _, module in imported() for d in distributions.get(module, ())}
    assert said.keys() - used == {n for n, why in said.items() if why.startswith("not imported: ")}


def test_spans_alone_need_opentelemetry() -> None:
    """MLflow brings its SDK; nothing else of ours loads it."""
    assert {file for file, module in imported() if module == "opentelemetry"} == {
        "router/serve/spans.py"
    }


def test_a_plain_install_has_all_that_is_imported_outside_of_the_extras() -> None:
    project = tomllib.loads(SETTINGS)["project"]
    assert project["optional-dependencies"]["serve"] == []  # commands of 0.2.0 name it
    distributions = packages_distributions()
    own = {*sys.stdlib_module_names, "decoders", "policies", "collect", "router"}

    always = installed_with(project["dependencies"])
    missing, extras = set(), dict[str, set[str]]()
    for extra in EXTRAS:
        asked = project["optional-dependencies"][extra]
        named = {canonicalize_name(Requirement(each).name) for each in asked}
        extras[extra] = named | installed_with(asked)  # a newer Python may have none of it
    for file, module in imported():
        from_ = {canonicalize_name(each) for each in distributions.get(module, [module])}
        optional = any(
            from_ & extras[extra] and file.startswith(places) for extra, places in EXTRAS.items()
        )
        if module not in own and not from_ & always and not optional:
            missing.add((file, module))
    assert not missing


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    place = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert place is not None and place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


GOOD = {"name": "good", "version": "1", "vulns": []}
HOLE = {"id": "PYSEC-1", "fix_versions": ["3"]}
BAD = {"name": "bad", "version": "2", "vulns": [HOLE]}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


def test_a_vulnerability_fails_the_audit(audit: ModuleType) -> None:
    status, lines = audit.verdict({"dependencies": [GOOD, BAD, UNKNOWN]})
    assert status == 1 and "bad 2: PYSEC-1, mended in 3" in lines
    assert "2 packages audited, 1 known vulnerabilities" in lines
    assert lines[-1].endswith("not checked: unknown")
    assert audit.verdict({"dependencies": [GOOD]})[0] == 0


def test_an_audit_that_checked_nothing_says_so(audit: ModuleType) -> None:
    for told in ({"dependencies": [UNKNOWN]}, {"dependencies": [], "error": "no network"}):
        status, (line,) = audit.verdict(told)
        assert status == 0 and line.startswith("audit skipped, nothing was checked")
