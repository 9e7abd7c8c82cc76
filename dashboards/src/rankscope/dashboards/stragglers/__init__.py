"""View of imposed waits: origins, victims, causes; ``hosts`` has the same with one row per host."""
