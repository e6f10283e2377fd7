"""Every resource, annotation, label and environment name, in one place.

The `aliyun.com` and `ALIYUN_COM_*` names are gpushare's (AliyunContainerService/gpushare-*),
kept letter for letter so that its manifests, clients and running pods keep their meaning.
"""

from __future__ import annotations

from typing import Final

# --- extended resources -----------------------------------------------------------------------
GPU_MEM: Final = "aliyun.com/gpu-mem"
"""Shares of one GPU's memory; one unit is what the node says it is (`MEMORY_UNIT`)."""
GPU_COUNT: Final = "aliyun.com/gpu-count"
"""How many physical GPUs a node has: informative, as in gpushare."""
WHOLE_GPU: Final = "nvidia.com/gpu"
"""Whole GPUs, as NVIDIA's device plugin names them."""
SHARED_GPU: Final = "nvidia.com/gpu.shared"
"""Replicas of whole GPUs, where NVIDIA's `renameByDefault` is set."""
MIG_PREFIX: Final = "nvidia.com/mig-"
"""MIG devices of the `mixed` strategy: followed by the profile, with `+` written as `.`."""

# --- gpushare's pod annotations (and, with the same names, environment variables) ---------------
MEM_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
"""Decimal index of the one GPU that the pod is on."""
MEM_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
"""Units that the whole pod holds."""
MEM_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
"""Units that the GPU has."""
MEM_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
""" "false" from bind on, "true" once the node has handed the GPU out."""
MEM_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""Unix nanoseconds, decimal."""
MEM_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
"""Environment only: units that this container holds."""
GPUSHARE_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
"""gpushare 2.0: JSON {"<container index>": {"<GPU index>": units}}; several GPUs or containers."""
GPUSHARE_ANNOTATIONS: Final = (MEM_IDX, MEM_POD, MEM_DEV, MEM_ASSIGNED, MEM_ASSUME_TIME)
"""All that gpushare writes to a pod at bind."""

# --- our own pod annotations --------------------------------------------------------------------
ALLOCATION: Final = "gpuslice.io/allocation"
"""The authoritative record: JSON {"<container name>": {"<GPU uuid>": MiB}} (`requests.allocation`)."""
SHARES_ACROSS: Final = "gpuslice.io/gpus-per-container"
"""Asked by the user: spread each container's gpu-mem evenly over this many GPUs."""

DRIVER_LIBRARIES: Final = "gpuslice.io/driver-libraries"
"""Asked by the user, "true": containers of the pod that ask for no GPU get the driver's libraries, no GPU."""

BIND_FENCE: Final = "gpuslice.io/bind-fence"
"""Written to a pod whose binding was lost on its way, so that it cannot arrive any more: when that was."""

WOKEN: Final = "gpuslice.io/woken"
"""Written to a waiting pod so that kube-scheduler tries it again: when that was."""

PREVIOUS_ARGUMENTS: Final = "gpuslice.io/previous-arguments"
"""Annotation of kube-scheduler's static pod: the arguments that ours took the place of, one per line."""

# --- node annotations and labels ----------------------------------------------------------------
NODE_GPUS: Final = "gpuslice.io/gpus"
"""JSON list of the node's GPUs, published by the agent (`devices.inventory`)."""
MEMORY_UNIT: Final = "gpuslice.io/memory-unit"
"""What one unit of gpu-mem is on this node: "GiB", "MiB" or a chunk such as "256MiB"."""
LABEL_GPUSHARE: Final = "gpushare"
"""Node label of gpushare's DaemonSet selector: "true" joins the pool."""
LABEL_LEADER: Final = "gpuslice.io/leader"
"""Label of our own pods: "true" on the replica that acts, for a Service to select it by."""
LABEL_GPU_MEMORY: Final = "gpuslice.io/gpu.memory"
"""Node label: what one nvidia.com/gpu holds, rounded as vGPU types are: "4GB" (`devices.labels`)."""
LABEL_GPU_MEMORY_MIB: Final = "gpuslice.io/gpu.memory-mib"
"""The same in MiB, a bare number for `Gt` and `Lt`."""
LABEL_DISABLE_ISOLATION: Final = "cgpu.disable.isolation"
"""Node label; "true" makes the agent add CGPU_DISABLE=true to containers."""

