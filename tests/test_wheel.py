"""What a user installs: a wheel built from the tree, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("collect", "decoders", "policies", "router", "pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new environment's programs. draftpick is installed there from a wheel; what
    it depends on is this environment's, as it was installed from the same pyproject.toml."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    compiled = source / "decoders" / "zoo" / "__pycache__"  # among the models' files
    compiled.mkdir()
    (compiled / "catalogue.cpython-311.pyc").touch()
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source)
    run(*pip, *build, cwd=made)
    (wheel,) = made.glob("draftpick-*.whl")
    with ZipFile(wheel) as whole:
        assert not [name for name in whole.namelist() if name.endswith(".pyc")]
    place = made / "venv"
    venv.create(place)
    programs = place / ("Scripts" if os.name == "nt" else "bin")
    run(*pip, "--python", programs / "python", "install", "--quiet", "--no-deps", wheel, cwd=made)
    where = run(programs / "python", "-c", "import sysconfig as s; print(s.get_path('purelib'))",
                cwd=made).stdout.strip()  # fmt: skip
    Path(where, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_it_answers_from_any_folder(environment: Path, tmp_path: Path) -> None:
    found = run(environment / "python", "-c", "import router; print(router.__file__)", cwd=tmp_path)
    assert Path(found.stdout.strip()).is_relative_to(environment.parent)
    answered = run(
        environment / "draftpick", "generate", "Why is the sky blue?", "--max-new-tokens", "8",
        cwd=tmp_path,
    )  # fmt: skip
    assert answered.stdout.strip() and "[arm " in answered.stderr
    assert not list(tmp_path.iterdir())


def test_everything_that_ships_is_in_it(environment: Path, tmp_path: Path) -> None:
    listed = run(environment / "draftpick", "arms", "--json", cwd=tmp_path).stdout
    assert '"hybrid"' in listed
    models = run(environment / "draftpick", "models", "--json", cwd=tmp_path).stdout
    assert '"recurrent-general"' in models
    queries = run(
        environment / "python", "-c", "from collect import shipped; print(len(shipped('test')))",
        cwd=tmp_path,
    )  # fmt: skip
    assert int(queries.stdout) > 50
