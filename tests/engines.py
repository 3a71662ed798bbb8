"""A run that is prepared on engines of all kinds, to compare its digests."""

TEXTS = '[[corpus.sources]]\nreader = "text"\npath = "texts"'


def configuration(sources: str = TEXTS) -> str:
    """Its configuration: every stage of preparation, with near-duplicates."""
    return f"""
name = "engines"
{sources}
[corpus]
heldout_share = 0.2
[dedup.near_duplicates]
[vocabulary]
size = 300
"""
