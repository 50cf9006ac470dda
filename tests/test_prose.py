"""Rules of the sentences in the packages: how a docstring begins, and that files it names exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("decoders", "policies", "collect", "router")
NO_BEGINNING = {"As", "By", "In", "Of", "That", "Those", "Where", "With"}
FILE_NAME = re.compile(r"(?<![\w/.*-])((?:[\w-]+/)*[\w-]+\.(?:py|h|cpp))\b(?!\s*\()")
ELSEWHERE = (
    "llama.cpp",
    "ATen/",
    "common/arg.cpp",
    "python/sglang/",
    "speculative/",
    "vllm/",
)


def docstrings() -> Iterator[tuple[str, str, str]]:
    """File, name of what is documented, docstring."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                if documented and (said := ast.get_docstring(node)):
                    name = getattr(node, "name", "the module")
                    yield path.relative_to(ROOT).as_posix(), name, said


def test_a_docstring_begins_with_a_verb_or_with_what_it_names() -> None:
    found = [
        f"{path}, {name}: {said.partition(chr(10))[0]}"
        for path, name, said in docstrings()
        if re.split(r"[\s,.:;]", said, maxsplit=1)[0] in NO_BEGINNING
    ]
    assert not found, "\n".join(found)


def comments() -> Iterator[tuple[str, str]]:
    """Comments of the packages' Python and C++ files."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            mark = {".py": "#", ".h": "//", ".cpp": "//"}.get(path.suffix)
            if mark:
                for said in re.findall(f"{mark}.*", path.read_text(encoding="utf-8")):
                    yield path.relative_to(ROOT).as_posix(), said


@pytest.fixture(scope="module")
def files() -> set[str]:
    """Every tail of every path: a docstring may name a file by as much as tells it."""
    paths = [
        path.relative_to(ROOT).parts
        for folder in (*PACKAGES, "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".h", ".cpp")
    ]
    return {"/".join(parts[start:]) for parts in paths for start in range(len(parts))}


def test_files_that_are_named_exist(files: set[str]) -> None:
    said = [*((path, text) for path, _, text in docstrings()), *comments()]
    missing = {
        f"{path} names {name}"
        for path, text in said
        for name in FILE_NAME.findall(text)
        if name not in files and not name.startswith(ELSEWHERE) and "commit" not in text
    }
    assert not missing, "\n".join(sorted(missing))
