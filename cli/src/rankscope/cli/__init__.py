"""The ``rankscope`` command. Only this package imports all parts."""
