"""The scheduler extender: what kube-scheduler asks over HTTP, answered as gpushare's extender did."""
