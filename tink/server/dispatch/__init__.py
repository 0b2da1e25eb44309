"""Which command an agent gets next, and what it means that none is there to get it.

decision  what to do for one machine's agent (pure)
stream    one agent's command stream, which does it
streams   those of all agents that are connected
reboots   agents that went with their machines, as the last action wanted
"""
