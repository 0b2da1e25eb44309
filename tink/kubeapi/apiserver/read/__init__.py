"""Lists and watches: `lists` reads them, `broadcaster` hands changes to the watches that are open."""

from tink.kubeapi.apiserver.read.broadcaster import Broadcaster
from tink.kubeapi.apiserver.read.lists import Change, Listing, Lists, select

__all__ = ["Broadcaster", "Change", "Listing", "Lists", "select"]
