"""Checks that the runtime which kubelet uses gives containers access to GPUs. Pure.

A container gets a GPU in one of two ways. By CDI, the runtime itself adds what a specification names; nothing
else of the host changes, and no environment variable shows a GPU to anybody. Or every container goes through
NVIDIA's runtime, which adds the GPUs that NVIDIA_VISIBLE_DEVICES names, as gpushare's installation wants it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuslice.doctor.checks.say import listed
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.host.driver import TOOLKIT_FILE
from gpuslice.doctor.host.engines import GENERATE, Engine, engine_of
from gpuslice.doctor.host.look import Host
from gpuslice.doctor.host.runtime import Runtime


def check(host: Host) -> Iterator[Finding]:
    """What keeps GPUs from containers; the nearest to working decides what is said."""
    used = host.used
    if used is None or _unsaid(host, used):
        return
    if used.overridden:
        yield _overridden(used)
    if used.by_default:
        yield from _mode(host)
    elif not host.by_cdi:
        yield _unreached(host, used)


def _unsaid(host: Host, used: Runtime) -> bool:
    """True if a file that would tell cannot be read: that is a finding already, and anything else a guess."""
    paths = [*(one.path for one in host.broken), *host.denied]
    return any(
        engine_of(path) is used.engine or path.rpartition("/")[0] in used.cdi_folders for path in paths
    )


def _overridden(used: Runtime) -> Finding:
    return Finding(
        Area.RUNTIME,
        "dropin-replaces",
        Level.WARNING,
        f"File{used.overridden}",
        f"{used.overridden} has a section of the CRI plugin without NVIDIA's runtime: before containerd 2.0 "
        "it replaces the whole section of the files before it, and NVIDIA's runtime is gone",
        f"containerd config dump | grep nvidia   # if it prints nothing: move its lines into {used.file}\n"
        f"{used.care.restart}",
    )


def _mode(host: Host) -> Iterator[Finding]:
    """Every container goes through NVIDIA's runtime: is that in order?"""
    folders = host.toolkit.spec_folders
    if host.toolkit.mode == "cdi" and not any(one.folder in folders for one in host.specs):
        yield _no_spec(
            f"File{TOOLKIT_FILE}",
            f"NVIDIA's runtime is in mode cdi ({TOOLKIT_FILE}), but no CDI specification of NVIDIA's GPUs is "
            f"in {listed(folders)}: containers with a GPU cannot start",
            f"{GENERATE}\n# or, without CDI: sudo nvidia-ctk config --in-place --set "
            "nvidia-container-runtime.mode=auto",
        )


def _unreached(host: Host, used: Runtime) -> Finding:
    """Containers start and see no GPU. Why, and what is nearest to working?"""
    others = [one for one in host.runtimes.values() if one.engine is not used.engine and one.nvidia]
    if used.misplaced:
        return _misplaced(used)
    if used.nvidia:
        return _not_default(used)
    if used.unread:
        return _unread(used)
    if host.specs and not used.cdi:
        return _cdi_off(host, used)
    if others:
        return _elsewhere(used, others[0])
    if used.cdi:
        return _cdi_without_spec(host, used)
    return _unknown(used)


def _misplaced(used: Runtime) -> Finding:
    until = used.misplaced_until
    return Finding(
        Area.RUNTIME,
        "section-ignored",
        Level.WARNING if until else Level.ERROR,
        f"File{used.misplaced}",
        f"{used.misplaced} configures NVIDIA's runtime in a section that containerd does not read in a file "
        'of that version: it is [plugins."io.containerd.grpc.v1.cri"] in version 2 and '
        '[plugins."io.containerd.cri.v1.runtime"] from version 3 on'
        + (f"; only containerd {until} and newer reads it all the same" if until else ""),
        used.care.set_default,
    )


def _not_default(used: Runtime) -> Finding:
    classes = used.engine is not Engine.DOCKER
    return Finding(
        Area.RUNTIME,
        "runtime-not-default",
        Level.WARNING if classes else Level.ERROR,
        f"File{used.file}",
        f"{used.engine} knows NVIDIA's runtime ({listed(used.nvidia)}), but its default is {used.default}: "
        + (
            f"only pods with runtimeClassName: {used.nvidia[0]} see GPUs"
            if classes
            else "containers see no GPU"
        ),
        used.care.set_default,
    )


