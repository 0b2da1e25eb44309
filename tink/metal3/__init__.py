"""Metal3's hosts on a live API: the conversion webhook, the migration of stored hosts, and the controller that makes
Hardware.

`review` and `webhook` are the conversion webhook of BareMetalHost. `definition` has the patches of its
CustomResourceDefinition. `migration` moves stored hosts to v1beta1, and `compare` shows what that changes. `controller`
follows the hosts in the version that is served, and `reconciler` brings the Hardware of one host in step. The
conversions themselves are in `tink.convert.metal3`.
"""
