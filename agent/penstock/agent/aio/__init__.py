"""Four small asyncio tools that the standard library lacks."""
