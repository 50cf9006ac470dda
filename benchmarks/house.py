"""Weigh the repository: lines, import closures, files with one importer and public names.

    python benchmarks/house.py            this checkout
    python benchmarks/house.py OTHER      another one, for instance a worktree of an older commit

Imports are counted as Python makes them: a closure is what a fresh interpreter has loaded of the
four packages after one import. One importer means that a single file imports the module, lazily or
not.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from pathlib import Path

import grimp

PACKAGES = ("decoders", "collect", "policies", "router")
CLOSURES = (
    ("decoders.loop",),
    ("decoders.methods.plain.drafter", "decoders.drafters.null"),
    ("decoders.methods.hybrid.drafter", "decoders.drafters.hybrid"),
    ("decoders.engine",),
    ("decoders.continuous_batching",),
    ("collect.replay.batch", "decoders.offline.batch"),
    ("router.cli",),
)


def lines(root: Path, folder: str) -> int:
    """Physical lines of its Python files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", f"{folder}/*.py"], cwd=root, capture_output=True, check=True
    ).stdout.decode()
    return sum((root / name).read_bytes().count(b"\n") for name in listed.split("\0") if name)


def closure(root: Path, names: tuple[str, ...]) -> tuple[str, int, int]:
    """The first of `names` that exists, how many modules it loads, how many are backends."""
    name = next(n for n in names if _file(root, n))
    code = (
        f"import sys, {name}; own = [m for m in sys.modules if m.split('.')[0] in {PACKAGES}]; "
        "print(len(own), sum(m.startswith('decoders.backends') for m in own))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, encoding="utf-8", check=True
    )
    loaded, backends = done.stdout.split()
    return name, int(loaded), int(backends)


def _file(root: Path, module: str) -> bool:
    place = root / module.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def with_one_importer(root: Path) -> list[str]:
    """Modules, packages' own files aside, that one module alone imports."""
    sys.path.insert(0, str(root))
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return sorted(
        module
        for module in graph.modules
        if not graph.find_children(module)
        and len(graph.find_modules_that_directly_import(module)) == 1
    )


def public_names(root: Path) -> int:
    """Classes, functions and constants at the top of a module, without a leading underscore."""
    count = 0
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else [node]
                for target in targets:
                    name = getattr(target, "name", None) or getattr(target, "id", "_")
                    count += not name.startswith("_")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    root = parser.parse_args().root.resolve()
    weighed = {package: lines(root, package) for package in PACKAGES}
    single = with_one_importer(root)
    print(
        json.dumps(
            {
                "lines": weighed
                | {"packages": sum(weighed.values())}
                | {folder: lines(root, folder) for folder in ("tests", "benchmarks")},
                "files with one importer": len(single),
                "lines in them": sum(
                    (root / f"{m.replace('.', '/')}.py").read_bytes().count(b"\n") for m in single
                ),
                "public names": public_names(root),
                "modules loaded, backends among them": {
                    name: [loaded, backends]
                    for name, loaded, backends in (closure(root, names) for names in CLOSURES)
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
