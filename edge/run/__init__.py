"""Where the parts are put together: `stack` starts everything, `serving` what machines talk to, by the `settings`.

Around it, what such a process needs of its host: interfaces (`host`, `networks`), log lines (`logs`), its life as a
service (`process`), the token of the operators' port (`admin_token`), and what would keep it from serving (`doctor`,
`checks`). The command line is what uses it.
"""
