"""Tiny models, made once: random weights, saved as ordinary transformers folders."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from contract_kit import engines
from decoder_toys import Tiny, native, save_tiny
from engine_toys import engine_over, places_in
from t5_toys import save_tiny_t5

from decoders import Engine
from decoders.backends.cpp_kernels import instructions, load_kernel
from decoders.zoo.catalogue import cache_dir

__all__ = ["engines"]  # a fixture
THREADS = torch.get_num_threads()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # tiny products only lose by sharing


@pytest.fixture(scope="module")
def every_thread() -> Iterator[None]:
    """For models that gain by it."""
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def kernel() -> None:
    """The kernels in C++; a test is skipped where there are none."""
    told: list[str] = []
    if not load_kernel(cache_dir() / "compiled", told.append):
        pytest.skip(f"no kernels for {instructions() or 'such a processor'}: {told}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, not made yet."""
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session", autouse=True)
def costs_of_tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr("decoders.engine.cache_dir", lambda: folder)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny(kind, seed=0, **config) -> folder of a random model, the same for the same call."""
    return _kept(save_tiny, "llama", tmp_path_factory)


@pytest.fixture(scope="module")
def every_way(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    places = places_in(tmp_path_factory.mktemp("arms"), tiny)
    return engine_over(native(tiny(max_position_embeddings=1024)), places)


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The same for encoder-decoders."""
    return _kept(save_tiny_t5, "t5", tmp_path_factory)


def _kept(
    save: Callable[[Path, str, int, dict[str, Any]], None],
    usual: str,
    places: pytest.TempPathFactory,
) -> Callable[..., Path]:
    made: dict[tuple[Any, ...], Path] = {}

    def folder(kind: str = usual, seed: int = 0, **config: Any) -> Path:
        key = (kind, seed, *sorted(config.items()))
        if key not in made:
            made[key] = places.mktemp(kind) / "model"
            save(made[key], kind, seed, config)
        return made[key]

    return folder
