"""Packed weights multiply as ordinary ones, and a token's logits do not depend on its neighbours.

The second is what makes bfloat16 answers the same whichever arm wrote them.
"""

from functools import partial

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, Tiny, some

from decoders.backends.llama.attention import KEYS_ROUND, attend, attention_mask, rounded
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.weights import packed
from decoders.backends.weights.blocked import Int4Blocks, Int8Blocks
from decoders.backends.weights.int8 import WIDE, to_int8
from decoders.backends.weights.packed import Rounding, can_pack, dense, linear, narrowed, pack

pytestmark = pytest.mark.instructions

BF16 = pytest.mark.skipif(
    not can_pack(CPU, torch.bfloat16), reason="this CPU does not multiply bfloat16"
)


@pytest.mark.parametrize("rows", [(), (1,), (1, 1), (2, 1), (2, 7)])
@pytest.mark.parametrize("inputs", [96, 1536])
def test_a_packed_weight_multiplies_as_an_ordinary_one(rows: tuple[int, ...], inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, inputs, generator=generator)
    bias = torch.randn(40, generator=generator)
    x = torch.randn(*rows, inputs, generator=generator)
    torch.testing.assert_close(
        linear(x, pack(weight), bias),
        torch.nn.functional.linear(x, weight, bias),
        rtol=1e-5,
        atol=1e-4,
    )


def test_packing_is_undone_without_loss() -> None:
    weight = torch.randn(33, 65)
    assert torch.equal(dense(pack(weight)), weight)
    assert pack(pack(weight)).shape == weight.shape


def test_what_cannot_be_packed_stays_as_it_is() -> None:
    weight = torch.randn(4, 4, dtype=torch.float64)
    assert pack(weight) is weight


@BF16
@pytest.mark.parametrize(("most", "left"), [("AVX2", False), ("avx2", False), ("ALL", True)])
def test_onednn_told_to_do_without_avx512_has_no_bfloat16(
    most: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    assert packed._has_bfloat16.__wrapped__() == left


@pytest.fixture
def no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor whose oneDNN has none (AVX2)."""
    monkeypatch.setattr(packed, "can_pack", lambda device, dtype: False)


@pytest.mark.parametrize("rows", [WIDE, WIDE + 2, 300])
def test_where_onednn_has_no_bfloat16_many_rows_are_multiplied_in_float32(
    no_bfloat16: None, rows: int
) -> None:
    weight, bias = torch.randn(48, 64).bfloat16(), torch.randn(48).bfloat16()
    x = torch.randn(2, rows // 2, 64).bfloat16()
    made = linear(x, weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    assert made.dtype == torch.bfloat16 and made.shape == exact.shape
    assert torch.allclose(made.double(), exact, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_where_onednn_has_no_bfloat16_prompts_go_by_weights_in_blocks(
    kernel: None, no_bfloat16: None, rounding: Rounding
) -> None:
    weight, x = torch.randn(32, 64).bfloat16(), torch.randn(300, 64).bfloat16()
    made = narrowed(rounding, weight, partial(packed.rounded, blocked=True))
    assert isinstance(made, Int4Blocks | Int8Blocks) and made.wide is None
    assert torch.equal(linear(x, made)[:5], linear(x[:5], made))


@pytest.mark.parametrize(
    "rounding", [pytest.param(None, marks=BF16), pytest.param("int8", marks=BF16), "int4"]
)
@pytest.mark.parametrize("inputs", [32, 576, 1536, 4096])
def test_a_row_s_product_does_not_depend_on_the_others(
    inputs: int, rounding: Rounding | None
) -> None:
    rows = WIDE if rounding else 17
    weight, x = some(208, inputs), some(1, rows, inputs, seed=1)
    made = narrowed(rounding, weight) if rounding else pack(weight)
    together = linear(x, made)
    for width in range(1, rows):
        parts = [linear(part, made) for part in x.split(width, 1)]
        assert torch.equal(torch.cat(parts, 1), together), width


@BF16
@pytest.mark.parametrize("rounding", [None, "int8", "int4"])
def test_logits_do_not_depend_on_how_many_tokens_are_read_at_once(
    tiny: Tiny, rounding: Rounding | None
) -> None:
    folder = tiny(**FITS_INT4, max_position_embeddings=256)
    model = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding)
    assert model.precision == (rounding or "bfloat16")
    model.prefill([1, 5, 9, 2, 7])
    ids = torch.randint(0, 16, (KEYS_ROUND - 40,), generator=torch.Generator().manual_seed(1))

    def read(width: int) -> torch.Tensor:
        model.truncate(5)
        return torch.cat([model.extend(part) for part in ids.split(width)])

    one_by_one = read(1)
    for width in (2, 3, 5, 9, 17):
        assert torch.equal(read(width), one_by_one), width


@BF16
@pytest.mark.parametrize("kv_heads", [14, 7, 2, 1], ids=lambda n: f"{14 // n} to a key head")
@pytest.mark.parametrize("held", [40, 250, 700])
def test_a_query_s_attention_does_not_depend_on_the_others(kv_heads: int, held: int) -> None:
    most, d = 24, 64
    shape = Shape(1, 14 * d, 14, kv_heads, d, 1, 1024, 1e-5, ())
    generator = torch.Generator().manual_seed(held)
    q = torch.randn(14, most, d, generator=generator).bfloat16()
    k, v = torch.randn(2, 1, kv_heads, rounded(held), d, generator=generator).bfloat16()
    seen = torch.ones(most, held, dtype=torch.bool).tril(held - most)

    def by_widths(width: int) -> torch.Tensor:
        parts = zip(q.split(width, 1), seen.split(width), strict=True)
        made = [attend(p, k, v, attention_mask(s, shape, q.dtype)) for p, s in parts]
        return torch.cat(made, 2)

    one_by_one = by_widths(1)
    differing = [w for w in range(2, most + 1) if not torch.equal(by_widths(w), one_by_one)]
    assert not differing


@pytest.mark.parametrize("inputs", [8, 16, 40, 100])
def test_int8_weights_may_have_any_number_of_inputs(inputs: int) -> None:
    """PyTorch's kernel takes 16 at once, and reads beyond the end of others."""
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(24, inputs, generator=generator).bfloat16()
    x = torch.randn(3, inputs, generator=generator).bfloat16()
    made = to_int8(weight)
    for _ in range(100):  # what lies beyond is at times zeros
        product = made.times(x, None)
        exact = x.double() @ made.dequantised().double().T
        assert torch.allclose(product.double(), exact, rtol=0.02, atol=0.1)
