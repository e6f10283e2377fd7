"""Regenerates src/gpuslice/local/apiserver/schema/kubernetes.schema from a real API server and the Kubernetes API module.

    python tests/apiserver/make_schema.py OPENAPI_DIR PROTO_DIR > src/gpuslice/local/apiserver/schema/kubernetes.schema

OPENAPI_DIR holds the answers of /openapi/v3/<group version> of the groups to be served, one file each;
PROTO_DIR is a folder with the modules k8s.io/api, apimachinery and apiextensions-apiserver of the same version.
The OpenAPI gives names, types, required fields, merge keys and list types; the .proto files give the field
numbers that kubectl's typed commands (create deployment, drain) write on the wire.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intorstring",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "microtime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
}
GO_ALIAS = {"io.k8s.apiextensions_apiserver.": "io.k8s.apiextensions-apiserver."}


def messages(folder: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Message name as in OpenAPI -> field -> (number, type)."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for file in sorted(folder.rglob("generated.proto")):
        text = re.sub(r"//.*", "", file.read_text())
        package = re.search(r"^package ([\w.]+);", text, re.M)
        if package is None:
            continue
        prefix = "io.k8s." + package[1].removeprefix("k8s.io.")
        for old, new in GO_ALIAS.items():
            prefix = (prefix + ".").replace(old, new).rstrip(".")
        for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.M | re.S):
            fields = re.findall(r"(?:optional|repeated|required)?\s*(map<[^>]*>|[\w.]+) (\w+) = (\d+)", body)
            found[f"{prefix}.{name}"] = {
                field: (int(number), kind if "." in kind or kind[0].islower() else f"{prefix}.{kind}")
                for kind, field, number in fields
            }
    return found


def pointers(folder: Path) -> set[tuple[str, str]]:
    """(type, JSON name) of scalar fields that are pointers in Go: their zero value is a value, not an absence."""
    found = set()
    for file in sorted(folder.rglob("types.go")):
        package = "io.k8s." + ".".join(file.parent.parts[file.parent.parts.index(folder.name) + 1 :])
        for name, body in re.findall(r"^type (\w+) struct \{(.*?)^\}", file.read_text(), re.M | re.S):
            for field in re.findall(
                r"\*(?:u?int\d*|bool|string|\w+Policy\w*|\w+Mode|\w+Type)\s+`json:\"([\w-]+)", body
            ):
                found.add((f"{package}.{name}", field))
    return found


def main() -> None:
    schemas: dict[str, dict] = {}
    for file in sorted(Path(sys.argv[1]).glob("api*_v*.json")):
        schemas.update(json.loads(file.read_text())["components"]["schemas"])
    proto = messages(Path(sys.argv[2]))
    pointing = pointers(Path(sys.argv[2]))

    def inline(name: str, wanted: set[str], prefix: str = "") -> dict[str, str]:
        numbers = {}
        for field, (number, kind) in proto.get(name, {}).items():
            full = "io.k8s." + kind.removeprefix("k8s.io.") if kind.startswith("k8s.io") else kind
            if field in wanted:
                numbers[field] = f"{prefix}{number}"
            elif full in proto and not prefix.count("."):
                for inner, path in inline(full, wanted, f"{prefix}{number}.").items():
                    numbers.setdefault(inner, path)
        return numbers

    def show(schema: dict) -> str:
        if "$ref" in schema or "allOf" in schema:
            ref = schema.get("$ref") or schema["allOf"][0]["$ref"]
            name = ref.rsplit("/", 1)[1]
            if name in SPECIAL:
                return SPECIAL[name]
            if "properties" not in schemas.get(name, {}):
                return "any"
            return name.removeprefix("io.k8s.")
        match schema.get("type"):
            case "array":
                return f"[{show(schema['items'])}]"
            case "object":
                return (
                    f"{{{show(schema['additionalProperties'])}}}"
                    if "additionalProperties" in schema
                    else "any"
                )
            case "string":
                return {"byte": "bytes", "date-time": "time"}.get(schema.get("format", ""), "string")
            case "integer" | "boolean" | "number" as kind:
                return kind
        return "any"

    print(
        "# The Kubernetes API 1.36: types, fields, protobuf numbers, merge keys. Made by tests/apiserver/make_schema.py;"
    )
    print("# do not edit. Facts of Kubernetes (Apache-2.0, The Kubernetes Authors).")
    print(
        "# type NAME [atomic] / <tab> field number type [! required] [pointer] [merge=key] [retain] [keys=..] [set] [atomic] [default=..]"
    )
    for name, schema in sorted(schemas.items()):
        properties = schema.get("properties")
        if not properties or name in SPECIAL or name.endswith("List"):
            continue
        if ".api.flowcontrol" in name or ".api.certificates" in name or ".kube-aggregator." in name:
            continue
        if ".admissionregistration." in name and "MutatingAdmissionPolicy" in name:
            continue
        print(
            "type",
            name.removeprefix("io.k8s."),
            *(["atomic"] if schema.get("x-kubernetes-map-type") == "atomic" else []),
        )
        numbers = inline(name, set(properties))
        for field, one in sorted(properties.items()):
            words = [field, numbers.get(field, "0"), show(one)]
            if field in schema.get("required", ()):
                words.append("!")
            if (name, field) in pointing:
                words.append("pointer")
            strategy = one.get("x-kubernetes-patch-strategy", "")
            if "merge" in strategy:
                words.append(f"merge={one.get('x-kubernetes-patch-merge-key', '')}")
            if "retainKeys" in strategy:
                words.append("retain")
            match one.get("x-kubernetes-list-type"):
                case "map":
                    words.append(f"keys={','.join(one['x-kubernetes-list-map-keys'])}")
                case "set":
                    words.append("set")
            if one.get("x-kubernetes-map-type") == "atomic":
                words.append("atomic")
            default = one.get("default")
            if default not in (None, "", {}, [], 0, False):
                words.append(f"default={default}")
            print("", *words, sep="\t")


if __name__ == "__main__":
    main()
