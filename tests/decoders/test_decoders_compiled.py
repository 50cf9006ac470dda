"""Compiled layers: what the compiler is given is what ordinary passes do; kept, and made anew.

Fast tests run the traced operations as they are, slow ones what a C++ compiler makes of them. The
contracts of backends and of trees are asked of them too (test_decoders_backends.py and
test_decoders_tree_backends.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, compiled_by_tracing

from decoders.backends.compiled import Program
from decoders.backends.compiled_between import PARTS
from decoders.backends.compiling import load_programs
from decoders.backends.int8 import WIDE
from decoders.backends.llama import LlamaBackend
from decoders.backends.llama_model import Between
from decoders.backends.packed import Rounding
from decoders.backends.seats import Seats, Wanted
from decoders.costs.passes import Place
from decoders.errors import DraftpickError
from decoders.models import targets

Tiny = Callable[..., Path]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS: list[tuple[str, Rounding]] = [
    ("llama", "int4"),
    ("qwen2", "int4"),
    ("qwen3", "int4"),
    ("mistral", "int8"),
]


def rounded(tiny: Tiny, kind: str, rounding: Rounding) -> LlamaBackend:
    folder = tiny(kind, **FITS_INT4, max_position_embeddings=700)
    return LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding)


def tokens(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 16, (n,), generator=torch.Generator().manual_seed(seed))


def near(one: torch.Tensor, other: torch.Tensor) -> None:
    """Apart by bfloat16's rounding; a wrong position would move every logit by about 1."""
    apart = (one.float() - other.float()).abs()
    assert apart.mean() < 0.1 and apart.max() < 0.6