def _unread(used: Runtime) -> Finding:
    where, step = 'imports = ["/etc/containerd/conf.d/*.toml"]', ""
    if used.engine is Engine.CRIO:
        step = f"sudo mv {used.unread} /etc/crio/crio.conf.d/ && {used.care.restart}"
        why = "CRI-O reads only /etc/crio/crio.conf and /etc/crio/crio.conf.d (nvidia-ctk 1.18 errs)"
    elif used.engine is Engine.CONTAINERD:
        step = f"sudoedit {used.care.file} && {used.care.restart}   # at its top, or in its imports: {where}"
        why = f"{used.care.file} does not import it"
    else:
        step, why = (
            used.care.set_default,
            f"{used.engine} has a containerd of its own and reads only {used.care.file}",
        )
    return Finding(
        Area.RUNTIME,
        "dropin-unread",
        Level.ERROR,
        f"File{used.unread}",
        f"{used.unread} configures NVIDIA's runtime, but {why}: containers see no GPU",
        step,
    )


def _cdi_off(host: Host, used: Runtime) -> Finding:
    spec, first = host.specs[0].path, "28.2" if used.engine is Engine.DOCKER else "2.0"
    if used.cdi is False:
        level, said = Level.ERROR, f"{used.engine} has CDI switched off ({used.file}): containers see no GPU"
        if used.engine not in (Engine.DOCKER, Engine.CRIO):
            said += " (only from 2.4 on CDI cannot be switched off)"
    else:
        level = Level.WARNING
        said = (
            f"{used.engine} has CDI on only from {first} or if its file says so, and {used.file} does not: "
            "an older one shows containers no GPU"
        )
    return Finding(
        Area.RUNTIME,
        "cdi-off",
        level,
        f"File{used.file}",
        f"{spec} describes NVIDIA's GPUs and NVIDIA's runtime is not the default, but {said}",
        used.care.enable_cdi,
    )


def _elsewhere(used: Runtime, other: Runtime) -> Finding:
    return Finding(
        Area.RUNTIME,
        "runtime-elsewhere",
        Level.ERROR,
        f"File{used.file}",
        f"{other.file} configures NVIDIA's runtime for {other.engine}, but kubelet uses {used.engine}, which "
        "does not know it: containers see no GPU",
        _cure(used),
    )


def _cure(used: Runtime) -> str:
    """CDI where the runtime has it."""
    if used.cdi:
        return f"{GENERATE}\n# or, without CDI: {used.care.set_default}"
    return used.care.set_default


def _cdi_without_spec(host: Host, used: Runtime) -> Finding:
    beside = f" ({host.specs[0].path} is where it does not look)" if host.specs else ""
    generate = GENERATE
    if "/etc/cdi" not in used.cdi_folders:
        generate = f"sudo nvidia-ctk cdi generate --output={used.cdi_folders[0]}/nvidia.yaml"
    return _no_spec(
        f"File{used.cdi_folders[0]}",
        f"{used.engine} has CDI, but no specification of NVIDIA's GPUs is in {listed(used.cdi_folders)}"
        f"{beside}, and NVIDIA's runtime is not its default: containers see no GPU",
        f"{generate}\n# or, without CDI: {used.care.set_default}",
    )


def _no_spec(where: str, sentence: str, remedy: str) -> Finding:
    return Finding(Area.RUNTIME, "cdi-spec-missing", Level.ERROR, where, sentence, remedy)


def _unknown(used: Runtime) -> Finding:
    named = "nvidia" in used.handlers
    return Finding(
        Area.RUNTIME,
        "runtime-missing",
        Level.ERROR,
        f"File{used.file}",
        f"{used.engine} does not know NVIDIA's runtime ({used.file}"
        + (f" has a handler nvidia, which runs {used.handlers['nvidia'] or 'runc'}" if named else "")
        + "): containers start, but see no GPU",
        _cure(used),
    )
