"""Backups of a data directory: one file with all irreplaceable data.

contents     the files of a data directory that belong to a backup
archive      the file: a gzipped tar whose first member lists the others, with sizes and SHA-256
encryption   encryption with a passphrase in the format of age (C2SP, age-encryption.org/v1)
creation     creates a backup while everything runs
restoration  checks everything before it replaces anything; holds Workflows that may have run since
"""
