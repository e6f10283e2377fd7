"""The one engine: does it fit, where is it best, which GPU. Pure.

Extender, scheduler, agent, inspect and explain all ask here; no rule of placement is written anywhere else.
"""
