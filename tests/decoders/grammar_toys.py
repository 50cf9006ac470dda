"""A fast tokenizer of bytes and a few pairs of them, and a toy target over it."""

from pathlib import Path
from typing import Any

import torch

from decoders import Engine
from decoders.arms import arms_of
from decoders.testing.toys import ToyBackend

MISSING = "Ð"  # the first byte of Cyrillic letters, so that no token spells those
PAIRS = [("{", '"'), ('"', ":"), ('"', ","), ("Ġ", '"'), ('"', "}")]
END, CALL = "<|end|>", "<tool_call>"
HERMES = (
    "{% if tools %}tools {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|end|>\n{% endfor %}assistant:"
)
LLAMA = (
    '{% if tools %}ipython {{ tools | tojson }} as {"name": ..., "parameters": ...}\n{% endif %}'
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>\n{% endfor %}assistant:"
)
ARMS = {
    "copy": {"kind": "max_gram", "shortest": 1, "length": {"k": 4}},
    "beams": {"kind": "beam", "beams": 2},
}


def fast_tokenizer(template: str | None = HERMES) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {MISSING})
    words = [*letters, *("".join(pair) for pair in PAIRS)]
    plain = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, PAIRS))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END)
    made.add_tokens([AddedToken(CALL, special=False)])
    made.chat_template = template
    return made


def toy_engine(template: str | None = HERMES, seed: int = 4, words: tuple[str, ...] = ()) -> Engine:
    """Its answers begin with a call where they may, and end after one.

    words: each ends an answer, and follows its first letter.
    """
    tokenizer = fast_tokenizer(template)
    size = len(tokenizer) + 3  # logits of no tokens, as many models have
    after = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    end, call = tokenizer.convert_tokens_to_ids([END, CALL])
    colon, closing = tokenizer.encode(":>")
    after[colon, call] += 50.0
    after[closing, end] += 50.0
    for word in words:
        ids = tokenizer.encode(word)
        for last, token in zip(ids, [*ids[1:], end], strict=True):
            after[last, token] += 50.0
    target = ToyBackend(after.expand(size, size, size), context=4096)
    arms = arms_of({"arms": ARMS}, Path("toys"))
    return Engine(target, arms, name="toy", tokenizer=tokenizer, eos_ids=(end,))
