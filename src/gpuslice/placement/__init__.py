"""The one placement engine: whether a pod fits, where best, and on which GPU. Pure.

Extender, scheduler, agent, inspect and explain all call it; no rule of placement is written anywhere else.
"""
