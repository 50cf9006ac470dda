"""Where a training run stands, kept without code."""

from pathlib import Path
from typing import Any

import pytest
import torch

from collect.align import checkpoint
from decoders.common.errors import Damaged

CPU = torch.device("cpu")


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Optimizers with their own state, tied weights, other dtypes."""
    torch.manual_seed(0)

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.9))

    def trained(model: torch.nn.Module, rule: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            rule.zero_grad()
            model(torch.ones(3)).square().sum().backward()
            rule.step()

    first, rule = made()
    trained(first, rule, 3)
    extra = {"half": torch.ones(2, dtype=torch.bfloat16), "one": torch.tensor(4.0)}
    state = {"model": first.state_dict(), "rule": rule.state_dict(), "extra": extra, "step": 3}
    checkpoint.keep(tmp_path / "run.pt", state)
    second, other = made()
    held = checkpoint.kept(tmp_path / "run.pt", CPU)
    assert held is not None and held["step"] == 3
    assert held["extra"]["half"].dtype == torch.bfloat16 and held["extra"]["one"].shape == ()
    second.load_state_dict(held["model"])
    other.load_state_dict(held["rule"])
    trained(first, rule, 2)
    trained(second, other, 2)
    for own, theirs in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=0, atol=0)


class Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.place),)

    def __init__(self, place: Path) -> None:
        self.place = str(place)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path, ran = tmp_path / "training.pt", tmp_path / "ran"
    assert checkpoint.kept(path, CPU) is None
    torch.save({"state": Bomb(ran)}, path)
    with pytest.raises(Damaged, match="no checkpoint"):
        checkpoint.kept(path, CPU)
    assert not ran.exists()
    checkpoint.keep(path, {"a": torch.ones(9)})
    whole = path.read_bytes()
    for other in (whole[:-4], whole[: len(whole) // 2], b"", b"no checkpoint"):
        path.write_bytes(other)
        with pytest.raises(Damaged, match="damaged"):
            checkpoint.kept(path, CPU)
