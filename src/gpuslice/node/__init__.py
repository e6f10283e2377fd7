"""The node agent: device plugins that know which container has which slice, and the only package that uses
gRPC.
"""
