"""Write the policies into the chart's schema, and deploy/manifests/ from the chart: a file for each wiring.

For clusters without Helm: `kubectl apply -f deploy/manifests/bundled.yaml`. What only Helm could fill in is
fixed here and said at the top of each file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from lambda_layer import path_of

from gpuslice.placement.policies import KNOWN

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "gpuslice"
SCHEMA = "values.schema.json"
FOLDER = ROOT / "deploy" / "manifests"
NAMESPACE = "gpuslice-system"
KUBERNETES = "1.36.3"
WIRINGS = {
    "bundled": "a kube-scheduler of our own beside the extender; works on managed clusters",
    "extender": "the extender alone, for the cluster's own kube-scheduler",
    "own": "gpuslice's own scheduler",
}
HEAD = """\
# gpuslice by plain manifests: {about}.
# Made from the Helm chart by `make manifests`; docs/install.md says what is what. Change before applying:
#   - the image gpuslice:{version}, to where you have pushed it (Deployment and DaemonSet)
#   - the GPUs of the nodes, in ConfigMap gpuslice-devices
{more}\
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    # The agent mounts kubelet's folders; everything else here would pass `restricted`.
    pod-security.kubernetes.io/enforce: privileged
"""
BUNDLED = "#   - the kube-scheduler image's tag v{kubernetes}, to your API server's version\n"


def render(helm: str, wiring: str) -> str:
    """The text of one file."""
    devices = ROOT / "examples" / "devices" / "t4x2.yaml"
    command = [helm, "template", "gpuslice", str(CHART), f"--namespace={NAMESPACE}"]
    command += [f"--kube-version={KUBERNETES}", f"--set=scheduler.mode={wiring}"]
    command += [f"--set-file=agent.devices.simulated={devices}", "--no-hooks", "--include-crds"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    version = re.search(r"^appVersion: (.+)$", (CHART / "Chart.yaml").read_text(), re.M)
    assert version is not None
    more = BUNDLED.format(kubernetes=KUBERNETES) if wiring == "bundled" else ""
    head = HEAD.format(about=WIRINGS[wiring], version=version[1], more=more, namespace=NAMESPACE)
    # Nothing here is Helm's to manage, and where a piece came from is of no use to whoever applies it.
    lines = (line for line in done.stdout.splitlines() if not _HELM.match(line) and line.strip())
    return head + "\n".join(lines) + "\n"


_HELM = re.compile(r"# Source: |\s+(app\.kubernetes\.io/managed-by|helm\.sh/chart): ")


_POLICY = re.compile(r'("policy": \{"enum": )\[[^]]*\]')


def schema() -> str:
    """The chart's schema with the scoring policies that there are."""
    return _POLICY.sub(lambda found: found[1] + json.dumps(list(KNOWN)), (CHART / SCHEMA).read_text())


def main() -> int:
    """Write all files. 1 with a sentence if there is no helm."""
    helm = path_of("helm")
    if helm is None:
        print("no helm: install one, or set HELM to its path", file=sys.stderr)
        return 1
    (CHART / SCHEMA).write_text(schema())
    FOLDER.mkdir(parents=True, exist_ok=True)
    for wiring in WIRINGS:
        (FOLDER / f"{wiring}.yaml").write_text(render(helm, wiring))
    return 0


if __name__ == "__main__":
    sys.exit(main())
