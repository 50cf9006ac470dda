"""Products with weights in blocks: the numbers of PyTorch's own kernels, in any number of rows."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, Tiny, near, random_cell, some, some_tokens, threads
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.backends import cpp_kernels
from decoders.backends.llama.model import rms_norm
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.head import RecurrentHead
from decoders.backends.weights import blocked
from decoders.backends.weights.blocked import NARROW, Bf16Blocks, Int4Blocks, Int8Blocks
from decoders.backends.weights.int8 import WIDE
from decoders.backends.weights.packed import (
    Rounding,
    dense,
    kind_of,
    linear,
    narrowed,
    rounded,
)
from decoders.backends.weights.rounded_store import RoundedStore
from decoders.costs.passes import CostKey
from decoders.sampling.draft_vocab import DraftVocab

pytestmark = pytest.mark.instructions

ROUNDINGS: tuple[Rounding, ...] = ("int4", "int8")
SIZES = [(16, 32), (48, 96), (192, 576), (64, 1536)]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.usefixtures("kernel")
@given(
    rows=st.integers(0, 5),
    size=st.sampled_from([16, 48, 576]),
    exponent=st.integers(-6, 6),
    seed=st.integers(0, 99),
)
@examples(40)
def test_norms_are_those_of_exact_numbers(rows: int, size: int, exponent: int, seed: int) -> None:
    """Rounded twice, as by PyTorch; a row has the same bits in any company."""
    x, weight = some(rows, size, seed=seed) * 10.0**exponent, some(size, seed=seed + 1)
    made = blocked.norm_rows(x, weight, 1e-5)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(made.double(), exact * weight.double(), rtol=2.0**-7, atol=0)
    by_pytorch = rms_norm(x, weight, 1e-5)
    assert (made != by_pytorch).float().mean() < 0.05 if rows else made.shape == by_pytorch.shape
    for row, alone in zip(made, x, strict=True):
        assert torch.equal(blocked.norm_rows(alone, weight, 1e-5), row)
    assert torch.equal(blocked.norm_rows(x.mT.contiguous().mT, weight, 1e-5), made)


# -- layouts, on any machine -----------------------------------------------------------------------


def test_eight_inputs_of_an_output_lie_in_one_number() -> None:
    """As products.h reads them: even ones in the lower half, odd ones in the upper."""
    q = torch.randint(0, 16, (16, 32), generator=torch.Generator().manual_seed(1))
    q[:, 0], q[:, 1] = 0, 15  # so that each group is rounded to q itself, of scale 1 and zero 0
    made = blocked.to_int4_blocks((q - 8).bfloat16())
    assert made.numel() == q.numel() and made.precision == "int4"
    bits = made.values[0, 0].long() & 0xFFFFFFFF  # [4, 16]
    for i in range(4):
        for output in range(16):
            number = int(bits[i, output])
            even = [number >> 4 * j & 15 for j in range(4)]
            odd = [number >> 16 + 4 * j & 15 for j in range(4)]
            assert even + odd == [
                *q[output, 8 * i : 8 * i + 8 : 2],
                *q[output, 8 * i + 1 : 8 * i + 8 : 2],
            ]
    assert torch.equal(made.grid[0, 0], torch.tensor([1.0, 0.0]).bfloat16().expand(16, 2))


def test_sizes_that_do_not_fit_stay_with_other_kernels() -> None:
    for sizes in [(24, 32), (16, 48), (8, 64)]:
        for rounding in ROUNDINGS:
            assert kind_of(rounding, torch.Size(sizes), True) not in (Int4Blocks, Int8Blocks)
    assert kind_of("int4", torch.Size((16, 32)), True) is Int4Blocks
    assert kind_of("int4", torch.Size((16, 32)), False) is not Int4Blocks


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_kernels, "loaded", lambda: False)


def test_without_avx2_there_is_no_kernel_and_nothing_is_said(
    not_loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_kernels, "instructions", lambda: None)
    told: list[str] = []
    assert not cpp_kernels.load_kernel(tmp_path, told.append)
    assert not told and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("machine", "used", "best"),
    [
        ("x86_64", "AVX512", "AVX512"),
        ("x86_64", "AVX2", "AVX2"),
        ("x86_64", "DEFAULT", None),
        ("aarch64", "DEFAULT", "NEON"),
    ],
)
def test_instructions_are_those_that_there_are_and_pytorch_uses(
    machine: str, used: str, best: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_kernels.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: used)
    sets = {"AVX512": cpp_kernels.AVX512, "AVX2": cpp_kernels.AVX2, "NEON": {}}
    monkeypatch.setattr(cpp_kernels, "SETS", sets)
    known = dict.fromkeys(cpp_kernels.AVX512, True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    assert cpp_kernels.instructions() == best
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {**known, "fma3": False})
    assert cpp_kernels.instructions() == (best if best == "NEON" else None)


def test_it_is_compiled_for_no_instructions_but_those_asked_for(
    kernel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests of lesser sets would be of the best one."""
    probe = tmp_path / "probe.cpp"
    lines = ["#if defined(__AVX2__) || defined(__AVX512F__)", "#error more", "#endif"]
    probe.write_text("\n".join([*lines, "int probe() { return 1; }\n"]))
    monkeypatch.setattr(cpp_kernels, "SOURCE", probe)
    assert cpp_kernels.compile_kernels(tmp_path / "probe.so", []) is None
    refused = cpp_kernels.compile_kernels(tmp_path / "probe.so", ["-mavx2"])
    assert cpp_kernels.instructions() == "NEON" or "more" in str(refused)


