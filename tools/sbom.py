"""Write what the image is made of, as CycloneDX 1.5: for scanners, and for whoever is asked what is in there.

    python tools/sbom.py --image dist/gpuslice.tar --output dist/gpuslice.cdx.json

The Python packages are those of uv.lock that the image gets, with their hashes (`uv export`); the Debian
packages are read from the image itself, where there is one. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
from email import message_from_string
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

ROOT: Final = Path(__file__).resolve().parent.parent
STATUS: Final = "var/lib/dpkg/status.d/"
"""Where the image says which Debian packages went in."""


def main() -> int:
    """0; 1 with a sentence if something is missing."""
    parser = argparse.ArgumentParser(description="Write the image's bill of materials, as CycloneDX 1.5.")
    parser.add_argument("--image", type=Path, default=ROOT / "dist" / "gpuslice.tar")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "gpuslice.cdx.json")
    chosen = parser.parse_args()
    try:
        bom = of_lock(ROOT)
        debian = of_image(chosen.image) if chosen.image.exists() else []
    except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
        print(f"no bill of materials: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
        return 1
    python = len(bom["components"])
    bom["components"] += debian
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(bom, indent=1) + "\n")
    rest = (
        f"{len(debian)} of Debian" if debian else f"none of Debian: there is no {chosen.image} (make image)"
    )
    print(f"{chosen.output}: {python} packages of Python, {rest}")
    return 0


def of_lock(root: Path) -> dict[str, Any]:
    """The Python packages of the image. Raises OSError, CalledProcessError."""
    ours = ROOT / ".venv-uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv") or "uv"
    command = [uv, "export", "--quiet", "--frozen", "--no-dev", "--format=cyclonedx1.5"]
    command += ["--preview-features=sbom-export", f"--directory={root}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    bom: dict[str, Any] = json.loads(text)
    # A number by chance and the time of day: two runs would differ.
    bom.pop("serialNumber", None)
    bom["metadata"].pop("timestamp", None)
    return bom


def of_image(archive: Path) -> list[dict[str, Any]]:
    """The Debian packages of an archive of tools/image.py. Raises OSError, TarError."""
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(archive) as image:
        for blob in image:
            if not blob.name.startswith("blobs/sha256/") or (data := image.extractfile(blob)) is None:
                continue
            try:
                layer = tarfile.open(fileobj=io.BytesIO(data.read()))  # noqa: SIM115
            except tarfile.ReadError:
                continue  # a manifest or configuration
            with layer:
                for member in layer:
                    if member.name.startswith(STATUS) and (file := layer.extractfile(member)) is not None:
                        one = _of_debian(file.read().decode())
                        found[one["bom-ref"]] = one
    return [found[key] for key in sorted(found)]


def _of_debian(control: str) -> dict[str, Any]:
    fields = message_from_string(control)
    name, version, arch = fields["Package"], fields["Version"], fields["Architecture"]
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={arch}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    sys.exit(main())
