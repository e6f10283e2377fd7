"""What people write into values: wrong things are refused with a sentence, right ones do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from chart_world import CASES, CHART, Case, Refused, find, objects, render

from gpuslice import names
from gpuslice.admission.mutate import webhook_configuration
from gpuslice.admission.possession import RECORDS
from gpuslice.admission.visibility import PROTECTED
from gpuslice.cli.install.cleaning import ANNOTATIONS
from gpuslice.cluster.predicates import node_refusal, rules_of
from gpuslice.config.devices import DevicesFile
from gpuslice.config.migparted import MigPartedFile
from gpuslice.config.nodeconfig import Fallback
from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.config.nvidiaflags import Flags
from gpuslice.devices.labels import _OURS, _RESOURCE_KEYS
from gpuslice.kube.wire import Node, ObjectMeta, PodSpec
from gpuslice.node.inject.cdi import FOLDER
from gpuslice.node.pluginconfig import ConfigFiles


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"scheduler": {"mod": "own"}}, "additional properties 'mod' not allowed"),
        ({"scheduler": {"mode": "both"}}, "at '/scheduler/mode': value must be one of"),
        ({"scheduler": {"replicas": 0}}, "at '/scheduler/replicas': minimum"),
        ({"scheduler": {"ports": {"webhook": 70000}}}, "at '/scheduler/ports/webhook': maximum"),
        ({"policy": "packed"}, "at '/policy': value must be one of"),
        ({"memoryUnit": "2GB"}, "at '/memoryUnit': '2GB' does not match"),
        ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy'"),
        ({"agent": {"kubeletDir": "var/lib/kubelet"}}, "at '/agent/kubeletDir'"),
        ({"agent": {"tolerations": [{"keys": "x"}]}}, "additional properties 'keys' not allowed"),
        ({"agent": {"resources": {"request": {}}}}, "additional properties 'request' not allowed"),
        ({"webhook": {"url": "http://127.0.0.1/mutate"}}, "at '/webhook/url'"),
        ({"webhook": {"envFrom": "resolve"}}, "webhook.envFrom resolve needs agent.deviceListStrategy"),
        ({"nodeSelector": {"a": "b"}}, "additional properties 'nodeSelector' not allowed"),
        ({"agent": {"migStrategy": "all"}}, "at '/agent/migStrategy': value must be one of"),
        (
            {"agent": {"deviceListStrategy": ["cdi"]}},
            "at '/agent/deviceListStrategy/0': value must be one of",
        ),
        ({"agent": {"deviceListStrategy": ["cdi-cri"]}}, "GPUs on paper have no files"),
        ({"agent": {"passDeviceSpecs": True}}, "GPUs on paper have no files"),
        ({"agent": {"driverRoot": "run/nvidia"}}, "at '/agent/driverRoot'"),
        ({"agent": {"migConfigs": "a: [b"}}, "agent.migConfigs must be a file of mig-parted's"),
        ({"agent": {"migConfigs": "version: v1"}}, "agent.migConfigs must be a file of mig-parted's"),
        ({"agent": {"config": {"a": "b: [c"}}}, "agent.config.a is no YAML"),
        ({"agent": {"config": {"a/b": ""}}}, "invalid propertyName 'a/b'"),
        ({"agent": {"defaultConfig": "x"}}, 'agent.defaultConfig: there is no "x" in agent.config'),
        (
            {"agent": {"migNodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": {}}}},
            "agent.migNodeSelector and agent.affinity",
        ),
        ({"agent": {"devices": {"simulated": "a: [b"}}}, "agent.devices.simulated is no YAML"),
        ({"agent": {"devices": {"simulated": "kind: Cluster"}}}, "must be a document of kind Devices"),
        ({"tls": {"mode": "provided"}}, "needs tls.provided.secretName"),
        (
            {"tls": {"mode": "certManager"}, "scheduler": {"mode": "extender"}},
            "needs scheduler.service.clientCASecret",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_place(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        render(Case(values))
    assert sentence in str(refused.value)


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    """A value that the schema lacks could not be set; one that values.yaml lacks would not be documented."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert _leaves(values, schema) == []


