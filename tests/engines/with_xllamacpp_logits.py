"""llama.cpp's own next-token chances of small models; run in an environment that has `xllamacpp`
and not this project.

python with_xllamacpp_logits.py FOLDER: of each NAME.gguf in it, after the ids of its prompt.json,
the logarithms of all tokens' chances, as JSON: {name: [...]}.
"""

import json
import sys
from pathlib import Path

import xllamacpp


def chances(model: Path, prompt: list[int]) -> list[float]:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.warmup, params.n_parallel = 512, False, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    asked = {"prompt": prompt, "n_predict": 1, "logprobs": 1000, "temperature": 0.0}
    (token,) = server.handle_completions(asked)["choices"][0]["logprobs"]["content"]
    found = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
    return [round(found[id], 4) for id in range(len(found))]


def main(folder: Path) -> None:
    prompt = json.loads((folder / "prompt.json").read_text(encoding="utf-8"))
    found = {each.stem: chances(each, prompt) for each in sorted(folder.glob("*.gguf"))}
    print("\n" + json.dumps(found))


main(Path(sys.argv[1]))
