"""What a user installs: a wheel built from the tree, in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from decoders.backends.cpp_kernels import file_name, instructions
from decoders.zoo.catalogue import TARGET, cache_dir

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("collect", "decoders", "policies", "router")
COPIED = re.findall(
    r"^COPY (?!--)(.+) \S+$", (ROOT / "docs" / "deploy" / "Containerfile").read_text(), re.MULTILINE
)
BEST = instructions()

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """more: variables of the environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean | more, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what the container copies, with kernels for this processor."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in " ".join(COPIED).split():
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    compiled = source / "decoders" / "zoo" / "__pycache__"  # among the models' files
    compiled.mkdir()
    (compiled / "catalogue.cpython-311.pyc").touch()
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source)
    run(*PIP, *build, cwd=made, DRAFTPICK_KERNELS=BEST or "")
    (wheel,) = made.glob("draftpick-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Path:
    """The folder of a new environment's programs. draftpick is installed there from the wheel; what
    it depends on is this environment's, as it was installed from the same pyproject.toml."""
    made = wheel.parent
    place = made / "venv"
    venv.create(place)
    programs = place / ("Scripts" if os.name == "nt" else "bin")
    run(*PIP, "--python", programs / "python", "install", "--quiet", "--no-deps", wheel, cwd=made)
    where = run(programs / "python", "-c", "import sysconfig as s; print(s.get_path('purelib'))",
                cwd=made).stdout.strip()  # fmt: skip
    Path(where, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_it_holds_the_packages_their_models_and_kernels_alone(wheel: Path) -> None:
    compiled = {f"decoders/backends/cpp/{file_name(BEST)}"} if BEST else set()
    with ZipFile(wheel) as whole:
        names = {name for name in whole.namelist() if ".dist-info/" not in name}
        assert sum(each.compress_size for each in whole.infolist()) < 64e6
        for name in compiled:  # one wheel does for every Python
            assert not re.search(rb"\0_?Py[A-Za-z]*_|libpython|libtorch_python", whole.read(name))
    assert ("py3-none-linux" if BEST else "py3-none-any") in wheel.name
    tracked = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == tracked | compiled


def test_it_answers_from_any_folder(environment: Path, tmp_path: Path) -> None:
    found = run(environment / "python", "-c", "import router; print(router.__file__)", cwd=tmp_path)
    assert Path(found.stdout.strip()).is_relative_to(environment.parent)
    answered = run(
        environment / "draftpick", "generate", "Why is the sky blue?", "--max-new-tokens", "8",
        cwd=tmp_path,
    )  # fmt: skip
    assert answered.stdout.strip() and "[arm " in answered.stderr
    assert not list(tmp_path.iterdir())


def test_it_answers_where_there_is_no_compiler(environment: Path, tmp_path: Path) -> None:
    if BEST is None:
        pytest.skip("there are no kernels for this processor")
    (tmp_path / TARGET).symlink_to(cache_dir() / TARGET)
    nothing = {"PATH": "/nonexistent", "CXX": "/nonexistent", "DRAFTPICK_CACHE": str(tmp_path)}
    answered = run(
        environment / "draftpick", "generate", "Why?", "--max-new-tokens", "8",
        cwd=tmp_path, **nothing,
    )  # fmt: skip
    assert answered.stdout.strip() and "compil" not in answered.stderr
    assert "slower" not in answered.stderr and not (tmp_path / "compiled").exists()


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
