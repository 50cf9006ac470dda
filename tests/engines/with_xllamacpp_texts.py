"""llama.cpp's own texts of tokens; run in an environment that has `xllamacpp` and not this project.

python with_xllamacpp_texts.py FOLDER: of each KIND.gguf in it, whose model takes all tokens for as
likely, the bytes of each id in hex and some answers, as JSON: {kind: {"pieces": [...], "answers":
[{"ids", "text", "stop"}]}}. Every other answer may stop at a string.
"""

import json
import sys
import urllib.request
from pathlib import Path

import xllamacpp

ANSWERS = 12
LOST = "\ufffd"  # what bytes that are no character are sent as; stops are looked for before


def texts(model: Path) -> dict[str, object]:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.warmup, params.n_parallel = 64, False, 1
    server = xllamacpp.Server(params)

    def asked(**more: object) -> dict[str, object]:
        body = {"prompt": [70], "n_predict": 40, "top_k": 0, "return_tokens": True, **more}
        content = json.dumps(body | {"ignore_eos": True}).encode()
        kind = {"Content-Type": "application/json"}
        url = f"{server.listening_address}/completion"
        with urllib.request.urlopen(urllib.request.Request(url, content, kind)) as reply:
            return json.load(reply)

    (first,) = asked(n_predict=1, n_probs=10_000, temperature=0)["completion_probabilities"]
    pieces = {each["id"]: bytes(each["bytes"]).hex() for each in first["top_logprobs"]}
    answers = []
    for seed in range(ANSWERS):
        found = asked(seed=seed)
        whole = found["content"]
        answers.append({"ids": found["tokens"], "text": whole, "stop": None})
        at = len(whole) * seed // ANSWERS
        stop = whole[at : at + 1 + seed % 4].split(LOST)[-1] or " "
        found = asked(seed=seed, stop=[stop])
        answers.append({"ids": found["tokens"], "text": found["content"], "stop": stop})
    return {"pieces": [pieces[id] for id in range(len(pieces))], "answers": answers}


def main(folder: Path) -> None:
    found = {each.stem: texts(each) for each in sorted(folder.glob("*.gguf"))}
    print("\n" + json.dumps(found))


main(Path(sys.argv[1]))
