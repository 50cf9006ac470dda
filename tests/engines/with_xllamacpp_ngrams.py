"""What llama.cpp's n-grams draft of a small model's answers.

python with_xllamacpp_ngrams.py FOLDER: with each of the rules of its rows.json, a name and its
sizes, answers to the prompts of its prompts.json one after the other, as JSON: for each row
[[ids, drafted, accepted], ...].
"""

import sys
from pathlib import Path

import xllamacpp
from xllama import asked, params_of, read, tell

KINDS = xllamacpp.common_speculative_type


def server_of(rule: str, sizes: list[int]) -> xllamacpp.Server:
    params = params_of(Path(sys.argv[1]) / "model.gguf", 2048)
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
    made = asked(server, "completion", **body)
    spent = made["timings"]
    return [made["tokens"], spent.get("draft_n", 0), spent.get("draft_n_accepted", 0)]


found = []
for rule, sizes in read("rows.json"):
    server = server_of(rule, sizes)
    found.append([answered(server, prompt) for prompt in read("prompts.json")])
tell(found)
