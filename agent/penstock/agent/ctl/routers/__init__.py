"""``agentctl routers``: what the feed for routers says, in the forms that routers take."""
