"""Backups of a data directory: one file with all that can't be made anew, and what it takes to go on from it.

contents     what of a data directory belongs to a backup
archive      the file: a gzipped tar whose first member says what follows, with sizes and SHA-256
encryption   the same, encrypted with a passphrase in the format of age (C2SP, age-encryption.org/v1)
creation     a backup, while everything runs
restoration  everything is read and checked before anything is put in its place; what may have run since is held
"""

from tink.backup.archive import ArchiveError
from tink.backup.contents import foreign
from tink.backup.creation import BackupError, create
from tink.backup.encryption import EncryptionError, decrypted, encrypted, is_encrypted
from tink.backup.restoration import Restored, RestoreError, restore, salvage

__all__ = [
    "ArchiveError",
    "BackupError",
    "EncryptionError",
    "RestoreError",
    "Restored",
    "create",
    "decrypted",
    "encrypted",
    "foreign",
    "is_encrypted",
    "restore",
    "salvage",
]