def _leaves(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    known = schema.get("properties", {})
    wrong = [f"{path}/{key}" for key in values.keys() ^ known.keys() - {"global"}]
    for key, value in values.items():
        below = known.get(key, {})
        if isinstance(value, dict) and value and "properties" in below and key != "simulated":
            wrong += _leaves(value, below, f"{path}/{key}")
    return wrong


def test_the_devices_are_what_the_agent_reads() -> None:
    text = find(render(CASES["bundled"]), "ConfigMap", "gpuslice-devices")["data"]["devices.yaml"]
    assert [gpu.model for gpu in DevicesFile.parse(text).inventory("n").gpus] == ["Tesla T4", "Tesla T4"]
    old = find(render(CASES["managed-cluster-of-old"]), "ConfigMap", "team-a-gpuslice-devices")
    assert str(DevicesFile.parse(old["data"]["devices.yaml"]).inventory("n").unit) == "256MiB"


def test_for_cdi_the_agent_sees_the_driver_and_the_folder_of_specifications() -> None:
    """Where it writes is what the host's runtime reads, and the driver is where the agent looks for it."""
    pod = find(render(CASES["cdi-and-mig"]), "DaemonSet", "gpuslice-agent")["spec"]["template"]["spec"]
    mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert mounts["cdi"] == {"name": "cdi", "mountPath": FOLDER}
    assert paths["cdi"] == FOLDER
    assert mounts["driver-root"]["mountPath"] == Flags().container_driver_root
    assert mounts["driver-root"]["readOnly"]
    assert paths["driver-root"] == "/run/nvidia/driver"
    plain = render(Case({"agent": {"devices": {"simulated": ""}}}))
    assert "driver-root" not in plain
    assert "/var/run/cdi" not in plain


def test_only_who_counts_or_cuts_mig_devices_may_administer_gpus() -> None:
    def capabilities(**agent: object) -> list[str]:
        text = render(Case({"agent": {"devices": {"simulated": ""}, **agent}}))
        pod = find(text, "DaemonSet", "gpuslice-agent")["spec"]["template"]["spec"]
        rights = pod["containers"][0]["securityContext"]["capabilities"]
        assert rights["drop"] == ["ALL"]
        return list(rights.get("add", []))

    assert capabilities() == []
    assert capabilities(migStrategy="single") == ["SYS_ADMIN"]
    assert capabilities(migManager=True) == ["SYS_ADMIN"]


def test_where_the_nodes_to_be_cut_are_named_no_other_agent_may_administer_gpus() -> None:
    """Each node has one agent: the selectors are each other's opposite."""
    labels = {"cut": "yes", "rack": "7"}
    values = {
        "devices": {"simulated": ""},
        "migStrategy": "mixed",
        "migManager": True,
        "migNodeSelector": labels,
    }
    text = render(Case({"agent": values}))
    plain = find(text, "DaemonSet", "gpuslice-agent")["spec"]
    partitioning = find(text, "DaemonSet", "gpuslice-agent-mig")["spec"]

    def rights(spec: dict[str, Any]) -> tuple[list[str], set[str]]:
        (container,) = spec["template"]["spec"]["containers"]
        asked = {variable["name"] for variable in container["env"] if "_MIG_" in variable["name"]}
        return container["securityContext"]["capabilities"].get("add", []), asked

    assert rights(plain) == ([], set())
    assert rights(partitioning) == (
        ["SYS_ADMIN"],
        {"NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES"},
    )
    assert (
        not partitioning["selector"]["matchLabels"].items() <= plain["template"]["metadata"]["labels"].items()
    )

    def runs_on(spec: dict[str, Any], node: dict[str, str]) -> bool:
        rules = rules_of(msgspec.convert(spec["template"]["spec"], PodSpec))
        pool = Node(metadata=ObjectMeta(name="n", labels={names.LABEL_GPUSHARE: "true", **node}))
        return not node_refusal(rules, pool)

    for node in ({}, {"cut": "yes"}, {"rack": "7"}, {"cut": "no", "rack": "7"}, labels):
        assert [runs_on(plain, node), runs_on(partitioning, node)] == [node != labels, node == labels], node


def test_the_configurations_of_mig_are_what_the_agent_reads(tmp_path: Path) -> None:
    standard = (
        "version: v1\nmig-configs:\n  one:\n  - devices: all\n    mig-enabled: true\n"
        '    mig-devices: {"1g.5gb": 7}\n'
    )
    text = render(Case({"agent": {"migConfigs": standard}}))
    file = tmp_path / "mig-configs.yaml"
    file.write_text(find(text, "ConfigMap", "gpuslice-mig-configs")["data"][file.name])
    assert file.read_text() == standard
    MigPartedFile.load(file)


def test_the_device_plugins_configurations_are_what_the_agent_reads(tmp_path: Path) -> None:
    shared = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 4}\n"
    text = render(Case({"agent": {"config": {"shared": shared, "whole": ""}, "defaultConfig": "whole"}}))
    for name, content in find(text, "ConfigMap", "gpuslice-device-plugin-configs")["data"].items():
        (tmp_path / name).write_text(content)
    pod = find(text, "DaemonSet", "gpuslice-agent")["spec"]["template"]["spec"]
    arguments = dict(one.split("=", 1) for one in pod["containers"][0]["args"] if "=" in one)
    files = ConfigFiles.folder(
        tmp_path,
        arguments["--default-config"],
        tuple(map(Fallback, arguments["--config-fallbacks"].split(","))),
    )
    assert files.choose({}) == ("whole", "")
    assert (
        NvidiaConfig.parse(files.choose({names.DEVICE_PLUGIN_CONFIG: "shared"})[1])
        .sharing.resources[0]
        .replicas
        == 4
    )
    mounts = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert arguments["--config-dir"] in mounts


