"""The scheduler extender: answers kube-scheduler's HTTP requests as gpushare's extender did."""
