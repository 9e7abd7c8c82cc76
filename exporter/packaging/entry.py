"""Where the self-contained build begins: the ``rankscope`` command, with the one verb that is inside."""  # noqa: INP001  a script

from rankscope.cli.main import VERBS, main

for verb in set(VERBS) - {"exporter"}:
    del VERBS[verb]
main()
