"""In which numbers a machine trains."""

from __future__ import annotations

import pytest
import torch

from collect.align import dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize("has", [True, False])
def test_float32_where_a_cpu_has_no_bfloat16(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype, "can_pack", lambda device, kind: has)
    found = torch.bfloat16 if has else torch.float32
    assert dtype.training_dtype(CPU) == found
    assert dtype.training_dtype(torch.device("cuda")) == torch.bfloat16
    with dtype.autocast(CPU):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == found
