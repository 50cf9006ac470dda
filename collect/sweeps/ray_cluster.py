"""A Ray cluster: reaching it, and how its devices are shared out among workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.wording import first_line


def ray_module(what: str) -> Any:
    """The package. what: is done on Ray. Raises DraftpickError where it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        words = f"{what} on Ray needs the package ray: `pip install 'draftpick[ray]'`"
        raise DraftpickError(words) from error
    return ray


def connect(ray: Any, address: str | None) -> bool:
    """Join the cluster, or start one on this machine for None; False where Ray runs already. Raises
    DraftpickError where it cannot be reached."""
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = address or "this machine"
        raise DraftpickError(f"Ray cannot be reached at {where}: {first_line(error)}") from error
    return True


def shares(ray: Any, asked: int | None) -> tuple[int, int, int]:
    """(workers, cores of each, GPUs of each). asked: workers, None for one a GPU of the cluster, or
    one a machine where there are none."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    workers = asked or gpus or len(nodes)
    return workers, cores_each(nodes, workers, gpus), min(1, gpus)


def cores_each(nodes: Sequence[Mapping[str, float]], workers: int, gpus: int) -> int:
    """Cores that every worker can have where they lie evenly. nodes: the resources of each."""
    evenly = -(-workers // len(nodes))
    if not gpus:
        return max(1, int(min(node.get("CPU", 1) for node in nodes) // evenly))
    each = [node.get("CPU", 1) // node["GPU"] for node in nodes if node.get("GPU")]
    return max(1, int(min(each)))
