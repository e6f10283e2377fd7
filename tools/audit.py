"""Ask PyPI which packages of uv.lock have known vulnerabilities (pip-audit); say what could not be checked.

    python tools/audit.py

A vulnerability fails, unless ACCEPTED says why it does not concern us. A service that cannot be reached, or
knows nothing of a package, fails nothing: the packages are named as not checked, so that nobody takes silence
for an answer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
ACCEPTED: Final[Mapping[str, str]] = {}
"""Identifier of a vulnerability (PYSEC-, GHSA-, CVE-) -> why it does not concern us."""
TOOL: Final = "pip-audit@2.10.1"
SECONDS: Final = 300


def main() -> int:
    """0 if nothing is known against any package that could be checked."""
    ours = ROOT / ".venv-uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv") or "uv"
    try:
        answer, problem = _asked(uv)
    except (OSError, subprocess.SubprocessError) as error:
        answer, problem = {}, str(getattr(error, "stderr", None) or error)
    code, lines = verdict(answer, problem)
    print("\n".join(lines))
    return code


def _asked(uv: str) -> tuple[dict[str, Any], str]:
    """pip-audit's answer, {} and its complaint if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder) / "requirements.txt"
        export = ("export", "--quiet", "--frozen", "--all-groups", "--all-extras", "--no-emit-project")
        _run(uv, *export, f"--directory={ROOT}", f"--output-file={locked}", check=True)
        options = ("--disable-pip", "--require-hashes", f"--requirement={locked}", "--format=json")
        done = _run(uv, "tool", "run", "--quiet", TOOL, *options, "--aliases=on", "--progress-spinner=off")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {}, (done.stderr or done.stdout).strip()
    return answer, ""


def _run(*command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=check, timeout=SECONDS
    )


def verdict(
    answer: Mapping[str, Any], problem: str, accepted: Mapping[str, str] = ACCEPTED
) -> tuple[int, list[str]]:
    """Exit code and what to say of pip-audit's answer."""
    lines: list[str] = []
    packages = answer.get("dependencies", [])
    unchecked = {one["name"]: one["skip_reason"] for one in packages if "skip_reason" in one}
    bad = 0
    for one in packages:
        for known in one.get("vulns", ()):
            names = [known["id"], *known.get("aliases", ())]
            reason = next((accepted[name] for name in names if name in accepted), None)
            bad += reason is None
            mended = ", ".join(known.get("fix_versions", ())) or "no version yet"
            lines.append(
                f"{one['name']} {one['version']}: {' '.join(names)}; "
                + (f"accepted: {reason}" if reason else f"mended in {mended}")
            )
    lines.append(f"{len(packages) - len(unchecked)} packages of uv.lock checked, {bad} vulnerabilities")
    if not packages:
        last = problem.splitlines()[-1] if problem else "it names no package"
        lines.append(f"NOT CHECKED: all of uv.lock, for there is no answer: {last}")
    elif unchecked:
        why = sorted({reason.partition(":")[0] for reason in unchecked.values()})
        lines.append(f"NOT CHECKED ({'; '.join(why)}): {', '.join(sorted(unchecked))}")
    lines.append(
        "NOT CHECKED: Debian's packages of the image, which uv.lock does not name; make sbom lists them"
    )
    return (1 if bad else 0), lines


if __name__ == "__main__":
    sys.exit(main())
