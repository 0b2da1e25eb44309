"""Metal3's hosts on a live API: served in both versions, moved from one to the other as what is stored, made Hardware.

`review` and `webhook` are the conversion webhook of BareMetalHost, `definition` is what its CustomResourceDefinition
says of versions, `migration` moves what is stored to v1beta1. `following` finds out which version is served and runs
the `controller`, whose `reconciler` says what has to be done about one host. What becomes of it: `tink.convert`.
"""
