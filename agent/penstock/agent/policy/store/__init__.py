"""policy.db: generations, the audit log, its bound."""
