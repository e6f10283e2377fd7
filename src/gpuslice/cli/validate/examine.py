"""What is wrong with the GPU requests in manifests: the API server's answer without one, and ours.

NVIDIA's own files, which have no kind, are read by the same readers as on a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from gpuslice.config.migparted import MigPartedFile
from gpuslice.config.nvidia import VERSION, NvidiaConfig
from gpuslice.config.reader import explain, load_yaml, load_yamls
from gpuslice.errors import InputError
from gpuslice.kube.wire import PodSpec
from gpuslice.requests.check import check_pod
from gpuslice.requests.historical import translate
from gpuslice.requests.pod import read_request

Json = dict[str, Any]
_OF_NVIDIA: Final = frozenset({"flags", "sharing", "mig-configs"})
"""Keys at the top of files that have no kind."""


class Level(StrEnum):
    """Does it keep the pod from running as it is meant?"""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one field of an object ("Deployment default/web")."""

    level: Level
    file: str
    object: str
    field: str
    sentence: str

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{self.file}: {self.object}: {self.level}: {where}{self.sentence}"


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found in a file; how many pods (a template is one) and configurations it has."""

    pods: int
    configurations: int
    findings: tuple[Finding, ...]


def examine(text: str, *, file: str) -> Examined:
    """Look at every document of a file. Raises InputError for what is none that we know."""
    pods = configurations = 0
    findings: list[Finding] = []
    for number, document in enumerate(load_yamls(text), 1):
        if isinstance(document, dict) and "kind" not in document and {*_OF_NVIDIA, "version"} & set(document):
            configurations += 1
            findings += _configuration(document, file)
            continue
        for body in _objects(document, f"document {number}"):
            name = _name(body)
            for key, configuration in _carried(body):
                configurations += 1
                findings += _configuration(configuration, file, f"{name}, data[{key}]: ")
            for path, template in _templates(body, ""):
                pods += 1
                for level, field, sentence in _judge(template):
                    where = f"{path}.{field}" if path else field
                    findings.append(Finding(level, file, name, where, sentence))
    return Examined(pods, configurations, tuple(findings))


def _carried(body: Json) -> Iterator[tuple[str, Json]]:
    """The configurations that a ConfigMap carries. Files of others have flags, too, so it must be v1."""
    data = body.get("data")
    for key, text in (data if body["kind"] == "ConfigMap" and isinstance(data, dict) else {}).items():
        try:
            document = load_yaml(str(text))
        except InputError:
            continue
        if isinstance(document, dict) and document.get("version") == VERSION and _OF_NVIDIA & set(document):
            yield key, document


def _configuration(document: Json, file: str, where: str = "") -> Iterator[Finding]:
    """Of NVIDIA's device plugin, or of mig-parted; `where` it is carried."""
    partition = "mig-configs" in document
    name = where + ("mig-parted configuration" if partition else "device plugin configuration")
    try:
        if partition:
            for error in MigPartedFile.read(document).refused.values():
                yield _error(file, name, error)
            return
        warnings = NvidiaConfig.read(document).warnings
    except InputError as error:
        yield _error(file, name, error)
        return
    for warning in warnings:
        field, _, sentence = warning.partition(": ")
        yield Finding(Level.WARNING, file, name, field, sentence)


def _error(file: str, name: str, error: InputError) -> Finding:
    return Finding(Level.ERROR, file, name, error.field, error.detail)


def _objects(document: Any, where: str) -> Iterator[Json]:
    if document is None:
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InputError("expected a Kubernetes object with apiVersion and kind", field=where)
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        for position, item in enumerate(document["items"]):
            yield from _objects(item, f"{where}, items[{position}]")
        return
    yield document


def _name(body: Json) -> str:
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    namespace = metadata.get("namespace")
    return f"{body['kind']} {namespace}/{name}" if namespace else f"{body['kind']} {name}"


def _templates(value: Any, path: str) -> Iterator[tuple[str, Json]]:
    """A pod, and every pod template at whatever depth: custom resources have theirs anywhere."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield path, value
            return
        for key, part in value.items():
            yield from _templates(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for position, part in enumerate(value):
            yield from _templates(part, f"{path}[{position}]")


def _judge(template: Json) -> Iterator[tuple[Level, str, str]]:
    translation = translate(template)
    for note in translation.warnings:
        yield Level.WARNING, note.field, note.sentence
    for note in translation.problems:
        yield Level.ERROR, note.field, note.sentence
    try:
        spec = msgspec.convert(translation.pod["spec"], PodSpec)
    except msgspec.ValidationError as error:
        sentence, place = explain(str(error))
        yield Level.ERROR, f"spec.{place}" if place else "spec", sentence
        return
    problems = check_pod(spec)
    for problem in problems:
        yield Level.ERROR, problem.field, problem.detail
    if problems:
        return
    metadata = translation.pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    try:
        read_request(spec, annotations if isinstance(annotations, dict) else {})
    except InputError as error:
        yield Level.ERROR, error.field, error.detail