def test_kube_scheduler_asks_the_extender_beside_it() -> None:
    """Path, resources and port are the extender's own."""
    text = render(Case({"scheduler": {"ports": {"extender": 4444}}}))
    raw = find(text, "ConfigMap", "gpuslice-scheduler")["data"]["scheduler.yaml"]
    config = yaml.safe_load(raw)
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == f"http://127.0.0.1:4444{names.EXTENDER_PREFIX}"
    managed = {one["name"] for one in extender["managedResources"]}
    assert managed == {names.GPU_MEM, names.WHOLE_GPU, names.SHARED_GPU}
    assert config["profiles"] == [{"schedulerName": names.SCHEDULER_NAME}]
    deployment = find(text, "Deployment", "gpuslice-scheduler")
    ours, _ = deployment["spec"]["template"]["spec"]["containers"]
    assert "--listen=127.0.0.1:4444" in ours["args"]


def test_a_new_scheduler_configuration_starts_new_pods_and_nothing_else_does() -> None:
    def checksum(values: dict[str, Any]) -> str:
        deployment = find(render(Case(values)), "Deployment", "gpuslice-scheduler")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({"agent": {"maxUnavailable": 2}})
    assert checksum({}) != checksum({"scheduler": {"kubeScheduler": {"weight": 7}}})


@pytest.mark.parametrize(
    ("server", "tag"),
    [("1.36.3", "v1.36.3"), ("1.31.4-eks-2d5f260", "v1.31.4"), ("v1.30.5-gke.1014001", "v1.30.5")],
)
def test_the_kube_scheduler_is_of_the_api_servers_version(server: str, tag: str) -> None:
    """Managed clusters add suffixes that no registry knows."""
    deployment = find(render(Case(kubernetes=server)), "Deployment", "gpuslice-scheduler")
    image = deployment["spec"]["template"]["spec"]["containers"][1]["image"]
    assert image == f"registry.k8s.io/kube-scheduler:{tag}"


def hooks(case: Case) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = find(render(case), "MutatingWebhookConfiguration", "gpuslice")["webhooks"]
    return found


def test_the_webhook_is_asked_what_it_answers_and_stops_nothing_else() -> None:
    """The rules are the code's own; the conditions name everything that it takes out."""
    hook, others = hooks(CASES["bundled"])
    (ours,) = webhook_configuration(url="https://x")["webhooks"]  # type: ignore[misc, attr-defined]
    for key in (
        "name",
        "rules",
        "reinvocationPolicy",
        "sideEffects",
        "admissionReviewVersions",
        "failurePolicy",
    ):
        assert hook[key] == ours[key]
    (spaces,) = hook["namespaceSelector"]["matchExpressions"]
    assert spaces["values"] == ["kube-system", "gpuslice-system"]
    (condition,) = hook["matchConditions"]
    old = {names.HISTORICAL_GPU_NAME, names.HISTORICAL_AFFINITY}
    resources = {names.GPU_MEM, names.WHOLE_GPU, names.MIG_PREFIX, names.HISTORICAL_GPU}
    assert all(f"'{word}'" in condition["expression"] for word in PROTECTED | RECORDS | old | resources)
    assert "has(object.spec.nodeName)" in condition["expression"]
    assert "matchConditions" not in others
    assert others["failurePolicy"] == "Ignore"
    assert all(others[key] == hook[key] for key in ("clientConfig", "rules", "namespaceSelector"))


