"""int8 and int4 weights: what is rounded, what is multiplied, and a CUDA model's shapes.

CUDA's operators cannot be run here. Their interface is asked of PyTorch's own shape functions; that
what they are given means the right numbers, of their definition written out.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decoder_toys import some
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from decoders.backends.families import Attention
from decoders.backends.llama.loading import layout, packed_head, packed_layer
from decoders.backends.llama.model import LayerWeights, Weights
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.rope import Rotation
from decoders.backends.weights import int8
from decoders.backends.weights.blocked import to_int4_blocks, to_int8_blocks
from decoders.backends.weights.int4 import GROUP, Int4Weight, for_cuda, quantised, to_int4
from decoders.backends.weights.int8 import WIDE, Int8Weight, to_int8
from decoders.backends.weights.packed import Rounded, Rounding, dense, linear, narrowed, pack

pytestmark = pytest.mark.instructions


def meant(q: Tensor, grid: Tensor) -> Tensor:
    """The float32 values [out, in] that q [out, in] stands for on a grid [in / GROUP, out, 2]."""
    scale, zero = (part.T.float().repeat_interleave(GROUP, 1) for part in grid.unbind(-1))
    return (q - 8) * scale + zero


# -- rounding -------------------------------------------------------------------------------------


def test_a_matrix_from_q4_1_blocks_keeps_its_values() -> None:
    """GGUF's Q4_1: d * q + m, d and m in float16, the least and greatest q of a block 0 and 15."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randint(0, 16, (24, 6, GROUP), generator=generator)
    q[..., 3], q[..., 17] = 0, 15
    d = (torch.rand(24, 6, 1, generator=generator) * 0.05 + 1e-3).half().float()
    m = (-torch.rand(24, 6, 1, generator=generator) * 15).half().float() * d
    weight = (d * q + m).flatten(1)
    found, grid = quantised(weight.bfloat16())
    assert torch.equal(found, q.flatten(1).int())
    assert_near(meant(found, grid), weight, d, m + 8 * d)


