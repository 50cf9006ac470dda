"""What a user installs: a wheel built from the tree, in an environment of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from decoders.backends.cpp_kernels import file_name, instructions
from decoders.zoo.catalogue import TARGET, cache_dir

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("collect", "decoders", "policies", "router")
CONTAINER = (ROOT / "docs" / "deploy" / "Containerfile").read_text()
COPIED = re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINER, re.MULTILINE)
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
    assert ("py3-none-linux" if BEST else "py3-none-any") in wheel.name
    tracked = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == tracked | compiled


def test_its_kernels_use_pytorch_by_its_interface_in_c(wheel: Path, tmp_path: Path) -> None:
    """It is kept from release to release; so one wheel does for all of them, and every Python."""
    if BEST is None:
        pytest.skip("there are no kernels for this processor")
    with ZipFile(wheel) as whole:
        file = whole.extract(f"decoders/backends/cpp/{file_name(BEST)}", tmp_path)
    needed = run("nm", "--dynamic", "--undefined-only", "--format=posix", file, cwd=tmp_path)
    names = {line.split()[0].partition("@")[0] for line in needed.stdout.splitlines()}
    others = {name for name in names if re.search("torch|c10|2at|^_?Py", name)}
    assert others and all(re.match("(aoti_)?torch_", name) for name in others), others


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


# The container's root, which is not written, but for the folder of its cache.
READ_ONLY = (
    'mount --bind "$0" "$0" && mount -o remount,ro,bind / && exec setpriv --bounding-set=-all "$@"'
)


def test_the_containers_server_writes_in_its_cache_alone(environment: Path, tmp_path: Path) -> None:
    if subprocess.run(("unshare", "-m", "true"), capture_output=True).returncode:
        pytest.skip("no file systems can be mounted here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    lines = re.findall(r"^(?:ENTRYPOINT|CMD|HEALTHCHECK) .*?(\[.*\])$", CONTAINER, re.MULTILINE)
    check, entry, more = (json.loads(line.replace("8000", port)) for line in lines)
    (tmp_path / TARGET).symlink_to(cache_dir() / TARGET)
    home = {"HOME": "/nonexistent", "DRAFTPICK_CACHE": str(tmp_path), "HF_HOME": f"{tmp_path}/hf"}
    here = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": ""}
    words = (READ_ONLY, tmp_path, environment / "draftpick", *entry[1:], *more)
    server = subprocess.Popen(
        ("unshare", "-m", "sh", "-c", *words),
        cwd=tmp_path, env=home | here, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while subprocess.run((environment / "python", *check[1:]), capture_output=True).returncode:
            assert server.poll() is None, server.communicate()[1]
            time.sleep(0.5)
        asked = {"model": "auto", "prompt": "The sky is", "max_tokens": 8}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=60)
        assert answer.json()["choices"][0]["text"]
    finally:
        server.terminate()
    assert "Read-only" not in server.communicate(timeout=10)[1] and server.returncode == 0


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