def test_without_conditions_an_outage_of_ours_stops_no_pod() -> None:
    """Kubernetes before 1.30 would ask about every pod of the cluster."""
    (hook,) = hooks(Case(kubernetes="1.29.9"))
    assert "matchConditions" not in hook
    assert hook["failurePolicy"] == "Ignore"


def test_gpus_are_hidden_from_other_pods_unless_an_administrator_says_otherwise() -> None:
    def arguments(**webhook: object) -> list[str]:
        text = render(
            Case(
                {
                    "webhook": webhook,
                    "agent": {"deviceListStrategy": ["cdi-cri"], "devices": {"simulated": ""}},
                }
            )
        )
        pod = find(text, "Deployment", "gpuslice-scheduler")["spec"]["template"]["spec"]
        return list(pod["containers"][0]["args"])

    assert not [one for one in arguments() if one.startswith(("--env-from", "--no-hide"))]
    shown = {"hideGPUsFromOtherPods": False, "envFrom": "resolve"}
    assert {"--env-from=resolve", "--no-hide-gpus"} <= set(arguments(**shown))
    (hook,) = hooks(Case({"webhook": {**shown, "envFrom": "allow"}}))
    assert "envFrom" not in hook["matchConditions"][0]["expression"]


def test_the_agent_mounts_exactly_what_it_needs() -> None:
    """And kubelet's folders under their own paths: kubelet mounts slices into containers by them."""
    case = Case({"agent": {"kubeletDir": "/data/kubelet"}})
    pod = find(render(case), "DaemonSet", "gpuslice-agent")["spec"]["template"]["spec"]
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert sorted(host.values()) == [
        f"/data/kubelet/{n}" for n in ("device-plugins", "gpuslice", "pod-resources", "pods")
    ]
    (container,) = pod["containers"]
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert {name: mounted[name] for name in host} == host
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "privileged" not in container["securityContext"]


def test_the_agents_and_the_schedulers_pods_are_not_the_first_to_go() -> None:
    def priority(kind: str, name: str, values: dict[str, Any]) -> object:
        spec = find(render(Case(values)), kind, name)["spec"]["template"]["spec"]
        return spec.get("priorityClassName")

    assert priority("DaemonSet", "gpuslice-agent", {}) == "system-node-critical"
    assert priority("Deployment", "gpuslice-scheduler", {}) == "system-cluster-critical"
    assert priority("DaemonSet", "gpuslice-agent", {"agent": {"priorityClassName": ""}}) is None


def test_an_image_can_be_named_by_its_digest() -> None:
    digest = "sha256:" + "0a" * 32
    kube_scheduler = {"kubeScheduler": {"image": {"digest": digest}}}
    text = render(Case({"image": {"digest": digest, "tag": "1"}, "scheduler": kube_scheduler}))
    images = {
        container["image"]
        for one in objects(text)
        if one["kind"] in ("Deployment", "DaemonSet", "Job")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"gpuslice@{digest}", f"registry.k8s.io/kube-scheduler@{digest}"}


