"""From collectives of single ranks to matched ones on a common clock: who waited for whom."""
