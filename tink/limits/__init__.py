"""How much of something there may be: shares, rates, delays between attempts, places. The clock is the caller's.

allowance      so much for each and so much for all in an interval
token_bucket   so often, by key
once_per       each key once in an interval; so many keys in all, and so many of one owner
log            lines of a log, bounded by that
backoff        growing delays between attempts
newest         what came last, and no more entries than so many
semaphore      so many at once, and who of those that wait is next
fairness       those that wait take turns, namespace by namespace
"""
