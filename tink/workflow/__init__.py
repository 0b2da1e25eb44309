"""The state machine of Workflows, shared by controller and server. Pure: objects and a clock go in, a status comes out.

- table   states, causes, transitions, and the component that may write each: begin here
- events  events with their facts
- machine applies an event to a Workflow: the only way to a new status
- guards  predicates on Workflows beside the state: paused, held, unconfirmed, ...; and the finalizer
- status  reads and writes the fields of `.status`; reasons; the text of the column MESSAGE
- ended   the few bytes that a process stores of an ended Workflow
"""
