"""What llama.cpp's n-grams draft of a small model's answers; run in an environment that has
`xllamacpp` and not this project.

python with_xllamacpp_ngrams.py FOLDER: with each of the rules of its rows.json, a name and its
sizes, answers to the prompts of its prompts.json one after the other, as JSON: for each row
[[ids, drafted, accepted], ...].
"""

import json
import sys
import urllib.request
from pathlib import Path

import xllamacpp

KINDS = xllamacpp.common_speculative_type


def server_of(folder: Path, rule: str, sizes: list[int]) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = str(folder / "model.gguf")
    params.n_ctx, params.warmup, params.n_parallel = 2048, False, 1
    params.cpuparams.n_threads = 1
    kind = rule.replace("-", "_")
    params.speculative.types = [getattr(KINDS, f"COMMON_SPECULATIVE_TYPE_{kind.upper()}")]
    settings = getattr(params.speculative, kind)
    names = ("n_match", "n_min", "n_max") if rule == "ngram-mod" else ("size_n", "size_m")
    for name, size in zip(names, sizes, strict=True):
        setattr(settings, name, size)
    return xllamacpp.Server(params)


def answered(server: xllamacpp.Server, prompt: list[int]) -> list[object]:
    body = {"prompt": prompt, "n_predict": 200, "return_tokens": True, "cache_prompt": False,
            "temperature": 0, "ignore_eos": True}  # fmt: skip
    asked = urllib.request.Request(
        f"{server.listening_address}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=300) as reply:
        made = json.load(reply)
    spent = made["timings"]
    return [made["tokens"], spent.get("draft_n", 0), spent.get("draft_n_accepted", 0)]


def main(folder: Path) -> None:
    prompts = json.loads((folder / "prompts.json").read_text(encoding="utf-8"))
    found = []
    for rule, sizes in json.loads((folder / "rows.json").read_text(encoding="utf-8")):
        server = server_of(folder, rule, sizes)
        found.append([answered(server, prompt) for prompt in prompts])
    print("\n" + json.dumps(found))


main(Path(sys.argv[1]))
