"""Who may speak for a machine.

directory      which machine an agent means by its id
auth           what a call shows, held against the machine that it names
call_metadata  what an agent says of itself beside the message of a call
tokens, tls    tokens, and certificates: what they are, and whether they are good
"""