# --- how a node's GPUs are partitioned --------------------------------------------------------------------
MIG_CONFIG: Final = "nvidia.com/mig.config"
"""Node label: how the node's GPUs are to be partitioned (mig-manager's)."""
MIG_CONFIG_STATE: Final = "nvidia.com/mig.config.state"
"""Node label: how far that is: pending, success, failed."""
MIG_CONFIG_REASON: Final = "gpuslice.io/mig-config-reason"
"""Node annotation: why the state is what it is, if it is not success."""
MIG_POLICY: Final = "gpuslice.io/mig-policy"
"""Node label: who decides how its GPUs are partitioned (`cluster.migrecords.MigPolicy`)."""
MIG_PARTITIONS: Final = "gpuslice.io/mig"
"""Node annotation, where pods decide: what can be partitioned and what is, published by the agent."""
MIG_WANTED: Final = "gpuslice.io/mig-wanted"
"""Node annotation, where pods decide: how the GPUs are to be, for the agent."""
MIG_STRATEGY: Final = "gpuslice.io/mig-strategy"
"""Node label: how the node's agent counts MIG devices (none, single, mixed); it beats the agent's option."""
DEVICE_PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
"""Node label: the name of the device plugin configuration that the node is to have (NVIDIA's)."""
DEVICE_CONFIG: Final = "gpuslice.io/device-plugin-config"
"""Node annotation: the name of the device plugin file that counts, by NVIDIA's label or without it."""
DEVICE_CONFIG_REASON: Final = "gpuslice.io/device-plugin-config-reason"
"""Node annotation: why the file that should count does not."""

# --- what NVIDIA's own programs write or read -------------------------------------------------------
GFD_TIMESTAMP: Final = "nvidia.com/gfd.timestamp"
"""Node label: NVIDIA's own feature discovery labels the node, or did: it stays when that has gone."""
GPU_PRESENT: Final = "nvidia.com/gpu.present"
"""Node label, "true" by the GPU operator: the machine has NVIDIA's GPUs."""
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
"""Node label: the GPUs' model."""
NVIDIA_MIG_MANAGER: Final = "nvidia.com/gpu.deploy.mig-manager"
"""Node label, "true" by the GPU operator: NVIDIA's mig-manager partitions this node's GPUs, so we do not."""
NVIDIA_MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
"""Node label: how MIG devices are counted there (none, single, mixed), written by who labels the node."""

# --- node pools -----------------------------------------------------------------------------------
POOL_GROUP: Final = "gpuslice.io"
"""API group of GPUNodePool."""
POOL: Final = "agentpool"
"""Node label: the pool that it belongs to, as AKS has it."""
AKS_POOL: Final = "kubernetes.azure.com/agentpool"
"""The same under its full name."""
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
"""Node label: the machine's type, such as Standard_ND96asr_v4."""
POOL_RECORD: Final = "gpuslice.io/node-pool"
"""Node annotation: which pool dressed the node and in what, so that it can be taken off again (JSON)."""

# --- words of Kubernetes itself --------------------------------------------------------------------
MIRROR_POD: Final = "kubernetes.io/config.mirror"
"""Annotation of a pod that only tells of one that kubelet has started from a file."""

# --- what nodes and pods were told before device plugins (Kubernetes 1.6 to 1.9) -------------------
HISTORICAL_GPU: Final = "alpha.kubernetes.io/nvidia-gpu"
"""Whole GPUs, when kubelet itself counted them. No node has had them since Kubernetes 1.11."""
HISTORICAL_GPU_NAME: Final = "alpha.kubernetes.io/nvidia-gpu-name"
"""Node label: the GPU's model, as the documentation had administrators set it."""
HISTORICAL_AFFINITY: Final = "scheduler.alpha.kubernetes.io/affinity"
"""Pod annotation: JSON of what is `spec.affinity` since Kubernetes 1.6."""

# --- environment of a container -----------------------------------------------------------------
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""Which GPUs NVIDIA's container runtime shows a container: UUIDs, `all`, or `void` for none."""
CGPU_DISABLE: Final = "CGPU_DISABLE"
"""gpushare's: "true" where cGPU must not isolate the container."""
SLICE_DIR_IN_CONTAINER: Final = "/run/gpuslice"
"""Where the container finds `slice.json`: what it holds, written once its identity is certain."""

# --- other names --------------------------------------------------------------------------------
SCHEDULER_NAME: Final = "gpuslice"
"""spec.schedulerName of pods that our own scheduler places."""
UNHEALTHY_CONDITION: Final = "GPUUnhealthy"
"""Type of the node's condition that names its sick GPUs."""
UNHEALTHY_NAMESPACE: Final = "kube-system"
"""Where the ConfigMaps of sick GPUs are."""
UNHEALTHY_PREFIX: Final = "unhealthy-gpu-"
"""ConfigMap kube-system/unhealthy-gpu-<node>, key `gpus` = "0,2": GPUs that must get no new pod."""
UNHEALTHY_KEY: Final = "gpus"
"""Its key."""
EXTENDER_PREFIX: Final = "/gpushare-scheduler"
"""Before every path of the extender."""
WEBHOOK_PATH: Final = "/mutate"
"""Where the API server sends AdmissionReviews of new pods."""

# --- simulation -----------------------------------------------------------------------------------
RUN_SECONDS: Final = "gpuslice.io/run-seconds"
"""Pod annotation, simulated kubelet only: the pod's containers end after that many seconds."""
EXIT_CODE: Final = "gpuslice.io/exit-code"
"""Pod annotation, simulated kubelet only: the exit code they end with (default 0)."""
IGNORE_TERM: Final = "gpuslice.io/ignore-term"
"""Pod annotation, simulated kubelet only, "true": the containers do not end by SIGTERM."""
