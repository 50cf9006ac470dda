"""SGLang 0.5.23's own plugin loader, hooks, reader of the file and controller."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from real_servers import ROOT
from vllm_server import BIN

pytestmark = pytest.mark.engines
PACKAGES = BIN.parents[1] / "sglang"  # beside vLLM's environment, whose PyTorch it shares


def run(folder: Path, part: Any) -> Any:
    """What with_sglang.py prints for a file with this part `draftpick`."""
    steps = {"1": 1.0, "8": 1.2, "64": 3.0}
    (folder / "costs.json").write_text(json.dumps({"step_s": [steps]}))
    config = folder / "adaptive.json"
    config.write_text(json.dumps({"1": {"candidate_steps": [0, 2, 4]}, **part}))
    installed = distribution("draftpick")
    metadata = folder / f"draftpick-{installed.version}.dist-info"
    metadata.mkdir(exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(installed.read_text(name) or "")
    script = Path(__file__).with_name("with_sglang.py")
    places = os.pathsep.join(map(str, (folder, PACKAGES, ROOT)))
    ended = subprocess.run(
        [BIN / "python", script, config, "400"],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_sglang_takes_the_policy_and_its_lengths(tmp_path: Path) -> None:
    found = run(tmp_path, {"draftpick": {"costs": "costs.json", "draft_cost": 0.05}})
    assert found["policy"] == "router.sglang.steps"
    graphs = [1, 4, 16]
    assert found["built"] == [[0, 1, graphs], [2, 3, graphs], [4, 5, graphs]]
    assert set(found["taken"][-200:]) == {4}  # of drafts nine tenths of which are accepted


def test_a_file_without_the_part_keeps_sglangs_own(tmp_path: Path) -> None:
    assert run(tmp_path, {})["policy"] == "sglang.srt.speculative.adaptive_spec_params"