def test_kernels_of_a_wheel_are_taken(
    kernel: None, not_loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cpp_kernels.file_name(str(cpp_kernels.instructions()))
    opened: list[Path] = []
    told: list[str] = []
    monkeypatch.setattr(cpp_kernels, "FOLDER", tmp_path)
    monkeypatch.setattr(cpp_kernels, "_opened", opened.append)
    monkeypatch.setattr(cpp_kernels, "compile_kernels", lambda path, flags: "no compiler")
    assert not cpp_kernels.load_kernel(tmp_path / "made", told.append)
    assert not opened and "none came with draftpick" in told[0]
    (tmp_path / name).touch()
    monkeypatch.setattr(torch, "__version__", "9.8.7")  # whichever runs
    assert cpp_kernels.load_kernel(tmp_path / "made", told.append)
    assert opened == [tmp_path / name] and len(told) == 2


@pytest.mark.parametrize("lacks", ["compiler", "cache", "sound source"])
def test_what_cannot_be_compiled_is_done_without_and_said(
    lacks: str, kernel: None, not_loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    told, folder = list[str](), tmp_path / "made"
    if lacks == "cache":
        folder.touch()  # which is no folder
        folder /= "made"
    if lacks == "sound source":
        monkeypatch.setattr(cpp_kernels, "SOURCE", tmp_path / "kernels.cpp")
        cpp_kernels.SOURCE.write_text("int main( {")
    with config.patch({"cpp.cxx": ("no-such-compiler",)} if lacks == "compiler" else {}):
        assert not cpp_kernels.load_kernel(folder, told.append)
    assert len(told) == 2 and "PyTorch's own products, which are slower: " in told[1]
    assert {"cache": "made", "sound source": "error: "}.get(lacks, "") in told[1]
    assert lacks != "compiler" or not list(folder.iterdir())


LOADS = """
import sys, torch
from pathlib import Path
from decoders.backends import cpp_kernels
told = []
cpp_kernels.ALWAYS = ["-O0", "-g0", "-w"]  # faster to make
assert cpp_kernels.load_kernel(Path(sys.argv[1]), told.append), told
from decoders.backends.weights.blocked import to_int4_blocks
made = to_int4_blocks(torch.eye(32).bfloat16())
assert torch.equal(made.dequantised(), torch.eye(32).bfloat16())
print(len(told))
"""


@pytest.mark.slow
def test_it_is_compiled_again_where_the_file_is_damaged_and_then_used(
    kernel: None, tmp_path: Path
) -> None:
    """The fixture of these tests compiles it where there is none."""

    def told() -> int:
        command = (sys.executable, "-c", LOADS, str(tmp_path))
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    file = tmp_path / cpp_kernels.file_name(str(cpp_kernels.instructions()))
    file.write_bytes(b"not a library")
    assert [told(), told()] == [1, 0] and list(tmp_path.iterdir()) == [file]


# -- products --------------------------------------------------------------------------------------


@pytest.fixture(params=ROUNDINGS)
def rounding(request: pytest.FixtureRequest) -> Rounding:
    found: Rounding = request.param
    return found


@pytest.mark.parametrize("sizes", SIZES)
def test_it_multiplies_by_those_numbers_as_well_as_other_kernels(
    kernel: None, rounding: Rounding, sizes: tuple[int, int]
) -> None:
    weight, x = some(*sizes), some(3, 5, sizes[1], seed=1)
    made, plain = (rounded(rounding, weight, on) for on in (True, False))
    weight, bias = plain.dequantised(), some(sizes[0], seed=2)
    assert torch.equal(made.dequantised(), weight) and made.numel() == weight.numel()
    found = made.times(x, bias)
    exact = x.double() @ weight.double().T + bias.double()
    assert found.shape == (3, 5, sizes[0]) and found.dtype == torch.bfloat16
    apart = (found.double() - exact).abs()
    theirs = (plain.times(x, bias).double() - exact).abs()
    assert apart.mean() <= 1.1 * theirs.mean() and apart.max() <= 1.5 * theirs.max() + 1e-6


@examples(30)
@given(
    rows=st.integers(1, 70),
    outs=st.integers(1, 6).map(lambda n: 16 * n),
    groups=st.integers(1, 5),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_a_row_does_not_depend_on_the_others(
    kernel: None, rows: int, outs: int, groups: int, spread: float, seed: int
) -> None:
    weight, x = some(outs, 32 * groups, seed=seed), some(rows, 32 * groups, seed=seed + 1)
    weight[:, :32] *= spread
    for rounding in ROUNDINGS:
        made, plain = (rounded(rounding, weight, on) for on in (True, False))
        exact = x.double() @ plain.dequantised().double().T
        with threads(2):
            together = made.times(x, None)
        with threads(1):
            one = torch.cat([made.times(x[i : i + 1], None) for i in range(rows)])
        assert torch.allclose(together.double(), exact, rtol=0.01, atol=0.01 * exact.abs().max())
        assert torch.equal(one, together)


@examples(30)
@given(
    rows=st.integers(0, 130),
    outs=st.integers(1, 9).map(lambda n: 16 * n),
    groups=st.sampled_from([1, 3, 18, 48]),
    seed=st.integers(0, 99),
)
def test_in_bfloat16_it_multiplies_by_the_weight_itself(
    kernel: None, rows: int, outs: int, groups: int, seed: int
) -> None:
    """Any number of rows, each by itself; sums are float32's, rounded once."""
    weight, x = some(outs, 32 * groups, seed=seed), some(rows, 32 * groups, seed=seed + 1)
    made = blocked.to_bf16_blocks(weight)
    assert torch.equal(made.dequantised(), weight) and made.numel() == weight.numel()
    exact = x.double() @ weight.double().T
    with threads(2):
        together = linear(x, made, weight[:, 0].contiguous())
    with threads(1):
        alone = [linear(row, made, weight[:, 0].contiguous()) for row in x]
    bare = made.times(x, None)
    assert torch.allclose(bare.double(), exact, rtol=2.0**-8, atol=1e-4 * groups)
    assert torch.equal(together, bare + weight[:, 0])
    assert all(map(torch.equal, alone, together))


def test_a_bad_row_spoils_itself_alone(kernel: None, rounding: Rounding) -> None:
    made, x = rounded(rounding, some(32, 64), True), some(20, 64, seed=1)
    right = made.times(x, None)
    x[3, 5], x[17, 40] = torch.nan, torch.inf
    found = made.times(x, None)
    assert not found[3].isfinite().any() and not found[17].isfinite().any()
    others = [i for i in range(20) if i not in (3, 17)]
    assert torch.equal(found[others], right[others])


def test_wrong_shapes_are_refused(kernel: None) -> None:
    four, eight = (blocked.to_int4_blocks(some(32, 64)), blocked.to_int8_blocks(some(32, 64)))
    half, by_half = blocked.to_bf16_blocks(some(32, 64)).values, torch.ops.draftpick.bf16_blocks
    x, (values, grid), (whole, scale) = some(2, 64), four.stored, eight.stored
    by_four, by_eight = torch.ops.draftpick.int4_blocks, torch.ops.draftpick.int8_blocks
    assert by_four(x, values, grid).shape == by_eight(x, whole, scale).shape == (2, 32)
    assert by_four(x[:0], values, grid).shape == (0, 32)
    bad: list[tuple[Any, ...]] = [
        *((by_four, wrong, values, grid) for wrong in (some(2, 32), x.float(), some(64, 2).T)),
        (by_four, x, values[..., :8].contiguous(), grid),
        (by_four, x, values, grid[..., :1].contiguous()),
        (by_four, x[:, :0].contiguous(), values[:, :0].contiguous(), grid[:, :0].contiguous()),
        (by_eight, x, whole[..., :1].contiguous(), scale),
        (by_eight, x, whole, scale[:16]),
        (by_half, x.float(), half),
        (by_half, some(2, 32), half),
        (by_half, x, half.float()),
        (by_half, x, half[..., :1].contiguous()),
        (by_half, x, half.flatten(3)),
    ]
    for by, *wrong in bad:
        with pytest.raises(RuntimeError):
            by(*wrong)


def test_the_rounded_values_count_at_every_width(kernel: None, rounding: Rounding) -> None:
    weight = some(32, 64)
    made = narrowed(rounding, weight, partial(rounded, blocked=True))
    assert not isinstance(made, torch.Tensor)
    assert torch.equal(dense(made), made.dequantised())
    exact = made.times(torch.eye(64).bfloat16(), None).T
    assert torch.equal(made.dequantised(), exact)
    x = some(NARROW + 1, 64, seed=1)
    wide, narrow = linear(x, made), made.times(x, None)
    torch.testing.assert_close(wide, narrow, rtol=0.02, atol=0.1)  # bfloat16's own rounding
    assert (wide.float() - x.float() @ weight.float().T).abs().mean() > 0.02  # not the unrounded
    assert torch.equal(linear(x[:32], made), made.times(x[:32], None))


# -- models ----------------------------------------------------------------------------------------


def model(tiny: Tiny, rounding: Rounding | None, on: bool) -> LlamaBackend:
    folder = tiny("qwen2", **FITS_INT4, max_position_embeddings=700)
    return LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding, blocked=on)


@pytest.mark.parametrize("kept", [*ROUNDINGS, None])
def test_a_model_in_blocks_answers_as_on_other_kernels(
    kernel: None, tiny: Tiny, kept: Rounding | None
) -> None:
    plain, backend = (model(tiny, kept, on) for on in (False, True))
    assert backend.blocked and not plain.blocked
    assert backend.precision == plain.precision == (kept or "bfloat16")
    for each in (plain, backend):
        each.prefill(PROMPT)
    for step, width in enumerate([1, 2, 17, WIDE, 1, NARROW + 1, 5]):
        ids = some_tokens(width, step)
        near(backend.extend(ids), plain.extend(ids))
    assert CostKey.of(backend, "same").file != CostKey.of(plain, "same").file


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("kept", [*ROUNDINGS, None])
def test_bits_of_a_model_do_not_depend_on_the_number_of_threads(
    kernel: None, tiny: Tiny, kept: Rounding | None, on: bool
) -> None:
    target, made = model(tiny, kept, on), list[list[torch.Tensor]]()
    for count in (1, 2):
        with threads(count):
            read = [target.prefill(PROMPT).logits]
            made.append(read + [target.extend(some_tokens(n, n)) for n in (1, 2, 7, WIDE)])
    assert all(map(torch.equal, *made))


def test_a_recurrent_drafter_multiplies_as_its_target_does(kernel: None, tiny: Tiny) -> None:
    cell, vocab = random_cell(32, 1, torch.bfloat16), DraftVocab([*range(16)], 16)
    heads = [RecurrentHead(model(tiny, "int4", on), cell, vocab) for on in (True, False)]
    assert isinstance(heads[0].blocks[0].down, Int4Blocks) and isinstance(heads[0].head, Int8Blocks)
    given = some(3, 32), torch.tensor([3, 0, 7])
    for mine, theirs in zip(*(head.step(*given) for head in heads), strict=True):
        near(mine, theirs)
    half = RecurrentHead(model(tiny, None, True), cell, vocab)
    assert isinstance(half.blocks[0].down, Bf16Blocks) and isinstance(half.head, Bf16Blocks)


def test_rounded_weights_are_kept_in_blocks_apart(
    kernel: None, rounding: Rounding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, told = some(32, 64), list[str]()
    made = {}
    for on in (True, False):
        store = RoundedStore(tmp_path, "model", told.append, on)
        made[on] = store.rounded(rounding, weight)
        store.save()
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr("decoders.backends.weights.rounded_store.rounded", None)  # all is recalled
    for on in (True, False):
        again = RoundedStore(tmp_path, "model", told.append, on).rounded(rounding, weight)
        assert type(again) is type(made[on]) and not told
        assert all(map(torch.equal, again.stored, made[on].stored))
