"""What cert-manager does for one installation: issues the chart's Certificate, tells the API server whom to trust.

Its own image is not at hand; its API is: the custom resources, the Secret that it writes, the annotation that its
cainjector heeds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .cluster import ApiError, Object, RealCluster

KINDS = {"certificates": "Certificate", "issuers": "Issuer"}
INJECT = "cert-manager.io/inject-ca-from"


@contextmanager
def cert_manager(cluster: RealCluster, namespace: str, certificate: str, webhook: str) -> Iterator[None]:
    """Issue that certificate as soon as it is asked for. Raises what went wrong on the way at the end."""
    cluster.apply([_definition(plural, kind) for plural, kind in KINDS.items()])
    definitions = [f"customresourcedefinition/{plural}.cert-manager.io" for plural in KINDS]
    cluster.kubectl("wait", "--for=condition=Established", *definitions)
    with ThreadPoolExecutor(1) as pool:
        issuing = pool.submit(_issue, cluster, namespace, certificate, webhook)
        try:
            yield
        finally:
            issuing.result()
            cluster.kubectl("delete", *definitions)


def _issue(cluster: RealCluster, namespace: str, certificate: str, webhook: str) -> None:
    path = f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates/{certificate}"
    hooks = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{webhook}"

    def asked() -> tuple[Object, Object] | None:
        try:
            return cluster.request("GET", path), cluster.request("GET", hooks)
        except ApiError:
            return None

    wanted, hook = cluster.wait(asked, 60, f"the Certificate {certificate} and the webhook")
    assert hook["metadata"]["annotations"][INJECT] == f"{namespace}/{certificate}"
    names = [*wanted["spec"]["dnsNames"], *wanted["spec"].get("ipAddresses", ())]
    authority = cluster.plane.authority
    issued, key = authority.issue("cert-manager", "gpuslice", names=names)
    files = {"tls.crt": issued, "tls.key": key, "ca.crt": authority.certificate}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": wanted["spec"]["secretName"], "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {name: _encoded(file) for name, file in files.items()},
    }
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    trust = [
        {
            "op": "add",
            "path": f"/webhooks/{n}/clientConfig/caBundle",
            "value": _encoded(authority.certificate),
        }
        for n in range(len(hook["webhooks"]))
    ]
    cluster.request("PATCH", hooks, trust, "application/json-patch+json")


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _definition(plural: str, kind: str) -> Object:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
