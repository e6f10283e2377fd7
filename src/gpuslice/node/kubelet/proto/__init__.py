"""Wire formats of the kubelet's two gRPC APIs and the code generated from them.

Made by `python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gpuslice/node/kubelet/proto/*.proto` in
`src/`; `tests/kubelet/test_gencode.py` checks that nobody edited it. Only `node.kubelet.wire` reads it.
"""
