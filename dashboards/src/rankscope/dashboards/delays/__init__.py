"""View of imposed waits: origins, victims, causes."""
