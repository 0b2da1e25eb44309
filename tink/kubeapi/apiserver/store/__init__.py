"""Objects and their history in one SQLite file, with a watch history like etcd's.

`object_store` is the entry: reads and writes for the event loop, done by threads (`history`) behind a cache. `objects`
are the values that go in and out. `database` opens the file and creates its tables. `integrity` finds damage, and reads
files that can't be written. `snapshots` are copies for backups.
"""