def test_the_extender_beside_a_kube_scheduler_has_a_token_of_its_own_and_no_other() -> None:
    """The pod's account is kube-scheduler's; who may do its work is not the extender's account."""
    text = render(CASES["bundled"])
    pod = find(text, "Deployment", "gpuslice-scheduler")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    ours, theirs = (
        [volumes[mount["name"]] for mount in container["volumeMounts"]] for container in pod["containers"]
    )
    assert not any("projected" in volume for volume in ours)
    (secret,) = [volume["secret"]["secretName"] for volume in ours if "secret" in volume]
    of = find(text, "Secret", secret)["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert of == "gpuslice-scheduler" != pod["serviceAccountName"]
    assert any("projected" in volume for volume in theirs)
    assert not any("secret" in volume for volume in theirs)
    for one in objects(text):
        if one["kind"].endswith("RoleBinding") and one["roleRef"]["name"].startswith(
            ("system:", "extension-")
        ):
            assert [subject["name"] for subject in one["subjects"]] == [pod["serviceAccountName"]]


def policy(name: str, **agent: object) -> str:
    """All expressions of a policy of the chart."""
    text = render(Case({"agent": agent}))
    spec = find(text, "ValidatingAdmissionPolicy", f"gpuslice-{name}")["spec"]
    assert spec["failurePolicy"] == "Fail"
    parts = (*spec.get("variables", ()), *spec["validations"])
    return "\n".join(part["expression"] for part in parts)


def quoted(text: str) -> set[str]:
    return set(re.findall(r"'([^']*)'", text))


def test_the_policies_protect_every_annotation_that_we_write() -> None:
    """What one writes and the other does not name would be refused, or be anybody's to write."""
    held = {names.ALLOCATION, names.GPUSHARE_ALLOCATION, *names.GPUSHARE_ANNOTATIONS}
    for name in ("pods", "bindings", "agent"):
        assert held <= quoted(policy(name)), name
    published = {*ANNOTATIONS, names.POOL_RECORD}
    for name in ("nodes", "agent"):
        assert published <= quoted(policy(name)), name
    assert {names.BIND_FENCE, names.WOKEN, names.MIG_WANTED, names.POOL_RECORD} <= quoted(policy("scheduler"))


def test_an_agent_may_write_every_label_that_it_owns() -> None:
    """The policy's words are evaluated here as the API server does there."""
    expression = policy("agent")
    (pattern,) = set(re.findall(r"matches\('([^']*)'\)", expression))
    starts = tuple(re.findall(r"startsWith\('([^']*)'\)", expression))

    def may_write(key: str) -> bool:
        return key in quoted(expression) or key.startswith(starts) or re.search(pattern, key) is not None

    own = {*_OURS, *(f"nvidia.com/mig-1g.5gb.me.{key}" for key in _RESOURCE_KEYS), names.MIG_CONFIG_STATE}
    assert [key for key in own if not may_write(key)] == []
    others = (names.MIG_CONFIG, names.LABEL_GPUSHARE, names.MIG_POLICY, "nvidia.com/gpu.deploy.driver")
    assert [key for key in (*others, "nvidia.com/gpu.present", "kubernetes.io/os") if may_write(key)] == []


def test_policies_only_where_the_api_server_has_them_and_unless_told_otherwise() -> None:
    for case in (Case(kubernetes="1.29.9"), Case({"policies": {"enabled": False}})):
        assert "ValidatingAdmissionPolicy" not in render(case)
    assert "nodefeatures" not in render(CASES["bundled"])
    features = find(render(CASES["driver"]), "ValidatingAdmissionPolicy", "gpuslice-agent")
    rules = features["spec"]["matchConstraints"]["resourceRules"]
    assert ["nodefeatures"] in [rule["resources"] for rule in rules]


@pytest.mark.parametrize("name", CASES)
def test_no_rule_grants_everything(name: str) -> None:
    """No wildcards, no Secrets but our own, no right over roles."""
    for one in objects(render(CASES[name])):
        for rule in one.get("rules", ()) if one["kind"] in ("Role", "ClusterRole") else ():
            assert "*" not in rule["resources"] + rule["verbs"] + rule["apiGroups"]
            assert not {"roles", "clusterroles"} & set(rule["resources"])
            assert "secrets" not in rule["resources"] or rule["resourceNames"]


@pytest.mark.parametrize("name", CASES)
def test_every_name_that_is_referred_to_exists(name: str) -> None:
    """A typing error between two templates would show only as a pod that never starts."""
    made = {(o["kind"], o["metadata"]["name"]) for o in objects(render(CASES[name]))}
    made |= {
        ("Secret", o["spec"]["secretName"])
        for o in objects(render(CASES[name]))
        if o["kind"] == "Certificate"
    }
    theirs = {("Secret", "mine"), ("Secret", "api-server-ca"), ("Secret", "scraper"), ("ClusterRole", "system:kube-scheduler"), ("ClusterRole", "system:volume-scheduler"),
              ("Role", "extension-apiserver-authentication-reader")}  # fmt: skip
    for one in objects(render(CASES[name])):
        wanted = set()
        if one["kind"] == "ValidatingAdmissionPolicyBinding":
            wanted = {("ValidatingAdmissionPolicy", one["spec"]["policyName"])}
        elif one["kind"].endswith("Binding"):
            wanted = {(one["roleRef"]["kind"], one["roleRef"]["name"])}
            wanted |= {(s["kind"], s["name"]) for s in one["subjects"]}
        if one["kind"] in ("Deployment", "DaemonSet"):
            spec = one["spec"]["template"]["spec"]
            wanted = {("ServiceAccount", spec["serviceAccountName"])}
            wanted |= {("ConfigMap", v["configMap"]["name"]) for v in spec["volumes"] if "configMap" in v}
            wanted |= {("Secret", v["secret"]["secretName"]) for v in spec["volumes"] if "secret" in v}
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            ports = {p["name"] for c in spec["containers"] for p in c.get("ports", ())}
            probes = [
                c[p] for c in spec["containers"] for p in c if p.endswith("Probe") and "httpGet" in c[p]
            ]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
        assert wanted <= made | theirs, one["metadata"]["name"]


def ingress(text: str, name: str) -> list[dict[str, Any]]:
    policy = find(text, "NetworkPolicy", name)["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    return list(policy["ingress"])


@pytest.mark.parametrize("mode", ["bundled", "extender", "own"])
def test_the_network_policy_lets_in_what_is_served_and_nothing_else(mode: str) -> None:
    """And its selectors are those of the pods, or it would protect nothing."""
    text = render(Case({"scheduler": {"mode": mode}}))
    for kind, name in (("Deployment", "gpuslice-scheduler"), ("DaemonSet", "gpuslice-agent")):
        spec = find(text, kind, name)["spec"]
        assert (
            find(text, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]
            == spec["selector"]["matchLabels"]
        )
        ours = spec["template"]["spec"]["containers"][0]
        served = {port["containerPort"] for port in ours["ports"]}
        rules = ingress(text, name)
        assert {port["port"] for rule in rules for port in rule["ports"]} == served
        # The API server, kube-scheduler and Prometheus may be anywhere.
        assert not any("from" in rule for rule in rules)


def test_the_network_policy_can_be_narrowed_and_left_out() -> None:
    text = render(CASES["extender"])
    control, metrics = ingress(text, "gpuslice-scheduler")
    assert control["from"] == [{"ipBlock": {"cidr": "192.0.2.0/28"}}]
    assert metrics["from"] == ingress(text, "gpuslice-agent")[0]["from"] != control["from"]
    assert "NetworkPolicy" not in render(Case({"networkPolicy": {"enabled": False}}))
    with pytest.raises(Refused, match="at '/networkPolicy/metricsFrom/0'"):
        render(Case({"networkPolicy": {"metricsFrom": [{"cidr": "192.0.2.0/28"}]}}))


def test_credentials_that_are_asked_for_are_mounted_where_the_commands_read_them() -> None:
    text = render(Case({"webhook": {"clientCASecret": "theirs"}, "metrics": {"tokenSecret": "scraper"}}))
    wanted = {"--webhook-client-ca=": "theirs", "--metrics-token-file=": "scraper"}
    for kind, name, options in (
        ("Deployment", "gpuslice-scheduler", wanted),
        ("DaemonSet", "gpuslice-agent", {"--metrics-token-file=": "scraper"}),
    ):
        pod = find(text, kind, name)["spec"]["template"]["spec"]
        ours = pod["containers"][0]
        mounts = {one["mountPath"]: one["name"] for one in ours["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        for option, secret in options.items():
            (path,) = [
                argument.removeprefix(option) for argument in ours["args"] if argument.startswith(option)
            ]
            folder, _, file = path.rpartition("/")
            volume = volumes[mounts[folder]]["secret"]
            assert volume == {"secretName": secret, "items": [{"key": file, "path": file}]}


def test_nobody_but_a_named_client_can_ask_the_extender_to_bind() -> None:
    """Beside a kube-scheduler on loopback, alone with a certificate; nowhere open."""
    for name in CASES:
        pod = find_extender(render(CASES[name]))
        if pod is None:
            continue
        assert "--open" not in pod["args"]
        (listen,) = [one for one in pod["args"] if one.startswith("--listen=")]
        asks = any(one.startswith("--client-ca=") for one in pod["args"])
        assert asks or listen.startswith("--listen=127.0.0.1:")


def find_extender(text: str) -> dict[str, Any] | None:
    for one in objects(text):
        for container in one["spec"]["template"]["spec"]["containers"] if one["kind"] == "Deployment" else ():
            if container["name"] == "extender":
                return dict(container)
    return None
