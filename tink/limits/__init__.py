"""Limiters: shares, rates, delays between attempts, and places. The caller passes the clock.

allowance      a limit for each key and a limit in all, in an interval
token_bucket   a rate and a burst, by key
once_per       each key once in an interval; a maximum number of keys, in all and of one owner
log            log lines at a bounded rate
backoff        growing delays between attempts
newest         mappings of bounded size that drop old entries
fairness       queues and semaphores that serve namespaces in turn, or waiters by priority
"""
