"""In which numbers a machine trains, and Muon in float32 beside PyTorch's, which multiplies in
bfloat16."""

import copy

import pytest
import torch
from torch import nn

from collect.align import weights
from collect.align.recipe import Recipe
from collect.align.weights import Float32Muon, orthogonal

SHAPES = [(24, 40), (40, 24), (32, 32)]


def pairs() -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(*shape)) for shape in SHAPES]
    return ours, [nn.Parameter(one.detach().clone()) for one in ours]


def test_steps_are_pytorch_s_without_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    monkeypatch.setattr(torch, "bfloat16", torch.float32)  # as PyTorch says it from 2.15 on
    ours, theirs = pairs()
    rules = (
        Float32Muon(ours, lr=0.02, weight_decay=0.05),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.05),
    )
    for step in range(4):
        torch.manual_seed(step)
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for rule in rules:
            rule.step()
        if step == 1:  # either goes on from the other's state
            rules[0].load_state_dict(copy.deepcopy(rules[1].state_dict()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_becomes_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    made = orthogonal(torch.randn(*shape), (3.4445, -4.775, 2.0315), 5, 1e-7)
    values = torch.linalg.svdvals(made)
    assert made.shape == shape
    assert float(values.min()) > 0.5 and float(values.max()) < 1.5


@pytest.mark.parametrize("half", [True, False])
def test_it_is_taken_where_bfloat16_is_slow(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch.bfloat16 if half else torch.float32
    monkeypatch.setattr(weights, "training_dtype", lambda device: kind)
    matrix, vector = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
    muon, _ = weights.optimizers([matrix], [vector], Recipe(), decay=0.0)
    assert type(muon) is (torch.optim.Muon if half else Float32Muon)


@pytest.mark.parametrize("has", [True, False])
def test_float32_where_a_cpu_has_no_bfloat16(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "can_pack", lambda device, kind: has)
    found = torch.bfloat16 if has else torch.float32
    assert weights.training_dtype(torch.device("cpu")) == found
    assert weights.training_dtype(torch.device("cuda")) == torch.bfloat16
    with weights.autocast(torch.device("cpu")):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == found