def test_a_matrix_from_q4_0_blocks_keeps_its_values() -> None:
    """GGUF's Q4_0: d * (q - 8), d of either sign, q 0 in every block and 15 seldom."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randint(1, 14, (24, 6, GROUP), generator=generator)
    q[..., 5] = 0
    d = (torch.randn(24, 6, 1, generator=generator) * 0.05).half().float()
    weight = (d * (q - 8)).flatten(1)
    found, grid = quantised(weight.bfloat16())
    assert torch.equal(found, q.flatten(1).int())
    assert_near(meant(found, grid), weight, d, torch.zeros_like(d))


def assert_near(made: Tensor, weight: Tensor, scale: Tensor, zero: Tensor) -> None:
    """Apart by four bfloat16 roundings at most: of the ends of a group as they are loaded, of what
    they say the scale and zero are, and of those two. scale and zero: [out, in / GROUP, 1]."""
    furthest = (8 * scale.abs() + zero.abs()).expand(*scale.shape[:2], GROUP).flatten(1)
    bound = 4 * 2**-9 * furthest
    assert bool(((made - weight).abs() <= bound).all())


def test_any_matrix_is_rounded_to_half_a_step() -> None:
    weight = some(32, 96)
    weight[3, :GROUP], weight[4, GROUP : 2 * GROUP] = 0, 0.75
    q, grid = quantised(weight)
    assert q.dtype == torch.int32 and grid.dtype == torch.bfloat16 and grid.shape == (3, 32, 2)
    assert int(q.min()) >= 0 and int(q.max()) <= 15
    off = (meant(q, grid) - weight.float()).view(32, 3, GROUP)
    groups = weight.float().view(32, 3, GROUP)
    step = (groups.amax(-1) - groups.amin(-1)) / 15
    most = GROUP * (0.51 * step).square() + 1e-12
    assert bool((off.square().sum(-1) <= most).all())
    assert not off[3, 0].any() and not off[4, 1].any()


# -- products on a CPU ----------------------------------------------------------------------------


@pytest.mark.parametrize("rounder", [to_int8, to_int4, to_int8_blocks, to_int4_blocks])
def test_a_matrix_rounded_in_parts_is_rounded_as_a_whole_one(
    rounder: Callable[[Tensor, None], Rounded], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = some(112, 96)
    whole = rounder(weight).stored
    for at_once in (1, 96 * 40, 96 * 100):
        monkeypatch.setattr(int8, "AT_ONCE", at_once)
        for part, expected in zip(rounder(weight).stored, whole, strict=True):
            assert torch.equal(part, expected)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rounding", "wider"), [("int8", True), ("int8", False), ("int4", True)])
def test_a_product_is_that_of_the_rounded_weight(
    rounding: Rounding, biased: bool, wider: bool
) -> None:
    """At every width, and without a wider copy for prompts. A row of zeros stays one."""
    weight, bias = some(48, 576), some(48, seed=1) if biased else None
    weight[7] = 0
    made: Any = narrowed(rounding, weight)
    assert narrowed("int4", made) is narrowed("int8", made) is pack(made) is made
    assert made.numel() == weight.numel()
    if rounding == "int4":
        rounded = meant(*quantised(weight))
    else:
        rounded = made.values.float() * made.scale.float().unsqueeze(1)
        assert bool(((rounded - weight.float()).abs() <= 0.51 * made.scale.float()[:, None]).all())
    if not wider:
        made = Int8Weight(made.values, made.scale, None)
    assert torch.equal(made.dequantised(), rounded.bfloat16())
    assert torch.equal(dense(made), rounded.bfloat16())
    for batch, rows in ((1, 1), (2, WIDE // 2), (1, WIDE + 1)):
        x = some(batch, rows, 576, seed=2)
        exact = F.linear(x.float(), rounded, None if bias is None else bias.float())
        torch.testing.assert_close(linear(x, made, bias).float(), exact, rtol=0.02, atol=0.2)
        assert bool((linear(x, made)[..., 7] == 0).all())


# -- on CUDA --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["int8", "int4"])
@pytest.mark.parametrize("inputs", [32, 64, 96, 128])
def test_a_cuda_model_is_of_the_right_shapes(rounding: Rounding, inputs: int) -> None:
    """Off the CPU there is no wider copy, and every product, mask and state fits the next."""
    shape = Shape(2, inputs, 4, 2, 16, 48, 256, 1e-5, (Attention(Rotation((1.0,) * 8, 1.0)),))
    with FakeTensorMode():

        def fake(*size: int) -> Tensor:
            return torch.empty(*size, dtype=torch.bfloat16, device="meta")

        def block() -> LayerWeights:
            d, f = inputs, 160
            return LayerWeights(
                attention_norm=fake(d),
                qkv=fake(128, d),
                out=fake(d, 64),
                mlp_norm=fake(d),
                gate_up=fake(2 * f, d),
                down=fake(d, f),
                qkv_bias=fake(128),
            )

        embedding = fake(48, inputs)
        layers = [packed_layer(block(), layout(rounding)) for _ in range(2)]
        head = packed_head(embedding, rounding)
        model = LlamaBackend(shape, Weights(embedding, layers, fake(inputs), head, tied=True))
        assert model.precision == rounding
        head, down = model.weights.head, model.weights.layers[0].down
        assert isinstance(head, Int8Weight) and head.wide is None
        assert isinstance(down, Int8Weight | Int4Weight) and down.wide is None
        assert down.numel() == dense(down).numel() == inputs * 160
        for width in (5, 1, WIDE, WIDE + 1, 100):
            logits = model.extend(torch.zeros(width, dtype=torch.int64, device="meta"))
            assert logits.shape == (width, 48) and logits.dtype == torch.bfloat16


@pytest.mark.parametrize("inputs", [32, 192, 1536])
def test_what_cuda_is_given_means_the_rounded_weight(
    inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", convert_by_definition)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", multiply_by_definition)
    weight, bias = some(40, inputs), some(40, seed=1)
    q, grid = quantised(weight)
    made = Int4Weight(for_cuda(q), grid, None)
    x = some(inputs, WIDE + 8, seed=2).T
    exact = F.linear(x.float(), meant(q, grid), bias.float())
    torch.testing.assert_close(linear(x, made, bias).float(), exact, rtol=0.02, atol=0.2)
    assert torch.equal(dense(made), meant(q, grid).bfloat16())


def convert_by_definition(pairs: Tensor, tiles: int) -> Tensor:
    """Two q in a byte, the first in its upper half; how the kernel orders them is its own affair,
    so that here they just lie in a row."""
    out, inputs = pairs.shape[0], 2 * pairs.shape[1]
    assert pairs.dtype == torch.uint8 and pairs.is_contiguous()
    assert tiles in (2, 4, 8) and inputs % (16 * tiles) == 0 and out % 8 == 0
    return pairs.view(torch.int32).view(out // 8, inputs // (16 * tiles), 32, tiles // 2)


def multiply_by_definition(x: Tensor, values: Tensor, group: int, grid: Tensor) -> Tensor:
    """x [T, in] by (q - 8) * scale + zero, as bfloat16."""
    out, inputs = 8 * values.shape[0], x.shape[1]
    assert x.dtype == grid.dtype == torch.bfloat16 and x.is_contiguous() and grid.is_contiguous()
    assert values.dtype == torch.int32 and grid.shape == (inputs // group, out, 2)
    pairs = values.contiguous().view(-1).view(torch.uint8).view(out, -1)
    q = torch.stack([pairs >> 4, pairs & 15], -1).view(out, inputs).int()
    return (x.float() @ meant(q, grid).bfloat16().float().T).bfloat16()
