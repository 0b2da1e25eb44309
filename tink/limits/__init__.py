"""How much of something there may be: shares, rates, delays between attempts. Pure; the clock is the caller's."""
