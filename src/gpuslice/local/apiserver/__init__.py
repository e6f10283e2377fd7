"""An embedded Kubernetes API server: small, in memory, honest enough that kubectl cannot tell.

`api.app.ApiServer` is the whole of it. One request goes `asgi` or `transport` -> `app` (which route) ->
`rest` (which verb) -> `strategy` (defaults, validation, what a kind may change) -> `admission`
(webhooks) -> `store` (commit, watchers). What objects are and become is in `schema`, what of them is
shown in a terminal in `print`.
"""
