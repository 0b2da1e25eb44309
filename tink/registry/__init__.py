"""The registry client's decisions: names, logins, and the manifest for a machine. No sockets.

The agent (`tink.agent.images`) and the action image2disk both use it, each with an HTTP transport of its own.
`deploy/actions/build.sh` copies this package into the action's image, so it imports the standard library alone.

    names        names of registries and images, normalised
    login        answers to 401: challenges, credentials, tokens
    manifests    from a tag or digest to one manifest, through indexes

Sources: OCI distribution specification 1.1, OCI image specification 1.1, RFC 9110 section 11, distribution's token
authentication, containerd's platform rules.
"""
