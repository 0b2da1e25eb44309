"""Older and foreign resources to those of today: Tinkerbell's v1alpha1, v1alpha2's early revision, Metal3's hosts.

The way of an object: `documents` reads it from a file and knows where it stood; `run` picks the converter by its
apiVersion and kind; the converter (`hardware`, `template`, `workflow`, `early`, `to_hardware`, `baremetalhost`) reads
it through `fields`, which notices what nobody looked at, and tells `report` what could not be carried over; `writer`
makes YAML or JSON of the result. All of it is pure but for the opening of files: `edge.commands.convert` is the shell.
"""
