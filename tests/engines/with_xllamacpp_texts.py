"""llama.cpp's own texts of tokens.

python with_xllamacpp_texts.py FOLDER: of each KIND.gguf in it, whose model takes all tokens for as
likely, the bytes of each id in hex and some answers, as JSON: {kind: {"pieces": [...], "answers":
[{"ids", "text", "stop"}]}}. Every other answer may stop at a string.
"""

from pathlib import Path

import xllamacpp
from xllama import asked, params_of, tell_of_each_model

ANSWERS = 12
LOST = "\ufffd"  # what bytes that are no character are sent as; stops are looked for before


def texts(model: Path) -> dict[str, object]:
    server = xllamacpp.Server(params_of(model))
    usual = {"prompt": [70], "n_predict": 40, "top_k": 0, "return_tokens": True, "ignore_eos": True}

    def written(**more: object) -> dict[str, object]:
        return asked(server, "completion", **usual | more)

    (first,) = written(n_predict=1, n_probs=10_000, temperature=0)["completion_probabilities"]
    pieces = {each["id"]: bytes(each["bytes"]).hex() for each in first["top_logprobs"]}
    answers = []
    for seed in range(ANSWERS):
        found = written(seed=seed)
        whole = found["content"]
        answers.append({"ids": found["tokens"], "text": whole, "stop": None})
        at = len(whole) * seed // ANSWERS
        stop = whole[at : at + 1 + seed % 4].split(LOST)[-1] or " "
        found = written(seed=seed, stop=[stop])
        answers.append({"ids": found["tokens"], "text": found["content"], "stop": stop})
    return {"pieces": [pieces[id] for id in range(len(pieces))], "answers": answers}


tell_of_each_model(texts)
