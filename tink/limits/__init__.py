"""Limiters: shares, rates, delays between attempts, and places. The caller passes the clock.

allowance      a limit for each key and a limit in all, in an interval
token_bucket   a rate and a burst, by key
once_per       each key once in an interval; a maximum number of keys, in all and of one owner
log            log lines at a bounded rate
backoff        growing delays between attempts
newest         a dictionary of bounded size that drops the oldest entry
semaphore      a maximum number at once, and the order of the waiting
fairness       turns between namespaces
"""
