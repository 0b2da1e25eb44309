"""Where the parts are put together: `stack` starts everything, `serving` what machines talk to, by the `settings`.

Around it, what such a process needs of its host: interfaces (`host`), memory (`heap`), log lines (`logs`), the token of
the operators' port (`admin_token`), and what would keep it from serving (`doctor`). The command line is what uses it.
"""
