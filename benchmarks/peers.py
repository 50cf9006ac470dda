"""What a user might pick instead: functions from prompt ids and how many tokens to write at most to
how many were written.

All greedy, all fed ids (no peer sees another prompt through its own chat template; mistral.rs takes
text alone, which it cuts by itself), all counted with the end-of-sequence token. A peer that is not
installed is left out with a word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Run = Callable[[list[int], int], int]  # prompt ids, most new tokens -> new tokens
SHORT_CACHE = 512  # positions of the smaller of transformers' two static caches
FLASHSPEC_ROOM = 64  # positions that its widest calls may take beyond an answer


def transformers_model(folder: str | Path, like: torch.Tensor) -> Any:
    """A model as transformers loads it. like: any tensor of the device and dtype to use."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=like.dtype)
    return model.to(like.device).eval()


def transformers_runs(
    model: Any, assistant: Any = None, exit_layer: int = 0, room: int = 0
) -> dict[str, Run]:
    """generate, prompt lookup, and assisted decoding, each with transformers' defaults; with
    `room`, the most tokens of a prompt and its answer, generate with static caches and a compiled
    forward too.

    assistant: a draft model that scores the whole vocabulary; without one the model's own early
    exit after `exit_layer` drafts, unless that is 0.
    """
    import torch

    def with_options(**options: Any) -> Run:
        def run(ids: list[int], most: int) -> int:
            prompt = torch.tensor([ids], device=model.device)
            mask = torch.ones_like(prompt)
            out = model.generate(
                prompt, attention_mask=mask, max_new_tokens=most, do_sample=False, **options
            )
            return int(out.shape[1]) - len(ids)

        return run

    runs = {
        "transformers": with_options(),
        "transformers prompt lookup": with_options(prompt_lookup_num_tokens=10),
    }
    if assistant is not None:
        runs["transformers assisted"] = with_options(assistant_model=assistant)
    elif exit_layer:
        runs["transformers early exit"] = with_options(assistant_early_exit=exit_layer)
    if room:
        runs["transformers compiled"] = _compiled_run(model, room)
    return runs


def _compiled_run(model: Any, room: int) -> Run:
    """generate over static caches that outlive the call, as transformers' guide to them has it: one
    compiled forward and one CUDA graph for each, whatever a prompt's length. Two sizes, so that
    attention after a short prompt does not read room for the longest."""
    import torch
    from transformers import CompileConfig, StaticCache

    # one library's shapes must not make another's dynamic: all compile the same forward
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 128)
    whole = -(-room // 64) * 64
    sizes = sorted({min(SHORT_CACHE, whole), whole})
    caches = {size: StaticCache(config=model.config, max_cache_len=size) for size in sizes}
    compiling = CompileConfig(mode="reduce-overhead", dynamic=False)
    compiling._compile_all_devices = True  # or a CPU's is left as it is

    def run(ids: list[int], most: int) -> int:
        cache = caches[next(size for size in sizes if len(ids) + most <= size)]
        cache.reset()
        prompt = torch.tensor([ids], device=model.device)
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=most,
            do_sample=False,
            past_key_values=cache,
            compile_config=compiling,
        )
        return int(out.shape[1]) - len(ids)

    return run


def flashspec_runs(
    model: Any, eos_ids: tuple[int, ...], assistant: Any = None, room: int = 1
) -> dict[str, Run]:
    """flashspec on the same model: with `assistant`, its default (prompt lookup where something
    matches, else that drafter); without, prompt lookup alone. room: the most tokens of a prompt and
    its answer, for which its static cache is made on CUDA, where it compiles and records by
    itself."""
    try:
        from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
        from flashspec.engine import HuggingFaceDrafter, NgramDrafter, TargetModel
    except ImportError:
        print("flashspec is not installed (pip install flashspec): left out")
        return {}
    import torch

    options = {
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "sampling": SamplingConfig(temperature=0.0),
        "compile_max_cache_len": room + FLASHSPEC_ROOM,
    }
    target = TargetModel("target", model.device, model.dtype, model=model)
    if assistant is None:
        name, drafter = "flashspec prompt lookup", NgramDrafter()
        options |= {"drafter_strategy": "bandit", "bandit": BanditConfig(n_arms=1)}
    else:
        name = "flashspec"
        drafter = HuggingFaceDrafter("drafter", model.device, model.dtype, model=assistant)
    engine = SpeculativeEngine(FlashSpecConfig(**options), [drafter], target)

    def run(ids: list[int], most: int) -> int:
        prompt = torch.tensor([ids], device=model.device)
        return int(engine.generate(prompt, most, eos_ids).n_tokens_generated)

    return {name: run}