@pytest.mark.parametrize(("kind", "rounding"), KINDS)
def test_traced_passes_give_what_ordinary_ones_give(
    tiny: Tiny, kind: str, rounding: Rounding
) -> None:
    plain, backend = (rounded(tiny, kind, rounding) for _ in range(2))
    assert backend.passes == "eager"
    compiled_by_tracing(backend)
    assert backend.passes == "compiled"
    for model in (plain, backend):
        model.prefill(PROMPT)
    for step, width in enumerate([1, 2, 17, WIDE, 1, WIDE + 1, 300, 5, 1]):  # past 256 and 512
        ids = tokens(width, step)
        near(*(model.extend(ids) for model in (backend, plain)))
        for model in (plain, backend):
            model.truncate(model.length - width // 3)


def test_each_layer_of_a_short_pass_is_one_call_of_the_right_program(tiny: Tiny) -> None:
    backend = rounded(tiny, "llama", "int4")
    compiled_by_tracing(backend)
    assert backend.compiled is not None
    made, called = backend.compiled.programs, []

    def counted(name: str) -> Program:
        program: Program = getattr(made, name)
        return lambda inputs: (called.append(name), program(inputs))[1]

    backend.compiled.programs = replace(made, one=counted("one"), few=counted("few"))
    backend.prefill(PROMPT)
    for width, programs in [(1, ["one"]), (2, ["few"]), (WIDE, ["few"]), (WIDE + 1, [])]:
        called.clear()
        backend.extend(tokens(width))
        assert called == programs * backend.shape.layers, width


def several(seats: Seats, at: list[int], widths: list[int]) -> list[Wanted]:
    """The seats in the rows `at` hold a prompt each, and want so many tokens read."""
    wanted = []
    for row, width in zip(at, widths, strict=True):
        seats.all[row].prefill((PROMPT * 20)[: 20 + 7 * row])
        wanted.append(Wanted(seats.all[row], tokens(width, row)))
    return wanted


@pytest.mark.parametrize(("kind", "rounding"), KINDS)
def test_shared_passes_are_compiled_where_they_are_narrow(
    tiny: Tiny, kind: str, rounding: Rounding
) -> None:
    plain, backend = (rounded(tiny, kind, rounding) for _ in range(2))
    compiled_by_tracing(backend)
    called = []
    made = backend.compiled.programs if backend.compiled is not None else None
    assert made is not None

    def shared() -> Program:
        program = made.shared()
        return lambda inputs: (called.append("shared"), program(inputs))[1]

    backend.compiled.programs = replace(made, shared=shared)  # type: ignore[union-attr]
    one, other = Seats(backend, 16), Seats(plain, 16)
    layers = backend.shape.layers
    for at, widths, calls in [
        ([0, 1], [1, 1], layers),
        ([1, 3, 4], [1, 5, 2], layers),
        ([0, 7], [30, 2], layers),
        ([0, 7], [31, 2], 0),  # more than WIDE tokens
        ([0, 8], [1, 1], 0),  # no neighbours
    ]:
        called.clear()
        mine, theirs = one.read(several(one, at, widths)), other.read(several(other, at, widths))
        assert len(called) == calls, at
        near(torch.cat(mine), torch.cat(theirs))


def test_costs_of_compiled_passes_are_kept_apart(tiny: Tiny) -> None:
    plain, backend = (rounded(tiny, "llama", "int4") for _ in range(2))
    compiled_by_tracing(backend)
    assert Place.of(plain, "same").file != Place.of(backend, "same").file


@pytest.mark.parametrize(("kind", "rounding"), KINDS)
def test_of_prompts_and_wide_passes_what_lies_between_products_is_compiled(
    tiny: Tiny, kind: str, rounding: Rounding
) -> None:
    plain, backend = (rounded(tiny, kind, rounding) for _ in range(2))
    compiled_by_tracing(backend)
    assert backend.compiled is not None
    parts, called = backend.compiled.between, Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            called[name] += 1
            return getattr(parts, name)(*given)

        return run

    backend.compiled.between = Between(*(counted(name) for name in PARTS))
    near(backend.prefill(PROMPT * 30).logits, plain.prefill(PROMPT * 30).logits)
    assert called == dict.fromkeys(PARTS, backend.shape.layers)
    for width in (WIDE + 1, 200):
        near(backend.extend(tokens(width)), plain.extend(tokens(width)))
    near(*(model.prefill([3]).logits for model in (backend, plain)))


@pytest.mark.parametrize("rounding", [None, "int8"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_rounded_weights_on_a_cpu_are_compiled(
    tiny: Tiny, rounding: Rounding | None, device: str
) -> None:
    if (rounding, device) == ("int8", "cpu"):
        return  # the one that is
    with pytest.raises(DraftpickError, match="int8 and int4 weights on a CPU: add --dtype int4"):
        where = torch.device(device)
        targets.load_backend(tiny(), where, torch.bfloat16, "compiled", rounding)


def test_without_a_compiler_a_sentence_says_so(tiny: Tiny, tmp_path: Path) -> None:
    from torch._inductor import config

    backend = rounded(tiny, "llama", "int8")
    make = partial(load_programs, folder=tmp_path / "compiled", say=print)
    broken = config.patch({"cpp.cxx": ("no-such-compiler",)})
    with broken, pytest.raises(DraftpickError, match=r"needs a C\+\+ compiler .* or use native"):
        backend.compile_layers(make)
    assert backend.passes == "eager"
    assert not list((tmp_path / "compiled").iterdir())  # and nothing half made is left


@pytest.mark.slow
@pytest.mark.parametrize("context", [128, 256])
def test_compiled_passes_of_any_cache_are_those_of_ordinary_ones(
    tiny: Tiny, context: int, tmp_path: Path
) -> None:
    folder = tiny("llama", **FITS_INT4, max_position_embeddings=context)
    plain, backend = (
        LlamaBackend.load(folder, CPU, torch.bfloat16, rounding="int4") for _ in range(2)
    )
    backend.compile_layers(partial(load_programs, folder=tmp_path, say=print))
    for length in range(20, context - 10, 60):  # fewer positions are read than there are
        for width in (1, 5):
            ids = tokens(width, length)
            for model in (plain, backend):
                model.prefill((PROMPT * 60)[:length])
            near(backend.extend(ids), plain.extend(ids))
    one, other = Seats(backend, 3), Seats(plain, 3)
    mine, theirs = (seats.read(several(seats, [0, 2], [2, 3])) for seats in (one, other))
    near(torch.cat(mine), torch.cat(theirs))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounding"), KINDS[1:])
def test_compiled_passes_do_not_depend_on_their_width_and_are_kept(
    tiny: Tiny, kind: str, rounding: Rounding, tmp_path: Path
) -> None:
    plain = rounded(tiny, kind, rounding)
    plain.prefill(PROMPT)
    told: list[str] = []
    for loading in (1, 2):
        backend = rounded(tiny, kind, rounding)
        backend.compile_layers(partial(load_programs, folder=tmp_path, say=told.append))
        assert len(told) == 1, loading  # the second finds what the first made
        backend.prefill(PROMPT)
        held, ids = backend.length, tokens(WIDE)
        one = torch.cat([backend.extend(ids[i : i + 1]) for i in range(WIDE)])
        for width in range(2, WIDE + 1):
            backend.truncate(held)
            assert torch.equal(backend.extend(ids[:width]), one[:width]), width
        near(one, plain.extend(ids))
        near(*(model.prefill(PROMPT * 50).logits for model in (backend, plain)))
        plain.prefill(PROMPT)
        plain.truncate(held)
    seats = Seats(backend, 8, steady=True)
    for at, widths in [([0, 1], [1, 1]), ([2, 3, 7], [1, 7, 3]), ([0, 4, 5, 6], [8, 9, 1, 14])]:
        together = seats.read(several(seats, at, widths))
        alone = [each.seat.read_alone(each) for each in several(seats, at, widths)]
        assert all(map(torch.equal, together, alone)), widths
    names = sorted(path.name for path in tmp_path.iterdir())
    made = sorted(["few.pt2", "one.pt2", "shared.pt2", *(f"{part}.pt2" for part in PARTS)])
    assert sorted(name.partition("-")[2] for name in names) == made
    assert "half a minute" in told[0] and "several answers" in told[1]
    told.clear()
    (tmp_path / names[1]).write_bytes(b"not a package")
    rounded(tiny, kind, rounding).compile_layers(
        partial(load_programs, folder=tmp_path, say=told.append)
    )
    assert len(told) == 1, "what cannot be loaded is made anew"
