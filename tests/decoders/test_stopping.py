"""Where an answer ends, and stop strings beside transformers' own."""

from typing import Any

import pytest
from decoder_toys import Tiny, generate, max_gram, native, transformers_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decoders.methods.neural.drafter import NeuralDrafter
from decoders.records import Request
from decoders.sampling.stopping import Stopper
from decoders.testing.toys import autoregressive, run, speculative


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Sixteen byte-level tokens: letters, merged pairs, and an end-of-sequence token."""
    tokens = [*"abcdef", "Ġ", "ab", "bc", "cd", "de", "Ġa", "abc", "ef", ".", "<end>"]
    merges = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("Ġ", "a"), ("ab", "c"), ("e", "f")]
    raw = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<end>")


def stopper(request: Request, tokenizer: Any = None, eos: tuple[int, ...] = (15,)) -> Stopper:
    return Stopper(request, eos, tokenizer)


@pytest.mark.parametrize(
    ("request_", "told", "kept", "reason"),
    [
        (Request(9), [3, 15, 4, 5], [3, 15], "eos"),  # what follows the end is dropped
        (Request(3), [1, 2, 3, 4], [1, 2, 3], "length"),
        (Request(2), [1, 15], [1, 15], "eos"),  # on the last token too
        (Request(9, eos_ids=(4, 5)), [15, 5, 4], [15, 5], "eos"),  # of its own
        (Request(9, eos_ids=()), [15, 5, 4], [15, 5, 4], ""),
    ],
)
def test_ends(request_: Request, told: list[int], kept: list[int], reason: str) -> None:
    one = stopper(request_)
    assert one.admit(told[:1]) == kept[:1] and one.reason == ""
    assert one.room == request_.max_new_tokens - 1
    assert one.admit(told[1:]) == kept[1:] and one.reason == reason


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        stopper(Request(9, stop=("x",)))


STOPS = [("ab",), ("a",), ("f.", "cd"), ("bca",), (" a",), ("dd",), ("ef", "e")]


@pytest.mark.every(4)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("drafts", ["nothing", "max-gram", "itself"])
def test_stop_strings_end_answers_where_transformers_does(
    stop: tuple[str, ...], drafts: str, tokenizer: Any, tiny: Tiny
) -> None:
    target, model = native(tiny(seed=3)), transformers_model(tiny(seed=3))
    strategy = {
        "nothing": autoregressive(),
        "max-gram": speculative(max_gram(shortest=1), 4),
        "itself": speculative(NeuralDrafter(native(tiny(seed=3))), 4),
    }[drafts]
    stopped = 0
    for first in range(14):
        prompt = [14, first, 14]  # ends in a full stop, so that no stop string begins in it
        theirs = generate(
            model, prompt, 16, stop_strings=list(stop), tokenizer=tokenizer, eos_token_id=[15]
        )
        result = run(
            target, strategy, prompt, Request(16, stop=stop), eos_ids=(15,), tokenizer=tokenizer
        )
        assert result.ids == theirs
        assert result.text == tokenizer.decode(theirs, skip_special_tokens=True)
        stopped += result.finish_reason == "stop"
    assert stopped or stop == ("dd",)
