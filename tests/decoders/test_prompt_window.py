"""A draft model that reads the end of a prompt alone drafts as after that end."""

from __future__ import annotations

from decoders.protocols import DraftRequest
from decoders.records import Sampling
from decoders.sampling.randomness import Generator
from decoders.testing.toys import neural

PROMPT, ANSWER = [5, 3, 9, 1, 7, 2, 8, 4], [6, 0, 5, 9, 3]


def test_the_rest_of_a_prompt_is_not_read() -> None:
    near, short = neural(12, 3), neural(12, 3)
    near.prompt_window = 4
    near.reset(PROMPT)
    short.reset(PROMPT[-4:])
    assert near.backend.length == short.backend.length == 4
    for written in range(1, len(ANSWER) + 1):
        asked = DraftRequest(3, Sampling(), Generator(0))
        drafts = [
            drafter.propose([*prompt, *ANSWER[:written]], asked).ids.tolist()
            for drafter, prompt in ((near, PROMPT), (short, PROMPT[-4:]))
        ]
        assert drafts[0] == drafts[1] and len(drafts[0]) == 3
        near.commit([*PROMPT, *ANSWER[:written]])
        short.commit([*PROMPT[-4:], *ANSWER[:written]])
        assert near.backend.length == short.backend.length
    near.reset(PROMPT[:3])
    assert near.backend.length == 3
