"""An embedded Kubernetes API server: small, in memory, honest enough that kubectl cannot tell.

`app.ApiServer` is the whole of it. One request goes `asgi` or `transport` -> `app` (which route) ->
`rest` (which verb) -> `strategy` (defaults, validation, what a kind may change) -> `admission`
(webhooks) -> `store` (commit, watchers).
"""

from gpuslice.local.apiserver.app import ApiServer

__all__ = ["ApiServer"]
