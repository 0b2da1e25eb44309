"""The server: agents get their Workflows from it and report what became of them.

observation   what the server tells the floor above about agents
agents        who an agent is, and whether it may speak for a machine
workflows     the Workflows of each machine, in the order of their creation
dispatch      which command an agent gets next (pure)
events        what becomes of Workflows, written into their status
wire          between the messages of proto/workflow.proto and the state machine
streams       one agent's command stream
reboots       agents that went with their machines, as the last action wanted
crowd         how many calls are served at once, of one address and of all
connections   which connections may stay (pure)
sockets       gRPC's connections as the kernel knows them
guard         looks after the connections, and ends those that may not stay
server        the gRPC service
"""
