"""`draftpick generate` with a model that thinks in a channel of its own."""

from __future__ import annotations

import pytest
import torch
from spelling_toys import HARMONY, byte_level

from router.commands.generate.run import _Printed


def test_what_a_model_thinks_is_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": HARMONY})
    answer = (
        "<|channel|>analysis<|message|>a cat<|end|><|start|>assistant<|channel|>final<|message|>"
        "the end"
    )
    printed = _Printed(tokenizer)
    printed.put(torch.tensor([1, 2]))  # the prompt
    for token in tokenizer.encode(answer, add_special_tokens=False):
        printed.put(torch.tensor([token]))
    printed.end()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("the end\n", "a cat\n\n")
