"""Tinkerbell's older agents, unmodified, on the port of today's: tink-agent and tink-worker.

They ask, and nobody can tell them anything unasked; they know no Workflow that is stopped, no token, and no reason of a
failure. What they say is translated into the events and commands that there are: to the state machine and to the
dispatch of Workflows they are agents like others, each with a command stream as long as it asks for work (`polls`).

    messages       Workflows in their words, and their reports in ours; pure
    polls          what a machine's agent is to do next, or a wait for that
    sessions       which agent of which machine is there, for the journey
    attributes     what tink-agent says of its machine, kept on the Hardware
    service        their methods
"""
