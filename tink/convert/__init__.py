"""Convert older and foreign resources to today's: Tinkerbell v1alpha1, the first revision of v1alpha2, Metal3's hosts.

The path of an object:

1. `documents` reads it from a file, or `cluster` from a live API, and records where it stood.
2. `run` chooses the converter by apiVersion and kind: `v1alpha1`, `v1alpha2` or `metal3`.
3. The converter reads the object through `fields`, which reports the fields that the converter did not read. It asks
   `constraints` which values today's API accepts, and records in `findings` what it could not carry over.
4. `documents` writes the result as YAML or JSON. `run` also shows the findings, as a table or as JSON.

All of it is pure, except for opening files and for `cluster`. The shell is `edge.commands.convert`.
"""
