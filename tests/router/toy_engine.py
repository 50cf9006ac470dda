"""A real engine over a toy target in float64: lossless arms agree with it to the last token."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from decoders import Engine
from decoders.arms import ArmRecipe
from decoders.records import DecodeResult
from decoders.testing.toys import ToyBackend

VOCAB = 12  # so few that answers soon repeat themselves, and copying pays


class ToyTokenizer:
    """A token a letter going in, a word a token coming out; no chat template."""

    chat_template = None

    def __call__(self, text: str) -> Any:
        return SimpleNamespace(input_ids=self.encode(text))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % VOCAB for letter in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(f"w{token}" for token in ids)


class ToyEngine(Engine):
    """asked: (arm, temperature) of every decode. fails: the arm that always does."""

    fails: str | None = None

    def __init__(self, arms: Mapping[str, ArmRecipe], context: int = 512) -> None:
        target = ToyBackend.random(VOCAB, seed=4, sharpness=3.0)
        target.context = context
        super().__init__(target, dict(arms), name="toy", tokenizer=ToyTokenizer())
        self.asked: list[tuple[str, float]] = []

    def decode(self, arm: str, prompt_ids: list[int], request: Any, **named: Any) -> DecodeResult:
        self.asked.append((arm, request.sampling.temperature))
        if arm == self.fails:
            raise RuntimeError("this arm was told to fail")
        return super().decode(arm, prompt_ids, request, **named)
