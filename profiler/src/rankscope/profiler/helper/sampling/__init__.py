"""Samples beside the steps: the host's GPUs, and the Python stack of the training thread.

``hardware`` reads the ``exporter_page``, in one helper per host (``host_lock``). ``stacks`` runs py-spy; ``stack_lines`` turns
its samples into lines of code, ``loaders`` says which threads and processes load data.
"""
