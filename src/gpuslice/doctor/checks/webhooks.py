"""Checks that the API server can reach our webhook and trusts its certificate."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from gpuslice.doctor.facts import Facts
from gpuslice.doctor.finding import Area, Finding, Level
from gpuslice.doctor.objects import Webhook, WebhookConfiguration
from gpuslice.observe.addresses import is_loopback
from gpuslice.observe.certificates import Certificate, carries, from_der, from_pem, issued_by

ENDING: Final = timedelta(days=15)
"""Ours are renewed when 30 days are left, cert-manager's of 90 days as well."""


def check(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Every webhook of ours."""
    if "mutatingwebhookconfigurations" in facts.blind or not facts.installed:
        return
    if not facts.hooks:
        yield Finding(
            Area.WEBHOOK,
            "webhook-absent",
            Level.WARNING,
            "MutatingWebhookConfiguration",
            "there is no MutatingWebhookConfiguration of gpuslice, so a pod that sets NVIDIA_VISIBLE_DEVICES "
            "itself sees every GPU of its node",
            "restart gpuslice up, which registers its webhook"
            if facts.in_one_process
            else "helm upgrade gpuslice deploy/helm/gpuslice -n gpuslice-system --reuse-values "
            "--set webhook.enabled=true",
        )
    for configuration, hook in facts.hooks:
        yield from _Hook(facts, configuration, hook, now).check()


class _Hook:
    """One webhook of ours. What is wrong with it stops pods if it fails closed, else it leaves them alone."""

    def __init__(
        self, facts: Facts, configuration: WebhookConfiguration, hook: Webhook, now: datetime
    ) -> None:
        self._facts = facts
        self._hook = hook
        self._now = now
        self._where = f"MutatingWebhookConfiguration/{configuration.name}"
        self._level = Level.ERROR if hook.failure_policy == "Fail" else Level.WARNING
        if hook.failure_policy != "Fail":
            self._effect = "so pods are let in that set NVIDIA_VISIBLE_DEVICES beside their request"
        elif hook.match_conditions:
            self._effect = (
                "so the API server refuses pods that set NVIDIA_VISIBLE_DEVICES beside their request"
            )
        else:
            self._effect = "so the API server refuses every new pod (kube-system excepted)"
        self._remedy = (
            f"kubectl -n {facts.schedulers[0].workload.namespace} rollout restart deployment "
            f"{facts.schedulers[0].workload.name}   # it renews its certificate and tells the API server"
            if facts.schedulers
            else "restart gpuslice up, which registers its webhook anew"
        )

    def check(self) -> Iterator[Finding]:
        reached = list(self._reach())
        yield from reached
        authorities, broken = _bundle(self._hook.client_config.ca_bundle)
        if broken:
            yield self._say("ca-bundle-broken", self._where, f"{broken}, {self._effect}", self._remedy)
        elif not authorities and not self._hook.client_config.url:
            yield self._say(
                "ca-bundle-missing",
                self._where,
                f"the caBundle of {self._where} is empty: the API server trusts no certificate of ours, "
                f"{self._effect}",
                self._remedy,
            )
        if not reached or not self._hook.client_config.url:
            yield from self._certificates(authorities, judge_signer=not broken)

    def _say(self, code: str, where: str, sentence: str, remedy: str, level: Level | None = None) -> Finding:
        return Finding(Area.WEBHOOK, code, level or self._level, where, sentence, remedy)

    def _reach(self) -> Iterator[Finding]:
        config = self._hook.client_config
        if config.url:
            answer = self._facts.served.get(config.url)
            if answer is not None and answer.problem:
                # From another machine than the API server's, its loopback is somebody else.
                unsure = is_loopback(urlsplit(config.url).hostname or "") and not self._facts.in_one_process
                yield self._say(
                    "webhook-unreachable",
                    self._where,
                    f"{self._where} is at {config.url}, where nobody answers ({answer.problem}), "
                    f"{self._effect}",
                    self._remedy,
                    Level.WARNING if unsure else None,
                )
            return
        service = config.service
        if service is None or "services" in self._facts.blind:
            return
        key = f"{service.namespace}/{service.name}"
        if not any(one.key == key for one in self._facts.services):
            yield self._say(
                "webhook-unreachable",
                self._where,
                f"{self._where} leads to Service {key}, which does not exist, {self._effect}",
                f"helm upgrade gpuslice deploy/helm/gpuslice -n {service.namespace} --reuse-values\n"
                f"kubectl delete {self._where.lower()}   # if gpuslice is not to be there any more",
            )
        elif "endpointslices" not in self._facts.blind and not sum(
            one.ready
            for one in self._facts.slices
            if one.service == service.name and one.namespace == service.namespace
        ):
            yield self._say(
                "webhook-unreachable",
                self._where,
                f"{self._where} leads to Service {key}, which has no ready endpoint, {self._effect}",
                f"kubectl -n {service.namespace} get pods -l app.kubernetes.io/component=scheduler",
            )

    def _certificates(self, authorities: Sequence[Certificate], *, judge_signer: bool) -> Iterator[Finding]:
        config = self._hook.client_config
        if config.url:
            answer = self._facts.served.get(config.url)
            if answer is not None and answer.certificate:
                chain = [from_der(answer.certificate)]
                host = urlsplit(config.url).hostname or ""
                yield from self._judge(chain, host, config.url, authorities, judge_signer=judge_signer)
            return
        if config.service is None or "secrets" in self._facts.blind:
            return
        host = f"{config.service.name}.{config.service.namespace}.svc"
        for key in {key for one in self._facts.schedulers for key in one.secrets}:
            secret = self._facts.secrets.get(key)
            chain = from_pem(_decoded((secret.data or {}).get("tls.crt", ""))) if secret else []
            if not chain:
                what = "holds no certificate" if secret else "does not exist"
                yield self._say(
                    "certificate-missing",
                    f"Secret/{key}",
                    f"Secret {key} {what}, so the webhook cannot answer",
                    self._remedy
                    if secret
                    else f"helm upgrade gpuslice deploy/helm/gpuslice -n {key.partition('/')[0]} "
                    "--reuse-values",
                )
                continue
            yield from self._judge(chain, host, f"Secret/{key}", authorities, judge_signer=judge_signer)

    def _judge(
        self,
        chain: Sequence[Certificate],
        host: str,
        where: str,
        authorities: Sequence[Certificate],
        *,
        judge_signer: bool,
    ) -> Iterator[Finding]:
        leaf = chain[0]
        left = leaf.not_valid_after_utc - self._now
        begins = f"{leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        ends = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        if left <= timedelta():
            yield self._say(
                "certificate-expired",
                where,
                f"the webhook's certificate ({where}) expired on {ends}, {self._effect}",
                self._remedy,
            )
        elif leaf.not_valid_before_utc > self._now:
            yield self._say(
                "certificate-not-yet-valid",
                where,
                f"the webhook's certificate ({where}) begins on {begins} only (is a clock wrong?), "
                f"{self._effect}",
                self._remedy,
            )
        elif left < ENDING:
            yield self._say(
                "certificate-ending",
                where,
                f"the webhook's certificate ({where}) ends on {ends} and nobody has renewed it",
                self._remedy,
                Level.WARNING,
            )
        if not carries(leaf, host):
            yield self._say(
                "certificate-wrong-name",
                where,
                f"the webhook's certificate ({where}) does not carry the name {host} under which the API "
                f"server calls it, {self._effect}",
                self._remedy,
            )
        if judge_signer and authorities and not _signed(leaf, chain[1:], authorities):
            yield self._say(
                "certificate-wrong-authority",
                where,
                f"the webhook's certificate ({where}) was not signed by the authority in the caBundle of "
                f"{self._where}, {self._effect}",
                self._remedy,
            )


def _bundle(text: str) -> tuple[list[Certificate], str]:
    """The authorities in a caBundle, and what is wrong with it."""
    if not text:
        return [], ""
    found = from_pem(_decoded(text))
    return found, "" if found else "its caBundle holds no certificate"


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _signed(
    certificate: Certificate,
    between: Sequence[Certificate],
    authorities: Sequence[Certificate],
) -> bool:
    """Does one of the authorities vouch for it, perhaps through the certificates that came with it?"""
    if certificate in authorities or any(issued_by(certificate, one) for one in authorities):
        return True
    return any(
        issued_by(certificate, one) and _signed(one, [c for c in between if c != one], authorities)
        for one in between
    )
