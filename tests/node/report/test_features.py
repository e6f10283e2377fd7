"""Labels for Node Feature Discovery: the file of its worker, the object of its master."""

from __future__ import annotations

from gpuslice.node.report.features import feature_file, node_feature

LABELS = {
    "nvidia.com/gpu.product": "Tesla-T4",
    "nvidia.com/gpu.count": "2",
    "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4",
    "gpuslice.io/gpu.memory": "15GB",
}


def test_the_file_has_a_line_for_each_label_that_nfd_takes() -> None:
    assert feature_file(LABELS) == (
        "gpuslice.io/gpu.memory=15GB\nnvidia.com/gpu.count=2\nnvidia.com/gpu.product=Tesla-T4\n"
    )


def test_the_object_is_that_of_feature_discovery() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": "u"}
    assert node_feature(LABELS, "gpu-1", "gpuslice", [owner]) == {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": "nvidia-features-for-gpu-1",
            "namespace": "gpuslice",
            "labels": {"nfd.node.kubernetes.io/node-name": "gpu-1"},
            "ownerReferences": [owner],
        },
        "spec": {
            "labels": {
                "gpuslice.io/gpu.memory": "15GB",
                "nvidia.com/gpu.count": "2",
                "nvidia.com/gpu.product": "Tesla-T4",
            }
        },
    }
    assert "ownerReferences" not in node_feature(LABELS, "gpu-1", "gpuslice")["metadata"]
