"""Functions of Sprig that templates here do not have, with the reason."""

from __future__ import annotations

from typing import Final

_NOT_HERMETIC: Final = """
date dateInZone dateModify date_in_zone date_modify env expandenv getHostByName htmlDate htmlDateInZone now randAlpha
randAlphaNum randAscii randBytes randNumeric uuidv4
"""
_RANDOM: Final = """
bcrypt encryptAES genCA genCAWithKey genPrivateKey genSelfSignedCert genSelfSignedCertWithKey genSignedCert
genSignedCertWithKey htpasswd randInt shuffle
"""
_DATES: Final = "mustDateModify mustToDate must_date_modify toDate unixEpoch"

LEFT_OUT: Final[dict[str, str]] = {
    **dict.fromkeys(_NOT_HERMETIC.split(), "not hermetic, Sprig says"),
    **dict.fromkeys(_RANDOM.split(), "random: every rendering would give another result"),
    **dict.fromkeys(_DATES.split(), "makes or takes a time.Time, which no JSON-like value is"),
    "ago": "depends on the clock",
    "buildCustomCert": "only of use with the generators of certificates",
    **dict.fromkeys(("contains", "hasPrefix", "hasSuffix"), "Tinkerbell's own have the name, and take the text first"),
    "slice": "Go's own slice stays, which takes texts, too; mustSlice is Sprig's",
}
"""Functions of Sprig that are missing here, with the reason."""
