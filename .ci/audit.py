"""Known vulnerabilities of the pinned packages, by pip-audit.

    python .ci/audit.py

Reads constraints.txt beside it, all packages with their own dependencies, and asks the
vulnerability service. Exit status 1 says that a package has a vulnerability. Where the service
cannot be reached, one line says that nothing was checked; pip-audit alone would call that "no known
vulnerabilities".
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"


def report() -> dict[str, Any]:
    """pip-audit's, of packages that need not be installed."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps"]
    command += ["--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:  # it could not even begin
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        return {"dependencies": [], "error": last[0]}
    return told


def verdict(told: dict[str, Any]) -> tuple[int, list[str]]:
    """Exit status, and lines that say why."""
    packages = told["dependencies"]
    checked = [each for each in packages if "skip_reason" not in each]
    found = [
        f"{each['name']} {each['version']}: {hole['id']}, mended in "
        f"{', '.join(hole['fix_versions']) or 'no version yet'}"
        for each in checked
        for hole in each["vulns"]
    ]
    if not checked:
        why = told.get("error", "the vulnerability service cannot be reached from here")
        return 0, [f"audit skipped, nothing was checked: {why}"]
    left = [each["name"] for each in packages if "skip_reason" in each]
    lines = [*found, f"{len(checked)} packages audited, {len(found)} known vulnerabilities"]
    if left:
        lines.append(f"not known to the service, so not checked: {', '.join(left)}")
    return int(bool(found)), lines


def main() -> None:
    status, lines = verdict(report())
    print("\n".join(lines))
    sys.exit(status)


if __name__ == "__main__":
    main()
