"""The ``rankscope`` command. The only place where the parts meet."""