def economize_runs(
    model: Any, eos_ids: tuple[int, ...], assistant: str | None = None
) -> dict[str, Run]:
    """economize on the same model: plain, with its prompt lookup as its documentation sets it up
    and, with the folder of an `assistant`, with that as drafter; with CUDA graphs on CUDA."""
    try:
        import economize
        from economize.techniques.draft_model import DraftModelConfig
        from economize.techniques.lookup import LookupConfig
    except ImportError:
        print("economize is not installed (pip install economize): left out")
        return {}
    import torch

    def with_techniques(cycle_length: int, *techniques: Any) -> Run:
        on_cuda = model.device.type == "cuda"
        decoding = economize.DecodeConfig(cycle_length=cycle_length, cuda_graphs=on_cuda)
        wrapped = economize.apply(model, *techniques, decoding=decoding)

        def run(ids: list[int], most: int) -> int:
            prompt = torch.tensor(ids, device=model.device)
            return len(wrapped.decode(prompt, most, stop=list(eos_ids)).tokens)

        return run

    runs = {
        "economize": with_techniques(1),
        "economize prompt lookup": with_techniques(6, LookupConfig(max_ngram=3)),
    }
    if assistant:
        runs["economize draft model"] = with_techniques(4, DraftModelConfig(model=assistant))
    return runs


def openvino_runs(gguf: Path, eos_ids: tuple[int, ...], lookup: bool = True) -> dict[str, Run]:
    """OpenVINO GenAI on the GGUF file itself, alone and, in a pipeline apart, with its own prompt
    lookup."""
    try:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai
    except ImportError:
        print("OpenVINO GenAI is not installed (pip install openvino-genai): left out")
        return {}

    def with_options(lookup: bool) -> Run:
        pipe = genai.LLMPipeline(str(gguf), "CPU", **({"prompt_lookup": True} if lookup else {}))

        def run(ids: list[int], most: int) -> int:
            tokens = np.array([ids], dtype=np.int64)
            inputs = genai.TokenizedInputs(ov.Tensor(tokens), ov.Tensor(np.ones_like(tokens)))
            config = genai.GenerationConfig()
            config.max_new_tokens, config.do_sample = most, False
            config.stop_token_ids = set(eos_ids)
            if lookup:
                config.num_assistant_tokens, config.max_ngram_size = 5, 3
            made = list(pipe.generate(inputs, config).tokens[0])
            # the ending token is left out of what it returns
            return len(made) + (len(made) < most and (not made or made[-1] not in eos_ids))

        return run

    runs = {"OpenVINO GenAI": with_options(False)}
    return runs | {"OpenVINO prompt lookup": with_options(True)} if lookup else runs


def llama_cpp_runs(
    gguf: Path, threads: int, room: int, draft: Path | None = None
) -> dict[str, Run]:
    """llama.cpp's server, by the package xllamacpp, on the GGUF file itself: plain, with n-gram
    copies and, with a `draft` file, with that model. room: the most tokens of a prompt and its
    answer."""
    try:
        from xllamacpp import CommonParams, Server
        from xllamacpp import common_speculative_type as kinds
    except ImportError:
        print("llama.cpp is not installed (pip install xllamacpp): left out")
        return {}

    def served(kind: Any = None) -> Run:
        params = CommonParams()
        params.model.path = str(gguf)
        params.n_ctx, params.n_parallel, params.verbosity = room + 64, 1, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        if kind is not None:
            params.speculative.types = [kind]
        if kind == kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE:
            params.speculative.draft.mparams.path = str(draft)
            for each in (
                params.speculative.draft.cpuparams,
                params.speculative.draft.cpuparams_batch,
            ):
                each.n_threads = threads
        server = Server(params)

        def run(ids: list[int], most: int) -> int:
            made = server.handle_completions(
                {"prompt": ids, "n_predict": most, "temperature": 0.0, "cache_prompt": False}
            )
            if "usage" not in made:
                raise RuntimeError(str(made)[:300])
            return int(made["usage"]["completion_tokens"])

        return run

    runs = {
        "llama.cpp": served(),
        "llama.cpp n-grams": served(kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE),
    }
    if draft is not None:
        runs["llama.cpp draft model"] = served(kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE)
    return runs


def ik_llama_runs(gguf: Path, threads: int, room: int) -> dict[str, Run]:
    """ik_llama.cpp by the package ik-llama-cpp-python, which reads the last token that it writes
    too: a pass more than others. room: the most tokens of a prompt and its answer."""
    try:
        from ik_llama_cpp import IkLlama
    except ImportError:
        print("ik_llama.cpp is not installed (pip install ik-llama-cpp-python): left out")
        return {}
    model = IkLlama(str(gguf), n_ctx=room + 64, n_threads=threads, verbose=False)

    def run(ids: list[int], most: int) -> int:
        made = len(model.generate(ids, max_tokens=most, temperature=0.0))
        return made + (made < most)  # the ending token is left out

    return {"ik_llama.cpp": run}


def mistral_rs_runs(gguf: Path, decode: Callable[[list[int]], str]) -> dict[str, Run]:
    """mistral.rs by the package mistralrs, with as many threads as there are cores. decode: ids to
    text."""
    try:
        from mistralrs import CompletionRequest, Runner, Which
    except ImportError:
        print("mistral.rs is not installed (pip install mistralrs): left out")
        return {}
    which = Which.GGUF(quantized_model_id=str(gguf.parent), quantized_filename=gguf.name)
    runner = Runner(which=which, prefix_cache_n=0)

    def run(ids: list[int], most: int) -> int:
        asked = CompletionRequest(
            model="default", prompt=decode(ids), max_tokens=most, temperature=0.0
        )
        return int(runner.send_completion_request(asked).usage.completion_tokens)

    return {"mistral.rs": run}
