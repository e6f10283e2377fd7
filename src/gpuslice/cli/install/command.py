"""`gpuslice install`: what cannot be installed through the API server."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.config.kubescheduler import Wiring
from gpuslice.config.staticpod import StaticPod, render, text_of
from gpuslice.errors import InputError

CONFIG_FILE = Path("/etc/kubernetes/gpuslice-scheduler.yaml")
BACKUPS = Path("/etc/kubernetes/gpuslice-backup")


class _Version(click.ParamType[tuple[int, int]]):
    name = "VERSION"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        match = re.fullmatch(r"v?1\.([0-9]{1,6})(\..*)?", value)
        if match is None:
            self.fail(f"{value!r} is not a version such as 1.36", param, ctx)
        return 1, int(match.group(1))


@click.group(
    help="Install what cannot be installed through the API server.\n\n"
    + options.examples("gpuslice install scheduler-config --url http://127.0.0.1:32766"),
)
def install() -> None:
    pass


@install.command(
    "scheduler-config",
    short_help="Print kube-scheduler's configuration, or wire its static pod.",
    help="Print the configuration with which kube-scheduler asks the extender; with --manifest, write it and "
    "make kubeadm's static pod read it.\n\nkubelet restarts kube-scheduler as soon as its manifest changes. "
    "A copy of the manifest is kept, and --undo takes out what was put in.\n\n"
    + options.examples(
        "gpuslice install scheduler-config --url http://127.0.0.1:32766 > config.yaml",
        "gpuslice install scheduler-config --url https://10.96.7.7:443 --ca ca.crt "
        "--manifest /etc/kubernetes/manifests/kube-scheduler.yaml",
        "gpuslice install scheduler-config --manifest /etc/kubernetes/manifests/kube-scheduler.yaml --undo",
    ),
)
@click.option(
    "--url",
    default="http://127.0.0.1:32766",
    show_default=True,
    metavar="URL",
    help="Where kube-scheduler finds the extender. It runs on the host's network and knows no cluster names.",
)
@click.option("--ca", type=click.Path(path_type=Path), metavar="FILE", help="Who signed it, for https; PEM.")
@click.option(
    "--client-cert",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="kube-scheduler's own certificate, if the extender asks for one; PEM.",
)
@click.option("--client-key", type=click.Path(path_type=Path), metavar="FILE", help="Its key; PEM.")
@click.option(
    "--server-name", metavar="NAME", help="Whom the extender's certificate is for, if not the URL's."
)
@click.option(
    "--kubernetes",
    "version",
    type=_Version(),
    default="1.36",
    show_default=True,
    help="The scheduler's version: the file's format depends on it.",
)
@click.option(
    "--scheduler-kubeconfig",
    metavar="PATH",
    help="The kubeconfig that kube-scheduler uses; default: what its manifest says, or kubeadm's.",
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Change this static pod, too.",
)
@click.option(
    "--config-file",
    type=click.Path(path_type=Path),
    default=CONFIG_FILE,
    show_default=True,
    metavar="FILE",
    help="Where the configuration is written; with --manifest.",
)
@click.option(
    "--backup-dir",
    type=click.Path(path_type=Path),
    default=BACKUPS,
    show_default=True,
    metavar="DIR",
    help="Where copies of the manifest are kept; not kubelet's own folder.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, change nothing.")
@click.option("--undo", is_flag=True, help="Take out of the manifest what was put in.")
def scheduler_config(
    url: str,
    ca: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    server_name: str | None,
    version: tuple[int, int],
    scheduler_kubeconfig: str | None,
    manifest: Path | None,
    config_file: Path,
    backup_dir: Path,
    dry_run: bool,
    undo: bool,
) -> None:
    if undo and manifest is None:
        raise click.UsageError("--undo needs --manifest")
    if (client_cert is None) != (client_key is None):
        raise click.UsageError("--client-cert and --client-key go together")
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise click.UsageError(f"--url: {url!r} is not http://HOST:PORT or https://HOST:PORT")
    if (ca or client_cert or server_name) and not url.startswith("https:"):
        raise click.UsageError("--ca, --client-cert and --server-name are for an https --url")
    try:
        wiring = Wiring(
            url,
            version,
            ca.read_bytes() if ca else None,
            (client_cert.read_bytes(), client_key.read_bytes()) if client_cert and client_key else None,
            server_name,
        )
        if manifest is None:
            click.echo(text_of(render(wiring, scheduler_kubeconfig), wiring), nl=False)
            return
        pod = StaticPod(manifest, config_file, backup_dir)
        if undo:
            _report_undo(pod, dry_run)
            return
        change = pod.plan(wiring, scheduler_kubeconfig)
        if dry_run:
            click.echo(f"# {config_file}\n{change.config}---\n# {manifest}\n{change.manifest}", nl=False)
            return
        changed = pod.apply(change)
    except OSError as error:
        click.echo(f"error: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    for line in changed or ["nothing to do: it is wired already"]:
        click.echo(line)


def _report_undo(pod: StaticPod, dry_run: bool) -> None:
    if dry_run:
        click.echo(pod.without_us() or "# nothing of ours in it\n", nl=False)
        return
    for line in pod.undo() or ["nothing to undo: nothing of ours in it"]:
        click.echo(line)
