"""Options that several commands share, each declared once, and the records that they make."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions
from decoders.records import Request, Sampling

if TYPE_CHECKING:
    from ..logs.writer import DecisionLog
    from ..routing.router import Router

Target = Annotated[
    str,
    typer.Option(help="Target model: a known name, hub id, folder or .gguf file."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="YAML", help="File that declares the arms. Default: those that ship for the target."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most tokens of a prompt and its answer. Fewer save memory. Default: the model's own; "
        "T5: 1024.",
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|TEXT", help="Jinja chat template, or its file. Default: the tokenizer's."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Policy = Annotated[
    str | None,
    typer.Option(
        help="A folder, runs:/ID/policy or models:/NAME@alias. Default: the shipped policy."
    ),
]
Embedder = Annotated[
    str | None,
    typer.Option(help="Folder or hub id of the policy's embedder, if it has moved since training."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="With --engine ray: a running cluster: auto, or host:port of its head. Default: start "
        "a cluster on this machine, and stop it at the end.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow store. Default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db."),
]


def engine_options(
    target: Target = EngineOptions.target,
    dtype: Annotated[
        str,
        typer.Option(
            help="Weights: bfloat16, float16, float32, int8, int4, file or auto. file: a GGUF "
            "file's own blocks. On an x86 CPU, auto is file of a GGUF file, and int4 if the "
            "model's own weights have 4 bits; else bfloat16."
        ),
    ] = EngineOptions.dtype,
    device: Device = EngineOptions.device,
    backend: Annotated[
        str,
        typer.Option(
            help="{decoders.BACKENDS}. auto: the fastest that runs the model. hf: transformers. "
            "compiled: native with C++ kernels, on a CPU. graphs, fused: native with CUDA graphs, "
            "of PyTorch's or of fused kernels."
        ),
    ] = EngineOptions.backend,
    context: Context = EngineOptions.context,
    chat_template: ChatTemplate = EngineOptions.chat_template,
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Keys and values of the target: auto, or int8 on the native backend on a CPU, "
            "which take about half the memory and change answers a little."
        ),
    ] = EngineOptions.kv_dtype,
    config: Config = None,
) -> EngineOptions:
    """Which model answers, and how it runs."""
    return EngineOptions(target, config, dtype, device, backend, context, chat_template, kv_dtype)


@dataclass(frozen=True)
class LogOptions:
    """Place of the decision log, and what is kept besides the numbers.

    folder: None logs nothing.
    """

    folder: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FOLDER",
            help="Log every decision here, for `draftpick evaluate` and `learn`.",
        ),
    ] = None
    embeddings: Annotated[
        bool,
        typer.Option(
            "--log-embeddings",
            help="Also log embeddings, which evaluating and learning need. A prompt can be guessed "
            "from its embedding.",
        ),
    ] = False
    text: Annotated[
        bool,
        typer.Option(
            "--log-text",
            help="Also log the text of the last user message, all that the target read (system "
            "prompt and earlier turns too) and the answer.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.folder is None and (self.embeddings or self.text):
            raise DraftpickError("--log-embeddings and --log-text need --log FOLDER")

    def open(self) -> DecisionLog | None:
        """Raises DraftpickError where the folder cannot be one."""
        from ..logs.writer import DecisionLog

        if self.folder is None:
            return None
        return DecisionLog(self.folder, embeddings=self.embeddings, text=self.text)


def answer_request(
    max_new_tokens: MaxNewTokens = Request.max_new_tokens,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 is greedy.")
    ] = Sampling.temperature,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: mass of the kept tokens; 1 keeps all.")
    ] = Sampling.top_p,
    top_k: Annotated[
        int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")
    ] = Sampling.top_k,
) -> Request:
    """How long an answer may be and how its tokens are chosen, checked before a model is loaded."""
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    return Request(max_new_tokens, sampling)


def table_options(
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What embeds the queries, as in `draftpick collect`. Default: the collection's "
            "own embedder. Missing embeddings are computed once and stored there.",
        ),
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Only these arms. Default: all collected."),
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(
            metavar="T,T",
            help="Only these temperatures. Default: all collected. Rewards of similarity or "
            "measured time exist at 0 only.",
        ),
    ] = None,
    at_once: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Only these numbers of concurrent answers. Default: all collected. Rewards of "
            "similarity or measured time exist at 1 only.",
        ),
    ] = None,
    repetitive: Annotated[
        str,
        typer.Option(
            help="all, or without: leave out answers that degenerate into repetition, where arms "
            "that copy look too fast."
        ),
    ] = "all",
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="T@N=W,...",
            help="How often your traffic has temperature T with N answers at once: whole numbers, "
            "1 where none is given. Default: settings count alike.",
        ),
    ] = None,
) -> TableOptions:
    """Which rows of a collection are read, and what embeds its queries."""
    return TableOptions(
        arms=names_in(arms) or None,
        embedder=embedder,
        temperatures=None if temperatures is None else temperatures_in(temperatures),
        at_once=None if at_once is None else at_once_in(at_once),
        repetitive=repetitive,
        weights={} if weights is None else weights_in(weights),
    )


EngineRecord = Annotated[EngineOptions, engine_options]
RequestRecord = Annotated[Request, answer_request]
TableRecord = Annotated[TableOptions, table_options]


def temperatures_in(listed: str) -> tuple[float, ...]:
    """Temperatures given as `0,0.7`; raises DraftpickError for what is no number."""
    try:
        found = tuple(float(each) for each in names_in(listed))
    except ValueError:
        found = ()
    if not found:
        raise DraftpickError(
            f"temperatures are numbers with commas between, for instance 0,0.7,1, not {listed!r}"
        )
    return found


def at_once_in(listed: str) -> tuple[int, ...]:
    """Numbers of answers given as `1,8`; raises DraftpickError for what is none."""
    named = names_in(listed)
    if not named or not all(each.isdecimal() and int(each) for each in named):
        raise DraftpickError(
            "answers at once are whole numbers from 1 on with commas between, for instance 1,8,32, "
            f"not {listed!r}"
        )
    return tuple(map(int, named))


def weights_in(listed: str) -> dict[tuple[float, int], int]:
    """Weights of settings given as `0@1=6,1@8=2`; raises DraftpickError for what is none."""
    found = {}
    for each in names_in(listed) or [""]:
        parts = re.fullmatch(r"([0-9.]+)@([1-9]\d*)=(\d+)", each)
        if parts is None:
            raise DraftpickError(
                "weights are given as temperature@answers=weight with commas between, for "
                f"instance 0@1=6,1@8=2, not {each!r}"
            )
        (temperature,), (answers,) = temperatures_in(parts[1]), at_once_in(parts[2])
        found[temperature, answers] = int(parts[3])
    return found


def names_in(listed: str | Iterable[str] | None) -> list[str]:
    """Names given as `a,b` or by repeating the option."""
    parts = [listed] if isinstance(listed, str) else listed or ()
    return [name.strip() for part in parts for name in part.split(",") if name.strip()]


def router_for(
    options: EngineOptions,
    policy: str | None,
    routed: bool,
    named: list[str],
    request: Request,
    embedder: str | None,
    log: LogOptions,
) -> Router:
    """A router over the engine, with a policy where `routed`.

    named: arms that `request` is for. Where there is a policy they are checked once the model is
        loaded, since a policy that does not fit gives the better message.
    """
    from ..routing.loading import load_engine
    from ..routing.router import Router

    decisions = log.open()
    if routed:
        return Router.from_options(options, policy, embedder, decisions)
    return Router(load_engine(options, named, request), None, log=decisions)
