"""Moves all objects from one Kubernetes API to another, such as from the embedded one to a cluster, and back.

objects   the changes of one object during a move, pure
mover     the steps; a move can be killed at any point and run again
"""
