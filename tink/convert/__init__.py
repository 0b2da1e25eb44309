"""Older and foreign resources to those of today: Tinkerbell's v1alpha1, v1alpha2's first revision, Metal3's hosts.

The way of an object: `documents` reads it from a file (`cluster`: from a live API) and knows where it stood; `run` asks
`registry` for the converter of its apiVersion and kind; the converter, in `v1alpha1`, `v1alpha2` or `metal3`, reads it
through `fields`, which notices what nobody looked at, asks `constraints` what today's API takes, and tells `findings`
what could not be carried over; `documents` makes YAML or JSON of the result, `report` a table of the findings. All of
it is pure but for the opening of files and for `cluster`: `edge.commands.convert` is the shell.

Doors: `documents`, `metal3`, `v1alpha1` and `v1alpha2` are entered by what their `__init__` exports.
"""
