"""Serves Tinkerbell's older agents, tink-agent and tink-worker, unmodified and on the same port.

Older agents poll for work and can't be sent commands. They have no token, can't stop a Workflow, and give no reason for
a failure. Their calls are translated into the events and commands of the current protocol: the state machine and the
dispatch see an agent whose command stream lasts as long as its poll.

- messages  Workflows in the older protocols, and older reports as events; pure
- service   polls, sessions, machine attributes, and the gRPC methods
"""
