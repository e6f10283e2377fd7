"""The one door to Kubernetes: wire structs, a typed client over a transport, the reflector.

Nothing else imports the Kubernetes client library. The transport is the only seam: `http` speaks to a
real API server, `gpuslice.local` plugs in its embedded one, and everything above cannot tell.
"""
