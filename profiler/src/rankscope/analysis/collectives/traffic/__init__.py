"""Traffic of collectives: their messages, the kinds of data in them, and the rates of links."""
