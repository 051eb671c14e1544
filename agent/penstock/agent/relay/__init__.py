"""``penstock-relay``: the admin service of many agents at one address."""
