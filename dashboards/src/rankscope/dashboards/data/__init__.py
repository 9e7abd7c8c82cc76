"""Where the pages get runs from: the ``RunSource`` protocol and run directories on disk."""
